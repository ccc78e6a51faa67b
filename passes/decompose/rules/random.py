"""Random numbers as functions of a key and a counter: other streams than torch's, the same distributions."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import inside
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim


def _uniform(e: Emitter, call: Call) -> SSAValue:
    """Uniform in [0, 1) in the dtype torch would compute in."""
    return call.uniform(call.shape(), inside(call.dtype()))


def _below_one(e: Emitter, call: Call) -> SSAValue:
    """Uniform in [0, 1), of which the result's dtype holds every number: a finer one would round up to 1."""
    dtype = call.dtype()
    if not ir.is_float(dtype):
        raise Refusal("complex random numbers are left to the library")
    return e.convert(call.uniform(call.shape(), dtype), inside(dtype))


def _normal(e: Emitter, call: Call) -> SSAValue:
    """√(-2 ln(1 - u)) · cos 2πv: Box and Muller, Ann. Math. Statist. 29 (1958)"""
    u, v = _uniform(e, call), _uniform(e, call)
    radius = e.sqrt(e.scaled(e.log(e.sub(e.const_like(1, u), u)), -2))
    return e.mul(radius, e.cos(e.scaled(v, 6.283185307179586)))


def _scaled(e: Emitter, call: Call, x: SSAValue, factor: Scalar, offset: Scalar) -> SSAValue:
    """x·factor + offset, in the result's dtype"""
    shape, dtype = ir.shape_of(x), ir.dtype_of(x)
    terms = [
        e.broadcast_to(e.convert(v, dtype), shape) if isinstance(v, SSAValue) else e.full(v, shape, dtype)
        for v in (factor, offset)
    ]
    return e.convert(e.add(e.mul(x, terms[0]), terms[1]), call.dtype())


RAND = ("rand.default", "rand_like.default", "rand.generator")
RANDN = ("randn.default", "randn_like.default", "randn.generator")


@decomposition(*RAND)
def rand(e: Emitter, call: Call, *how: object) -> SSAValue:
    return e.convert(_below_one(e, call), call.dtype())


@decomposition(*RANDN)
def randn(e: Emitter, call: Call, *how: object) -> SSAValue:
    if not ir.is_float(call.dtype()):
        raise Refusal("complex random numbers are left to the library")
    return e.convert(_normal(e, call), call.dtype())


@decomposition("uniform.default")
def uniform(e: Emitter, call: Call, x: SSAValue, low: Scalar, high: Scalar, generator: object) -> SSAValue:
    if isinstance(low, SSAValue) or isinstance(high, SSAValue):
        raise Refusal("bounds that are tensors are left to the library")
    number = _scaled(e, call, _below_one(e, call), high - low, low)  # pyright: ignore[reportOperatorIssue]
    if low == 0:
        return number
    # low + u·(high - low) may round up to high, which is outside
    first, bound = (e.full(v, call.shape(), call.dtype()) for v in (low, high))
    return e.select(e.cmp("ge", number, bound), first, number)


@decomposition("normal_functional.default", "normal_.default")
def normal_in_place(e: Emitter, call: Call, x: SSAValue, mean: Scalar, std: Scalar, generator: object) -> SSAValue:
    return normal(e, call, mean, std)


NORMALS = ("Tensor_Tensor", "Tensor_float", "float_Tensor", "float_float")


@decomposition(*(f"normal.{n}" for n in NORMALS))
def normal(e: Emitter, call: Call, mean: Scalar, std: Scalar, *how: object) -> SSAValue:
    """mean + std·n; as in torch nothing flows back to mean and std"""
    if not ir.is_float(call.dtype()):
        raise Refusal("complex random numbers are left to the library")
    mean, std = (e.stop_gradient(v) if isinstance(v, SSAValue) else v for v in (mean, std))
    return _scaled(e, call, _normal(e, call), std, mean)


@decomposition("log_normal.default")
def log_normal(e: Emitter, call: Call, x: SSAValue, mean: Scalar, std: Scalar, generator: object) -> SSAValue:
    return e.exp(normal(e, call, mean, std))


@decomposition("exponential.default")
def exponential(e: Emitter, call: Call, x: SSAValue, rate: Scalar, generator: object) -> SSAValue:
    """-ln(1 - u)/λ"""
    u = _uniform(e, call)
    return e.convert(
        e.neg(e.div(e.log(e.sub(e.const_like(1, u), u)), e.full(rate, call.shape(), ir.dtype_of(u)))), call.dtype()
    )


