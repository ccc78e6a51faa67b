"""Products of vectors and matrices."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.ir import Shape
from isthmus.passes.decompose.dims import axis
from isthmus.passes.decompose.promotion import inside, like, wide
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition


def product(
    e: Emitter, a: SSAValue, b: SSAValue, contract: tuple[Sequence[int], Sequence[int]], batch: int = 0
) -> SSAValue:
    """Σ a·b over contracted dims with the first `batch` dims in common."""
    lead = tuple(range(batch))
    return e.dot(a, b, contract, (lead, lead))


def matmul(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """numpy's matmul: vectors lose their dimension, leading dimensions broadcast."""
    ra, rb = len(ir.shape_of(a)), len(ir.shape_of(b))
    if rb == 1 or (rb == 2 and ra >= 2):
        return product(e, a, b, ((ra - 1,), (max(rb - 2, 0),)))
    if ra == 1:
        return product(e, b, a, ((rb - 2,), (0,)))
    lead = broadcast_shapes(ir.shape_of(a)[:-2], ir.shape_of(b)[:-2])
    left = e.broadcast_to(a, (*lead, *ir.shape_of(a)[-2:]))
    right = e.broadcast_to(b, (*lead, *ir.shape_of(b)[-2:]))
    return e.matmul(left, right)


