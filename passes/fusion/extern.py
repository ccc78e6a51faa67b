"""Library calls: what each operand sees of which buffer, so that transposes in front of them cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from xdsl.ir import Attribute, Operation, SSAValue

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.dialects.kernel import Expr, constant, dim, sizes_as_bounds
from isthmus.dialects.prim.base import ints
from isthmus.ir import Literal, LiteralValue, Shape
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.access import Index, operand_index
from isthmus.passes.fusion.emit import Strides
from isthmus.passes.fusion.graph import Node, Value


@dataclass(frozen=True)
class View:
    """What a library call sees of a buffer; in elements."""

    shape: Shape
    strides: Shape
    offset: ir.Dim

    @property
    def literal(self) -> LiteralValue:
        """As the op's attribute."""
        return (self.shape, self.strides, self.offset)


@dataclass(frozen=True)
class Seen:
    """An operand: a buffer, and the view of it where it is not seen as it is."""

    value: Value
    view: View | None = None


def seen(node: Node, position: int, strides: Strides) -> Seen:
    """Give the buffer and view that an operand of a library call is read through.

    Views are looked through as far as the callee can follow; where it cannot, the operand itself gets a buffer.
    """
    operand = node.operands[position]
    if not _takes_views(node) or (isinstance(node.op, prim.DotOp) and position > 1):
        return Seen(operand)
    shape = operand.shape
    bounds = sizes_as_bounds(shape)
    index: Index = tuple(constant(0) if s == 1 else dim(d) for d, s in enumerate(shape))
    value = operand
    while not value.root and isinstance(value.maker.op, prim.ViewOp):
        index = operand_index(value.maker.op, index, bounds)
        value = value.maker.operands[0]
    view = _strided(value, index, shape, strides)
    if view is None or not _accepts(node, position, view):
        return Seen(operand)
    plain = view.strides == ir.contiguous_strides(shape) and view.offset == 0 and shape == value.shape
    return Seen(value, None if plain else view)


def _strided(value: Value, index: Index, shape: Shape, strides: Strides) -> View | None:
    linear = constant(0)
    for expr, stride in zip(index, strides(value), strict=True):
        linear = linear + expr * stride
    if not linear.is_affine():
        return None
    own = tuple(_coefficient(linear, d, s, shape) for d, s in enumerate(shape))
    if any(isinstance(s, int) and s < 0 for s in own):
        return None
    return View(shape, own, linear.constant)


def _coefficient(linear: Expr, d: int, size: ir.Dim, shape: Shape) -> ir.Dim:
    """The stride of a dim; that of a size of 1 does not matter and is the row-major one."""
    return ir.contiguous_strides(shape)[d] if size == 1 else linear.coefficient(d)


def _takes_views(node: Node) -> bool:
    op = node.op
    if isinstance(op, prim.OpaqueOp):
        callee = cast(str, op.callee.data)  # a custom kernel may count on the layout that eager has; ours do not
        return "::" not in callee or callee.startswith("isthmus::")
    return isinstance(
        op,
        (prim.DotOp, prim.AttentionOp, prim.AttentionBwdOp, kernel.StreamOp, prim.ConvOp, prim.ConvDxOp, prim.ConvDwOp),
    )


def _accepts(node: Node, position: int, view: View) -> bool:
    """Whether the callee reads a view as it lies, without copying it first."""
    op = node.op
    if isinstance(op, prim.DotOp):
        return _is_matrix(view, op, position)
    if isinstance(op, (prim.AttentionOp, prim.AttentionBwdOp)):
        rows = position < (3 if isinstance(op, prim.AttentionOp) else 4)
        return view.strides[-1] == 1 if rows else view.strides == ir.contiguous_strides(view.shape)
    if isinstance(op, (prim.OpaqueOp, kernel.StreamOp)):
        return True
    return view.strides == ir.contiguous_strides(view.shape)


def _is_matrix(view: View, op: prim.DotOp, position: int) -> bool:
    """BLAS walks rows or columns without a gap, and repeats nothing."""
    key = "a" if position == 0 else "b"
    batch, contract = (ints(cast(Literal, op.properties[f"{what}_{key}"]).data) for what in ("batch", "contract"))
    free = [d for d in range(len(view.shape)) if d not in (*batch, *contract)]
    if any(view.strides[d] == 0 and view.shape[d] != 1 for d in (*free, *contract)):
        return False
    lasts = [group[-1] for group in (free, list(contract)) if group]
    return any(view.strides[d] == 1 or view.shape[d] == 1 for d in lasts)


def result_strides(node: Node, operands: list[Seen]) -> tuple[Shape | None, ...]:
    """Give the strides in which a library is known to give its results; None: row-major.

    What has other strides when it runs is copied into these, so that a wrong guess costs time only.
    """
    rule = _RESULT_STRIDES.get(_symbol(node))
    return rule(node, operands) if rule is not None else (None,) * len(node.results)


