"""Where every value lives: results, one arena for temporaries, one for what the backward function needs.

Before:
    %y = kernel.fused %x {...} ({...}) : tensor<8xf32>
    %z = kernel.extern %y, %w {...} : tensor<4xf32>
    func.return %z
After:
    %y = kernel.fused %x {..., places = [["temporary", 0]]} ({...}) : tensor<8xf32>
    %z = kernel.extern %y, %w {..., places = [["output", 0]]} : tensor<4xf32>
    func.return %z           (and the function has isthmus.temporary_bytes = 64)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.dialects.signature import WRITTEN_BACK, Signature, own_saved
from isthmus.ir import Literal
from isthmus.passes.memory.arena import ALIGNMENT, WORD, Interval, aligned, is_small, pack
from isthmus.passes.memory.scale_saved import scaled_from
from isthmus.passes.memory.writes_over import Access, reads_where_it_writes
from isthmus.sizes import Dim

TEMPORARY_BYTES = "isthmus.temporary_bytes"
SAVED_BYTES = "isthmus.saved_bytes"

Place = tuple[str, Dim] | tuple[str, Dim, int]
"""Kind and number or byte; where a value lies in a larger one, its first element in it as well."""


@dataclass(frozen=True)
class PlanMemoryPass(ModulePass):
    """Needs: kernels in execution order. Leaves: `places` on every op with results, arena sizes on functions."""

    name = "plan-memory"

    write_back: int = 0
    """New values of arguments of so many bytes, which cannot be made in place, are copied there by the program."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Plan every function of the module."""
        for func in ir.functions(op).values():
            plan(func, self.write_back)


@dataclass(eq=False)
class Buffer:
    """Memory that one or several values share, alive from `first` to `last`."""

    nbytes: Dim
    first: int
    last: int
    values: list[SSAValue] = field(default_factory=list[SSAValue])
    place: Place | None = None
    within: tuple[Buffer, int] | None = None
    """The buffer that it is a part of, and its first element there."""


