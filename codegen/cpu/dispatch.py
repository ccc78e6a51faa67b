"""Library calls through torch's C interface: an operator by name on a stack of 64-bit words, without Python.

How a word encodes a value is torch's `StableIValue`: numbers as bits, tensors and lists as handles that the call takes
over, an optional value as 0 or the address of a word that the call frees.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import cast

from isthmus.codegen.cpu.aten import AtenCall
from isthmus.codegen.cpu.frame import HOST, Frame
from isthmus.codegen.cpu.strided import copy_bytes
from isthmus.codegen.llvm_text import I1, I32, I64, PTR, Value
from isthmus.dialects.program import Buffer, LibraryCall
from isthmus.dialects.schema import SchemaArgument
from isthmus.ir import LiteralValue, Operand
from isthmus.sizes import Dim

SCALAR_TYPES = dict(u8=0, i8=1, i16=2, i32=3, i64=4, f16=5, f32=6, f64=7, c64=9, c128=10, i1=11, bf16=15)
"""dtype -> torch's ScalarType number."""

_MEMORY_FORMATS = dict(contiguous_format=0, preserve_format=1, channels_last=2, channels_last_3d=3)
_ANY_CPU = 0xFFFFFFFF
"""Device word: type 0 (CPU) above, index -1 below."""


def blob(frame: Frame, buffer: Buffer) -> Value:
    """Make a tensor handle that looks at a buffer and owns nothing."""
    f = frame.f
    made = f.slot(PTR, align=8)
    f.call(
        "aoti_torch_create_tensor_from_blob",
        I32,
        frame.address(buffer),
        f.const(len(buffer.shape), I64),
        frame.numbers(buffer.shape),
        frame.numbers(buffer.strides),
        f.const(0, I64),
        f.const(SCALAR_TYPES[buffer.dtype], I32),
        f.const(frame.tensors.kind, I32),
        f.const(frame.tensors.index, I32),
        made,
    )
    return f.load(made, PTR)


def empty(frame: Frame, buffer: Buffer) -> Value:
    """Make a new tensor of a buffer's dtype, shape and strides."""
    f = frame.f
    made = f.slot(PTR, align=8)
    rank, sizes, strides = f.const(len(buffer.shape), I64), frame.numbers(buffer.shape), frame.numbers(buffer.strides)
    dtype = f.const(SCALAR_TYPES[buffer.dtype], I32)
    kind, index = f.const(frame.tensors.kind, I32), f.const(frame.tensors.index, I32)
    f.call("aoti_torch_empty_strided", I32, rank, sizes, strides, dtype, kind, index, made)
    return f.load(made, PTR)