@decomposition("cauchy.default")
def cauchy(e: Emitter, call: Call, x: SSAValue, median: Scalar, sigma: Scalar, generator: object) -> SSAValue:
    """median + σ·tan π(u - ½)"""
    u = _uniform(e, call)
    return _scaled(e, call, e.unary(prim.TanOp, e.scaled(e.shifted(u, -0.5), 3.141592653589793)), sigma, median)


@decomposition("geometric.default")
def geometric(e: Emitter, call: Call, x: SSAValue, p: Scalar, generator: object) -> SSAValue:
    """⌈ln(1 - u)/ln(1 - p)⌉, at least 1"""
    u = call.uniform(call.shape(), "f64" if call.dtype() == "f64" else "f32")
    chance = e.full(p, call.shape(), ir.dtype_of(u))
    one = e.const_like(1, u)
    ratio = e.div(e.log(e.sub(one, u)), e.log(e.sub(one, chance)))
    return e.convert(e.max(e.ceil(ratio), one), call.dtype())


def _integers(e: Emitter, call: Call, low: Scalar, high: Scalar) -> SSAValue:
    """low + ⌊bits·(high - low) / 2³²⌋"""
    if not isinstance(low, (int, ir.Size)) or not isinstance(high, (int, ir.Size)):
        raise Refusal("bounds must be numbers")
    extent = high - low
    if isinstance(extent, int) and extent >= 2**31:
        raise Refusal("a range of 2**31 or more is left to the library")
    shape = call.shape()
    scaled = e.mul(call.bits(shape), e.full(extent, shape, "i64"))
    high_part = e.binary(prim.ShrOp, scaled, e.const(32, shape, "i64"))
    return e.convert(e.add(high_part, e.full(low, shape, "i64")), call.dtype())


@decomposition("randint.default", "randint.generator")
def randint(e: Emitter, call: Call, high: Scalar, *how: object) -> SSAValue:
    return _integers(e, call, 0, high)


@decomposition("randint.low", "randint.low_generator")
def randint_low(e: Emitter, call: Call, low: Scalar, high: Scalar, *how: object) -> SSAValue:
    return _integers(e, call, low, high)


@decomposition("randint_like.default")
def randint_like(e: Emitter, call: Call, x: SSAValue, high: Scalar, *how: object) -> SSAValue:
    return _integers(e, call, 0, high)


@decomposition("randint_like.low_dtype")
def randint_like_low(e: Emitter, call: Call, x: SSAValue, low: Scalar, high: Scalar, *how: object) -> SSAValue:
    return _integers(e, call, low, high)


@decomposition("randperm.default", "randperm.generator")
def randperm(e: Emitter, call: Call, n: Dim, *how: object) -> SSAValue:
    """Where random bits are when sorted"""
    _, order = e.sort(call.bits(call.shape()), 0)
    return e.convert(order, call.dtype())


@decomposition("bernoulli.default")
def bernoulli(e: Emitter, call: Call, chance: SSAValue, generator: object) -> SSAValue:
    """1 with the chance that the tensor says"""
    p = e.convert(chance, inside(ir.dtype_of(chance)))
    return e.convert(e.cmp("lt", call.uniform(call.shape(), ir.dtype_of(p)), e.stop_gradient(p)), call.dtype())


@decomposition("bernoulli.p", "bernoulli.float")
def bernoulli_number(e: Emitter, call: Call, x: SSAValue, p: Scalar, generator: object) -> SSAValue:
    u = call.uniform(call.shape(), "f32")
    return e.convert(e.cmp("lt", u, e.full(p, call.shape(), "f32")), call.dtype())


@decomposition("bernoulli.Tensor")
def bernoulli_tensor(e: Emitter, call: Call, x: SSAValue, chance: SSAValue, generator: object) -> SSAValue:
    u = call.uniform(call.shape(), "f32")
    return e.convert(e.cmp("lt", u, e.broadcast_to(e.convert(chance, "f32"), call.shape())), call.dtype())


# ---- dropout