def _symbol(node: Node) -> str:
    op = node.op
    return cast(str, op.callee.data) if isinstance(op, prim.OpaqueOp) else cast(Operation, op).name


def _heads_inside(shape: Shape) -> Shape:
    """[B, H, L, E] in the memory order B, L, H, E."""
    _, h, n, e = shape
    return (n * h * e, e, h * e, 1)


def _in_the_order_of(like: Shape, shape: Shape) -> Shape:
    """Strides without gaps, dims in memory as they are in a tensor of the strides `like`."""
    found: list[ir.Dim] = [1] * len(shape)
    inner: ir.Dim = 1
    for d in sorted(range(len(shape)), key=lambda d: (cost.numeric(like[d]), -d)):
        found[d] = inner
        inner = inner * shape[d]
    return tuple(found)


def _attention(node: Node, operands: list[Seen]) -> tuple[Shape | None, ...]:
    """The output has its dims in the order of the query's, without gaps; the log-sums are [B, L, H] in memory."""
    o, lse = node.results
    query = operands[0]
    own = query.view.strides if query.view is not None else ir.contiguous_strides(o.shape)
    _, h, n = lse.shape
    return (_in_the_order_of(own, o.shape), (n * h, 1, h))


def _attention_backward(node: Node, operands: list[Seen]) -> tuple[Shape | None, ...]:
    return tuple(_heads_inside(r.shape) for r in node.results)


def _like_operands(node: Node, operands: list[Seen]) -> tuple[Shape | None, ...]:
    """Gradients of the query, key and value (after the output's): each with its dims in the order of its own."""
    found: list[Shape | None] = []
    for result, given in zip(node.results, operands[1:4], strict=True):
        own = given.view.strides if given.view is not None else ir.contiguous_strides(result.shape)
        found.append(_in_the_order_of(own, result.shape))
    return tuple(found)


def _stream(node: Node, operands: list[Seen]) -> tuple[Shape | None, ...]:
    """Results lie in the order of what they belong to: the output of the query, each gradient of its own operand."""
    if isinstance(node.op, kernel.AttentionBwdOp):
        return _like_operands(node, operands)
    query = operands[0]
    own = query.view.strides if query.view is not None else query.value.strides
    return (None if own is None else _in_the_order_of(own, node.results[0].shape), None)


def _gpu_attention(node: Node, operands: list[Seen]) -> tuple[Shape | None, ...]:
    """The output has its dims in the order of the query's, the log-sums are row-major."""
    (own, _), (_, lse) = _attention(node, operands), node.results
    return (own, ir.contiguous_strides(lse.shape))


_RESULT_STRIDES: dict[str, Callable[[Node, list[Seen]], tuple[Shape | None, ...]]] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
    prim.AttentionOp.name: _attention,
    kernel.AttentionOp.name: _stream,
    kernel.AttentionBwdOp.name: _stream,
    "isthmus::attention.default": _gpu_attention,
    "isthmus::attention_backward.default": _like_operands,
}


def emit_extern(
    node: Node, operands: list[tuple[SSAValue, View | None]], extra: tuple[tuple[str, str], ...] = ()
) -> Operation:
    """Give the library call of a node on its buffers; `extra` goes to the arguments of a primitive."""
    op = cast(Operation, node.op)
    values = [v for v, _ in operands]
    types = [r.type for r in op.results]
    if isinstance(op, prim.ControlOp):
        regions = [r.clone() for r in op.regions]
        return ir.create_op(
            type(op), values, types, op.properties, location=op.location, regions=regions, attributes=op.attributes
        )
    if isinstance(op, kernel.StreamOp):
        given = _views_and_layouts(node, operands)
        return ir.create_op(
            type(op), values, types, {**op.properties, **given}, location=op.location, attributes=op.attributes
        )
    symbol: LiteralValue = op.name
    if isinstance(op, prim.OpaqueOp):
        symbol, args = op.callee.data, op.args.data
    else:
        args = (*((key, attr.data) for key, attr in op.properties.items() if isinstance(attr, Literal)), *extra)
    properties: dict[str, Attribute] = {"symbol": Literal.of(symbol), "args": Literal.of(args)}
    properties |= _views_and_layouts(node, operands)
    flops = cost.flops(op)
    if flops:
        properties["cost"] = Literal.of(flops)
    return ir.create_op(kernel.ExternOp, values, types, properties, location=op.location, attributes=op.attributes)


def _views_and_layouts(node: Node, operands: list[tuple[SSAValue, View | None]]) -> dict[str, Attribute]:
    """What is seen of each operand, and how each result lies, where that is not all of it and row-major."""
    found: dict[str, Attribute] = {}
    views = [None if view is None else view.literal for _, view in operands] + [None] * len(node.results)
    if any(v is not None for v in views):
        found["views"] = Literal.of(tuple(views))
    layouts = tuple(r.strides for r in node.results)
    if any(own is not None for own in layouts):
        found["layouts"] = Literal.of(layouts)
    return found
