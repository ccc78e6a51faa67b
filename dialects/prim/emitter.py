"""Making primitives: one method per primitive, equal ops shared when they are made, folding at birth."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Attribute, Block, Region, SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.prim import contract as contract_
from isthmus.dialects.prim import control, elementwise, index, random, reduce, shape, structured
from isthmus.dialects.prim.base import Literals, PrimOp, literals_of
from isthmus.ir import Literal, LiteralValue, Shape
from isthmus.sizes import Dim, Size

Dims = Sequence[int]
OpT = TypeVar("OpT", bound=PrimOp)


class Emitter:
    """Appends primitives to a block; an op equal to one already made gives that one's results.

    `location` is put on every op that is made. Folding and sharing keep every bit of a result. `outer` makes a block
    that sees another one's values.
    """

    def __init__(self, block: Block, outer: Emitter | None = None) -> None:
        self.block = block
        self.location: LocationAttr = ir.UNKNOWN
        self.outer = outer
        self._made: dict[object, PrimOp] = {}

    # ---- making ops

    def op(
        self,
        cls: type[OpT],
        operands: Sequence[SSAValue],
        literals: Literals | None = None,
        results: Sequence[Attribute] | None = None,
    ) -> OpT:
        """Give an op of the class with these operands and literals; result types inferred unless given."""
        operands = tuple(operands)
        properties = {k: Literal.of(v) for k, v in literals.items()} if literals else {}
        found = self._shared(cls, operands, properties, results)
        if found is not None:
            return found
        types = tuple(v.type for v in operands)
        try:
            if results is None:
                made_types = cls.infer(types, literals or {})
            else:
                made_types = tuple(results)
                cls.check(types, literals or {}, made_types)
        except IRError as error:
            where = ir.source_location_of(self.location)
            raise IRError(error.what, op=cls.name, location=where, cure=error.cure) from error
        op = ir.create_op(cls, operands, made_types, properties, location=self.location)
        self.block.add_op(op)
        self._made[_key(cls, operands, properties, results)] = op
        return op

    def _shared(
        self,
        cls: type[OpT],
        operands: tuple[SSAValue, ...],
        properties: Mapping[str, Attribute],
        results: Sequence[Attribute] | None,
    ) -> OpT | None:
        """Give the equal op that was already made here or around, or None."""
        key = _key(cls, operands, properties, results)
        scope: Emitter | None = self
        while scope is not None:
            found = scope._made.get(key)
            if found is not None:
                return cast(OpT, found)
            scope = scope.outer
        return None

    def copy(self, op: PrimOp, operands: Sequence[SSAValue]) -> tuple[SSAValue, ...]:
        """Make an op like `op` on other operands, folded and shared like any other; regions are moved as they are."""
        self.location = op.location
        if op.regions or isinstance(op, structured.OpaqueOp):  # a library call may not be pure
            made = ir.create_op(
                type(op),
                operands,
                [r.type for r in op.results],
                op.properties,
                location=op.location,
                regions=[r.clone() for r in op.regions],
                attributes=op.attributes,
            )
            self.block.add_op(made)
            return tuple(made.results)
        cls, operands = type(op), tuple(operands)
        results = [r.type for r in op.results] if op.EXPLICIT else None
        if self._may_fold(cls):
            literals = {k: cast(Literal, a).data for k, a in op.properties.items()}
            if results:
                literals["result"] = ir.shape_of(results[0])
            folded = self._fold(cls, operands, literals)
            if folded is not None:
                return (folded,)
        made = self._shared(cls, operands, op.properties, results) or self._like(op, operands, results)
        if op.attributes:
            made.attributes.update(op.attributes)
        return tuple(made.results)

    def _like(self, op: PrimOp, operands: tuple[SSAValue, ...], results: Sequence[Attribute] | None) -> PrimOp:
        """Make an op like `op`; of operands of the same types, the result types are the same."""
        if all([new.type is old.type for new, old in zip(operands, ir.operands_of(op), strict=True)]):
            made = ir.create_op(type(op), operands, [r.type for r in op.results], op.properties, location=self.location)
            self.block.add_op(made)
            self._made[_key(type(op), operands, op.properties, results)] = made
            return made
        return self.op(type(op), operands, literals_of(op), results)

    @contextmanager
    def at(self, location: LocationAttr) -> Generator[None]:
        """Give the ops made meanwhile this location."""
        before, self.location = self.location, location
        try:
            yield
        finally:
            self.location = before

    def region(self, types: Sequence[Attribute]) -> tuple[Region, Emitter, tuple[SSAValue, ...]]:
        """Give a new one-block region with arguments of these types and an emitter for its body.

        Regions see only their own arguments, so nothing is shared with the surrounding block.
        """
        block = Block(arg_types=types)
        return Region(block), Emitter(block), tuple(block.args)

    def _may_fold(self, cls: type[PrimOp]) -> bool:
        """Whether ops of the class are worth asking for folds."""
        return cls.fold.__func__ is not PrimOp.fold.__func__  # pyright: ignore[reportFunctionMemberAccess]

    def _fold(self, cls: type[PrimOp], operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        return cls.fold(self, operands, literals)  # pyright: ignore[reportArgumentType] (one file under two names)

    def _one(self, cls: type[PrimOp], *operands: SSAValue, **literals: LiteralValue) -> SSAValue:
        folded = self._fold(cls, operands, literals)
        return folded if folded is not None else self.op(cls, operands, literals).results[0]

    def _shaped(self, cls: type[PrimOp], type_: Attribute, *operands: SSAValue, **literals: LiteralValue) -> SSAValue:
        folded = self._fold(cls, operands, {**literals, "result": ir.shape_of(type_)})
        return folded if folded is not None else self.op(cls, operands, literals, (type_,)).results[0]

    # ---- constants

    def const(self, value: LiteralValue, shape_: Sequence[Dim] = (), dtype: str = "f32") -> SSAValue:
        """y[i] = value, brought to the dtype's Python type."""
        return self.op(shape.ConstOp, (), {"value": python_number(value, dtype)}, (ir.tensor(shape_, dtype),)).y

    def const_like(self, value: LiteralValue, x: SSAValue) -> SSAValue:
        """A constant of the shape and dtype of x (a scalar inside kernel bodies)."""
        dtype = ir.dtype_of(x)
        return self.op(shape.ConstOp, (), {"value": python_number(value, dtype)}, (x.type,)).y

    def constant_of(self, x: SSAValue) -> LiteralValue:
        """Give the value that every element of x has, or None when it is not known."""
        owner = x.owner
        return owner.value.data if type(owner) is shape.ConstOp else None

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

    def size(self, expr: Dim) -> SSAValue:
        """The value of a size, 0-d i64."""
        if isinstance(expr, int):
            return self.const(expr, (), "i64")
        return self.op(shape.SizeOp, (), {"expr": expr}, (ir.tensor((), "i64"),)).y

    def iota(self, shape_: Sequence[Dim], dim: int, dtype: str = "i64") -> SSAValue:
        """y[i] = i[dim]"""
        return self.op(shape.IotaOp, (), {"dim": dim}, (ir.tensor(shape_, dtype),)).y

    def zeros_like(self, x: SSAValue) -> SSAValue:
        """Zeros of the shape and dtype of x."""
        return self.const_like(0, x)

    # ---- elementwise

    def unary(self, cls: type[elementwise.UnaryOp], x: SSAValue) -> SSAValue:
        """y = f(x) for any unary elementwise class."""
        return self._one(cls, x)

    def binary(self, cls: type[elementwise.BinaryOp], a: SSAValue, b: SSAValue) -> SSAValue:
        """y = f(a, b) for any binary elementwise class."""
        return self._one(cls, a, b)

    def neg(self, x: SSAValue) -> SSAValue:
        """y = -x"""
        return self._one(elementwise.NegOp, x)

    def abs(self, x: SSAValue) -> SSAValue:
        """y = |x|"""
        return self._one(elementwise.AbsOp, x)

    def sign(self, x: SSAValue) -> SSAValue:
        """y = sign of x"""
        return self._one(elementwise.SignOp, x)

    def floor(self, x: SSAValue) -> SSAValue:
        """y = ⌊x⌋"""
        return self._one(elementwise.FloorOp, x)

    def ceil(self, x: SSAValue) -> SSAValue:
        """y = ⌈x⌉"""
        return self._one(elementwise.CeilOp, x)

    def round(self, x: SSAValue) -> SSAValue:
        """y = nearest integer, ties to even"""
        return self._one(elementwise.RoundOp, x)

    def trunc(self, x: SSAValue) -> SSAValue:
        """y = integer part of x"""
        return self._one(elementwise.TruncOp, x)

    def not_(self, x: SSAValue) -> SSAValue:
        """y = ~x"""
        return self._one(elementwise.NotOp, x)

    def sqrt(self, x: SSAValue) -> SSAValue:
        """y = √x"""
        return self._one(elementwise.SqrtOp, x)

    def rsqrt(self, x: SSAValue) -> SSAValue:
        """y = 1/√x"""
        return self._one(elementwise.RsqrtOp, x)

    def relu(self, x: SSAValue) -> SSAValue:
        """y = x < 0 ? 0 : x"""
        return self._one(elementwise.ReluOp, x)

    def exp(self, x: SSAValue) -> SSAValue:
        """y = eˣ"""
        return self._one(elementwise.ExpOp, x)

    def log(self, x: SSAValue) -> SSAValue:
        """y = ln x"""
        return self._one(elementwise.LogOp, x)

    def log1p(self, x: SSAValue) -> SSAValue:
        """y = ln(1 + x)"""
        return self._one(elementwise.Log1pOp, x)

    def expm1(self, x: SSAValue) -> SSAValue:
        """y = eˣ - 1"""
        return self._one(elementwise.Expm1Op, x)

    def sin(self, x: SSAValue) -> SSAValue:
        """y = sin x"""
        return self._one(elementwise.SinOp, x)

    def cos(self, x: SSAValue) -> SSAValue:
        """y = cos x"""
        return self._one(elementwise.CosOp, x)

    def tanh(self, x: SSAValue) -> SSAValue:
        """y = tanh x"""
        return self._one(elementwise.TanhOp, x)

    def erf(self, x: SSAValue) -> SSAValue:
        """y = erf x"""
        return self._one(elementwise.ErfOp, x)

    def logistic(self, x: SSAValue) -> SSAValue:
        """y = 1 / (1 + e⁻ˣ)"""
        return self._one(elementwise.LogisticOp, x)

    def conj(self, x: SSAValue) -> SSAValue:
        """Complex conjugate; x itself when real."""
        return self._one(elementwise.ConjOp, x) if ir.is_complex(ir.dtype_of(x)) else x

    def real(self, x: SSAValue) -> SSAValue:
        """Real part; x itself when real."""
        return self._one(elementwise.RealOp, x) if ir.is_complex(ir.dtype_of(x)) else x

    def stop_gradient(self, x: SSAValue) -> SSAValue:
        """y = x with derivative 0"""
        return self._one(elementwise.StopGradientOp, x)

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a + b"""
        return self._one(elementwise.AddOp, a, b)

    def sub(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a - b"""
        return self._one(elementwise.SubOp, a, b)

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a · b"""
        if self.constant_of(b) == 1 and ir.dtype_of(b) != "i1":
            return a
        if self.constant_of(a) == 1 and ir.dtype_of(a) != "i1":
            return b
        return self._one(elementwise.MulOp, a, b)

    def div(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a / b (integers round toward zero)"""
        return a if self.constant_of(b) == 1 else self._one(elementwise.DivOp, a, b)

    def rem(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a - b·trunc(a / b)"""
        return self._one(elementwise.RemOp, a, b)

    def pow(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = aᵇ"""
        return self._one(elementwise.PowOp, a, b)

    def max(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = the larger, NaN where either is"""
        return self._one(elementwise.MaxOp, a, b)

    def min(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = the smaller, NaN where either is"""
        return self._one(elementwise.MinOp, a, b)

    def and_(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a & b"""
        return self._one(elementwise.AndOp, a, b)

    def or_(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a | b"""
        return self._one(elementwise.OrOp, a, b)

    def xor(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a ^ b"""
        return self._one(elementwise.XorOp, a, b)

    def cmp(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = a ⋄ b with ⋄ one of eq ne lt le gt ge"""
        return self._one(elementwise.CmpOp, a, b, predicate=predicate)

    def select(self, p: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        """y = p ? a : b"""
        return self._one(elementwise.SelectOp, p, a, b)

    def fma(self, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        """y = a·b + c, rounded once"""
        return self._one(elementwise.FmaOp, a, b, c)

    def convert(self, x: SSAValue, dtype: str) -> SSAValue:
        """y = x in the dtype; x itself when it has it"""
        if ir.dtype_of(x) == dtype:
            return x
        value = self.constant_of(x)
        if value is not None and not isinstance(value, complex) and _exact(value, dtype):
            return self.op(shape.ConstOp, (), {"value": python_number(value, dtype)}, (ir.like(x.type, dtype),)).y
        return self.op(elementwise.ConvertOp, (x,), None, (ir.like(x.type, dtype),)).y

    # ---- scalars met by tensors: the number becomes a constant of the tensor's dtype

    def scaled(self, x: SSAValue, factor: LiteralValue) -> SSAValue:
        """y = x · factor"""
        return self.mul(x, self.const_like(factor, x))

    def shifted(self, x: SSAValue, offset: LiteralValue) -> SSAValue:
        """y = x + offset"""
        return self.add(x, self.const_like(offset, x))

    def square(self, x: SSAValue) -> SSAValue:
        """y = x²"""
        return self.mul(x, x)

    def reciprocal(self, x: SSAValue) -> SSAValue:
        """y = 1 / x"""
        return self.div(self.const_like(1, x), x)

    def is_nan(self, x: SSAValue) -> SSAValue:
        """y = x is NaN"""
        return self.cmp("ne", x, x)

    # ---- shape

    def broadcast(self, x: SSAValue, shape_: Sequence[Dim], dims: Dims) -> SSAValue:
        """y[i] = x[i[dims[0]], i[dims[1]], ...]"""
        type_ = ir.tensor(shape_, ir.dtype_of(x))
        return self._shaped(shape.BroadcastOp, type_, x, dims=tuple(dims))

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
        return self._shaped(shape.ReshapeOp, ir.tensor(shape_, ir.dtype_of(x)), x)

    def transpose(self, x: SSAValue, perm: Dims) -> SSAValue:
        """Dimension k of y is dimension perm[k] of x"""
        return self._one(shape.TransposeOp, x, perm=tuple(perm))

    def slice(self, x: SSAValue, dim: int, start: Dim, limit: Dim, stride: int = 1) -> SSAValue:
        """y[k] = x[start + k·stride] along dim, while below limit"""
        return self._one(shape.SliceOp, x, dim=dim, start=start, limit=limit, stride=stride)

    def pad(self, x: SSAValue, dim: int, low: Dim, high: Dim, interior: int = 0, value: LiteralValue = 0) -> SSAValue:
        """x along dim between `low` and `high` values, with `interior` values between neighbours"""
        value = python_number(value, ir.dtype_of(x))
        return self._one(shape.PadOp, x, dim=dim, low=low, high=high, interior=interior, value=value)

    def concat(self, xs: Sequence[SSAValue], dim: int) -> SSAValue:
        """The operands one after the other along dim"""
        return self._one(shape.ConcatOp, *xs, dim=dim)

    def reverse(self, x: SSAValue, dims: Dims) -> SSAValue:
        """The order along dims reversed"""
        return self._one(shape.ReverseOp, x, dims=tuple(sorted(dims)))

    def expand_dims(self, x: SSAValue, dims: Dims) -> SSAValue:
        """Put sizes of 1 at the result's dims."""
        own = iter(ir.shape_of(x))
        rank = len(ir.shape_of(x)) + len(dims)
        return self.reshape(x, [1 if d in dims else next(own) for d in range(rank)])

    # ---- reductions

    def reduce(self, kind: str, x: SSAValue, dims: Dims) -> SSAValue:
        """The elements along dims combined by add, mul, max, min, and, or; dims disappear"""
        return self._one(reduce.ReduceOp, x, kind=kind, dims=tuple(sorted(dims)))

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
        return self._one(reduce.ArgReduceOp, x, kind=kind, dim=dim)

    def cumulative(self, kind: str, x: SSAValue, dim: int, reverse: bool = False) -> SSAValue:
        """Running combination along dim"""
        return self._one(reduce.CumulativeOp, x, kind=kind, dim=dim, reverse=reverse)

    def reduce_window(
        self, kind: str, x: SSAValue, dims: Dims, window: Dims, strides: Dims, low: Dims, high: Dims, dilations: Dims
    ) -> SSAValue:
        """Each window along dims combined"""
        return self._one(
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
        return self._one(
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
        return self._one(contract_.ConvOp, x, w, **_conv_literals(strides, padding, dilations, groups))

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
        return self._shaped(contract_.ConvDxOp, ir.tensor(shape_, ir.dtype_of(g)), g, w, **literals)

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
        return self._shaped(contract_.ConvDwOp, ir.tensor(shape_, ir.dtype_of(g)), g, x, **literals)

    # ---- positions that are data

    def gather(self, x: SSAValue, indices: Sequence[SSAValue], dims: Dims) -> SSAValue:
        """y[s, r] = x with indices[k][s] in dims[k] and r elsewhere"""
        return self._one(index.GatherOp, x, *indices, dims=tuple(dims))

    def scatter(self, x: SSAValue, updates: SSAValue, indices: Sequence[SSAValue], dims: Dims, kind: str) -> SSAValue:
        """x with updates combined in: kind set, add, mul, max or min"""
        return self._one(index.ScatterOp, x, updates, *indices, dims=tuple(dims), kind=kind)

    def rng(self, key: SSAValue, kind: str, offset: Dim, shape_: Sequence[Dim], dtype: str) -> SSAValue:
        """Random numbers of the key at counters offset + position"""
        return self._shaped(random.RngOp, ir.tensor(shape_, dtype), key, kind=kind, offset=offset)

    # ---- structured

    def moments(self, x: SSAValue, dims: Dims) -> tuple[SSAValue, SSAValue]:
        """Mean and biased variance over dims"""
        op = self.op(structured.MomentsOp, (x,), {"dims": tuple(sorted(dims))})
        return op.mean, op.var

    def softmax(self, x: SSAValue, dim: int) -> SSAValue:
        """Softmax along dim"""
        return self._one(structured.SoftmaxOp, x, dim=dim)

    def log_softmax(self, x: SSAValue, dim: int) -> SSAValue:
        """Log-softmax along dim"""
        return self._one(structured.LogSoftmaxOp, x, dim=dim)

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


def _key(
    cls: type[PrimOp],
    operands: tuple[SSAValue, ...],
    properties: Mapping[str, Attribute],
    results: Sequence[Attribute] | None,
) -> object:
    """What equal ops have in common; literals and types are interned, so identity is equality."""
    return (
        cls,
        tuple(map(id, operands)),
        tuple(map(id, properties.values())),
        tuple(map(id, results)) if results else None,
    )


def _conv_literals(strides: Dims, padding: Dims, dilations: Dims, groups: int) -> dict[str, LiteralValue]:
    return dict(strides=tuple(strides), padding=tuple(padding), dilations=tuple(dilations), groups=groups)


def python_number(value: LiteralValue, dtype: str) -> LiteralValue:
    """Bring a number to the Python type of the dtype: bool, int, float or complex."""
    if dtype == "i1":
        return bool(value)
    if ir.is_integer(dtype):
        return int(value)  # pyright: ignore[reportArgumentType]
    if ir.is_complex(dtype):
        return complex(value)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return float(value)  # pyright: ignore[reportArgumentType]


def _exact(value: LiteralValue, dtype: str) -> bool:
    """Tell whether a real constant survives the conversion unchanged, so that folding keeps every bit."""
    if isinstance(value, int):
        limit = {"f64": 2**53, "f32": 2**24, "bf16": 2**8, "f16": 2**11, "i1": 1, "u8": 255, "i8": 127, "i16": 32767}
        return abs(value) <= limit.get(dtype, 2**31 - 1) and (value >= 0 or dtype not in ("i1", "u8"))
    if isinstance(value, float):
        whole = math.isfinite(value) and value.is_integer() and abs(value) <= 2**8 and math.copysign(1, value) > 0
        return whole and (ir.is_float(dtype) or dtype in ("i64", "i32", "i16") or value in (0.0, 1.0))
    return False
