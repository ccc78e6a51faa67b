"""Making primitives: one method per primitive, equal ops shared when they are made, folding at birth."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.prim import contract as contract_
from isthmus.dialects.prim import control, index, random, reduce, shape, structured
from isthmus.dialects.prim.arithmetic import Arithmetic
from isthmus.dialects.prim.maker import python_number
from isthmus.ir import Literal, LiteralValue, Shape
from isthmus.sizes import Dim, Size

Dims = Sequence[int]


class Emitter(Arithmetic):
    """Appends primitives to a block; an op equal to one already made gives that one's results.

    `location` is put on every op that is made. Folding and sharing keep every bit of a result. `outer` makes a block
    that sees another one's values.
    """

    def number(self, value: LiteralValue | Dim | SSAValue, dtype: str) -> SSAValue:
        """Give a 0-d value of the dtype from a Python number, a size or a 0-d value."""
        if isinstance(value, SSAValue):
            return self.convert(value, dtype)
        if isinstance(value, Size):
            return self.convert(self.size(value), dtype)
        return self.const(value, (), dtype)

    def full(self, value: LiteralValue | Dim | SSAValue, shape_: Sequence[Dim], dtype: str) -> SSAValue:
        """y[i] = value, which may also be a size or a 0-d value."""
        if isinstance(value, (SSAValue, Size)):
            return self.broadcast(self.number(value, dtype), shape_, ())
        return self.const(value, shape_, dtype)

    # ---- shape

    def broadcast(self, x: SSAValue, shape_: Sequence[Dim], dims: Dims) -> SSAValue:
        """y[i] = x[i[dims[0]], i[dims[1]], ...]"""
        type_ = ir.tensor(shape_, ir.dtype_of(x))
        return self.shaped(shape.BroadcastOp, type_, x, dims=tuple(dims))

    def broadcast_to(self, x: SSAValue, shape_: Sequence[Dim]) -> SSAValue:
        """Broadcast as numpy does: sizes align at the right, a size of 1 (or none) repeats."""
        own, wanted = ir.shape_of(x), tuple(shape_)
        if own == wanted:
            return x
        lead = len(wanted) - len(own)
        if lead < 0:
            raise IRError(f"cannot broadcast {x.type} to {list(map(str, wanted))}")
        kept = [d for d, s in enumerate(own) if s == wanted[lead + d]]
        if any(s != 1 for d, s in enumerate(own) if d not in kept):
            raise IRError(f"cannot broadcast {x.type} to {list(map(str, wanted))}")
        return self.broadcast(self.reshape(x, [own[d] for d in kept]), wanted, [lead + d for d in kept])

    def reshape(self, x: SSAValue, shape_: Sequence[Dim]) -> SSAValue:
        """y = the same elements in row-major order"""
        return self.shaped(shape.ReshapeOp, ir.tensor(shape_, ir.dtype_of(x)), x)

    def transpose(self, x: SSAValue, perm: Dims) -> SSAValue:
        """Dimension k of y is dimension perm[k] of x"""
        return self.one(shape.TransposeOp, x, perm=tuple(perm))

    def slice(self, x: SSAValue, dim: int, start: Dim, limit: Dim, stride: int = 1) -> SSAValue:
        """y[k] = x[start + k·stride] along dim, while below limit"""
        return self.one(shape.SliceOp, x, dim=dim, start=start, limit=limit, stride=stride)

    def pad(self, x: SSAValue, dim: int, low: Dim, high: Dim, interior: int = 0, value: LiteralValue = 0) -> SSAValue:
        """x along dim between `low` and `high` values, with `interior` values between neighbours"""
        value = python_number(value, ir.dtype_of(x))
        return self.one(shape.PadOp, x, dim=dim, low=low, high=high, interior=interior, value=value)

    def concat(self, xs: Sequence[SSAValue], dim: int) -> SSAValue:
        """The operands one after the other along dim"""
        return self.one(shape.ConcatOp, *xs, dim=dim)

    def reverse(self, x: SSAValue, dims: Dims) -> SSAValue:
        """The order along dims reversed"""
        return self.one(shape.ReverseOp, x, dims=tuple(sorted(dims)))

    def expand_dims(self, x: SSAValue, dims: Dims) -> SSAValue:
        """Put sizes of 1 at the result's dims."""
        own = iter(ir.shape_of(x))
        rank = len(ir.shape_of(x)) + len(dims)
        return self.reshape(x, [1 if d in dims else next(own) for d in range(rank)])

    # ---- reductions

    def reduce(self, kind: str, x: SSAValue, dims: Dims) -> SSAValue:
        """The elements along dims combined by add, mul, max, min, and, or; dims disappear"""
        return self.one(reduce.ReduceOp, x, kind=kind, dims=tuple(sorted(dims)))

    def sum(self, x: SSAValue, dims: Dims) -> SSAValue:
        """Σ over dims"""
        return self.reduce("add", x, dims)

    def sum_to(self, x: SSAValue, shape_: Sequence[Dim]) -> SSAValue:
        """The transpose of `broadcast_to`: sum what it repeats."""
        own, wanted = ir.shape_of(x), tuple(shape_)
        if own == wanted:
            return x
        lead = len(own) - len(wanted)
        repeated = [d for d in range(len(own)) if d < lead or own[d] != wanted[d - lead]]
        return self.reshape(self.sum(x, repeated), wanted)

    def arg_reduce(self, kind: str, x: SSAValue, dim: int) -> SSAValue:
        """Index of the first max or min along dim"""
        return self.one(reduce.ArgReduceOp, x, kind=kind, dim=dim)

    def cumulative(self, kind: str, x: SSAValue, dim: int, reverse: bool = False) -> SSAValue:
        """Running combination along dim"""
        return self.one(reduce.CumulativeOp, x, kind=kind, dim=dim, reverse=reverse)

    def reduce_window(
        self, kind: str, x: SSAValue, dims: Dims, window: Dims, strides: Dims, low: Dims, high: Dims, dilations: Dims
    ) -> SSAValue:
        """Each window along dims combined"""
        return self.one(
            reduce.ReduceWindowOp,
            x,
            kind=kind,
            dims=tuple(dims),
            window=tuple(window),
            strides=tuple(strides),
            low=tuple(low),
            high=tuple(high),
            dilations=tuple(dilations),
        )

    def max_pool(
        self, x: SSAValue, dims: Dims, window: Dims, strides: Dims, low: Dims, high: Dims, dilations: Dims
    ) -> tuple[SSAValue, SSAValue]:
        """Largest element of each window and its position"""
        literals = dict(dims=dims, window=window, strides=strides, low=low, high=high, dilations=dilations)
        op = self.op(reduce.MaxPoolOp, (x,), {k: tuple(v) for k, v in literals.items()})
        return op.y, op.index

    def sort(self, x: SSAValue, dim: int, descending: bool = False) -> tuple[SSAValue, SSAValue]:
        """Sorted values and where they were"""
        op = self.op(reduce.SortOp, (x,), {"dim": dim, "descending": descending})
        return op.y, op.index

    # ---- contractions

    def dot(
        self, a: SSAValue, b: SSAValue, contract: tuple[Dims, Dims], batch: tuple[Dims, Dims] = ((), ())
    ) -> SSAValue:
        """y[batch, free a, free b] = Σ a · b"""
        return self.one(
            contract_.DotOp,
            a,
            b,
            batch_a=tuple(batch[0]),
            batch_b=tuple(batch[1]),
            contract_a=tuple(contract[0]),
            contract_b=tuple(contract[1]),
        )

    def matmul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """[..., m, k] · [..., k, n] with equal leading dims"""
        lead = tuple(range(len(ir.shape_of(a)) - 2))
        n = len(lead)
        return self.dot(a, b, ((n + 1,), (n,)), (lead, lead))

    def conv(
        self, x: SSAValue, w: SSAValue, strides: Dims, padding: Dims, dilations: Dims, groups: int = 1
    ) -> SSAValue:
        """Convolution of x [N, C, *spatial] with w [O, C / groups, *window]"""
        return self.one(contract_.ConvOp, x, w, **_conv_literals(strides, padding, dilations, groups))

    def conv_dx(
        self,
        g: SSAValue,
        w: SSAValue,
        shape_: Shape,
        strides: Dims,
        padding: Dims,
        dilations: Dims,
        groups: int = 1,
    ) -> SSAValue:
        """The transpose of conv in x, giving the shape"""
        literals = _conv_literals(strides, padding, dilations, groups)
        return self.shaped(contract_.ConvDxOp, ir.tensor(shape_, ir.dtype_of(g)), g, w, **literals)

    def conv_dw(
        self,
        g: SSAValue,
        x: SSAValue,
        shape_: Shape,
        strides: Dims,
        padding: Dims,
        dilations: Dims,
        groups: int = 1,
    ) -> SSAValue:
        """The transpose of conv in w, giving the shape"""
        literals = _conv_literals(strides, padding, dilations, groups)
        return self.shaped(contract_.ConvDwOp, ir.tensor(shape_, ir.dtype_of(g)), g, x, **literals)

    # ---- positions that are data

    def gather(self, x: SSAValue, indices: Sequence[SSAValue], dims: Dims) -> SSAValue:
        """y[s, r] = x with indices[k][s] in dims[k] and r elsewhere"""
        return self.one(index.GatherOp, x, *indices, dims=tuple(dims))

    def scatter(self, x: SSAValue, updates: SSAValue, indices: Sequence[SSAValue], dims: Dims, kind: str) -> SSAValue:
        """x with updates combined in: kind set, add, mul, max or min"""
        return self.one(index.ScatterOp, x, updates, *indices, dims=tuple(dims), kind=kind)

    def rng(self, key: SSAValue, kind: str, offset: Dim, shape_: Sequence[Dim], dtype: str) -> SSAValue:
        """Random numbers of the key at counters offset + position"""
        return self.shaped(random.RngOp, ir.tensor(shape_, dtype), key, kind=kind, offset=offset)

    # ---- structured

    def moments(self, x: SSAValue, dims: Dims) -> tuple[SSAValue, SSAValue]:
        """Mean and biased variance over dims"""
        op = self.op(structured.MomentsOp, (x,), {"dims": tuple(sorted(dims))})
        return op.mean, op.var

    def softmax(self, x: SSAValue, dim: int) -> SSAValue:
        """Softmax along dim"""
        return self.one(structured.SoftmaxOp, x, dim=dim)

    def log_softmax(self, x: SSAValue, dim: int) -> SSAValue:
        """Log-softmax along dim"""
        return self.one(structured.LogSoftmaxOp, x, dim=dim)

    def cross_entropy(self, logits: SSAValue, target: SSAValue, ignore: int) -> tuple[SSAValue, SSAValue]:
        """Row losses and log-sums"""
        op = self.op(structured.CrossEntropyOp, (logits, target), {"ignore": ignore})
        return op.loss, op.lse

    def attention(
        self, q: SSAValue, k: SSAValue, v: SSAValue, mask: SSAValue | None, scale: float, causal: bool
    ) -> tuple[SSAValue, SSAValue]:
        """Attention output and log-sums"""
        operands = (q, k, v) if mask is None else (q, k, v, mask)
        op = self.op(structured.AttentionOp, operands, {"scale": float(scale), "causal": causal})
        return op.o, op.lse

    def attention_bwd(
        self,
        g: SSAValue,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        delta: SSAValue,
        lse: SSAValue,
        mask: SSAValue | None,
        scale: float,
        causal: bool,
    ) -> tuple[SSAValue, SSAValue, SSAValue]:
        """Cotangents of q, k, v"""
        operands = (g, q, k, v, delta, lse) if mask is None else (g, q, k, v, delta, lse, mask)
        op = self.op(structured.AttentionBwdOp, operands, {"scale": float(scale), "causal": causal})
        return op.dq, op.dk, op.dv

    def opaque(
        self, callee: str, operands: Sequence[SSAValue], args: tuple[LiteralValue, ...], results: Sequence[Attribute]
    ) -> tuple[SSAValue, ...]:
        """A library call; never shared with an equal one, since it may not be pure"""
        op = ir.create_op(
            structured.OpaqueOp,
            operands,
            results,
            {"callee": Literal.of(callee), "args": Literal.of(args)},
            location=self.location,
        )
        self.block.add_op(op)
        return tuple(op.results)

    def yield_(self, values: Sequence[SSAValue]) -> None:
        """End a region."""
        self.block.add_op(ir.create_op(control.YieldOp, values, (), location=self.location))


def _conv_literals(strides: Dims, padding: Dims, dilations: Dims, groups: int) -> dict[str, LiteralValue]:
    return dict(strides=tuple(strides), padding=tuple(padding), dilations=tuple(dilations), groups=groups)
