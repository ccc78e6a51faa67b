"""What happened to a program: graphs, breaks, guards, kernels, library calls, fallbacks, saved values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import cast

from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp

from isthmus import ir
from isthmus.dialects import aten, kernel, prim
from isthmus.driver.api import compile_in
from isthmus.driver.halves import explain_cut
from isthmus.driver.metadata import Metadata
from isthmus.driver.options import Options
from isthmus.driver.picture import draw
from isthmus.driver.session import Program, Session
from isthmus.frontend.capture_dynamo import CaptureLog
from isthmus.passes.analysis.prices import Prices
from isthmus.passes.memory.contract_schedule import prices_of
from isthmus.passes.partition.explain import Explanation as Cut
from isthmus.passes.vectorize.table import LOOPED


@dataclass(frozen=True)
class Direction:
    """One compiled function: what runs when it is called."""

    name: str
    kernels: int
    library_calls: Counter[str]
    refused: tuple[tuple[str, str], ...]
    """An earlier step that a kernel or library call was not joined with, and the reason."""
    products: int = 0
    """Kernels that multiply matrices, with pointwise work in their prologue or epilogue."""
    priced: tuple[str, ...] = ()
    """Each of them on a CPU: its sizes, how it is made, and what it and a library call would cost by the model."""
    fallbacks: tuple[tuple[str, str], ...] = ()
    """On a GPU: kernels that run by torch's operators, and calls of them that are no machine code; with the reason."""
    attentions: int = 0
    """Of the kernels: those that stream attention."""
    past_caches: int = 0
    """Of the kernels on a CPU: those that store a large result past the caches."""


@dataclass(frozen=True)
class GraphReport:
    """One captured graph, from the operators of the user's program to what runs."""

    name: str
    where: str
    operators: Counter[str]
    primitives: int
    fallbacks: Counter[str]
    """Operators without a rule, which run as library calls with torch's own derivative."""
    looped: Mapping[tuple[str, str], int]
    """What vmap calls once an example, and the reason -> in how many places."""
    directions: tuple[Direction, ...]
    cut: Cut | None
    milliseconds: dict[str, float]
    notes: tuple[str, ...] = ()
    rules: Mapping[str, int] = field(default_factory=dict[str, int])
    """The user's rules -> how often each was used."""
    metadata: Metadata | None = None
    prices: tuple[tuple[str, float], ...] | None = None
    """On a CPU: the prices that it is compiled by, where they are not the defaults."""
    kernels: Mapping[str, ModuleOp] = field(default_factory=dict[str, ModuleOp], repr=False)
    """The functions at the level of kernels."""

    def picture(self) -> str:
        """Give the graph as an SVG: forward beside backward, what is kept as bands between them."""
        return draw(self.kernels, f"{self.name} {self.where}".rstrip())


@dataclass(frozen=True)
class Report:
    """Everything that compiling and running a program once has shown; `str` gives it as text."""

    graphs: tuple[GraphReport, ...]
    breaks: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    recompiles: tuple[str, ...] = ()
    uncompiled: tuple[str, ...] = field(default=())
    """Graphs that run as torch's own, and why."""

    def __str__(self) -> str:
        stream = StringIO()
        console = Console(file=stream, width=120)
        for part in self.render():
            console.print(part, highlight=False, markup=False, soft_wrap=True)
        return stream.getvalue()

    def render(self) -> list[Table | str]:
        """Give the parts of the report for a rich console."""
        parts: list[Table | str] = [f"{_count(len(self.graphs), 'graph')}, {_count(len(self.breaks), 'graph break')}"]
        if not self.graphs and not self.uncompiled:
            parts.append("  nothing was captured: the program computes with no tensor")
        parts += [f"  break: {b}" for b in self.breaks]
        parts += [f"  not compiled: {u}" for u in self.uncompiled]
        parts += [f"  compiled again: {r}" for r in self.recompiles]
        for graph in self.graphs:
            parts += _graph_parts(graph)
        if self.guards:
            parts.append(f"\nGuards ({len(self.guards)})")
            parts += [f"  {g}" for g in self.guards]
        return parts


def explain(
    function: Callable[..., object],
    *,
    capture: str = "dynamo",
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    **settings: object,
) -> Callable[..., Report]:
    """Give a function that compiles `function`, runs it once (backward included) and reports.

    `isthmus.explain(model)(x, y)`; the arguments are those of `isthmus.compile`, its options among them. The gradients
    that the run leaves in `.grad` are those of the sum of all differentiable outputs.
    """
    session = Session(Options(dynamic=dynamic, fullgraph=fullgraph).with_settings(mode, settings))
    compiled, notes = compile_in(session, function, capture)

    def run(*args: object, **kwargs: object) -> Report:
        outputs = compiled(*args, **kwargs)
        found = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
        if found:
            sum((t.real if t.is_complex() else t).sum() for t in found).backward()  # pyright: ignore
        return report(session, notes)

    return run


def report(session: Session, notes: CaptureLog) -> Report:
    """Put together what a session and its capture know."""
    return Report(
        tuple(_graph(p) for p in session.programs),
        tuple(f"{b.location or 'unknown place'}: {b.reason}" for b in notes.breaks),
        tuple(notes.guards),
        tuple(notes.recompiles),
        tuple(f"{g.location or g.name}: {g.fallback}" for g in notes.graphs if g.fallback is not None),
    )


