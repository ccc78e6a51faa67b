"""One sample or more for each primitive: how to build it, inputs, and the torch function it must agree with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from tests.unit.passes.autodiff.sample import F64, Sample, numbers
from tests.unit.passes.autodiff.structured_samples import structured


def tanh_gate(x: Tensor) -> Tensor:
    return (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


UNARY: dict[type[prim.UnaryOp], tuple[Callable[[Tensor], Tensor], float, float]] = {
    prim.NegOp: (torch.neg, -2, 2),
    prim.AbsOp: (torch.abs, -2, 2),
    prim.SignOp: (torch.sign, -2, 2),
    prim.FloorOp: (torch.floor, -2, 2),
    prim.CeilOp: (torch.ceil, -2, 2),
    prim.RoundOp: (torch.round, -2, 2),
    prim.TruncOp: (torch.trunc, -2, 2),
    prim.SqrtOp: (torch.sqrt, 0.1, 4),
    prim.RsqrtOp: (torch.rsqrt, 0.1, 4),
    prim.ReluOp: (torch.relu, -2, 2),
    prim.ExpOp: (torch.exp, -2, 2),
    prim.Exp2Op: (torch.exp2, -2, 2),
    prim.Expm1Op: (torch.expm1, -2, 2),
    prim.LogOp: (torch.log, 0.1, 4),
    prim.Log2Op: (torch.log2, 0.1, 4),
    prim.Log10Op: (torch.log10, 0.1, 4),
    prim.Log1pOp: (torch.log1p, -0.9, 4),
    prim.SinOp: (torch.sin, -3, 3),
    prim.CosOp: (torch.cos, -3, 3),
    prim.TanOp: (torch.tan, -1.2, 1.2),
    prim.AsinOp: (torch.asin, -0.9, 0.9),
    prim.AcosOp: (torch.acos, -0.9, 0.9),
    prim.AtanOp: (torch.atan, -3, 3),
    prim.SinhOp: (torch.sinh, -2, 2),
    prim.CoshOp: (torch.cosh, -2, 2),
    prim.TanhOp: (torch.tanh, -2, 2),
    prim.AsinhOp: (torch.asinh, -2, 2),
    prim.AcoshOp: (torch.acosh, 1.1, 4),
    prim.AtanhOp: (torch.atanh, -0.9, 0.9),
    prim.LogisticOp: (torch.sigmoid, -3, 3),
    prim.ErfOp: (torch.erf, -2, 2),
    prim.ErfcOp: (torch.erfc, -2, 2),
    prim.ErfinvOp: (torch.erfinv, -0.9, 0.9),
    prim.SiluOp: (lambda x: x * torch.sigmoid(x), -5, 5),
    prim.GeluOp: (lambda x: x * torch.special.ndtr(x), -3, 3),
    prim.GeluTanhOp: (lambda x: x * tanh_gate(x), -3, 3),
    prim.TanhGateOp: (lambda x: tanh_gate(x), -3, 3),
    prim.NdtrOp: (torch.special.ndtr, -3, 3),
    prim.NormalDensityOp: (lambda x: torch.exp(-x * x / 2) / math.sqrt(2 * math.pi), -3, 3),
    prim.LgammaOp: (torch.lgamma, 0.3, 4),
    prim.DigammaOp: (torch.digamma, 0.3, 4),
    prim.StopGradientOp: (lambda x: x.detach(), -2, 2),
}

COMPLEX_UNARY = (
    prim.NegOp,
    prim.AbsOp,
    prim.SqrtOp,
    prim.RsqrtOp,
    prim.ExpOp,
    prim.LogOp,
    prim.SinOp,
    prim.CosOp,
    prim.TanOp,
    prim.AsinOp,
    prim.AcosOp,
    prim.AtanOp,
    prim.SinhOp,
    prim.CoshOp,
    prim.TanhOp,
    prim.AsinhOp,
    prim.AcoshOp,
    prim.AtanhOp,
    prim.LogisticOp,
)

BINARY: dict[
    type[prim.BinaryOp], tuple[Callable[[Tensor, Tensor], Tensor], tuple[float, float], tuple[float, float]]
] = {
    prim.AddOp: (torch.add, (-2, 2), (-2, 2)),
    prim.SubOp: (torch.sub, (-2, 2), (-2, 2)),
    prim.MulOp: (torch.mul, (-2, 2), (-2, 2)),
    prim.DivOp: (torch.div, (-2, 2), (0.5, 2)),
    prim.RemOp: (torch.fmod, (-4, 4), (0.5, 2)),
    prim.PowOp: (torch.pow, (0.2, 2), (-2, 2)),
    prim.MaxOp: (torch.maximum, (-2, 2), (-2, 2)),
    prim.MinOp: (torch.minimum, (-2, 2), (-2, 2)),
    prim.Atan2Op: (torch.atan2, (-2, 2), (-2, 2)),
    prim.CopysignOp: (torch.copysign, (-2, 2), (-2, 2)),
    prim.NextafterOp: (torch.nextafter, (-2, 2), (-2, 2)),
    prim.ComplexOp: (torch.complex, (-2, 2), (-2, 2)),
}


def elementwise() -> Iterator[Sample]:
    for cls, (function, low, high) in UNARY.items():
        x = numbers(3, 4, low=low, high=high)
        yield Sample(cls, "real", lambda e, x, cls=cls: e.unary(cls, x), (x,), function)
    for order in (1, 2, 20):
        x = numbers(3, 4, low=0.3, high=4)
        build = lambda e, x, n=order: e.op(prim.PolygammaOp, (x,), {"order": n}).y  # noqa: E731
        yield Sample(prim.PolygammaOp, f"order {order}", build, (x,), lambda x, n=order: torch.polygamma(n, x), 2)
    for cls in COMPLEX_UNARY:
        x = numbers(6, low=0.2, high=0.8, dtype=torch.complex128)
        yield Sample(cls, "complex", lambda e, x, cls=cls: e.unary(cls, x), (x,), UNARY[cls][0])
    for cls, (function, a, b) in BINARY.items():
        inputs = (numbers(3, 4, low=a[0], high=a[1]), numbers(3, 4, low=b[0], high=b[1], seed=1))
        orders = 2 if cls is prim.CopysignOp else 3  # torch's ±1 = y/a has a derivative of rounding errors
        yield Sample(cls, "real", lambda e, a, b, cls=cls: e.binary(cls, a, b), inputs, function, orders)
    for cls in (prim.AddOp, prim.SubOp, prim.MulOp, prim.DivOp, prim.PowOp):
        inputs = tuple(numbers(5, low=0.3, high=1, seed=s, dtype=torch.complex128) for s in (0, 1))
        yield Sample(cls, "complex", lambda e, a, b, cls=cls: e.binary(cls, a, b), inputs, BINARY[cls][0])
    for exponent in (0.0, 1.0, 2.0, 3.0, 0.5, -1.0):
        build = lambda e, x, n=exponent: e.pow(x, e.const_like(n, x))  # noqa: E731
        yield Sample(prim.PowOp, f"to {exponent}", build, (numbers(5, low=0.2, high=2),), lambda x, n=exponent: x**n)
    z = numbers(5, dtype=torch.complex128)
    yield Sample(prim.RealOp, "", lambda e, z: e.real(z), (z,), lambda z: z.real.clone())
    yield Sample(prim.ImagOp, "", lambda e, z: e.unary(prim.ImagOp, z), (z,), lambda z: z.imag.clone())
    yield Sample(prim.ConjOp, "", lambda e, z: e.mul(e.conj(z), z), (z,), lambda z: z.conj() * z)
    abc = tuple(numbers(5, seed=s) for s in range(3))
    yield Sample(prim.FmaOp, "", lambda e, a, b, c: e.fma(a, b, c), abc, lambda a, b, c: a * b + c)
    p = numbers(5, seed=7) > 0
    yield Sample(prim.SelectOp, "", lambda e, p, a, b: e.select(p, a, b), (p, *abc[:2]), torch.where)
    yield Sample(
        prim.ConvertOp,
        "narrower",
        lambda e, x: e.convert(e.convert(x, "f32"), "f64"),
        (abc[0],),
        lambda x: x.float().double(),
    )
    yield Sample(
        prim.ConvertOp,
        "to complex",
        lambda e, x: e.square(e.convert(x, "c128")),
        (abc[0],),
        lambda x: x.to(torch.complex128) ** 2,
    )
    yield Sample(
        prim.ConvertOp,
        "of an integer",
        lambda e, n, x: e.mul(e.convert(n, "f64"), x),
        (torch.arange(5), abc[0]),
        lambda n, x: n.double() * x,
    )


def shapes() -> Iterator[Sample]:
    x = numbers(3, 4)
    yield Sample(
        prim.BroadcastOp,
        "",
        lambda e, x: e.broadcast(x, (4, 2, 3), (2, 0)),
        (x,),
        lambda x: x.t()[:, None, :].expand(4, 2, 3),
    )
    yield Sample(prim.ReshapeOp, "", lambda e, x: e.reshape(x, (2, 6)), (x,), lambda x: x.reshape(2, 6))
    yield Sample(
        prim.TransposeOp, "", lambda e, x: e.transpose(x, (2, 0, 1)), (numbers(2, 3, 4),), lambda x: x.permute(2, 0, 1)
    )
    yield Sample(prim.SliceOp, "", lambda e, x: e.slice(x, 1, 1, 3), (x,), lambda x: x[:, 1:3])
    yield Sample(prim.SliceOp, "strided", lambda e, x: e.slice(x, 0, 1, 9, 3), (numbers(11),), lambda x: x[1:9:3])
    yield Sample(prim.SliceOp, "empty", lambda e, x: e.slice(x, 0, 2, 2, 2), (numbers(5),), lambda x: x[2:2:2])
    yield Sample(
        prim.PadOp,
        "",
        lambda e, x: e.pad(x, 0, 1, 2, 0, 5.0),
        (x,),
        lambda x: torch.nn.functional.pad(x, (0, 0, 1, 2), value=5.0),
    )

    def spread(x: Tensor) -> Tensor:
        y = x.new_zeros(10)
        y[1:9:3] = x
        return y

    yield Sample(prim.PadOp, "interior", lambda e, x: e.pad(x, 0, 1, 2, 2), (numbers(3),), spread)
    yield Sample(prim.ReverseOp, "", lambda e, x: e.reverse(x, (0, 1)), (x,), lambda x: x.flip(0, 1))
    pair = (numbers(2, 3), numbers(2, 2))
    yield Sample(prim.ConcatOp, "", lambda e, a, b: e.concat([a, b, a], 1), pair, lambda a, b: torch.cat([a, b, a], 1))


def reductions() -> Iterator[Sample]:
    x = numbers(2, 3, 4)
    yield Sample(prim.ReduceOp, "add", lambda e, x: e.sum(x, (0, 2)), (x,), lambda x: x.sum((0, 2)))
    for kind, function in (("max", torch.amax), ("min", torch.amin)):
        yield Sample(
            prim.ReduceOp, kind, lambda e, x, k=kind: e.reduce(k, x, (0, 2)), (x,), lambda x, f=function: f(x, (0, 2))
        )
    yield Sample(prim.ReduceOp, "mul", lambda e, x: e.reduce("mul", x, (0, 2)), (x,), lambda x: x.prod(2).prod(0))
    z = numbers(2, 3, dtype=torch.complex128)
    yield Sample(prim.ReduceOp, "complex mul", lambda e, x: e.reduce("mul", x, (1,)), (z,), lambda x: x.prod(1))
    for zeros in ((), (2,), (1, 4)):
        y = numbers(6, low=0.5, high=2)
        y[list(zeros)] = 0.0
        yield Sample(prim.ReduceOp, f"mul zeros {zeros}", lambda e, x: e.reduce("mul", x, (0,)), (y,), product)
        yield Sample(
            prim.CumulativeOp, f"mul zeros {zeros}", lambda e, x: e.cumulative("mul", x, 0), (y,), running_product
        )
        yield Sample(
            prim.CumulativeOp,
            f"mul back {zeros}",
            lambda e, x: e.cumulative("mul", x, 0, True),
            (y,),
            lambda x: running_product(x.flip(0)).flip(0),
        )
    yield Sample(prim.CumulativeOp, "add", lambda e, x: e.cumulative("add", x, 1), (x,), lambda x: x.cumsum(1))
    yield Sample(
        prim.CumulativeOp,
        "add back",
        lambda e, x: e.cumulative("add", x, 1, True),
        (x,),
        lambda x: x.flip(1).cumsum(1).flip(1),
    )
    yield Sample(prim.CumulativeOp, "mul", lambda e, x: e.cumulative("mul", x, 1), (x,), lambda x: x.cumprod(1))
    ties = torch.tensor([[0.0, 2.0, 1.0, 2.0, 3.0], [1.0, 1.0, -1.0, 4.0, 4.0]], dtype=F64)
    yield Sample(
        prim.CumulativeOp, "max", lambda e, x: e.cumulative("max", x, 1), (ties,), lambda x: x.cummax(1).values
    )
    yield Sample(
        prim.CumulativeOp, "min", lambda e, x: e.cumulative("min", x, 1), (-ties,), lambda x: x.cummin(1).values
    )
    yield Sample(prim.SortOp, "", lambda e, x: e.sort(x, 1, True)[0], (x,), lambda x: x.sort(1, True).values)


def product(x: Tensor) -> Tensor:
    """Torch's prod is once differentiable at zeros; multiplication always."""
    y = x[0]
    for v in x[1:]:
        y = y * v
    return y