def broadcast_shapes(a: Shape, b: Shape) -> Shape:
    """Give the shape two shapes broadcast to."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(r if s == 1 else s for s, r in zip(left, right, strict=True))


@decomposition("matmul.default", "linalg_matmul.default")
def matmul_rule(e: Emitter, call: Call, a: SSAValue, b: SSAValue) -> SSAValue:
    return matmul(e, a, b)


@decomposition("mm.default", "bmm.default", "mv.default", "dot.default")
def plain_product(e: Emitter, call: Call, a: SSAValue, b: SSAValue) -> SSAValue:
    return matmul(e, a, b)


@decomposition("mm.dtype", "bmm.dtype")
def product_into(e: Emitter, call: Call, a: SSAValue, b: SSAValue, dtype: str) -> SSAValue:
    return matmul(e, e.convert(a, dtype), e.convert(b, dtype))


@decomposition("vdot.default")
def vdot(e: Emitter, call: Call, a: SSAValue, b: SSAValue) -> SSAValue:
    return matmul(e, e.conj(a), b)


@decomposition("outer.default", "ger.default")
def outer(e: Emitter, call: Call, a: SSAValue, b: SSAValue) -> SSAValue:
    """a[i]·b[j]"""
    shape, dtype = call.shape(), call.dtype()
    left, right = (e.broadcast(e.convert(v, inside(dtype)), shape, (d,)) for d, v in enumerate((a, b)))
    return e.convert(e.and_(left, right) if dtype == "i1" else e.mul(left, right), dtype)


@decomposition("inner.default")
def inner(e: Emitter, call: Call, a: SSAValue, b: SSAValue) -> SSAValue:
    """Σ over the last dimensions; a product where one is a number"""
    ra, rb = len(ir.shape_of(a)), len(ir.shape_of(b))
    if ra == 0 or rb == 0:
        left, right = (e.broadcast_to(wide(e, v), call.shape()) for v in (a, b))
        return e.convert(e.mul(left, right), call.dtype())
    return product(e, a, b, ((ra - 1,), (rb - 1,)))


@decomposition("linalg_vecdot.default")
def vecdot(e: Emitter, call: Call, a: SSAValue, b: SSAValue, dim: int) -> SSAValue:
    shape = broadcast_shapes(ir.shape_of(a), ir.shape_of(b))
    left, right = (e.broadcast_to(wide(e, v), shape) for v in (a, b))
    return e.convert(e.sum(e.mul(e.conj(left), right), (axis(left, dim),)), call.dtype())


@decomposition("tensordot.default")
def tensordot(
    e: Emitter, call: Call, a: SSAValue, b: SSAValue, dims_a: Sequence[int], dims_b: Sequence[int]
) -> SSAValue:
    """Σ over pairs of dimensions; a pair in which one size is 1 broadcasts"""
    over_a, over_b = [axis(a, d) for d in dims_a], [axis(b, d) for d in dims_b]
    for da, db in zip(over_a, over_b, strict=True):
        if ir.shape_of(a)[da] == 1:
            b = _summed(e, b, db)
        elif ir.shape_of(b)[db] == 1:
            a = _summed(e, a, da)
    return product(e, a, b, (over_a, over_b))


def _summed(e: Emitter, x: SSAValue, dim: int) -> SSAValue:
    """Σ along a dimension that stays, of size 1"""
    return x if ir.shape_of(x)[dim] == 1 else e.expand_dims(e.sum(x, (dim,)), (dim,))


# ---- added to something: β·x + α·(a b)


def _added(e: Emitter, call: Call, x: SSAValue, y: SSAValue, beta: Scalar, alpha: Scalar) -> SSAValue:
    """β·x + α·y; for β = 0 x does not count, not even its NaN"""
    within = inside(call.dtype())
    scaled = e.convert(y, within)
    scaled = e.mul(scaled, like(e, alpha, scaled))
    if not isinstance(beta, SSAValue) and beta == 0:
        return e.convert(scaled, call.dtype())
    base = e.broadcast_to(e.convert(x, within), call.shape())
    return e.convert(e.add(e.mul(base, like(e, beta, base)), scaled), call.dtype())


@decomposition("addmm.default", "baddbmm.default", "addmv.default")
def addmm(e: Emitter, call: Call, x: SSAValue, a: SSAValue, b: SSAValue, beta: Scalar, alpha: Scalar) -> SSAValue:
    return _added(e, call, x, matmul(e, a, b), beta, alpha)


@decomposition("_addmm_activation.default")
def addmm_activation(
    e: Emitter, call: Call, x: SSAValue, a: SSAValue, b: SSAValue, beta: Scalar, alpha: Scalar, use_gelu: bool
) -> SSAValue:
    if use_gelu:
        raise Refusal("gelu inside a product is left to the library")
    return e.relu(_added(e, call, x, matmul(e, a, b), beta, alpha))


@decomposition("addbmm.default")
def addbmm(e: Emitter, call: Call, x: SSAValue, a: SSAValue, b: SSAValue, beta: Scalar, alpha: Scalar) -> SSAValue:
    """β·x + α·Σ over the batch: the batch is contracted too"""
    return _added(e, call, x, product(e, a, b, ((0, 2), (0, 1))), beta, alpha)


@decomposition("addr.default")
def addr(e: Emitter, call: Call, x: SSAValue, a: SSAValue, b: SSAValue, beta: Scalar, alpha: Scalar) -> SSAValue:
    """β·x + α·a bᵀ"""
    if call.dtype() == "i1":
        raise Refusal("is left to the library for booleans")
    return _added(e, call, x, outer(e, call, e.convert(a, call.dtype()), e.convert(b, call.dtype())), beta, alpha)


@decomposition("linear.default")
def linear(e: Emitter, call: Call, x: SSAValue, weight: SSAValue, bias: SSAValue | None) -> SSAValue:
    """x Wᵀ + b"""
    rank = len(ir.shape_of(x))
    y = product(e, x, weight, ((rank - 1,), (len(ir.shape_of(weight)) - 1,)))
    if bias is None:
        return y
    spread = e.broadcast_to(wide(e, bias), call.shape())
    return e.convert(e.add(wide(e, y), spread), call.dtype())


@decomposition("bilinear.default")
def bilinear(e: Emitter, call: Call, a: SSAValue, b: SSAValue, weight: SSAValue, bias: SSAValue | None) -> SSAValue:
    """y[..., o] = Σ a[..., i]·W[o, i, j]·b[..., j]"""
    rank = len(ir.shape_of(a))
    halfway = product(e, a, weight, ((rank - 1,), (1,)))  # [..., o, j]
    right = e.broadcast(b, ir.shape_of(halfway), (*range(rank - 1), rank))
    y = e.sum(e.mul(halfway, right), (rank,))
    return y if bias is None else e.add(y, e.broadcast_to(bias, call.shape()))


@decomposition("cross.default", "linalg_cross.default")
def cross(e: Emitter, call: Call, a: SSAValue, b: SSAValue, dim: int | None) -> SSAValue:
    """a×b along a dimension of size 3 (the first such one where none is named)"""
    shape = call.shape()
    at = shape.index(3) if dim is None else (dim + len(shape) if dim < 0 else dim)
    left, right = (e.broadcast_to(e.convert(v, call.dtype()), shape) for v in (a, b))
    la, lb = ([e.slice(v, at, k, k + 1) for k in range(3)] for v in (left, right))
    parts = [e.sub(e.mul(la[i], lb[j]), e.mul(la[j], lb[i])) for i, j in ((1, 2), (2, 0), (0, 1))]
    return e.concat(parts, at)


@decomposition("kron.default")
def kron(e: Emitter, call: Call, a: SSAValue, b: SSAValue) -> SSAValue:
    """y[i·q + k] = a[i]·b[k] in every dimension"""
    rank = len(call.shape())
    shapes = [(1,) * (rank - len(ir.shape_of(v))) + ir.shape_of(v) for v in (a, b)]
    both = tuple(s for pair in zip(*shapes, strict=True) for s in pair)
    spread = [
        e.broadcast(e.reshape(e.convert(v, call.dtype()), shapes[k]), both, [2 * d + k for d in range(rank)])
        for k, v in enumerate((a, b))
    ]
    return e.reshape(e.and_(*spread) if call.dtype() == "i1" else e.mul(*spread), call.shape())


@decomposition("linalg_multi_dot.default", "chain_matmul.default")
def multi_dot(e: Emitter, call: Call, xs: Sequence[SSAValue]) -> SSAValue:
    """The product from left to right"""
    y = xs[0]
    for x in xs[1:]:
        y = matmul(e, y, x)
    return y


@decomposition("linalg_matrix_power.default", "matrix_power.default")
def matrix_power(e: Emitter, call: Call, x: SSAValue, n: int) -> SSAValue:
    """xⁿ by repeated squaring; inverses are the library's"""
    if n <= 0:
        raise Refusal("inverse matrices are left to the library")
    result: SSAValue | None = None
    power = x
    while True:
        if n & 1:
            result = power if result is None else matmul(e, result, power)
        n >>= 1
        if not n:
            return result if result is not None else x
        power = matmul(e, power, power)