def keep_mask(e: Emitter, call: Call, p: Scalar, like: SSAValue) -> SSAValue:
    """True with the chance 1 - p, one for each element of `like`"""
    shape = ir.shape_of(like)
    if not call.draws_from_library:
        return e.cmp("ge", call.uniform(shape, "f32"), e.full(p, shape, "f32"))
    if not isinstance(p, (int, float)):
        raise Refusal("a chance that is a tensor is left to the library")
    if p == 1:  # eager draws nothing then
        return e.const(False, shape, "i1")
    noise = call.library_noise(1 - p, like)
    return e.cmp("ne", noise, e.zeros_like(noise))


def dropped(e: Emitter, call: Call, x: SSAValue, p: Scalar, mask: SSAValue) -> SSAValue:
    """x·mask/(1 - p)"""
    if not isinstance(p, (int, float)):
        raise Refusal("a chance that is a tensor is left to the library")
    wide = e.convert(x, inside(ir.dtype_of(x)))
    factor = 0.0 if p == 1 else 1 / (1 - p)
    shape, dtype = ir.shape_of(mask), ir.dtype_of(wide)
    noise = e.select(mask, e.const(factor, shape, dtype), e.const(0, shape, dtype))
    return e.convert(e.mul(wide, e.broadcast_to(noise, ir.shape_of(x))), ir.dtype_of(x))


@decomposition("dropout.default")
def dropout(e: Emitter, call: Call, x: SSAValue, p: Scalar, train: bool) -> SSAValue:
    if not train or p == 0 or ir.numel(x) == 0:
        return x
    return dropped(e, call, x, p, keep_mask(e, call, p, x))


@decomposition("native_dropout.default")
def native_dropout(e: Emitter, call: Call, x: SSAValue, p: Scalar, train: bool | None) -> tuple[SSAValue, SSAValue]:
    if train is False or p == 0:
        return x, e.const(True, ir.shape_of(x), "i1")
    if call.draws_from_library:
        raise Refusal("random numbers come from the library")
    mask = keep_mask(e, call, p, x)
    return dropped(e, call, x, p, mask), mask


@decomposition("native_dropout_backward.default")
def native_dropout_backward(e: Emitter, call: Call, g: SSAValue, mask: SSAValue, scale: Scalar) -> SSAValue:
    """g·mask·scale"""
    wide = e.convert(g, inside(ir.dtype_of(g)))
    kept = e.mul(wide, e.convert(mask, ir.dtype_of(wide)))
    return e.convert(e.mul(kept, e.full(scale, ir.shape_of(g), ir.dtype_of(wide))), call.dtype())


def _features(e: Emitter, x: SSAValue) -> SSAValue:
    """One element for each sample and channel."""
    return e.full(0, tuple(s if d < 2 else 1 for d, s in enumerate(ir.shape_of(x))), ir.dtype_of(x))


@decomposition("feature_dropout.default")
def feature_dropout(e: Emitter, call: Call, x: SSAValue, p: Scalar, train: bool) -> SSAValue:
    if not train or p == 0 or ir.numel(x) == 0:
        return x
    return dropped(e, call, x, p, keep_mask(e, call, p, _features(e, x)))


def _alpha_dropout(e: Emitter, call: Call, x: SSAValue, p: Scalar, units: SSAValue) -> SSAValue:
    """a·(x where kept, -α' elsewhere) + b: keeps mean and variance of selu's output (arXiv:1706.02515)"""
    if not isinstance(p, (int, float)):
        raise Refusal("a chance that is a tensor is left to the library")
    if p == 1:
        return e.scaled(x, 0)
    alpha = 1.7580993408473766
    a = ((alpha * alpha * p + 1) * (1 - p)) ** -0.5
    wide = e.convert(x, inside(ir.dtype_of(x)))
    mask = e.broadcast_to(keep_mask(e, call, p, units), ir.shape_of(x))
    kept = e.select(mask, e.scaled(wide, a), e.const_like(-alpha * a, wide))
    return e.convert(e.shifted(kept, alpha * a * p), ir.dtype_of(x))


@decomposition("alpha_dropout.default")
def alpha_dropout(e: Emitter, call: Call, x: SSAValue, p: Scalar, train: bool) -> SSAValue:
    return x if not train or p == 0 else _alpha_dropout(e, call, x, p, x)


@decomposition("feature_alpha_dropout.default")
def feature_alpha_dropout(e: Emitter, call: Call, x: SSAValue, p: Scalar, train: bool) -> SSAValue:
    return x if not train or p == 0 else _alpha_dropout(e, call, x, p, _features(e, x))
