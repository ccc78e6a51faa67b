"""From a function at the kernel level to the native call as data.

Before:
    %0 = kernel.fused %x {..., partitions = 4, places = [["temporary", 0]]} ({...}) : tensor<4xf32>
    %1 = kernel.extern %0, %w {symbol = "prim.dot", ..., places = [["output", 0]]} : tensor<4x8xf32>
After: KernelCall("kernel_1f..", (x, temporary + 0), reads=1, partitions=4), LibraryCall("prim.dot", ...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from isthmus import ir
from isthmus.codegen.cpu.program import route_of
from isthmus.diagnostics import IRError, UnsupportedError
from isthmus.dialects import kernel
from isthmus.dialects.program import (
    Argument,
    Buffer,
    Copy,
    KernelCall,
    LibraryCall,
    Place,
    PlaceKind,
    Program,
    SizeSource,
    Step,
)
from isthmus.dialects.signature import Signature
from isthmus.ir import Literal, LiteralValue, Shape
from isthmus.sizes import Dim, Size

TEMPORARY_BYTES = "isthmus.temporary_bytes"
SAVED_BYTES = "isthmus.saved_bytes"

SchemaOf = Callable[[str], str | None]
"""Gives torch's schema of an overload such as "add.Tensor" as text."""


def read_program(
    func: FuncOp, *, schema_of: SchemaOf | None = None, saved_at: Mapping[int, Dim] | None = None
) -> Program:
    """Read a planned function; `saved_at` tells a backward where the forward's arena holds each saved value.

    Raises IRError where places are missing, UnsupportedError for control flow.
    """
    return _Reader(func, schema_of, saved_at or {}).read()


