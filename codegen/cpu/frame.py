"""The inside of `@run` while it is written: its arguments, the addresses of buffers, the way out on failure."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from isthmus import ir
from isthmus.codegen.cpu.sizes import SizeValues
from isthmus.codegen.llvm_text import I32, I64, PTR, Function, Module, Value
from isthmus.dialects.program import Buffer, Program
from isthmus.sizes import Dim


@dataclass(frozen=True)
class Tensors:
    """Where a program's tensors are, as torch's C interface counts: 0 the CPU, 1 a GPU, and its index."""

    kind: int = 0
    index: int = 0

    @property
    def name(self) -> str:
        """What the interface's functions for such tensors are called after."""
        return ("cpu", "cuda")[self.kind]


HOST = Tensors()


class Frame:
    """`@run` under construction. `exit` is the block that every path ends in."""

    def __init__(self, module: Module, program: Program, tensors: Tensors = HOST) -> None:
        self.tensors = tensors
        names = ("arguments", "outputs", "temporary", "saved", "sizes", "handles")
        self.module = module
        self.program = program
        self.f = Function(module, "run", [(n, PTR) for n in names], result=I32)
        self._arrays: dict[str, Value] = dict(zip(names, self.f.arguments, strict=True))
        self._pointers: dict[tuple[str, int], Value] = {}
        self._constants: dict[str, str] = {}
        symbols = {
            source.name: self.f.load(self.f.address(self._arrays["sizes"], k, "i64"), I64)
            for k, source in enumerate(program.symbols)
        }
        self.symbols = symbols
        self.size = SizeValues(self.f, symbols)
        self.status = self.f.slot(I32, align=4)
        self.f.store(self.f.const(0, I32), self.status)

    def _pointer(self, kind: str, number: int) -> Value:
        """The address of an argument or output, read once."""
        found = self._pointers.get((kind, number))
        if found is None:
            with self.f.at_entry():
                found = self.f.load(self.f.address(self._arrays[f"{kind}s"], number, "ptr"), PTR)
            self._pointers[kind, number] = found
        return found

    @property
    def sizes_array(self) -> Value:
        """The argument `sizes`."""
        return self._arrays["sizes"]

    def handle_slot(self, number: int) -> Value:
        """Where tensor `number` that a library call made is kept."""
        return self.f.address(self._arrays["handles"], number, "ptr")

    @property
    def program_number(self) -> Value:
        """The number by which the runtime knows the program."""
        return self.f.load(self.f.address(self._arrays["handles"], self.program.handles, "i64"), I64)

    @property
    def error_word(self) -> Value:
        """Where the error word of a failed kernel goes."""
        return self.f.address(self._arrays["handles"], self.program.handles + 1, "i64")

    def extra(self, number: int) -> Value:
        """A word behind the error word: what a device's program is told beside."""
        at = self.program.handles + 2 + number
        return self.f.load(self.f.address(self._arrays["handles"], at, "i64"), I64)

    def argument(self, number: int) -> Value:
        """The address of an argument."""
        return self._pointer("argument", number)

    def address(self, buffer: Buffer) -> Value:
        """The address of a buffer's first element."""
        place = buffer.place
        if place.kind in ("argument", "output"):
            assert isinstance(place.at, int)
            base = self._pointer(place.kind, place.at)
        elif place.kind == "handle":
            assert isinstance(place.at, int)
            handle = self.f.load(self.handle_slot(place.at), PTR)
            base = self.data_of(handle)
        else:
            base = self.f.address(self._arrays[place.kind], self.size(place.at), "i8")
        return self.f.address(base, self.size(buffer.offset * ir.itemsize(buffer.dtype)), "i8")

    def data_of(self, handle: Value) -> Value:
        """The data pointer of a tensor handle."""
        slot = self.f.slot(PTR, align=8)
        self.f.call("aoti_torch_get_data_ptr", I32, handle, slot)
        return self.f.load(slot, PTR)

    def numbers(self, dims: Sequence[Dim]) -> Value:
        """An array of i64 with these sizes: a constant where they are all known."""
        if all(isinstance(d, int) for d in dims):
            return self.constant_array("i64", [str(d) for d in dims])
        array = self.f.slot(I64, max(1, len(dims)), align=8)
        for k, dim in enumerate(dims):
            self.f.store(self.size(dim), self.f.address(array, k, "i64"))
        return array

    def constant_array(self, scalar: str, values: Sequence[str]) -> Value:
        """A constant array in the module; equal ones are made once."""
        content = ", ".join(f"{scalar} {v}" for v in values) if values else f"{scalar} 0"
        return self._constant(f"[{max(1, len(values))} x {scalar}] [{content}]")

    def text(self, text: str) -> Value:
        """A zero-terminated string in the module."""
        data = text.encode() + b"\0"
        escaped = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
        return self._constant(f'[{len(data)} x i8] c"{escaped}"')

    def _constant(self, definition: str) -> Value:
        name = self._constants.get(definition)
        if name is None:
            name = self._constants[definition] = f"@c{len(self._constants)}"
            self.module.global_text(f"{name} = private unnamed_addr constant {definition}, align 8")
        return Value(self.f, name, PTR)

    @contextmanager
    def failing(self, condition: Value, step: int) -> Generator[None]:
        """Where `condition` holds: run the body, then leave `@run` with the status of a step."""
        with self.leaving(condition, step + 1):
            yield

    @contextmanager
    def leaving(self, condition: Value, status: int) -> Generator[None]:
        """Where `condition` holds: run the body, then leave `@run` with a status."""
        with self.f.when(condition):
            yield
            self.f.store(self.f.const(status, I32), self.status)
            self.f.line("br label %exit")
            self.f.start(self.f.label("unreachable"))
