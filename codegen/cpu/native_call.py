"""The Python-callable form of `@run`: a builtin that reads tensors itself, so that a call costs no Python per tensor.

    ptr @call(ptr %self, ptr %arguments, i64 %count)        (CPython's METH_FASTCALL)

The arguments are the temporary arena, the saved arena (or None), then the program's arguments; where saved values are
in the arena they are left out. Gives the list of results that the caller keeps; None where anything about an argument
is not as compiled (Python then looks closer); a pair (status, error word) where the program failed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import cast

from isthmus import ir
from isthmus.codegen.cpu.dispatch import SCALAR_TYPES
from isthmus.codegen.cpu.dispatch_keys import exclude_keys, include_keys
from isthmus.codegen.cpu.sizes import SizeValues
from isthmus.codegen.llvm_text import I32, I64, PTR, Function, Module, Type, Value
from isthmus.dialects.native_facts import NativeFacts, TensorLayout
from isthmus.dialects.program import Argument, Buffer, KernelCall, LibraryCall, Program
from isthmus.sizes import Dim, Size

TENSOR_TYPE = "isthmus_tensor_type"
PARAMETER_TYPE = "isthmus_parameter_type"
PROGRAM_NUMBER = "isthmus_program_number"

I16 = Type.of("i16")
_WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"
"""THPVariable_Wrap(const at::TensorBase&): a new reference to the Python tensor."""
_SMALL = 1 << 18
"""Bytes that a program may touch while it holds the GIL (about 50 us)."""


def has_call(program: Program) -> bool:
    """Whether the builtin can give all that the program makes: no saved value outlives it but in the arena."""
    kept = {b.place for b in program.results[: program.kept]}
    others = program.results[program.kept :]
    return all(b.place.kind in ("argument", "saved") or b.place in kept for b in others)


def emit_call(module: Module, program: Program, facts: NativeFacts) -> None:
    """Write `@call` into the module of `@run`; torch's layout must be known."""
    _Call(module, program, facts).emit()