class _Reader:
    def __init__(self, func: FuncOp, schema_of: SchemaOf | None, saved_at: Mapping[int, Dim]) -> None:
        self._func = func
        self._schema_of = schema_of
        self._saved_at = saved_at
        self._signature = Signature.of(func)
        self._buffers: dict[SSAValue, Buffer] = {}
        self._steps: list[Step] = []
        self._handles = 0

    def read(self) -> Program:
        """Walk the function once."""
        arguments = [self._argument(k, value) for k, value in enumerate(self._func.body.block.args)]
        for op in self._func.body.block.ops:
            if isinstance(op, kernel.FusedOp):
                self._fused(op)
            elif isinstance(op, kernel.ExternOp):
                self._extern(op)
            elif isinstance(op, kernel.ReshapeOp):
                source = self._buffers[ir.operands_of(op)[0]]
                shape = ir.shape_of(op.results[0])
                self._buffers[op.results[0]] = replace(source, shape=shape, strides=ir.contiguous_strides(shape))
            elif not isinstance(op, ReturnOp):
                raise UnsupportedError(
                    "has no native form yet", op=op.name, location=ir.source_location(op), cure="it runs interpreted"
                )
        kept = sum(r.saved is None for r in self._signature.results)
        results = self._results(kept)
        saved = [
            (cast(int, role.saved), buffer.place.at)
            for role, buffer in zip(self._signature.results, results, strict=True)
            if buffer.place.kind == "saved"
        ]
        symbols, extra = self._symbols(arguments)
        return Program(
            name=self._func.sym_name.data,
            arguments=tuple(arguments),
            results=tuple(results),
            kept=kept,
            steps=tuple(self._steps),
            symbols=symbols,
            temporary_bytes=_bytes(self._func.attributes.get(TEMPORARY_BYTES)),
            saved_bytes=_bytes(self._func.attributes.get(SAVED_BYTES)),
            handles=self._handles,
            saved_at=tuple(saved),
            extra_sizes=extra,
        )

    def _argument(self, number: int, value: BlockArgument) -> Argument:
        role = self._signature.arguments[number]
        if role.symbol is not None:
            return Argument("i64", (), (), is_size=True, name=role.source or "")
        shape, dtype = ir.shape_of(value), ir.dtype_of(value)
        strides = kernel.strides_of(value)
        self._buffers[value] = Buffer(Place("argument", number), dtype, shape, strides)
        saved = None if role.saved is None else self._saved_at.get(role.saved)
        return Argument(dtype, shape, strides, saved=saved, name=role.source or "")

    def _symbols(self, arguments: list[Argument]) -> tuple[tuple[SizeSource, ...], tuple[SizeSource, ...]]:
        """Where sizes are read, by preference not from what is in the arena; and which can be read from there only."""
        found: dict[str, SizeSource] = {}
        hidden: dict[str, SizeSource] = {}
        for k, (argument, role) in enumerate(zip(arguments, self._signature.arguments, strict=True)):
            if role.symbol is not None:
                found.setdefault(role.symbol, SizeSource(role.symbol, k))
            for d, size in enumerate(argument.shape):
                if isinstance(size, Size) and Size.symbol(str(size)) is size:
                    table = found if argument.saved is None else hidden
                    table.setdefault(str(size), SizeSource(str(size), k, d))
        extra = {name: source for name, source in hidden.items() if name not in found}
        return (*found.values(), *extra.values()), tuple(extra.values())

    # ---- steps

    def _fused(self, op: kernel.FusedOp) -> None:
        operands = [self._buffers[v] for v in ir.operands_of(op)]
        results = self._place(op, op.places)
        for source, target in zip(op.initial_, results, strict=True):
            if source is not None and operands[source].place != target.place:
                self._steps.append(Copy(operands[source], target))
        checks = None
        if kernel.can_fail(op):
            checks = tuple((_number(c.dim), cast(Dim, c.bound.data)) for c in kernel.checks(op))
        self._steps.append(
            KernelCall(
                symbol=f"kernel_{kernel.key(op)}",
                buffers=(*operands, *results),
                reads=len(operands),
                symbols=op.symbols_,
                partitions=1 if op.partitions_ is None else op.partitions_,
                checks=checks,
                location=ir.source_location(op),
            )
        )

    def _extern(self, op: kernel.ExternOp) -> None:
        buffers = [*(self._buffers[v] for v in ir.operands_of(op)), *self._place(op, op.places)]
        seen = [_viewed(b, v) for b, v in zip(buffers, op.views_, strict=True)]
        symbol = cast(str, op.symbol.data)
        schema = None
        if not symbol.startswith("prim.") and self._schema_of is not None:
            schema = self._schema_of(symbol.removeprefix("aten."))
        count = len(op.inputs)
        call = LibraryCall(
            symbol=symbol,
            operands=tuple(seen[:count]),
            results=tuple(seen[count:]),
            arguments=cast("tuple[LiteralValue, ...]", op.args.data),
            schema=schema,
            location=ir.source_location(op),
        )
        self._steps.append(replace(call, route=route_of(call)))

    def _place(self, op: Operation, places: Literal | None) -> list[Buffer]:
        """The buffers of an op's results."""
        if places is None:
            if op.results:
                raise IRError("has no places: plan-memory has not run", op=op.name)
            return []
        found: list[Buffer] = []
        entries = cast("tuple[tuple[PlaceKind, Dim], ...]", places.data)
        for value, (kind, at) in zip(op.results, entries, strict=True):
            if kind == "handle":
                self._handles = max(self._handles, cast(int, at) + 1)
            buffer = Buffer(Place(kind, at), ir.dtype_of(value), ir.shape_of(value), kernel.strides_of(value))
            self._buffers[value] = buffer
            found.append(buffer)
        return found

    # ---- results

    def _results(self, kept: int) -> list[Buffer]:
        """Where the function's results are; what has no place of its own is copied into an output."""
        terminator = self._func.body.block.last_op
        assert terminator is not None
        results: list[Buffer] = []
        given: set[Place] = set()
        for number, value in enumerate(terminator.operands):
            buffer = self._buffers[value]
            if number < kept and not self._is_own(number, value, given):
                target = Buffer(Place("output", number), buffer.dtype, buffer.shape, self._strides(number, buffer))
                self._steps.append(Copy(buffer, target))
                buffer = target
            elif buffer.place.kind == "temporary":
                raise IRError(f"result {number} of @{self._func.sym_name.data} lives in temporary memory")
            given.add(buffer.place)
            results.append(buffer)
        return results

    def _is_own(self, number: int, value: SSAValue, given: set[Place]) -> bool:
        """Whether the memory of a value is that of result `number`, and nobody else's."""
        place = self._buffers[value].place
        if place.kind == "argument":  # written in place
            return not isinstance(value, BlockArgument) and self._signature.results[number].mutated == place.at
        return place not in given and (place.kind == "handle" or place == Place("output", number))

    def _strides(self, number: int, buffer: Buffer) -> Shape:
        strides = self._signature.results[number].strides
        return ir.contiguous_strides(buffer.shape) if strides is None else strides


def _viewed(buffer: Buffer, view: LiteralValue) -> Buffer:
    """What a callee sees of a buffer."""
    if view is None:
        return buffer
    shape, strides, offset = cast("tuple[Shape, Shape, Dim]", view)
    return replace(buffer, shape=shape, strides=strides, offset=buffer.offset + offset)


def _number(literal: Literal) -> int:
    assert isinstance(literal.data, int)
    return literal.data


def _bytes(attribute: Attribute | None) -> Dim:
    if attribute is None:
        return 0
    if isinstance(attribute, IntegerAttr):
        return attribute.value.data
    assert isinstance(attribute, Literal)
    return cast(Dim, attribute.data)


def kernels_of(func: FuncOp) -> dict[str, kernel.FusedOp]:
    """Give one kernel per name that the function's program calls, in order of first use."""
    found: dict[str, kernel.FusedOp] = {}
    for op in kernel.launches(func):
        if isinstance(op, kernel.FusedOp):
            found.setdefault(f"kernel_{kernel.key(op)}", op)
    return found
