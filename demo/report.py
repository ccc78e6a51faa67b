"""Tables in the terminal and plots in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from demo.measure import Compile, Run, largest_difference

matplotlib.use("Agg")


@dataclass(frozen=True)
class Training:
    """A training that can be run in several ways."""

    title: str
    file: str
    steps: int
    run: Callable[[str, Compile, Callable[[], None]], Run]


def run_all(training: Training, ways: dict[str, Compile], console: Console) -> list[Run]:
    """Run the training in each way, with a progress bar."""
    columns = (TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    runs: list[Run] = []
    with Progress(*columns, console=console) as progress:
        for name, compile in ways.items():
            task = progress.add_task(f"{training.file}, {name}", total=training.steps)
            runs.append(training.run(name, compile, lambda task=task: progress.advance(task)))
    return runs


def table(training: Training, runs: Sequence[Run]) -> Table:
    """One column for each way; the first is what the others are compared with."""
    shown = Table(title=training.title, title_justify="left")
    shown.add_column("")
    for run in runs:
        shown.add_column(run.name, justify="right")
    first = runs[0]
    rows: list[tuple[str, Callable[[Run], str]]] = [
        ("a step", lambda r: f"{r.step * 1e3:.1f} ms" + _ratio(r.step, first.step, r is first)),
        ("first step, with compilation", lambda r: f"{r.first_step:.2f} s"),
        ("saved for backward", lambda r: f"{r.saved / 1e6:.2f} MB" + _ratio(r.saved, first.saved, r is first)),
        (
            "peak of a step",
            lambda r: f"{r.memory.peak / 1e6:.2f} MB" + _ratio(r.memory.peak, first.memory.peak, r is first),
        ),
        ("largest gradient difference", lambda r: "" if r is first else f"{largest_difference(first, r):.1e}"),
        ("last loss", lambda r: f"{r.losses[-1]:.4f}"),
        ("on unseen data", lambda r: r.score),
    ]
    for title, cell in rows:
        shown.add_row(title, *(cell(run) for run in runs))
    return shown


def _ratio(value: float, first: float, is_first: bool) -> str:
    return "" if is_first or not first else f" ({value / first:.0%})"


def plot_losses(training: Training, runs: Sequence[Run], folder: Path) -> Path:
    """Loss curves, one over the other: from the same seed they should be one."""
    figure, axes = plt.subplots(figsize=(7, 4))
    for run, style in zip(runs, ("-", "--", ":", "-."), strict=False):
        axes.plot(run.losses, style, label=run.name, linewidth=1.5)
    axes.set(title=training.title, xlabel="step", ylabel="loss", yscale="log")
    axes.legend()
    return _save(figure, folder / f"{training.file}_loss.png")


def plot_memory(training: Training, runs: Sequence[Run], folder: Path) -> Path:
    """What is allocated over one forward and backward, each run from 0 to the end of its step."""
    figure, axes = plt.subplots(figsize=(7, 4))
    for run in runs:
        moments = [moment for moment, _ in run.memory.timeline]
        last = max(moments[-1], 1e-9)
        axes.step(
            [m / last for m in moments], [held / 1e6 for _, held in run.memory.timeline], where="post", label=run.name
        )
    axes.set(title=f"{training.title}: memory over a step", xlabel="part of the step", ylabel="MB")
    axes.legend()
    return _save(figure, folder / f"{training.file}_memory.png")


def _save(figure: Figure, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
