"""`isthmus trace` prints a program at a stage, `isthmus explain` what happened to it, `isthmus modes` a table."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp

from isthmus.diagnostics import CompileError
from isthmus.dialects import new_context
from isthmus.driver.artifacts import ARTIFACTS
from isthmus.driver.options import BACKENDS, mode_table
from isthmus.passes.pipelines import run_passes

if TYPE_CHECKING:
    from isthmus.driver.session import Program

STAGES = ("graph", "functional", "prim", "joint", "forward", "backward", "kernels")

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}


def run(argv: Sequence[str]) -> int:
    """Run one command; 0 when it went well, 1 after a message on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        return cast(int, arguments.command(arguments))
    except (CompileError, OSError, ValueError, AttributeError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="isthmus", description="Look at programs on their way through the compiler.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    trace = commands.add_parser("trace", help="print a program at one stage", description=_HELP)
    trace.add_argument("--stage", choices=STAGES, default="graph", help="default: %(default)s")
    trace.set_defaults(command=_trace)
    explain = commands.add_parser("explain", help="say what happened to a program", description=_HELP)
    explain.add_argument("--backend", choices=BACKENDS, default="native", help="default: %(default)s")
    explain.set_defaults(command=_explain)
    modes = commands.add_parser("modes", help="print the options of every mode", description=_MODES)
    modes.set_defaults(command=_modes)
    for command in (trace, explain):
        command.add_argument("program", help="module:name or path/to/file.py:name of a function, module or class")
        command.add_argument(
            "inputs",
            nargs="*",
            metavar="INPUT",
            help="one per argument: 4x8xf32 (normal), 4x8xi64%%97 (below 97), an added ! asks for its gradient",
        )
        command.add_argument(
            "--strategy",
            choices=("min-cut", "min-cut-late", "min-traffic", "default", "optimal"),
            default="min-cut",
            help="how to cut",
        )
        command.add_argument("--seed", type=int, default=0, help="of the inputs (default: %(default)s)")
    return parser


_HELP = (
    "PROGRAM is a function or nn.Module (or a class, which is made without arguments); INPUT gives each argument's "
    "size and dtype. Example: isthmus trace model.py:Net 2x3x32x32xf32 --stage joint. "
    f"Artifacts for ISTHMUS_LOGS: {', '.join(ARTIFACTS)}."
)

_MODES = "What `isthmus.compile(mode=...)` sets every option to; a star marks what differs from the default mode."


def _modes(arguments: argparse.Namespace) -> int:
    print(mode_table())
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    from isthmus.driver.api import compile_in
    from isthmus.driver.options import Options
    from isthmus.driver.session import Session
    from isthmus.passes.pipelines import module_text

    backend = "native" if arguments.stage == "kernels" else "interpret"
    session = Session(Options(backend=backend, strategy=arguments.strategy))
    compiled, _ = compile_in(session, load(arguments.program), "dynamo")
    outputs = compiled(*make_inputs(arguments.inputs, arguments.seed))
    if backend == "native":
        _backward(outputs)  # its kernels are made when it is called
    for program in session.programs:
        found = _at_stage(program, arguments.stage)
        if not found:
            raise ValueError(f"{program.captured.name} has no stage {arguments.stage}: nothing asks for a gradient")
        for module in found:
            sys.stdout.write(module_text(module))
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

    program = load(arguments.program)
    settings = {"backend": arguments.backend, "strategy": arguments.strategy}
    report = explain(program, **settings)(*make_inputs(arguments.inputs, arguments.seed))
    console = Console()
    for part in report.render():
        console.print(part, highlight=False, markup=False, soft_wrap=True)
    return 0


def load(text: str) -> Callable[..., object]:
    """Give the program that `module:name` or `file.py:name` names; a class is made without arguments.

    Raises ValueError when the text has no name, ImportError or AttributeError when there is no such thing.
    """
    where, colon, name = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} names no program; write module:name or file.py:name")
    found = getattr(_import(where), name)
    return cast(Callable[..., object], found() if isinstance(found, type) and issubclass(found, nn.Module) else found)


def _import(where: str) -> ModuleType:
    if not where.endswith(".py"):
        sys.path.insert(0, "")
        return importlib.import_module(where)
    path = Path(where)
    if not path.exists():
        raise OSError(f"there is no file {where}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def make_inputs(texts: Sequence[str], seed: int = 0) -> list[Tensor]:
    """Make the tensors that texts like `4x8xf32!` or `4xi64%97` describe; ValueError on another form."""
    generator = torch.Generator().manual_seed(seed)
    return [_make_input(text, generator) for text in texts]


def _make_input(text: str, generator: torch.Generator) -> Tensor:
    body, wants = text.removesuffix("!"), text.endswith("!")
    body, _, below = body.partition("%")
    *sizes, dtype = body.split("x")
    if dtype not in DTYPES or not all(s.isdigit() for s in sizes) or (below and not below.isdigit()):
        raise ValueError(f"{text!r} is no input; write e.g. 4x8xf32, 4x8xf32! or 4xi64%97 ({', '.join(DTYPES)})")
    shape, kind = [int(s) for s in sizes], DTYPES[dtype]
    if kind.is_floating_point:
        return torch.randn(shape, generator=generator).to(kind).requires_grad_(wants)
    return torch.randint(0, int(below or 2), shape, generator=generator).to(kind)
