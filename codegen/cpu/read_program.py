"""From a function at the kernel level to the native call as data.

Before:
    %0 = kernel.fused %x {..., partitions = 4, places = [["temporary", 0]]} ({...}) : tensor<4xf32>
    %1 = kernel.extern %0, %w {symbol = "prim.dot", ..., places = [["output", 0]]} : tensor<4x8xf32>
After: KernelCall("kernel_1f..", (x, temporary + 0), reads=1, partitions=4), LibraryCall("prim.dot", ...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast

from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue

from isthmus import ir
from isthmus.codegen.cpu.flat import Code, codes
from isthmus.codegen.cpu.program import route_of
from isthmus.codegen.cpu.read_buffers import Entry, entry_of, exchanged, is_in, placed, viewed
from isthmus.diagnostics import IRError, UnsupportedError
from isthmus.dialects import kernel, prim
from isthmus.dialects.program import (
    Argument,
    Branch,
    Buffer,
    Copy,
    KernelCall,
    LibraryCall,
    Loop,
    Place,
    Program,
    SizeSource,
    Step,
)
from isthmus.dialects.signature import WRITTEN_BACK, Signature
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

    Raises IRError where places are missing, UnsupportedError for ops that are no kernels, calls or control flow.
    """
    return _Reader(func, schema_of, saved_at or {}).read()


