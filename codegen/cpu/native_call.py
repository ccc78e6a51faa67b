"""The Python-callable form of `@run`: a builtin that reads tensors itself, so that a call costs no Python per tensor.

    ptr @call(ptr %self, ptr %arguments, i64 %count)        (CPython's METH_FASTCALL)

The arguments are the temporary arena, the saved arena (or None), then the program's arguments; where saved values are
in the arena they are left out, and the sizes that only they show follow. Gives the list of results that the caller
keeps; None where anything about an argument is not as compiled (Python then looks closer); a pair (status, error word)
where the program failed. What tensors look like inside is known to `isthmus_*` functions of the runtime alone: tables
tell them what this program expects.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import cast

from isthmus import ir
from isthmus.codegen.cpu.dispatch import SCALAR_TYPES
from isthmus.codegen.cpu.dispatch_keys import exclude_keys, include_keys
from isthmus.codegen.cpu.sizes import SizeValues
from isthmus.codegen.llvm_text import I1, I32, I64, PTR, Function, Module, Value
from isthmus.dialects.native_facts import NativeFacts
from isthmus.dialects.program import Buffer, KernelCall, LibraryCall, Loop, Program, flat
from isthmus.sizes import Dim, Size

PROGRAM_NUMBER = "isthmus_program_number"
RESULT_MEMORY = "isthmus_result_memory"
"""The address of the pool that large results get their memory from; 0: there is none."""

_SMALL = 1 << 18
"""Bytes that a program may touch while it holds the GIL (about 50 us)."""


def has_call(program: Program) -> bool:
    """Whether the builtin can give all that the program makes: no saved value outlives it but in the arena."""
    kept = {b.place for b in program.results[: program.kept]}
    others = program.results[program.kept :]
    return all(b.place.kind in ("argument", "saved") or b.place in kept for b in others)


def emit_call(module: Module, program: Program, facts: NativeFacts) -> None:
    """Write `@call` into the module of `@run`."""
    Call(module, program, facts).emit()


class Call:
    """`@call` under construction."""

    leading = 2
    """Arguments before those of the program: the arenas."""
    reuses = True
    """Whether large results get memory that earlier ones have left."""
    constants: tuple[str, ...] = ()
    """Words that the runtime fills in once, beside the program's number."""

    def __init__(self, module: Module, program: Program, facts: NativeFacts) -> None:
        self._module, self._program, self._facts = module, program, facts
        self._f = Function(module, "call", [("self", PTR), ("arguments", PTR), ("count", I64)], result=PTR)
        self._symbols: dict[str, Value] = {}
        self._size = SizeValues(self._f, self._symbols)
        self._reads_arena = any(a.saved is not None for a in program.arguments)
        self._passed = {k: n for n, k in enumerate(k for k, a in enumerate(program.arguments) if a.saved is None)}
        self._tables = 0
        reused = (RESULT_MEMORY,) if self.reuses else ()
        for name in (PROGRAM_NUMBER, *reused, *self.constants):
            module.global_text(f"@{name} = global i64 0")

    def emit(self) -> None:
        """Write the function."""
        f, program = self._f, self._program
        extra = program.extra_sizes if self._reads_arena else ()
        self._require(f.compare("eq", f.arguments[2], self.leading + len(self._passed) + len(extra)))
        objects = f.address(f.arguments[1], self.leading, "ptr")
        self._read_sizes(objects)
        pointers = f.slot(PTR, max(1, len(program.arguments)), align=8)
        expected = self._table(self._expected())
        self._require(f.call("isthmus_read", I1, objects, expected, pointers))
        temporary, saved = self._arena(0, program.temporary_bytes), self._saved_arena()
        for k, argument in enumerate(program.arguments):
            if argument.saved is not None:
                f.store(f.address(saved, self._size(argument.saved), "i8"), f.address(pointers, k, "ptr"))
        self._run(objects, pointers, temporary, saved)

    def _require(self, condition: Value) -> None:
        """Go on only where `condition` holds; else Python looks closer."""
        label = self._f.label("fits")
        self._f.line(f"br {condition!r}, label %{label}, label %slow")
        self._f.start(label)

    # ---- what is expected

    def _read_sizes(self, objects: Value) -> None:
        f = self._f
        hidden = {source.name: len(self._passed) + n for n, source in enumerate(self._program.extra_sizes)}
        for source in self._program.symbols:
            in_arena = self._reads_arena and source.name in hidden
            position = hidden[source.name] if in_arena else self._passed.get(source.argument, source.argument)
            object_ = f.load(f.address(objects, position, "ptr"), PTR)
            if in_arena or source.dimension is None:
                value = f.call("isthmus_integer", I64, object_)
            else:
                value = f.call("isthmus_dimension", I64, object_, f.const(source.dimension, I64))
            self._require(f.compare("sge", value, 0))
            self._symbols[source.name] = value

    def _expected(self) -> list[Dim]:
        """Per tensor: position among objects and among pointers, dtype, item size, rank, sizes, strides (-1: any)."""
        words: list[Dim] = [0]
        for k, position in self._passed.items():
            argument = self._program.arguments[k]
            if argument.is_size:
                continue
            words[0] = cast(int, words[0]) + 1
            words += [position, k, SCALAR_TYPES[argument.dtype], ir.itemsize(argument.dtype), len(argument.shape)]
            words += argument.shape
            words += [-1 if size == 1 else s for size, s in zip(argument.shape, argument.strides, strict=True)]
        return words

    def _made(self) -> dict[int, Buffer]:
        """The results that the caller allocates, by their numbers."""
        return {cast(int, b.place.at): b for b in self._program.results if b.place.kind == "output"}

    def _table(self, words: Sequence[Dim]) -> Value:
        """An array of words: a constant, or a copy of one on the stack in which unknown sizes are filled in."""
        f = self._f
        self._tables += 1
        content = ", ".join(f"i64 {0 if isinstance(w, Size) else w}" for w in words)
        name = f"@t{self._tables}"
        self._module.global_text(f"{name} = private unnamed_addr constant [{len(words)} x i64] [{content}], align 8")
        constant = Value(f, name, PTR)
        unknown = [k for k, word in enumerate(words) if isinstance(word, Size)]
        if not unknown:
            return constant
        table = f.slot(I64, len(words), align=8)
        size, no = f.const(8 * len(words), I64), f.const(0, I1)
        f.call_void("llvm.memcpy.p0.p0.i64", table, constant, size, no)
        for k in unknown:
            f.store(self._size(words[k]), f.address(table, k, "i64"))
        return table

    def _arena(self, position: int, needed: Dim) -> Value:
        """The memory of an arena, which must be large enough."""
        f = self._f
        null = Value(f, "null", PTR)
        if needed == 0:
            return null
        object_ = f.load(f.address(f.arguments[1], position, "ptr"), PTR)
        memory = f.call("isthmus_arena", PTR, object_, self._size(needed))
        self._require(f.compare("ne", memory, null))
        return memory

    def _saved_arena(self) -> Value:
        return self._arena(1, 1 if self._reads_arena else self._program.saved_bytes)

    # ---- the call

    def _run(self, objects: Value, pointers: Value, temporary: Value, saved: Value) -> None:
        f, program, made = self._f, self._program, self._made()
        sizes = self._words([self._symbols[source.name] for source in program.symbols])
        handles = self._handles()
        outputs = f.slot(PTR, max(1, len(program.results)), align=8)
        slots = f.slot(PTR, max(1, len(made)), align=8)
        words: list[Dim] = [len(made)]
        for number, buffer in made.items():
            words += [number, SCALAR_TYPES[buffer.dtype], len(buffer.shape), *buffer.shape, *buffer.strides]
        guard = exclude_keys(f, self._facts)
        if made:
            table = self._table(words)
            enough = f.call("isthmus_make", I1, table, slots, outputs)
            f.line(f"br {enough!r}, label %made, label %unmade")
            f.start("made")
            if self.reuses:
                f.call_void("isthmus_reuse", f.load(Value(f, f"@{RESULT_MEMORY}", PTR), PTR), table, slots, outputs)
        with self._without_gil():
            arguments = (pointers, outputs, temporary, saved, sizes, handles)
            status = f.emit(f"call i32 @run({', '.join(map(repr, arguments))})", I32)
        include_keys(f, guard)
        failed, done = f.label("failed"), f.label("done")
        f.line(f"br {f.compare('ne', status, 0)!r}, label %{failed}, label %{done}")
        f.start(failed)
        word = f.load(f.address(handles, program.handles + 1, "i64"), I64)
        counts = f.const(len(made), I64), f.const(program.handles, I64)
        pair = f.call("isthmus_fail", PTR, status, word, slots, counts[0], handles, counts[1])
        f.line(f"ret {pair!r}")
        f.start(done)
        f.line(f"ret {f.call('isthmus_give', PTR, self._table(self._given(made)), slots, handles, objects)!r}")
        if made:
            f.start("unmade")
            include_keys(f, guard)
            f.line("br label %slow")
        f.start("slow")
        f.finish(f.call("isthmus_decline", PTR))

    def _given(self, made: dict[int, Buffer]) -> list[Dim]:
        """Per result that the caller keeps: made here, by a library call, or an argument; and its number there."""
        words: list[Dim] = [self._program.kept]
        order = {number: k for k, number in enumerate(made)}
        for buffer in self._program.results[: self._program.kept]:
            at = cast(int, buffer.place.at)
            if buffer.place.kind == "output":
                words += [0, order[at]]
            elif buffer.place.kind == "handle":
                words += [1, at]
            else:
                words += [2, self._passed.get(at, 1 - self.leading)]  # a saved one: the arena that it lies in
        return words

    def _handles(self) -> Value:
        """Null for each tensor that library calls make, then the program's number and the error word."""
        f = self._f
        number = f.load(Value(f, f"@{PROGRAM_NUMBER}", PTR), I64)
        zero = f.const(0, I64)
        return self._words([*[zero] * self._program.handles, number, zero, *self._more_words()])

    def _more_words(self) -> list[Value]:
        """What else `@run` is told."""
        return []

    def _words(self, values: Sequence[Value]) -> Value:
        f = self._f
        array = f.slot(I64, max(1, len(values)), align=8)
        for k, value in enumerate(values):
            f.store(value, f.address(array, k, "i64"))
        return array

    @contextmanager
    def _without_gil(self) -> Generator[None]:
        if not self._is_long():
            yield
            return
        state = self._f.call("PyEval_SaveThread", PTR)
        yield
        self._f.call_void("PyEval_RestoreThread", state)

    def _is_long(self) -> bool:
        return _is_long(self._program)


def _is_long(program: Program) -> bool:
    """Whether other Python threads should run meanwhile: a library call, a loop, a cut kernel, many bytes."""
    total = 0
    for step in flat(program.steps):
        if isinstance(step, (LibraryCall, Loop)):
            return True
        if isinstance(step, KernelCall):
            sizes = [buffer.bytes for buffer in step.buffers]
            if step.partitions != 1 or any(isinstance(s, Size) for s in sizes):
                return True
            total += sum(cast("list[int]", sizes))
    return total > _SMALL
