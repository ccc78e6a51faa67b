"""Run both trainings, eager and compiled: `python -m demo`, see `--help`."""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from importlib import import_module
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch's profiler is loaded

import torch
from rich.console import Console

from demo import train_digits, train_gpt
from demo.measure import Compile
from demo.report import Training, plot_losses, plot_memory, run_all, table

ROOT = Path(__file__).parents[1]


def _isthmus() -> Compile:
    return import_module("isthmus").compile


WAYS = {
    "eager": lambda: lambda model: model,
    "isthmus": _isthmus,
    "isthmus-interpreted": lambda: partial(_isthmus(), backend="interpret"),
    "torch.compile": lambda: torch.compile,
    "dynamo": lambda: lambda model: torch.compile(model, backend="eager"),
}
"""Name of a way to run -> what gives its compile function (a module is imported when it is asked for)."""


def main() -> None:
    """Train, print the tables, write the plots."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--ways", nargs="+", default=["eager", "isthmus"], choices=list(WAYS), help="what to compare")
    parser.add_argument("--epochs", type=int, default=train_digits.EPOCHS, help="of the digits (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=train_gpt.STEPS, help="of the GPT (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "demo", help="where the plots go")
    chosen = parser.parse_args()
    ways = {name: WAYS[name]() for name in chosen.ways}
    trainings = [
        Training(
            "Handwritten digits, a convolutional classifier",
            "digits",
            train_digits.steps(chosen.epochs),
            lambda name, compile, progress: train_digits.run(name, compile, progress, chosen.epochs),
        ),
        Training(
            "Python source, a character-level GPT",
            "gpt",
            chosen.steps,
            lambda name, compile, progress: train_gpt.run(name, compile, progress, chosen.steps),
        ),
    ]
    console = Console()
    chosen.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    for training in trainings:
        runs = run_all(training, ways, console)
        console.print(table(training, runs))
        for path in (plot_losses(training, runs, chosen.out), plot_memory(training, runs, chosen.out)):
            console.print(f"[dim]{path}[/dim]")
        if runs[-1].sample:
            console.print(f"\n[bold]What the {runs[-1].name} one wrote:[/bold]", runs[-1].sample, sep="\n", markup=True)
        console.print()
    console.print(
        f"{time.perf_counter() - start:.0f} s on {torch.get_num_threads()} threads, torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
