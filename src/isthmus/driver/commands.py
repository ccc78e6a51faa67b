"""`isthmus trace` prints a program at a stage, `explain` what happened to it; the others keep house (`--help`)."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from rich.console import Console
from torch import Tensor
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp

from isthmus import __version__
from isthmus.diagnostics import CompileError
from isthmus.dialects import new_context
from isthmus.driver.artifacts import ARTIFACTS
from isthmus.driver.options import BACKENDS, STRATEGIES, mode_table
from isthmus.driver.user_program import check_inputs, error_text, load, make_inputs
from isthmus.passes.pipelines import run_passes

if TYPE_CHECKING:
    from isthmus.driver.session import Program

CAPTURES = ("dynamo", "trace")

STAGES = ("graph", "functional", "prim", "joint", "forward", "backward", "kernels")


def run(argv: Sequence[str]) -> int:
    """Run one command; 0 when it went well, 1 after a message on stderr."""
    arguments = _parser().parse_args(argv)
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # the error itself says it, too
    try:
        return cast(int, arguments.command(arguments))
    except CompileError as error:
        print(f"error: {error}", file=sys.stderr)
    except Exception as error:
        print(error_text(error), file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="isthmus", description="Look at programs on their way through the compiler.")
    parser.add_argument("--version", action="version", version=f"isthmus {__version__} (torch {torch.__version__})")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    trace = commands.add_parser(
        "trace", help="print a program at one stage", description=_HELP, epilog=_example("trace", "--stage joint")
    )
    trace.add_argument("--stage", choices=STAGES, default="graph", help="default: %(default)s")
    trace.set_defaults(command=_trace)
    explain = commands.add_parser(
        "explain", help="say what happened to a program", description=_HELP, epilog=_example("explain")
    )
    explain.add_argument("--backend", choices=BACKENDS, default="native", help="default: %(default)s")
    explain.add_argument("--picture", metavar="FILE", help="write an SVG: kernels, and what is kept for backward")
    explain.set_defaults(command=_explain)
    modes = commands.add_parser("modes", help="print the options of every mode", description=_MODES)
    modes.set_defaults(command=_modes)
    kept = commands.add_parser("cache", help="show or clear what is kept on disk", description=_CACHE)
    kept.add_argument("--clear", action="store_true", help="remove every entry")
    kept.set_defaults(command=_cache)
    calibrate = commands.add_parser("calibrate", help="measure this machine, compile by that", description=_CALIBRATE)
    calibrate.add_argument("--dry-run", action="store_true", help="print only: nothing is kept")
    calibrate.add_argument("--forget", action="store_true", help="remove what was measured: the defaults hold again")
    calibrate.set_defaults(command=_calibrate)
    for command in (trace, explain):
        command.add_argument(
            "program",
            help="module:name or path/to/file.py:name of a function, nn.Module or class made without arguments",
        )
        command.add_argument(
            "inputs",
            nargs="*",
            metavar="INPUT",
            help="one per argument: 4x8xf32 (normal), 4x8xi64%%97 (below 97), an added ! asks for its gradient",
        )
        command.add_argument(
            "--strategy", choices=STRATEGIES, default="min-cut", help="how to cut (default: %(default)s)"
        )
        command.add_argument(
            "--capture", choices=CAPTURES, default="dynamo", help="how the program is read (default: %(default)s)"
        )
        command.add_argument("--seed", type=int, default=0, help="of the inputs (default: %(default)s)")
    return parser


_HELP = "Run PROGRAM on made-up inputs; INPUT gives the size and dtype of each argument."


def _example(command: str, rest: str = "") -> str:
    example = f"isthmus {command} model.py:loss 4x4xf32 4x4xf32! {rest}".rstrip()
    return f"Example: {example}. ISTHMUS_LOGS=NAME,... prints more on stderr: {', '.join(ARTIFACTS)}."


_MODES = "What `isthmus.compile(mode=...)` sets every option to; a star marks what differs from the default mode."


_CACHE = (
    "The machine code that is kept between processes. ISTHMUS_CACHE_DIR says where (empty: nowhere), ISTHMUS_CACHE_SIZE"
    " how much at most (2G by default, 0: no bound); what was not used for the longest time is removed first."
)


def _cache(arguments: argparse.Namespace) -> int:
    from isthmus.runtime import cache
    from isthmus.runtime.cache_size import entries, readable

    there = cache.current()
    if there.directory is None:
        print("nothing is kept on disk: ISTHMUS_CACHE_DIR is empty")
    elif arguments.clear:
        count, size = there.clear()
        print(f"removed {count} entries, {readable(size)}, of {there.directory}")
    else:
        found = list(entries(there.directory))
        bound = "no bound" if there.limit is None else f"at most {readable(there.limit)}"
        print(f"{there.directory}: {len(found)} entries, {readable(sum(e.bytes for e in found))} ({bound})")
    return 0


def _modes(arguments: argparse.Namespace) -> int:
    print(mode_table())
    return 0


_CALIBRATE = """Measure what moving, computing, launching and calling cost on this machine (some ten seconds; leave it
alone meanwhile) and keep the list of prices in the cache's folder. Programs for a CPU are compiled by it from then on:
what is fused, recomputed, cut for threads, and which products the library makes. ISTHMUS_PRICES=default, or the option
prices="default", ignores it; `isthmus explain` prints the prices that differ from the defaults."""


def _calibrate(arguments: argparse.Namespace) -> int:
    from isthmus.driver import price_list
    from isthmus.driver.calibrate import calibrate

    if arguments.forget:
        print("the defaults hold again" if price_list.forget() else "nothing was measured on this machine")
    else:
        calibrate(Console(), keep=not arguments.dry_run)
    return 0


def _program(arguments: argparse.Namespace) -> tuple[Callable[..., object], list[Tensor]]:
    program, inputs = load(arguments.program), make_inputs(arguments.inputs, arguments.seed)
    check_inputs(program, inputs)
    return program, inputs


def _trace(arguments: argparse.Namespace) -> int:
    from isthmus.driver.api import compile_in
    from isthmus.driver.options import Options
    from isthmus.driver.session import Session
    from isthmus.passes.pipelines import module_text

    backend = "native" if arguments.stage == "kernels" else "interpret"
    session = Session(Options(backend=backend, strategy=arguments.strategy))
    program, inputs = _program(arguments)
    compiled, notes = compile_in(session, program, arguments.capture)
    outputs = compiled(*inputs)
    if not session.programs:
        reasons = [f"\n    {b.location or 'unknown place'}: {b.reason}" for b in notes.breaks]
        raise ValueError(f"nothing of {arguments.program} was captured: it computes with no tensor{''.join(reasons)}")
    if backend == "native":
        _backward(outputs)  # its kernels are made when it is called
    texts: list[str] = []
    for program in session.programs:
        found = _at_stage(program, arguments.stage)
        if not found:
            raise ValueError(f"{program.captured.name} has no stage {arguments.stage}: nothing asks for a gradient")
        texts += map(module_text, found)
    sys.stdout.write("// -----\n".join(texts))  # isthmus-opt --split-input-file reads several
    return 0


def _backward(outputs: object) -> None:
    reached = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
    if reached:
        torch.autograd.backward(reached, [torch.ones_like(t) for t in reached])


def _at_stage(program: Program, stage: str) -> Sequence[ModuleOp]:
    """Give a program at a stage, or each of its functions; nothing where it did not get there.

    Without writes it is made again, nobody else keeps it.
    """
    if stage == "kernels":
        return [*program.lowering.kernels.values()]
    if stage != "functional":
        found = program.stages.get(stage)
        return [] if found is None else [found]
    module = program.captured.module.clone()
    run_passes(new_context(), module, ("functionalize",))
    return [module]


def _explain(arguments: argparse.Namespace) -> int:
    from isthmus.driver.explain import explain

    program, inputs = _program(arguments)
    settings = {"backend": arguments.backend, "strategy": arguments.strategy}
    report = explain(program, capture=arguments.capture, **settings)(*inputs)
    console = Console()
    for part in report.render():
        console.print(part, highlight=False, markup=False, soft_wrap=True)
    if arguments.picture:
        for number, graph in enumerate(report.graphs):
            path = Path(arguments.picture)
            path = path.with_stem(f"{path.stem}_{number}") if number else path
            path.write_text(graph.picture())
            print(f"{graph.name} is drawn in {path}")
    return 0