class _Reader:
    def __init__(self, func: FuncOp, schema_of: SchemaOf | None, saved_at: Mapping[int, Dim]) -> None:
        self._func = func
        self._schema_of = schema_of
        self._saved_at = saved_at
        self._signature = Signature.of(func)
        self._codes = _codes(func)
        self._storages = _storages([a.shares for a in self._signature.arguments])
        self._buffers: dict[SSAValue, Buffer] = {}
        self._steps: list[Step] = []
        self._handles = 0
        self._made: dict[int, Shape] = {}
        self._loops = 0

    def read(self) -> Program:
        """Walk the function once."""
        arguments = [self._argument(k, value) for k, value in enumerate(self._func.body.block.args)]
        self._walk(self._func.body.block)
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
        return Argument(dtype, shape, strides, saved=saved, name=role.source or "", storage=self._storages[number])

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

    def _walk(self, block: Block) -> None:
        for op in block.ops:
            read = _READ.get(type(op))
            if read is not None:
                read(self, op)
            elif not isinstance(op, (ReturnOp, prim.YieldOp)):
                raise UnsupportedError(
                    "has no native form", op=op.name, location=ir.source_location(op), cure="it runs interpreted"
                )

    def _operands(self, op: Operation) -> list[Buffer]:
        """What control flow passes on; regions take every value to be row-major."""
        found = [self._buffers[v] for v in ir.operands_of(op)]
        for buffer in found:
            if buffer.strides != ir.contiguous_strides(buffer.shape):
                raise UnsupportedError(
                    "takes an argument that is not row-major", op=op.name, cure="it runs interpreted"
                )
        return found

    def _region(self, region: Region, arguments: Sequence[Buffer]) -> tuple[tuple[Step, ...], list[Buffer]]:
        """The steps of a region whose arguments are these buffers, and where what it yields is."""
        outer, self._steps = self._steps, []
        for value, buffer in zip(region.block.args, arguments, strict=True):
            self._buffers[value] = buffer
        self._walk(region.block)
        steps, self._steps = self._steps, outer
        last = region.block.last_op
        return tuple(steps), [self._buffers[v] for v in ir.operands_of(last)] if last is not None else []

    def _cond(self, op: Operation) -> None:
        """p ? then(xs) : otherwise(xs); each branch ends by copying what it yields into the results."""
        condition, *operands = self._operands(op)
        results = self._place(op)
        branches: list[tuple[Step, ...]] = []
        for region in op.regions:
            steps, yields = self._region(region, operands)
            branches.append((*steps, *exchanged(yields, results)))
        self._steps.append(Branch(condition, branches[0], branches[1]))

    def _while(self, op: Operation) -> None:
        """The carried values live in the results: copied there before, and again after each turn."""
        operands = self._operands(op)
        results = self._place(op)
        carried = len(results)
        self._steps.extend(exchanged(operands[:carried], results))
        inside = [*results, *operands[carried:]]
        condition, (flag,) = self._region(op.regions[0], inside)
        body, yields = self._region(op.regions[1], inside)
        self._steps.append(Loop((*body, *exchanged(yields, results)), condition, flag))

    def _scan(self, op: Operation) -> None:
        """As a loop: turn t reads the t-th slices of what is scanned and writes the t-th of what is stacked."""
        operands = self._operands(op)
        carried, scanned = (_number(cast(Literal, op.properties[key])) for key in ("carried", "scanned"))
        results = self._place(op)
        carry, stacked = results[:carried], results[carried:]
        whole, rest = operands[carried : carried + scanned], operands[carried + scanned :]
        if not whole:
            raise UnsupportedError("a scan without scanned operands has no length", op=op.name)
        self._loops += 1
        variable = f"turn{self._loops}"
        turn = Size.symbol(variable)
        self._steps.extend(exchanged(operands[:carried], carry))
        steps, yields = self._region(op.regions[0], [*carry, *(entry_of(b, turn) for b in whole), *rest])
        slices = [entry_of(b, turn) for b in stacked]
        copies = exchanged(yields[carried:], slices) + exchanged(yields[:carried], carry)
        reverse = ir.literal(op, "reverse") is True
        count = whole[0].shape[0]
        self._steps.append(Loop((*steps, *copies), count=count, variable=variable, reverse=reverse))

    def _reshape(self, op: Operation) -> None:
        """The same memory in another shape; a copy where the plan gives the result memory of its own."""
        source, result = self._buffers[ir.operands_of(op)[0]], op.results[0]
        places = cast("tuple[Entry, ...]", ir.literal(op, "places") or ())
        if not places or placed(places[0]) == (source.place, source.offset):
            shape = ir.shape_of(result)
            self._buffers[result] = replace(source, shape=shape, strides=ir.contiguous_strides(shape))
        else:
            (target,) = self._place(op)
            row_major = ir.contiguous_strides(source.shape)
            self._steps.append(Copy(source, replace(target, shape=source.shape, strides=row_major)))

    def _join(self, op: Operation) -> None:
        """What has been made in its part of the result stays, the rest is copied there."""
        assert isinstance(op, kernel.JoinOp)
        (target,) = self._place(op)
        for value, start in zip(ir.operands_of(op), op.starts, strict=True):
            source = self._buffers[value]
            part = replace(target, shape=source.shape, offset=target.offset + start)
            if not is_in(source, part):
                self._steps.append(Copy(source, part))

    def _fused(self, op: Operation) -> None:
        assert isinstance(op, kernel.LoopNest)
        operands = [self._buffers[v] for v in ir.operands_of(op)]
        results = self._place(op)
        for source, target in zip(op.initial_, results, strict=True):
            if source is not None and not is_in(operands[source], target):
                self._steps.append(Copy(operands[source], target))
        checks = None
        if kernel.can_fail(op):
            checks = tuple((_number(c.dim), cast(Dim, c.bound.data)) for c in kernel.checks(op))
        pairs = zip((*operands, *results), kernel.starts(op), strict=True)
        code = self._codes[op]
        self._steps.append(
            KernelCall(
                symbol=f"kernel_{code.key}",
                buffers=tuple(replace(b, offset=b.offset + start) for b, start in pairs),
                reads=len(operands),
                symbols=op.symbols_ if code.numbers is None else code.numbers,
                partitions=1 if op.partitions_ is None else op.partitions_,
                checks=checks,
                location=ir.source_location(op),
            )
        )

    def _stream(self, op: Operation) -> None:
        """A kernel of attention, on its operands as it sees them."""
        assert isinstance(op, kernel.StreamOp)
        buffers = [*(self._buffers[v] for v in ir.operands_of(op)), *self._place(op)]
        self._steps.append(
            KernelCall(
                symbol=f"kernel_{self._codes[op].key}",
                buffers=tuple(viewed(b, v) for b, v in zip(buffers, op.views_, strict=True)),
                reads=len(op.inputs),
                symbols=op.symbols_,
                partitions=1 if op.partitions_ is None else op.partitions_,
                location=ir.source_location(op),
            )
        )

    def _extern(self, op: Operation) -> None:
        assert isinstance(op, kernel.ExternOp)
        buffers = [*(self._buffers[v] for v in ir.operands_of(op)), *self._place(op)]
        seen = [viewed(b, v) for b, v in zip(buffers, op.views_, strict=True)]
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

    def _place(self, op: Operation) -> list[Buffer]:
        """The buffers of an op's results."""
        places = op.properties.get("places") or op.attributes.get("places")
        if not isinstance(places, Literal):
            if op.results:
                raise IRError("has no places: plan-memory has not run", op=op.name)
            return []
        found: list[Buffer] = []
        for value, entry in zip(op.results, cast("tuple[Entry, ...]", places.data), strict=True):
            place, offset = placed(entry)
            if place.kind == "handle":
                self._handles = max(self._handles, cast(int, place.at) + 1)
                self._made[cast(int, place.at)] = ir.shape_of(value)
            buffer = Buffer(place, ir.dtype_of(value), ir.shape_of(value), kernel.strides_of(value), offset)
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
        back: list[Copy] = []
        written_back = ir.literal(self._func, WRITTEN_BACK) or ()
        for number, value in enumerate(terminator.operands):
            buffer = self._buffers[value]
            if number in cast("tuple[int, ...]", written_back):
                argument = self._func.body.block.args[cast(int, self._signature.results[number].mutated)]
                back.append(Copy(buffer, self._buffers[argument]))
                buffer = self._buffers[argument]
            elif number < kept and not self._is_own(number, value, given):
                target = Buffer(Place("output", number), buffer.dtype, buffer.shape, self._strides(number, buffer))
                self._steps.append(Copy(buffer, target))
                buffer = target
            elif buffer.place.kind == "temporary":
                raise IRError(f"result {number} of @{self._func.sym_name.data} lives in temporary memory")
            given.add(buffer.place)
            results.append(buffer)
        self._steps.extend(back)
        return results

    def _is_own(self, number: int, value: SSAValue, given: set[Place]) -> bool:
        """Whether the memory of a value is that of result `number`, and nobody else's."""
        place = self._buffers[value].place
        if place.kind == "argument":  # written in place
            if isinstance(value.owner, kernel.FusedOp) and value.owner.unless_one is not None:
                return True  # a saved value, handed over
            return not isinstance(value, BlockArgument) and self._signature.results[number].mutated == place.at
        if place.kind == "handle":  # the tensor itself is given, so it must have been made in this shape
            return place not in given and self._made[cast(int, place.at)] == self._buffers[value].shape
        return place not in given and place == Place("output", number)

    def _strides(self, number: int, buffer: Buffer) -> Shape:
        strides = self._signature.results[number].strides
        return ir.contiguous_strides(buffer.shape) if strides is None else strides