class Dispatch:
    """One call by name."""

    def __init__(self, frame: Frame, call: LibraryCall, aten: AtenCall) -> None:
        self._frame, self._f = frame, frame.f
        self._call, self._aten = call, aten
        self._tensors = (*call.operands, *call.results)

    def emit(self, check: Callable[[Value], None]) -> list[Value]:
        """Write the call; gives the handles of the results that are kept. `check(status)` leaves on a failure."""
        f, schema = self._f, self._aten.schema
        words = [self._word(a, v) for a, v in zip(schema.arguments, self._aten.arguments, strict=True)]
        stack = f.slot(I64, max(len(words), len(schema.returns), 1), align=8)
        for k, word in enumerate(words):
            f.store(word, f.address(stack, k, "i64"))
        name, overload = _names(schema.name)
        arguments = (self._frame.text(name), self._frame.text(overload), stack)
        check(f.call("aoti_torch_call_dispatcher", I32, *arguments))
        return self._results(stack)

    def _results(self, stack: Value) -> list[Value]:
        f = self._f
        if any("[]" in r for r in self._aten.schema.returns):
            made = self._list_items(f.cast("inttoptr", f.load(stack, I64), PTR))
        else:
            count = len(self._aten.schema.returns)
            words = [f.load(f.address(stack, k, "i64"), I64) for k in range(count)]
            made = [f.cast("inttoptr", w, PTR) for w in words]
        for k, handle in enumerate(made):
            if k not in self._aten.results:
                f.call("aoti_torch_delete_tensor_object", I32, handle)
        return [made[k] for k in self._aten.results]

    def _list_items(self, items: Value) -> list[Value]:
        f = self._f
        made: list[Value] = []
        for k in range(len(self._call.results)):
            slot = f.slot(I64, align=8)
            f.call("torch_list_get_item", I32, items, f.const(k, I64), slot)
            made.append(f.cast("inttoptr", f.load(slot, I64), PTR))
        f.call("torch_delete_list", I32, items)
        return made

    # ---- words

    def _word(self, argument: SchemaArgument, value: LiteralValue) -> Value:
        if value is None:
            return self._f.const(0, I64)
        if argument.is_list:
            parts = cast("tuple[LiteralValue, ...]", value)
            word = self._list([self._element(argument, part) for part in parts])
        else:
            word = self._single(argument.base, value)
        return self._boxed(word) if argument.optional else word

    def _element(self, argument: SchemaArgument, value: LiteralValue) -> Value:
        if value is None:
            return self._f.const(0, I64)
        word = self._single(argument.base, value)
        return self._boxed(word) if argument.optional_elements else word

    def _single(self, base: str, value: LiteralValue) -> Value:
        f = self._f
        if base == "Tensor":
            assert isinstance(value, Operand)
            buffer = self._tensors[value.index]
            unmade = value.index >= len(self._call.operands) and buffer.place.kind == "handle"
            return f.cast("ptrtoint", empty(self._frame, buffer) if unmade else blob(self._frame, buffer), I64)
        if base == "str":
            return self._string(cast(str, value))
        if base == "float":
            (bits,) = struct.unpack("<q", struct.pack("<d", float(cast(float, value))))
            return f.const(bits, I64)
        if base in ("int", "SymInt"):
            return self._frame.size(cast(Dim, value))
        return f.const(_constant_word(base, value), I64)

    def _boxed(self, word: Value) -> Value:
        """A word on the heap; the callee frees it with C++'s delete."""
        f = self._f
        place = f.call("_Znwm", PTR, f.const(8, I64))
        f.store(word, place)
        return f.cast("ptrtoint", place, I64)

    def _list(self, words: Sequence[Value]) -> Value:
        f = self._f
        slot = f.slot(PTR, align=8)
        f.call("torch_new_list_reserve_size", I32, f.const(len(words), I64), slot)
        items = f.load(slot, PTR)
        for word in words:
            f.call("torch_list_push_back", I32, items, word)
        return f.cast("ptrtoint", items, I64)

    def _string(self, text: str) -> Value:
        f = self._f
        slot = f.slot(PTR, align=8)
        length = f.const(len(text.encode()), I64)
        f.call("torch_new_string_handle", I32, self._frame.text(text), length, slot)
        return f.cast("ptrtoint", f.load(slot, PTR), I64)


def _constant_word(base: str, value: LiteralValue) -> int:
    if base == "ScalarType":
        return SCALAR_TYPES[cast(str, value)]
    if base == "MemoryFormat":
        return _MEMORY_FORMATS[cast(str, value)]
    if base == "Device":
        return _ANY_CPU
    if base == "Layout":
        return 0
    return int(cast(bool, value))


def _names(qualified: str) -> tuple[str, str]:
    """("aten::add", "Tensor") of "add.Tensor"; the overload "default" is called ""."""
    name, _, overload = qualified.rpartition(".")
    return name if "::" in name else f"aten::{name}", "" if overload == "default" else overload


def settle(frame: Frame, made: Value, wanted: Buffer, operands: Sequence[Buffer]) -> Value:
    """Give the tensor in the program's dtype, shape and strides, sharing no memory with operands where it stays.

    Null where dtype or shape are others. The tensor that was made is taken over.
    """
    f = frame.f
    shared = f.const(0, I1)
    if wanted.place.kind == "handle":
        data = frame.data_of(made)
        for operand in operands:
            shared = shared | f.compare("eq", data, frame.address(operand))
    arguments = (
        made,
        f.const(len(wanted.shape), I64),
        frame.numbers(wanted.shape),
        frame.numbers(wanted.strides),
        f.const(SCALAR_TYPES[wanted.dtype], I32),
        shared,
    )
    return f.call("isthmus_settle", PTR, *arguments)


def keep(frame: Frame, settled: Value, wanted: Buffer) -> None:
    """Put a settled tensor where the program wants it: among its handles, or its elements into memory."""
    f = frame.f
    if wanted.place.kind == "handle":
        assert isinstance(wanted.place.at, int)
        f.store(settled, frame.handle_slot(wanted.place.at))
        return
    if wanted.is_contiguous and frame.tensors == HOST:
        copy_bytes(frame, frame.data_of(settled), frame.address(wanted), frame.size(wanted.bytes))
    else:
        target = blob(frame, wanted)
        f.call("aoti_torch_copy_", I32, target, settled, f.const(0, I32))
        f.call("aoti_torch_delete_tensor_object", I32, target)
    f.call("aoti_torch_delete_tensor_object", I32, settled)
