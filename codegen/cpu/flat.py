"""Which code serves a kernel: pointwise kernels that differ in their sizes alone share one, for any length.

Before: two kernels over [784, 256] and [10, 128], each access at its point's place in row-major order or uniform.
After: both call the code of one kernel

    kernel.fused %x, %lr {sizes = [<"length">], classes = ["parallel"], symbols = ["length", "parts"],
                          partitions = <"parts">, vector = 0, width = 16, unroll = 2} ({
      %v = kernel.load {operand = 0, map = [d0]} : f32
      %r = kernel.load {operand = 1, map = [0]} : f32
      ...

with the numbers 200704 and 1280 for its `length`. So an optimizer's update is compiled once, whatever the shapes of
the parameters. Code for a known length is shorter, so a body that occurs with one set of sizes keeps it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.dialects import kernel
from isthmus.dialects.kernel.index import Expr
from isthmus.ir import Literal
from isthmus.sizes import Dim, Size

LENGTH, PARTS = Size.symbol("length"), Size.symbol("parts")
_ANY_LENGTH = {
    "sizes": (LENGTH,),
    "classes": ("parallel",),
    "symbols": ("length", "parts"),
    "partitions": PARTS,
    "vector": 0,
}
_FROM_START = kernel.Map.of([kernel.dim(0)])


@dataclass(frozen=True)
class Code:
    """What is emitted for a kernel, and the numbers that it gets for its symbols (None: the program's symbols)."""

    nest: kernel.Kernel
    key: str
    numbers: tuple[int, ...] | None = None


def codes(launches: Iterable[Operation]) -> dict[kernel.Kernel, Code]:
    """Give the code of each kernel of a function."""
    found: dict[kernel.Kernel, Code] = {}
    alike: defaultdict[object, list[kernel.FusedOp]] = defaultdict(list)
    for op in launches:
        if isinstance(op, kernel.Kernel):
            found[op] = Code(op, kernel.key(op))
            if isinstance(op, kernel.FusedOp) and (shape := _outline(op)) is not None:
                alike[shape].append(op)
    for group in alike.values():
        if len({found[op].key for op in group}) > 1:
            found.update(_shared(group, found))
    return found


def _outline(op: kernel.FusedOp) -> object | None:
    """What kernels that share code for any length have in common, told fast; None where there is no such code."""
    sized = all(isinstance(n, int) for n in op.sizes_) and isinstance(op.partitions_, int)
    if not sized or op.vector is None or op.threads is not None or op.initial is not None or kernel.can_fail(op):
        return None
    if op.past_caches_:  # so large that it has code of its own, for what is known of its parts
        return None
    kinds = tuple(type(inner) for inner in op.block.ops)
    if any(issubclass(k, kernel.BodyOp) and not issubclass(k, kernel.LoadOp | kernel.StoreOp) for k in kinds):
        return None
    return kinds, op.width, op.unroll


def _shared(group: Sequence[kernel.FusedOp], own: Mapping[kernel.Kernel, Code]) -> dict[kernel.Kernel, Code]:
    """The code for any length of those kernels of a group whose own codes differ and which have one in common."""
    forms: defaultdict[str, list[kernel.FusedOp]] = defaultdict(list)
    flat: dict[str, kernel.FusedOp] = {}
    for op in group:
        form = flattened(op)
        if form is not None:
            key = kernel.key(form)
            forms[key].append(op)
            flat.setdefault(key, form)
    return {
        op: Code(flat[key], key, (kernel_length(op), cast(int, op.partitions_)))
        for key, ops in forms.items()
        if len({own[op].key for op in ops}) > 1
        for op in ops
    }


def kernel_length(op: kernel.FusedOp) -> int:
    """Give the number of points of a kernel of known sizes, its rows' included."""
    total = 1
    for size in cast("tuple[int, ...]", op.sizes_):
        total *= size
    return total


def flattened(op: kernel.FusedOp) -> kernel.FusedOp | None:
    """Give the kernel as a walk over memory of any length; None where an access is not at its point's place."""
    first = kernel.starts(op)
    order: Expr | None = None
    maps: dict[Operation, kernel.Map] = {}
    walked: set[int] = set()
    read: dict[int, int] = {}
    for access in op.block.ops:
        if not isinstance(access, kernel.LoadOp | kernel.StoreOp):
            continue
        if not _is_plain(access):
            return None
        buffer = kernel.buffer_of(op, access)
        place = kernel.linear_map(op, access).data[0] - first[buffer]
        if not isinstance(place.constant, int):
            return None
        if not place.terms and isinstance(access, kernel.LoadOp):
            maps[access] = kernel.Map.of([place])
            read[buffer] = max(read.get(buffer, 0), place.constant + 1)
            continue
        order = order or place
        if place is not order or place.constant != 0:
            return None
        maps[access] = _FROM_START
        walked.add(buffer)
    if not walked.isdisjoint(read) or order is None or not _is_dense(order, cast("tuple[int, ...]", op.sizes_)):
        return None
    return _rebuilt(op, maps, [LENGTH if k in walked else read.get(k, 1) for k in range(len(first))])


def _is_plain(access: kernel.LoadOp | kernel.StoreOp) -> bool:
    """Whether an access is made at every point, at a place that no value decides."""
    conditional = access.default is not None if isinstance(access, kernel.LoadOp) else access.kind is not None
    return not conditional and not access.index_values


def _is_dense(order: Expr, sizes: Sequence[int]) -> bool:
    """Whether the points of a space are at the places 0, 1, 2, ..., in whatever order of the dims."""
    if not order.is_affine() or order.values():
        return False
    wide = [d for d, size in enumerate(sizes) if size != 1]
    steps = sorted((cast(int, order.coefficient(d)), sizes[d]) for d in wide)
    reach = 1
    for step, size in steps:
        if step != reach:
            return False
        reach *= size
    return True


def _rebuilt(op: kernel.FusedOp, maps: Mapping[Operation, kernel.Map], lengths: Sequence[Dim]) -> kernel.FusedOp:
    """The same body over one dim; `lengths` are those of the buffers."""
    buffers = zip((*op.inputs, *op.results), lengths, strict=True)
    types = [ir.tensor((length,), ir.dtype_of(value)) for value, length in buffers]
    count = len(op.inputs)
    body, values = Block(), dict[SSAValue, SSAValue]()
    for inner in op.block.ops:
        kernel.copy_into(body, inner, values, {"map": maps[inner]} if inner in maps else {})
    decisions: dict[str, Attribute] = {name: Literal.of(value) for name, value in _ANY_LENGTH.items()}
    decisions.update({n: op.properties[n] for n in ("width", "unroll") if n in op.properties})
    arguments = Block(arg_types=types[:count]).args
    return ir.create_op(kernel.FusedOp, arguments, types[count:], decisions, regions=[Region(body)])