def running_product(x: Tensor) -> Tensor:
    return torch.stack([product(x[: k + 1]) for k in range(len(x))])


def windows() -> Iterator[Sample]:
    x = numbers(2, 3, 7, 8)

    def max_pool(e: Emitter, x: ir.SSAValue) -> ir.SSAValue:
        return e.max_pool(x, (2, 3), (3, 2), (2, 2), (1, 0), (1, 0), (1, 2))[0]

    yield Sample(
        prim.MaxPoolOp, "", max_pool, (x,), lambda x: torch.nn.functional.max_pool2d(x, (3, 2), 2, (1, 0), (1, 2))
    )
    literals = ((2, 3), (3, 2), (2, 1), (1, 0), (1, 0), (1, 1))

    def average(x: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(x, (3, 2), (2, 1), (1, 0), divisor_override=1)

    yield Sample(prim.ReduceWindowOp, "add", lambda e, x: e.reduce_window("add", x, *literals), (x,), average)
    small = numbers(2, 9)

    def windowed(x: Tensor, kind: Callable[..., Tensor]) -> Tensor:
        """Windows of 3, stride 2, dilation 2 over 9 elements and one pad at each end."""
        outside = {torch.amax: -math.inf, torch.amin: math.inf, torch.sum: 0.0, torch.prod: 1.0}[kind]
        padded = torch.nn.functional.pad(x, (1, 1), value=outside)
        return kind(torch.stack([padded[:, k : k + 7 : 2] for k in (0, 2, 4)], -1), -1)

    for name, kind in (("add", torch.sum), ("max", torch.amax), ("min", torch.amin), ("mul", torch.prod)):
        build = lambda e, x, name=name: e.reduce_window(name, x, (1,), (3,), (2,), (1,), (1,), (2,))  # noqa: E731
        yield Sample(prim.ReduceWindowOp, f"1d {name}", build, (small,), lambda x, kind=kind: windowed(x, kind))


def indices() -> Iterator[Sample]:
    x, at = numbers(5, 3), torch.tensor([[0, 4], [4, 2]])
    yield Sample(prim.GatherOp, "rows", lambda e, x, i: e.gather(x, [i], (0,)), (x, at), lambda x, i: x[i])
    b = torch.tensor([[2, 0], [0, 1]])
    yield Sample(
        prim.GatherOp, "points", lambda e, x, i, j: e.gather(x, [i, j], (0, 1)), (x, at, b), lambda x, i, j: x[i, j]
    )
    updates = numbers(2, 2, 3, seed=3)
    yield Sample(
        prim.ScatterOp,
        "add",
        lambda e, x, u, i: e.scatter(x, u, [i], (0,), "add"),
        (x, updates, at),
        lambda x, u, i: x.index_put((i,), u, accumulate=True),
    )
    apart = torch.tensor([[0, 4], [3, 2]])
    yield Sample(
        prim.ScatterOp,
        "set",
        lambda e, x, u, i: e.scatter(x, u, [i], (0,), "set"),
        (x, updates, apart),
        lambda x, u, i: x.index_put((i,), u),
    )
    line, places, some = numbers(4), torch.tensor([1, 3, 1, 1, 3]), numbers(5, seed=5)
    for kind, name in (("mul", "prod"), ("max", "amax"), ("min", "amin")):
        build = lambda e, x, u, i, kind=kind: e.scatter(x, u, [i], (0,), kind)  # noqa: E731
        function = lambda x, u, i, name=name: x.scatter_reduce(0, i, u, name)  # noqa: E731
        yield Sample(prim.ScatterOp, kind, build, (line, some, places), function)
        zeros = some.clone()
        zeros[[0, 1]] = 0.0
        yield Sample(prim.ScatterOp, f"{kind} zeros", build, (line, zeros, places), function, 1)


def contractions() -> Iterator[Sample]:
    a, b = numbers(2, 3, 4, 5), numbers(5, 6, 2, 4)
    yield Sample(
        prim.DotOp,
        "general",
        lambda e, a, b: e.dot(a, b, ((3, 2), (0, 3)), ((0,), (2,))),
        (a, b),
        lambda a, b: torch.einsum("bmlk,knbl->bmn", a, b),
    )
    yield Sample(prim.DotOp, "matrices", lambda e, a, b: e.matmul(a, b), (numbers(3, 4), numbers(4, 2)), torch.matmul)
    z = (numbers(3, 4, dtype=torch.complex128), numbers(4, 2, dtype=torch.complex128))
    yield Sample(prim.DotOp, "complex", lambda e, a, b: e.matmul(a, b), z, torch.matmul)
    x, w = numbers(2, 4, 7, 6), numbers(6, 2, 3, 2)
    literals = ((2, 1), (1, 0), (1, 2), 2)

    def conv(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, w, None, *literals)

    yield Sample(prim.ConvOp, "", lambda e, x, w: e.conv(x, w, *literals), (x, w), conv)
    g = numbers(*conv(x, w).shape, seed=2)

    def dx(g: Tensor, w: Tensor) -> Tensor:
        inner = torch.zeros(x.shape, dtype=F64, requires_grad=True)
        return torch.autograd.grad(conv(inner, w), inner, g, create_graph=True)[0]

    def dw(g: Tensor, x: Tensor) -> Tensor:
        inner = torch.zeros(w.shape, dtype=F64, requires_grad=True)
        return torch.autograd.grad(conv(x, inner), inner, g, create_graph=True)[0]

    yield Sample(prim.ConvDxOp, "", lambda e, g, w: e.conv_dx(g, w, tuple(x.shape), *literals), (g, w), dx)
    yield Sample(prim.ConvDwOp, "", lambda e, g, x: e.conv_dw(g, x, tuple(w.shape), *literals), (g, x), dw)


SAMPLES: list[Sample] = [
    *elementwise(),
    *shapes(),
    *reductions(),
    *windows(),
    *indices(),
    *contractions(),
    *structured(),
]
