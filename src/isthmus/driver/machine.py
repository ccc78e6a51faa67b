"""What this machine takes for the things that prices are about: programs of ours and of the library, timed.

Every figure is the shortest of many runs: others on the machine only ever make it longer. Differences of two programs
that differ in one thing leave out what a call costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from xdsl.parser import Parser

from isthmus import ir
from isthmus.dialects import new_context, prim
from isthmus.driver.artifacts import Record
from isthmus.driver.lowering import Lowering
from isthmus.driver.native import make_native
from isthmus.driver.options import Options
from isthmus.passes.pipelines import run_passes

LARGE = 1 << 23
"""Elements of a tensor that no cache holds."""

SMALL = 1 << 15
"""Elements of a tensor that the second cache holds, and of which a call is a small part."""

FEWEST_ADDITIONS = 6.0
"""Functions that state a lower price are not measured: memory hides them."""

SHORT, LONG = 8, 72
"""Steps of two programs whose difference is the time of a step."""

ROUNDS, ROUND = 80, 2e-4
"""How often a program is timed, and how many seconds at least each time: short, so that nobody else runs in some."""

MEETINGS, MEETING = 2000, 1e-5
"""The same for threads that wait for each other, where one that somebody keeps from running delays all."""

Note = Callable[[str], None]
"""Is told what is measured next."""


@dataclass(frozen=True)
class Machine:
    """Seconds and rates; one thread where nothing else is said."""

    bandwidth: float
    """Bytes a second of a sum of two large tensors."""
    bandwidth_of_all: float
    """The same of all threads."""
    flops: float
    """Operations a second of a large product of matrices."""
    launch: float
    """Seconds of a kernel of next to nothing and of the barrier behind it, all threads."""
    library_call: float
    """Seconds of a call of the library for next to nothing."""
    functions: tuple[tuple[str, float], ...] = field(default=())
    """Seconds of an element of each primitive that is a function, in float32."""


def measures() -> tuple[str, ...]:
    """What `measure` tells that it is at, in order."""
    return ("bandwidth", "bandwidth, all threads", "products", "launches", "library calls", *map(_name, functions()))


def measure(note: Note) -> Machine:
    """Time this machine, some ten seconds; settings of torch's threads are as before then."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        note("bandwidth")
        adding = _runner(_elementwise(prim.AddOp, LARGE))
        large = [torch.rand(LARGE) for _ in range(2)]
        moved = 12.0 * LARGE
        bandwidth = moved / shortest(lambda: adding(large))
        note("bandwidth, all threads")
        torch.set_num_threads(threads)
        bandwidth_of_all = moved / shortest(lambda: adding(large), time.perf_counter)
        torch.set_num_threads(1)
        note("products")
        flops = _flops()
        note("launches")
        torch.set_num_threads(threads)
        launch = _step(_kernels, torch.rand(64 * threads), time.perf_counter, MEETINGS, MEETING)
        torch.set_num_threads(1)
        note("library calls")
        call = _step(_products, torch.rand(4, 4))
        return Machine(bandwidth, bandwidth_of_all, flops, launch, call, tuple(_functions(note)))
    finally:
        torch.set_num_threads(threads)


def functions() -> Iterator[type[prim.PrimOp]]:
    """The primitives that are functions with a series or an iteration inside."""
    for cls in prim.PRIM_OPS:
        if (
            issubclass(cls, (prim.UnaryOp, prim.BinaryOp))
            and cls.COST >= FEWEST_ADDITIONS
            and cls is not prim.PolygammaOp
        ):
            yield cls


def _functions(note: Note) -> Iterator[tuple[str, float]]:
    """An element of a function takes longer than one of a negation, by so much."""
    x = torch.rand(SMALL) * 0.8 + 0.1
    moving = _runner(_elementwise(prim.NegOp, SMALL))
    for cls in functions():
        note(_name(cls))
        run = _runner(_elementwise(cls, SMALL))
        given = [x + 1.0] if cls is prim.AcoshOp else [x] if issubclass(cls, prim.UnaryOp) else [x, x]
        least = shortest(lambda given=given: moving(given[:1]))
        yield _name(cls), max(0.0, shortest(lambda run=run, given=given: run(given)) - least) / SMALL


