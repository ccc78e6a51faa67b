"""Random programs of primitives, and running them before and after passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.pipelines import module_text, parse_pass
from isthmus.runtime.interpret import run

SIZES = st.sampled_from([1, 2, 3, 4, 6])


class Program:
    """A function under construction, and inputs for it."""

    def __init__(self, arguments: Sequence[torch.Tensor]) -> None:
        names = {torch.float64: "f64", torch.float32: "f32", torch.int64: "i64", torch.bool: "i1"}
        self.arguments = list(arguments)
        self.block = Block(arg_types=[ir.tensor(tuple(a.shape), names[a.dtype]) for a in arguments])
        self.e = Emitter(self.block)

    @property
    def args(self) -> Sequence[SSAValue]:
        return self.block.args

    def module(self, results: Sequence[SSAValue]) -> ModuleOp:
        self.block.add_op(func.ReturnOp(*results))
        types = [a.type for a in self.block.args], [r.type for r in results]
        return ModuleOp([func.FuncOp("main", types, Region(self.block))])


def apply(module: ModuleOp, passes: Sequence[str]) -> ModuleOp:
    """Give the module after the passes, verified."""
    for text in passes:
        parse_pass(text).apply(Context(), module)
        ir.verify(module)
    return module


def check(module: ModuleOp, arguments: Sequence[torch.Tensor], passes: Sequence[str]) -> ModuleOp:
    """Run before and after the passes: the results must agree."""
    before = run(ir.function(module, "main"), arguments)
    after = apply(module.clone(), passes)
    for expected, result in zip(before, run(ir.function(after, "main"), arguments), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
    return after


class Case:
    """A program and its arguments; shows its text where it fails."""

    def __init__(self, module: ModuleOp, arguments: list[torch.Tensor]) -> None:
        self.module, self.arguments = module, arguments

    def __repr__(self) -> str:
        return module_text(self.module)


def divisors(draw: st.DrawFn, total: int) -> list[int]:
    """A random shape of that many elements."""
    shape: list[int] = []
    while total > 1 and len(shape) < 3:
        d = draw(st.sampled_from([k for k in range(1, total + 1) if total % k == 0]))
        shape.append(d)
        total //= d
    return [*shape, total] if total > 1 or draw(st.booleans()) else shape


@st.composite
def programs(draw: st.DrawFn, steps: int = 10) -> Case:
    """A program of every kind of primitive on small float64 tensors."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    shapes = [draw(st.lists(SIZES, min_size=1, max_size=3)) for _ in range(2)]
    arguments = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    index = torch.randint(0, 6, (4,), generator=generator)
    p = Program([*arguments, index, torch.tensor(draw(st.integers(0, 99)))])
    pool = [p.args[0], p.args[1]]
    for _ in range(draw(st.integers(1, steps))):
        made = draw(st.sampled_from(STEPS))(draw, p, pool)
        if made is not None and math.prod(map(int, ir.shape_of(made))) <= 300:  # pyright: ignore[reportArgumentType]
            pool.append(made)
    count = draw(st.integers(1, min(3, len(pool))))
    results = [draw(st.sampled_from(pool)) for _ in range(count)] + [pool[-1]]
    return Case(p.module(results), p.arguments)


Step = Callable[[st.DrawFn, Program, list[SSAValue]], SSAValue | None]


def pick(draw: st.DrawFn, pool: list[SSAValue]) -> SSAValue:
    return draw(st.sampled_from(pool[-4:] + pool))


def dim_of(draw: st.DrawFn, x: SSAValue) -> int | None:
    rank = len(ir.shape_of(x))
    return draw(st.integers(0, rank - 1)) if rank else None