class _Call:
    def __init__(self, module: Module, program: Program, facts: NativeFacts) -> None:
        assert facts.layout is not None
        self._program, self._facts, self._layout = program, facts, facts.layout
        self._f = Function(module, "call", [("self", PTR), ("arguments", PTR), ("count", I64)], result=PTR)
        self._symbols: dict[str, Value] = {}
        self._tensors: dict[int, Value] = {}
        self._size = SizeValues(self._f, self._symbols)
        for name in (TENSOR_TYPE, PARAMETER_TYPE, "_Py_NoneStruct"):
            module.global_text(f"@{name} = external global i8")
        module.global_text(f"@{PROGRAM_NUMBER} = global i64 0")

    def emit(self) -> None:
        f, program = self._f, self._program
        passed = [(k, a) for k, a in enumerate(program.arguments) if a.saved is None]
        count = f.arguments[2]
        extra = program.extra_sizes if self._reads_arena else ()
        self._require(f.compare("eq", count, 2 + len(passed) + len(extra)))
        for position, source in enumerate(extra, 2 + len(passed)):
            self._symbols[source.name] = self._int(f.load(f.address(f.arguments[1], position, "ptr"), PTR))
        objects: dict[int, Value] = {}
        pointers: dict[int, Value] = {}
        for position, (k, argument) in enumerate(passed):
            objects[k] = f.load(f.address(f.arguments[1], 2 + position, "ptr"), PTR)
            if argument.is_size:
                self._read_size(k, objects[k])
            else:
                pointers[k] = self._read_tensor(k, argument, objects[k])
        self._check_shapes(pointers)
        temporary = self._arena(0, program.temporary_bytes)
        saved = self._arena(1, program.saved_bytes if not self._reads_arena else 1)
        for k, argument in enumerate(program.arguments):
            if argument.saved is not None:
                pointers[k] = f.address(saved, self._size(argument.saved), "i8")
        self._run(pointers, objects, temporary, saved)

    @property
    def _reads_arena(self) -> bool:
        return any(a.saved is not None for a in self._program.arguments)

    # ---- guards

    def _require(self, condition: Value) -> None:
        """Go on only where `condition` holds; else Python looks closer."""
        label = self._f.label("fits")
        self._f.line(f"br {condition!r}, label %{label}, label %slow")
        self._f.start(label)

    def _field(self, base: Value, offset: int, type_: Type) -> Value:
        return self._f.load(self._f.address(base, offset, "i8"), type_)

    def _read_size(self, number: int, object_: Value) -> None:
        """An int argument is the value of a symbol."""
        value = self._int(object_)
        for source in self._program.symbols:
            if source.argument == number:
                self._symbols[source.name] = value

    def _int(self, object_: Value) -> Value:
        """The value of an int that is not negative."""
        f = self._f
        value = f.call("PyLong_AsSsize_t", I64, object_)
        negative = f.compare("slt", value, 0)
        with f.when(negative):
            f.call_void("PyErr_Clear")
        self._require(f.compare("sge", value, 0))
        return value

    def _implementation(self, object_: Value) -> Value:
        """The tensor's implementation, where the object is a Tensor or a Parameter and nothing else."""
        f = self._f
        kind = self._field(object_, 8, PTR)
        plain = f.compare("eq", kind, Value(f, f"@{TENSOR_TYPE}", PTR))
        self._require(plain | f.compare("eq", kind, Value(f, f"@{PARAMETER_TYPE}", PTR)))
        return self._field(object_, self._layout.tensor, PTR)

    def _read_tensor(self, number: int, argument: Argument, object_: Value) -> Value:
        f, layout = self._f, self._layout
        tensor = self._implementation(object_)
        keys = self._field(tensor, layout.keys, I64)
        plain = f.compare("eq", keys, layout.plain_keys[0])
        for other in layout.plain_keys[1:]:
            plain = plain | f.compare("eq", keys, other)
        self._require(plain)
        self._require(f.compare("eq", self._field(tensor, layout.dtype, I16), SCALAR_TYPES[argument.dtype]))
        self._require(f.compare("eq", self._field(tensor, layout.rank, I64), len(argument.shape)))
        for source in self._program.symbols:
            if source.argument == number:
                self._symbols[source.name] = self._dimension(tensor, argument, cast(int, source.dimension), 0)
        offset = self._field(tensor, layout.offset, I64)
        self._tensors[number] = tensor
        return f.address(self._data(tensor), offset * ir.itemsize(argument.dtype), "i8")

    def _data(self, tensor: Value) -> Value:
        return self._field(self._field(tensor, self._layout.storage, PTR), self._layout.data, PTR)

    def _dimension(self, tensor: Value, argument: Argument, dimension: int, which: int) -> Value:
        """Size (which = 0) or stride (1) of a dimension."""
        layout, rank = self._layout, len(argument.shape)
        if rank <= TensorLayout.INLINE_RANK:
            at = layout.inline + 8 * (dimension + which * TensorLayout.INLINE_RANK)
            return self._field(tensor, at, I64)
        table = self._field(tensor, layout.outline, PTR)
        return self._field(table, 8 * (dimension + which * rank), I64)

    def _check_shapes(self, pointers: dict[int, Value]) -> None:
        """Compare every size and stride with what was compiled, symbols with the sizes that they stand for."""
        f = self._f
        for number in pointers:
            argument, tensor = self._program.arguments[number], self._tensors[number]
            for d, (size, stride) in enumerate(zip(argument.shape, argument.strides, strict=True)):
                if not self._defines(number, d):
                    self._require(f.compare("eq", self._dimension(tensor, argument, d, 0), self._size(size)))
                if isinstance(size, Size) or size > 1:
                    have = self._dimension(tensor, argument, d, 1)
                    fits = f.compare("eq", have, self._size(stride))
                    if isinstance(size, Size):  # the stride of a single element is anything
                        fits = fits | f.compare("sle", self._size(size), 1)
                    self._require(fits)

    def _defines(self, number: int, dimension: int) -> bool:
        return any((s.argument, s.dimension) == (number, dimension) for s in self._program.symbols)

    def _arena(self, position: int, needed: Dim) -> Value:
        """The memory of an arena that is large enough."""
        f = self._f
        if needed == 0:
            return Value(f, "null", PTR)
        object_ = f.load(f.address(f.arguments[1], position, "ptr"), PTR)
        tensor = self._implementation(object_)
        if isinstance(needed, Size) or position == 0:
            self._require(f.compare("sge", self._field(tensor, self._layout.inline, I64), self._size(needed)))
        return self._data(tensor)

    # ---- the call

    def _run(self, pointers: dict[int, Value], objects: dict[int, Value], temporary: Value, saved: Value) -> None:
        f, program = self._f, self._program
        arguments = self._array([pointers.get(k) for k in range(len(program.arguments))])
        sizes = f.slot(I64, max(1, len(program.symbols)), align=8)
        for k, source in enumerate(program.symbols):
            f.store(self._symbols[source.name], f.address(sizes, k, "i64"))
        handles = f.slot(I64, program.handles + 2, align=8)
        for k in range(program.handles):
            f.store(f.const(0, I64), f.address(handles, k, "i64"))
        number = f.load(Value(f, f"@{PROGRAM_NUMBER}", PTR), I64)
        f.store(number, f.address(handles, program.handles, "i64"))
        f.store(f.const(0, I64), f.address(handles, program.handles + 1, "i64"))
        guard = exclude_keys(f, self._facts)
        made = {k: self._make_output(k, b) for k, b in self._outputs().items()}
        data = self._array([self._data_of(made[k]) if k in made else None for k in range(len(program.results))])
        with self._without_gil():
            status = f.emit(f"call i32 @run({_list(arguments, data, temporary, saved, sizes, handles)})", I32)
        include_keys(f, guard)
        bad = f.compare("ne", status, 0)
        with f.when(bad):
            self._give_failure(status, list(made.values()), handles)
        self._give_results(made, objects, handles)
        f.start("unmade")
        include_keys(f, guard)
        f.line("br label %slow")
        f.start("slow")
        none = Value(f, "@_Py_NoneStruct", PTR)
        f.call_void("Py_IncRef", none)
        f.finish(none)

    def _outputs(self) -> dict[int, Buffer]:
        """The results that the caller allocates."""
        return {cast(int, b.place.at): b for b in self._program.results if b.place.kind == "output"}

    def _array(self, values: Sequence[Value | None]) -> Value:
        f = self._f
        array = f.slot(PTR, max(1, len(values)), align=8)
        for k, value in enumerate(values):
            f.store(Value(f, "null", PTR) if value is None else value, f.address(array, k, "ptr"))
        return array

    def _numbers(self, dims: Sequence[Dim]) -> Value:
        f = self._f
        array = f.slot(I64, max(1, len(dims)), align=8)
        for k, dim in enumerate(dims):
            f.store(self._size(dim), f.address(array, k, "i64"))
        return array

    def _make_output(self, number: int, buffer: Buffer) -> Value:
        """A fresh tensor; torch's allocator raises through Python if memory is short, so that is left to it."""
        f = self._f
        slot = f.slot(PTR, align=8)
        zero = f.const(0, I32)
        rank, dtype = f.const(len(buffer.shape), I64), f.const(SCALAR_TYPES[buffer.dtype], I32)
        arguments = (rank, self._numbers(buffer.shape), self._numbers(buffer.strides), dtype, zero, zero, slot)
        status = f.call("aoti_torch_empty_strided", I32, *arguments)
        f.line(f"br {f.compare('eq', status, 0)!r}, label %made{number}, label %unmade")
        f.start(f"made{number}")
        return f.load(slot, PTR)

    def _data_of(self, handle: Value) -> Value:
        """A handle points at an at::Tensor, which is a pointer to the implementation; outputs have offset 0."""
        return self._data(self._f.load(handle, PTR))

    @contextmanager
    def _without_gil(self) -> Generator[None]:
        if not _is_long(self._program):
            yield
            return
        state = self._f.call("PyEval_SaveThread", PTR)
        yield
        self._f.call_void("PyEval_RestoreThread", state)

    def _give_failure(self, status: Value, made: Sequence[Value], handles: Value) -> None:
        f = self._f
        for handle in made:
            f.call("aoti_torch_delete_tensor_object", I32, handle)
        for k in range(self._program.handles):
            handle = f.load(f.address(handles, k, "i64"), PTR)
            with f.when(f.compare("ne", handle, Value(f, "null", PTR))):
                f.call("aoti_torch_delete_tensor_object", I32, handle)
        word = f.load(f.address(handles, self._program.handles + 1, "i64"), I64)
        pair = f.call("PyTuple_New", PTR, f.const(2, I64))
        for k, value in enumerate((f.cast("sext", status, I64), word)):
            f.call("PyTuple_SetItem", I32, pair, f.const(k, I64), f.call("PyLong_FromLongLong", PTR, value))
        f.line(f"ret {pair!r}")
        f.start(f.label("unreachable"))

    def _give_results(self, made: dict[int, Value], objects: dict[int, Value], handles: Value) -> None:
        f, program = self._f, self._program
        kept = program.results[: program.kept]
        items = f.call("PyList_New", PTR, f.const(len(kept), I64))
        for k, buffer in enumerate(kept):
            number = cast(int, buffer.place.at)
            if buffer.place.kind == "argument":
                item = objects[number]
                f.call_void("Py_IncRef", item)
            else:
                place = f.address(handles, number, "i64")
                handle = made[number] if buffer.place.kind == "output" else f.load(place, PTR)
                item = f.call(_WRAP, PTR, handle)
                f.call("aoti_torch_delete_tensor_object", I32, handle)
            f.call("PyList_SetItem", I32, items, f.const(k, I64), item)
        f.line(f"ret {items!r}")


def _list(*values: Value) -> str:
    return ", ".join(map(repr, values))


def _is_long(program: Program) -> bool:
    """Whether other Python threads should run meanwhile: a library call, a cut kernel, unknown or many bytes."""
    total = 0
    for step in program.steps:
        if isinstance(step, LibraryCall):
            return True
        if isinstance(step, KernelCall):
            sizes = [buffer.bytes for buffer in step.buffers]
            if step.partitions != 1 or any(isinstance(s, Size) for s in sizes):
                return True
            total += sum(cast("list[int]", sizes))
    return total > _SMALL