def _flops() -> float:
    n = 768
    run = _runner(f"""func.func @main(%a: tensor<{n}x{n}xf32>, %b: tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32> {{
      %y = prim.dot %a, %b {{batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]}} : tensor<{n}x{n}xf32>
      func.return %y : tensor<{n}x{n}xf32>
    }}""")
    matrices = [torch.rand(n, n), torch.rand(n, n)]
    return 2.0 * n**3 / shortest(lambda: run(matrices))


def _step(
    text: Callable[[int, int], str],
    x: Tensor,
    clock: Callable[[], float] = time.process_time,
    rounds: int = ROUNDS,
    least: float = ROUND,
) -> float:
    """Seconds of a step, from programs of few and of many."""
    few, many = (_runner(text(steps, len(x)), "schedule") for steps in (SHORT, LONG))
    apart = shortest(lambda: many([x]), clock, rounds, least) - shortest(lambda: few([x]), clock, rounds, least)
    return max(1e-9, apart / (LONG - SHORT))


def _kernels(steps: int, size: int) -> str:
    """A chain of kernels that are shared between threads."""
    type_, parts = f"tensor<{size}xf32>", size // 64
    lines = [
        f"""%y{k + 1} = kernel.fused %y{k} {{sizes = [{size}], classes = ["parallel"], partitions = {parts}}} ({{
          %v = kernel.load {{operand = 0, map = [d0]}} : f32
          %w = prim.neg %v : f32
          kernel.store %w {{result = 0, map = [d0]}}
        }}) : {type_}"""
        for k in range(steps)
    ]
    return _function(f"%y0: {type_}", lines, f"%y{steps}", type_)


def _products(steps: int, size: int) -> str:
    """A chain of products by the library."""
    type_, views = f"tensor<{size}x{size}xf32>", "views = [none, none, none]"
    args = '[["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]]'
    lines = [
        f'%y{k + 1} = kernel.extern %y{k}, %y{k} {{symbol = "prim.dot", args = {args}, {views}}} : {type_}'
        for k in range(steps)
    ]
    return _function(f"%y0: {type_}", lines, f"%y{steps}", type_)


def _elementwise(cls: type[prim.PrimOp], size: int) -> str:
    type_, names = f"tensor<{size}xf32>", ["%a"] if issubclass(cls, prim.UnaryOp) else ["%a", "%b"]
    arguments = ", ".join(f"{name}: {type_}" for name in names)
    return _function(arguments, [f"%y = {_name(cls)} {', '.join(names)} : {type_}"], "%y", type_)


def _function(arguments: str, lines: list[str], result: str, type_: str) -> str:
    body = "\n".join([*lines, f"func.return {result} : {type_}"])
    return f"func.func @main({arguments}) -> {type_} {{\n{body}\n}}"


def _runner(text: str, start: str = "") -> Callable[[list[Tensor]], object]:
    """Make a program callable, by all passes or from one on; nothing of it is kept."""
    module = Parser(new_context(), text).parse_module()
    if not start:
        made = Lowering(Options(cache=False), Record()).built_in(module, "main")
        return lambda tensors: made([*tensors])
    run_passes(new_context(), module, ("schedule", "plan-memory"))
    native = make_native(ir.function(module, "main"), Record(), use_cache=False)
    return lambda tensors: native([*tensors])


def shortest(
    run: Callable[[], object],
    clock: Callable[[], float] = time.process_time,
    rounds: int = ROUNDS,
    least: float = ROUND,
) -> float:
    """Give the shortest of several times that a call takes; in seconds of the process unless by another clock."""
    count, best = 1, float("inf")
    run()
    for _ in range(rounds):
        seconds = 0.0
        while seconds < least:
            begin = clock()
            for _ in range(count):
                run()
            seconds = clock() - begin
            if seconds < least:
                count *= 2
        best = min(best, seconds / count)
    return best


def _name(cls: type[prim.PrimOp]) -> str:
    return cls.name