class Lifetimes:
    """Steps of a function in order, and the buffers of its values."""

    def __init__(self, func: FuncOp) -> None:
        self.func = func
        self.signature = Signature.of(func)
        self.buffers: dict[SSAValue, Buffer] = {}
        self.last_use: dict[SSAValue, int] = {}
        self.steps: dict[Operation, int] = {}
        self.ends: dict[Operation, int] = {}
        self._access: dict[Operation, Access] = {}
        self._clock = 0
        returned = ir.operands_of(cast(Operation, func.body.block.last_op))
        self._mutated = {v for v, r in zip(returned, self.signature.results, strict=True) if r.mutated is not None}
        self._saved = {v for v, r in zip(returned, self.signature.results, strict=True) if r.saved is not None}
        self._kept = {v for v, r in zip(returned, self.signature.results, strict=True) if r.saved is None}
        self.returns = Counter(returned)
        self.storage = _storage(func, self.signature)
        """Per argument those that share storage with it, itself included."""
        self._number(func.body.block)
        own = own_saved(func)
        for value, role in zip(func.body.block.args, self.signature.arguments, strict=True):
            if role.saved in own:
                place: Place = ("argument", value.index)
                self.buffers[value] = Buffer(ir.nbytes(value), 0, self.last_use.get(value, 0), [value], place)
        self._share(func.body.block)

    def _number(self, block: Block) -> None:
        for op in block.ops:
            self.steps[op] = self._clock
            self._clock += 1
            for region in op.regions if not isinstance(op, kernel.LoopNest) else ():
                self._number(region.block)
                self._clock += 1
            self.ends[op] = self._clock - 1
            for operand in ir.operands_of(op):
                self.last_use[operand] = max(self.last_use.get(operand, 0), self.ends[op])

    def _share(self, block: Block) -> None:
        for op in block.ops:
            for number, result in enumerate(op.results):
                buffer = self._shared(op, number)
                if buffer is None:
                    buffer = Buffer(ir.nbytes(result), self.steps[op], self.ends[op])
                if isinstance(op, kernel.JoinOp):
                    self._take_in(op, buffer)
                buffer.values.append(result)
                buffer.last = max(buffer.last, self.last_use.get(result, 0))
                self.buffers[result] = buffer
            for region in op.regions if not isinstance(op, kernel.LoopNest) else ():
                self._share(region.block)

    def _shared(self, op: Operation, number: int) -> Buffer | None:
        """The buffer of an operand that a result takes over: a reshape's, or the one a scatter starts from."""
        if isinstance(op, kernel.ReshapeOp):
            buffer = self.buffers.get(ir.operands_of(op)[0])
            return None if buffer is None or self._is_handed_twice(op.results[0], buffer) else buffer
        if isinstance(op, kernel.ExternOp):
            return self._added_to(op)
        if isinstance(op, kernel.FusedOp) and op.initial_[number] is not None:
            source = op.inputs[cast(int, op.initial_[number])]
            buffer = self.buffers.get(source)
            alone = buffer is not None and all(self._dies_at(v, op) for v in buffer.values)
            if (
                alone
                and source not in self.access_of(op).loads
                and kernel.strides_of(source) == kernel.strides_of(op.results[number])
            ):
                return buffer
        return self._taken_over(op, number) if isinstance(op, kernel.FusedOp) else None

    def _take_in(self, op: kernel.JoinOp, whole: Buffer) -> None:
        """Make operands parts of the result's buffer, where nobody else has theirs."""
        for value, start in zip(ir.operands_of(op), op.starts, strict=True):
            part = self.buffers.get(value)
            free = part is not None and part.place is None and part.within is None and part.nbytes == ir.nbytes(value)
            if part is not None and free and all(self._dies_at(v, op) and not is_handle(v) for v in part.values):
                part.within = whole, start
                whole.first = min(whole.first, part.first)

    def _added_to(self, op: kernel.ExternOp) -> Buffer | None:
        """The buffer of what a product is added to, where nobody reads that afterwards: it adds in place."""
        operands = ir.operands_of(op)
        args = cast("tuple[tuple[str, ir.LiteralValue], ...]", op.args.data)
        adds = op.symbol.data == "prim.dot" and len(operands) == 3 and dict(args).get("bias") is not None
        buffer = self.buffers.get(operands[2]) if adds else None
        if buffer is None or operands[2].type != op.results[0].type or op.views_[2] is not None:
            return None
        plain = kernel.strides_of(operands[2]) == kernel.strides_of(op.results[0])
        alone = all(self._dies_at(v, op) for v in buffer.values) and buffer.place is None
        read = any(self.buffers.get(v) is buffer for v in operands[:2])
        return buffer if plain and alone and not read else None

    def _taken_over(self, op: kernel.FusedOp, number: int) -> Buffer | None:
        """The buffer of an operand of the result's type that nobody reads afterwards, if the kernel can write over it.

        Not for the new value of an argument: that is rather written over the argument itself.
        """
        result = op.results[number]
        if result in self._mutated or op.initial_[number] is not None:
            return None
        returned = result in self.returns
        for source in dict.fromkeys(op.inputs):
            buffer = self.buffers.get(source)
            if (
                buffer is not None
                and source.type == result.type
                and kernel.strides_of(source) == kernel.strides_of(result)
                and (source.owner if isinstance(source.owner, Block) else source.owner.parent) is op.parent
                and not (returned and buffer.place is not None)
                and not any(is_handle(v) or v.owner is op or not self._dies_at(v, op) for v in buffer.values)
                and not any(v is not source and self.buffers.get(v) is buffer for v in op.inputs)
                and reads_where_it_writes(op, number, source, self.access_of(op))
            ):
                return buffer
        return None

    def _is_handed_twice(self, value: SSAValue, buffer: Buffer) -> bool:
        """Whether the caller gets the value in one shape and the backward in another: then it is there twice."""
        shape = ir.shape_of(value)
        others = [v for v in buffer.values if ir.shape_of(v) != shape]
        as_result = value in self._kept and any(v in self._saved for v in others)
        return as_result or (value in self._saved and any(v in self._kept for v in others))

    def access_of(self, op: kernel.FusedOp) -> Access:
        """What a kernel reads and writes, found once."""
        found = self._access.get(op)
        if found is None:
            found = self._access[op] = Access.of(op)
        return found

    def _dies_at(self, value: SSAValue, op: Operation) -> bool:
        return self.last_use.get(value, 0) <= self.ends[op]


def plan(func: FuncOp, write_back: int = 0) -> None:
    """Write places and arena sizes; all values of a function at the kernel level are placed."""
    lives = Lifetimes(func)
    handles = _place_results(lives, write_back)
    _place_handles(lives, handles)
    buffers = list(dict.fromkeys(lives.buffers.values()))
    temporaries = [b for b in buffers if b.place is None and b.within is None]
    offsets, total = pack([Interval(b.nbytes, b.first, b.last) for b in temporaries])
    for buffer, offset in zip(temporaries, offsets, strict=True):
        buffer.place = ("temporary", offset)
    for buffer in buffers:
        if buffer.within is not None:
            buffer.place = _inside(buffer)
    func.attributes[TEMPORARY_BYTES] = Literal.of(total)
    for op in lives.steps:
        if op.results:
            places = tuple(lives.buffers[r].place for r in op.results)
            target = op.properties if isinstance(op, kernel.LaunchOp) else op.attributes
            target["places"] = Literal.of(cast("tuple[ir.LiteralValue, ...]", places))


def _inside(part: Buffer) -> Place:
    """The place of a part: that of the outermost buffer around it, and the first element there."""
    whole, start = part, 0
    while whole.within is not None:
        whole, first = whole.within
        start += first
    assert whole.place is not None
    return *whole.place[:2], start