def _graph(program: Program) -> GraphReport:
    stages = program.lowering.stages
    main = ir.function(program.captured.module, "main")
    calls = Counter(op.overload for op in main.walk() if isinstance(op, aten.CallOp))
    lowest = stages.get("joint") or stages.get("prim")
    ops = list(lowest.walk()) if lowest is not None else []
    fallbacks = Counter(str(op.callee.data) for op in ops if isinstance(op, prim.OpaqueOp))
    looped = Counter(cast("tuple[str, str]", found) for op in ops if (found := ir.literal(op, LOOPED)) is not None)
    cut = None
    if "joint" in stages:
        cut = explain_cut(stages["joint"], program.lowering.options, program.lowering.before_cut)
    return GraphReport(
        program.captured.name,
        str(program.captured.location or ""),
        calls,
        sum(isinstance(op, prim.PrimOp) for op in ops),
        fallbacks,
        looped,
        tuple(
            _direction(name, module, program.lowering.fallbacks.get(name, ()))
            for name, module in program.lowering.kernels.items()
        ),
        cut,
        dict(program.lowering.record.milliseconds),
        program.captured.notes,
        dict(program.lowering.applied.counts),
        program.lowering.metadata,
        None if program.lowering.device.type != "cpu" else Prices.of(main).differences,
        dict(program.lowering.kernels),
    )


def _direction(name: str, module: ModuleOp, fallbacks: tuple[tuple[str, str], ...]) -> Direction:
    launches = [op for op in module.walk() if isinstance(op, kernel.LaunchOp)]
    own = [op for op in launches if isinstance(op, kernel.Kernel)]
    calls = Counter(str(ir.literal(op, "symbol")) for op in module.walk() if isinstance(op, kernel.ExternOp))
    refused: list[tuple[str, str]] = []
    for op in launches:
        entries = cast(tuple[tuple[object, object], ...], ir.literal(op, "refused") or ())
        refused += [(_step(op, cast(int, number)), str(reason)) for number, reason in entries]
    products = sum(isinstance(op, kernel.ContractOp) for op in own)
    attentions = sum(isinstance(op, kernel.StreamOp) for op in own)
    priced = tuple(dict.fromkeys(_priced(op) for op in own if isinstance(op, kernel.ContractOp) and op.block_sizes))
    past_caches = sum(isinstance(op, kernel.FusedOp) and bool(op.past_caches_) for op in own)
    return Direction(name, len(own), calls, tuple(refused), products, priced, fallbacks, attentions, past_caches)


def _step(launch: kernel.LaunchOp, number: int) -> str:
    """Name a step of the block by its number as `fuse` counts them: what it is, and the user's line where known.

    Only where all steps are launches: others may have been added since.
    """
    block = launch.parent_block()
    steps = [*block.ops][:-1] if block is not None else []
    if number >= len(steps) or not all(isinstance(step, kernel.LaunchOp) for step in steps):
        return f"step {number}"
    what = ir.literal(steps[number], "symbol") if isinstance(steps[number], kernel.ExternOp) else "the kernel"
    place = ir.source_location(steps[number])
    return f"{what} of {place}" if place else f"{what} of step {number}"


def _priced(op: kernel.ContractOp) -> str:
    """Sizes and form of a product, with its price and the library's where sizes are known."""
    sizes = " x ".join(str(op.sizes_[d]) for d in op.mnk)
    lying = " and ".join(op.direct_)
    form = f"{lying} as it lies" if lying else "packed"
    text = f"product {sizes}: {form}, parts: {op.partitions_}"
    prices = prices_of(op)
    if prices is None:
        return text
    speed = Prices.of(op).flops
    own, library = (1e6 * flops / speed for flops in prices)
    return f"{text}; {own:.0f} us at {speed / 1e9:.0f} GFLOPS, {library:.0f} by the library"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} x{n}" if n > 1 else name for name, n in counter.most_common()) or "none"


def _prices(differences: tuple[tuple[str, float], ...]) -> str:
    """Say by which prices decisions were made."""
    if not differences:
        return "  prices: the defaults"
    return "  prices: the defaults but " + ", ".join(f"{name} {price:g}" for name, price in differences)


def _graph_parts(graph: GraphReport) -> list[Table | str]:
    parts: list[Table | str] = [f"\n{graph.name} {graph.where}".rstrip()]
    parts.append(f"  {_count(graph.operators.total(), 'operator')} -> {_count(graph.primitives, 'primitive')}")
    if graph.metadata is not None:
        parts += [f"  {line}" for line in graph.metadata.table().splitlines()]
    for direction in graph.directions:
        calls = direction.library_calls
        products = [f"{_count(direction.products, 'product')} of our own"] if direction.products else []
        streamed = [f"{_count(direction.attentions, 'attention')} by streaming"] if direction.attentions else []
        past = [f"{direction.past_caches} past the caches"] if direction.past_caches else []
        special = ", ".join([*products, *streamed, *past])
        kernels = _count(direction.kernels, "kernel") + (f" ({special})" if special else "")
        parts.append(f"  {direction.name}: {kernels}, library calls: {_counted(calls)}")
        parts += [f"    {line}" for line in direction.priced]
        parts += [f"    not fused with {producer}: {reason}" for producer, reason in direction.refused]
        parts += [f"    not machine code: {what}: {reason}" for what, reason in direction.fallbacks]
    parts.append(f"  fallbacks: {_counted(graph.fallbacks)}")
    parts += [f"  looped over examples: {op}, {reason}" for op, reason in graph.looped]
    if graph.prices is not None:
        parts.append(_prices(graph.prices))
    parts += [f"  note: {note}" for note in graph.notes]
    parts += [f"  rule used {_count(count, 'time')}: {rule}" for rule, count in graph.rules.items()]
    if graph.cut is not None:
        parts.append(graph.cut.table())
    total = sum(graph.milliseconds.values())
    stages = ", ".join(f"{name} {ms:.1f}" for name, ms in graph.milliseconds.items())
    parts.append(f"  compiled in {total:.0f} ms: {stages}")
    return parts