_READ: dict[type[Operation], Callable[[_Reader, Operation], None]] = {
    kernel.FusedOp: _Reader._fused,  # pyright: ignore[reportPrivateUsage]
    kernel.ContractOp: _Reader._fused,  # pyright: ignore[reportPrivateUsage]
    kernel.AttentionOp: _Reader._stream,  # pyright: ignore[reportPrivateUsage]
    kernel.AttentionBwdOp: _Reader._stream,  # pyright: ignore[reportPrivateUsage]
    kernel.ExternOp: _Reader._extern,  # pyright: ignore[reportPrivateUsage]
    kernel.ReshapeOp: _Reader._reshape,  # pyright: ignore[reportPrivateUsage]
    kernel.JoinOp: _Reader._join,  # pyright: ignore[reportPrivateUsage]
    prim.CondOp: _Reader._cond,  # pyright: ignore[reportPrivateUsage]
    prim.WhileOp: _Reader._while,  # pyright: ignore[reportPrivateUsage]
    prim.ScanOp: _Reader._scan,  # pyright: ignore[reportPrivateUsage]
}


@lru_cache(maxsize=1)
def _codes(func: FuncOp) -> dict[kernel.Kernel, Code]:
    """The code of each kernel of a planned function, which does not change any more; of the last one asked for.

    It holds the kernels and so the function: a memo by weak keys would keep every program for good.
    """
    return codes(kernel.launches(func))


def _storages(shares: Sequence[Sequence[int]]) -> list[int]:
    """Per argument the number of its memory: one number for all that overlap, however many lie between."""
    found: list[int] = []
    for number, others in enumerate(shares):
        joined = {found[k] for k in others}
        found.append(number)
        found = [number if storage in joined else storage for storage in found]
    return found


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


def kernels_of(func: FuncOp) -> dict[str, kernel.Kernel]:
    """Give what is emitted under each name that the function's program calls, in order of first use."""
    found: dict[str, kernel.Kernel] = {}
    for code in _codes(func).values():
        found.setdefault(f"kernel_{code.key}", code.nest)
    return found