def unary(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    x = pick(draw, pool)
    return draw(st.sampled_from([p.e.tanh, p.e.neg, p.e.relu, p.e.sin, p.e.stop_gradient]))(x)


def binary(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    a = pick(draw, pool)
    same = [v for v in pool if v.type == a.type]
    b = draw(st.sampled_from(same))
    choice = draw(st.sampled_from(["add", "sub", "mul", "max", "select"]))
    if choice == "select":
        return p.e.select(p.e.cmp("lt", a, b), a, p.e.neg(b))
    return getattr(p.e, choice)(a, b)


def aligned(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    """a + b, b broadcast along new dims."""
    b = pick(draw, pool)
    a = draw(st.sampled_from(pool))
    sa, sb = ir.shape_of(a), ir.shape_of(b)
    dims: list[int] = []
    for size in sb:
        options = [d for d in range(len(sa)) if sa[d] == size and d not in dims]
        if not options:
            return None
        dims.append(draw(st.sampled_from(options)))
    return p.e.add(a, p.e.broadcast(b, sa, dims))


def reshape(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    x = pick(draw, pool)
    return p.e.reshape(x, divisors(draw, math.prod(map(int, ir.shape_of(x)))))  # pyright: ignore[reportArgumentType]


def transpose(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    x = pick(draw, pool)
    return p.e.transpose(x, draw(st.permutations(range(len(ir.shape_of(x))))))


def movement(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    x = pick(draw, pool)
    d = dim_of(draw, x)
    if d is None:
        return None
    size = int(ir.shape_of(x)[d])  # pyright: ignore[reportArgumentType]
    choice = draw(st.sampled_from(["slice", "reverse", "pad", "concat"]))
    if choice == "slice":
        start = draw(st.integers(0, size - 1))
        return p.e.slice(x, d, start, draw(st.integers(start + 1, size)), draw(st.integers(1, 2)))
    if choice == "reverse":
        return p.e.reverse(x, (d,))
    if choice == "pad":
        low, high, interior = draw(st.tuples(*[st.integers(0, 2)] * 3))
        return p.e.pad(x, d, low, high, interior, 0.5)
    others = [
        v
        for v in pool
        if len(ir.shape_of(v)) == len(ir.shape_of(x))
        and all(s == t for k, (s, t) in enumerate(zip(ir.shape_of(v), ir.shape_of(x), strict=True)) if k != d)
    ]
    return p.e.concat([x, draw(st.sampled_from(others))], d)


def reduce(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    x = pick(draw, pool)
    dims = [d for d in range(len(ir.shape_of(x))) if draw(st.booleans())]
    return p.e.reduce(draw(st.sampled_from(["add", "max", "min", "mul"])), x, dims)


def along_one_dim(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    x = pick(draw, pool)
    d = dim_of(draw, x)
    if d is None:
        return None
    choice = draw(st.sampled_from(["cumulative", "arg", "softmax"]))
    if choice == "cumulative":
        return p.e.cumulative(draw(st.sampled_from(["add", "max"])), x, d, draw(st.booleans()))
    if choice == "arg":
        return p.e.convert(p.e.arg_reduce(draw(st.sampled_from(["max", "min"])), x, d), "f64")
    shape = ir.shape_of(x)
    rest = [k for k in range(len(shape)) if k != d]
    shifted = p.e.sub(x, p.e.broadcast(p.e.reduce("max", x, (d,)), shape, rest))
    e = p.e.exp(shifted)
    return p.e.div(e, p.e.broadcast(p.e.sum(e, (d,)), shape, rest))


def window(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    x = pick(draw, pool)
    d = dim_of(draw, x)
    if d is None:
        return None
    low, high = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    size = int(ir.shape_of(x)[d]) + low + high  # pyright: ignore[reportArgumentType]
    dilation, extent = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    if dilation * (extent - 1) >= size or extent <= low or extent <= high:
        return None
    literals = ((d,), (extent,), (draw(st.integers(1, 2)),), (low,), (high,), (dilation,))
    if draw(st.booleans()):
        return p.e.reduce_window(draw(st.sampled_from(["add", "max"])), x, *literals)
    y, index = p.e.max_pool(x, *literals)
    return p.e.add(y, p.e.convert(index, "f64"))


def indexed(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    x = pick(draw, pool)
    d = dim_of(draw, x)
    if d is None:
        return None
    size = p.e.const(ir.shape_of(x)[d], (4,), "i64")
    index = p.e.rem(p.args[2], size) if draw(st.booleans()) else p.e.rem(p.e.iota((4,), 0), size)
    gathered = p.e.gather(x, [index], (d,))
    if draw(st.booleans()):
        return gathered
    return p.e.scatter(x, p.e.tanh(gathered), [index], (d,), draw(st.sampled_from(["add", "max", "set"])))


def source(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    x = pick(draw, pool)
    shape = ir.shape_of(x)
    choice = draw(st.sampled_from(["rng", "iota", "const"]))
    if choice == "rng":
        return p.e.mul(x, p.e.rng(p.args[3], "uniform", draw(st.integers(0, 9)), shape, "f64"))
    if choice == "iota" and shape:
        return p.e.add(x, p.e.iota(shape, draw(st.integers(0, len(shape) - 1)), "f64"))
    return p.e.mul(x, p.e.const(1.5, shape, "f64"))


def dot(draw: st.DrawFn, p: Program, pool: list[SSAValue]) -> SSAValue | None:
    a, b = pick(draw, pool), pick(draw, pool)
    pairs = [(i, j) for i, s in enumerate(ir.shape_of(a)) for j, t in enumerate(ir.shape_of(b)) if s == t]
    if not pairs:
        return None
    i, j = draw(st.sampled_from(pairs))
    return p.e.dot(a, b, ((i,), (j,)))


STEPS: list[Step] = [
    unary,
    binary,
    binary,
    aligned,
    aligned,
    reshape,
    transpose,
    movement,
    reduce,
    reduce,
    along_one_dim,
    window,
    indexed,
    source,
    dot,
]