def _place_results(lives: Lifetimes, write_back: int) -> int:
    """Results have memory of the caller's, saved values the saved arena; gives the first free handle."""
    func, roles = lives.func, lives.signature.results
    returned = ir.operands_of(cast(Operation, func.body.block.last_op))
    back: list[int] = []
    for number, value in enumerate(returned):
        buffer = lives.buffers.get(value)
        if buffer is None or buffer.place is not None or _is_handle(lives, value):
            continue
        role = roles[number]
        scaled = scaled_from(value)
        if scaled is not None:
            buffer.place = ("argument", scaled.index)
        elif role.mutated is not None and _in_place(lives, value, role.mutated):
            buffer.place = ("argument", role.mutated)
        elif role.mutated is not None and role.hidden and _may_be_copied(lives, value, role.mutated, write_back):
            back.append(number)
        elif role.saved is None:
            buffer.place = ("output", number)
    if back:
        func.attributes[WRITTEN_BACK] = Literal.of(tuple(back))
    kept: list[Buffer] = []
    for number, value in enumerate(returned):
        buffer = lives.buffers.get(value)
        if buffer is None or buffer.place is not None or _is_handle(lives, value):
            continue
        if roles[number].saved is not None and buffer not in kept:
            kept.append(buffer)
    end: Dim = 0
    for buffer in sorted(kept, key=_keeping_order):
        start = aligned(end, WORD if is_small(buffer.nbytes) else ALIGNMENT)
        buffer.place = ("saved", start)
        end = start + buffer.nbytes
    func.attributes[SAVED_BYTES] = Literal.of(end)
    return 0


def _keeping_order(buffer: Buffer) -> int:
    """Whole cache lines first, then the small ones, largest first: nothing is padded but ends of lines."""
    return -buffer.nbytes if isinstance(buffer.nbytes, int) and is_small(buffer.nbytes) else -(1 << 62)


def is_handle(value: SSAValue) -> bool:
    """Whether a library call makes the value's tensor itself."""
    owner = value.owner
    return isinstance(owner, kernel.ExternOp) and not cast(str, owner.symbol.data).startswith("prim.")


def _is_handle(lives: Lifetimes, value: SSAValue) -> bool:
    """Whether a library call makes the tensor whose memory a value has."""
    buffer = lives.buffers.get(value)
    while isinstance(value.owner, kernel.ReshapeOp) and lives.buffers.get(ir.operands_of(value.owner)[0]) is buffer:
        value = ir.operands_of(value.owner)[0]
    return is_handle(value)


def _place_handles(lives: Lifetimes, first: int) -> None:
    number = first
    for value, buffer in lives.buffers.items():
        if buffer.place is None and _is_handle(lives, value):
            buffer.place = ("handle", number)
            number += 1


def _in_place(lives: Lifetimes, value: SSAValue, argument: int) -> bool:
    """Whether the new value of an argument may be written over the old one.

    Nobody reads the argument, or one that shares its storage, afterwards; the kernel that writes reads it only at the
    place it then writes, and not in a later walk over the row.
    """
    func = lives.func
    target = func.body.block.args[argument]
    owner = value.owner
    if (
        not isinstance(owner, kernel.FusedOp)
        or len(lives.buffers[value].values) > 1
        or owner.parent is not target.owner
    ):
        return False
    if kernel.strides_of(value) != kernel.strides_of(target) or value.type != target.type:
        return False
    if lives.returns[value] > 1:
        return False
    step = lives.steps[owner]
    for other in lives.storage[argument]:
        if lives.last_use.get(other, -1) > lives.ends[owner]:
            return False
        if other is not target and lives.last_use.get(other, -1) >= step:
            return False  # its place in the storage is not known here
    number = owner.results.index(value)  # pyright: ignore[reportArgumentType]
    return reads_where_it_writes(owner, number, target, lives.access_of(owner))


def _may_be_copied(lives: Lifetimes, value: SSAValue, argument: int, most: int) -> bool:
    """Whether a small new value may be copied over the old one when all else is done: nobody is given the old one."""
    target, buffer = lives.func.body.block.args[argument], lives.buffers[value]
    small = isinstance(buffer.nbytes, int) and buffer.nbytes <= most and buffer.within is None
    alike = value.type == target.type and kernel.strides_of(value) == kernel.strides_of(target)
    alone = sum(lives.returns[v] for v in buffer.values) == 1 and not lives.returns[target]
    return small and alike and alone and len(lives.storage[argument]) == 1


def _storage(func: FuncOp, signature: Signature) -> list[list[BlockArgument]]:
    """Per argument those that share storage with it, directly or through others."""
    groups: list[list[BlockArgument]] = []
    for k, (value, role) in enumerate(zip(func.body.block.args, signature.arguments, strict=True)):
        group = [value]
        for other in role.shares:  # earlier arguments
            if groups[other] is not group:
                group.extend(groups[other])
                for member in group:
                    if member.index < k:
                        groups[member.index] = group
        groups.append(group)
    return groups
