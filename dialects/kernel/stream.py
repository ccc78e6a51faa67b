"""Attention as kernels that walk keys block by block and never keep a matrix of scores."""

from __future__ import annotations

from typing import TypeAlias, cast

from xdsl.irdl import opt_prop_def, prop_def, traits_def
from xdsl.traits import Pure

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.kernel.base import kernel_op, require
from isthmus.dialects.kernel.body import Scheduled
from isthmus.dialects.kernel.ops import LoopNest, ViewingOp
from isthmus.ir import Literal, LiteralValue, Shape
from isthmus.sizes import Dim

Seen: TypeAlias = tuple[Shape, Shape, Dim]
"""Shape, strides and offset, in elements of a buffer."""


class StreamOp(ViewingOp, Scheduled):
    """What both directions share. Not to be used itself: `AttentionOp` and `AttentionBwdOp`."""

    scale = prop_def(Literal)
    causal = prop_def(Literal)
    empty = opt_prop_def(Literal)
    fill = opt_prop_def(Literal)
    hidden = opt_prop_def(Literal)
    layouts = opt_prop_def(Literal)
    symbols = opt_prop_def(Literal)
    partitions = opt_prop_def(Literal)
    tile = opt_prop_def(Literal)
    block_sizes = opt_prop_def(Literal, prop_name="block")
    places = opt_prop_def(Literal)

    @property
    def layouts_(self) -> tuple[Shape | None, ...]:
        """Per result its strides, none where row-major."""
        if self.layouts is None:
            return (None,) * len(self.results)
        return cast("tuple[Shape | None, ...]", self.layouts.data)

    @property
    def primitive(self) -> type[prim.AttentionOp] | type[prim.AttentionBwdOp]:
        """The primitive whose meaning it has."""
        raise NotImplementedError

    @property
    def query(self) -> int:
        """The number of the operand q; k and v follow."""
        raise NotImplementedError

    @property
    def mask(self) -> int | None:
        """The number of the operand that is the mask."""
        raise NotImplementedError

    def shape(self, number: int) -> Shape:
        """What is seen of an operand or result."""
        view = self.views_[number]
        if view is not None:
            return cast(Seen, view)[0]
        inputs = len(self.inputs)
        return ir.shape_of(self.inputs[number] if number < inputs else self.results[number - inputs])

    def literals(self) -> dict[str, LiteralValue]:
        """Those of the primitive."""
        given = {key: self.properties.get(key) for key in ("scale", "causal", "empty", "fill", "hidden")}
        return {key: attr.data for key, attr in given.items() if isinstance(attr, Literal)}

    def check(self) -> None:
        require(len(self.views_) == len(self.inputs) + len(self.results), "views: one per operand and per result")
        types = tuple(ir.tensor(self.shape(i), ir.dtype_of(v)) for i, v in enumerate(self.inputs))
        wanted = self.primitive.infer(types, self.literals())
        given = tuple(r.type for r in self.results)
        require(given == wanted, lambda: f"gives {', '.join(map(str, wanted))}")
        require(len(self.layouts_) == len(self.results), "layouts: one per result")


@kernel_op
class AttentionOp(StreamOp):
    """o, lse = `prim.attention` of q, k, v and a mask; a partition is a run of blocks of queries.

    views, layouts, symbols: as of kernel.extern and kernel.fused. Put there by schedule: partitions, tile (rows,
    vectors per row, lanes), block (queries and keys that are worked on at once). An element's bits depend on the block
    alone: chains of multiply-adds over one block of keys, added in order.
    """

    name = "kernel.attention"
    traits = traits_def(Pure())

    @property
    def primitive(self) -> type[prim.AttentionOp]:
        return prim.AttentionOp

    @property
    def query(self) -> int:
        return 0

    @property
    def mask(self) -> int | None:
        return 3 if len(self.inputs) == 4 else None


@kernel_op
class AttentionBwdOp(StreamOp):
    """dq, dk, dv = `prim.attention_bwd` of g, q, k, v, delta, lse and a mask; a partition is a run of heads of k.

    Attributes as of kernel.attention; split: of blocks of keys, then of queries, where there are fewer heads than
    threads. It changes no bit.
    """

    name = "kernel.attention_bwd"
    split = opt_prop_def(Literal)
    traits = traits_def(Pure())

    @property
    def primitive(self) -> type[prim.AttentionBwdOp]:
        return prim.AttentionBwdOp

    @property
    def query(self) -> int:
        return 1

    @property
    def mask(self) -> int | None:
        return 6 if len(self.inputs) == 7 else None


Kernel: TypeAlias = LoopNest | StreamOp
"""Whatever code of ours runs."""
