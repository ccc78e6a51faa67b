"""What a compilation shows of itself: `ISTHMUS_LOGS` (stderr), `ISTHMUS_DUMP` (a folder), stage times."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeVar

from xdsl.dialects.builtin import ModuleOp

from isthmus.driver.progress import PROGRESS
from isthmus.passes.pipelines import module_text

ARTIFACTS: dict[str, str] = {
    "graph": "the captured program (aten)",
    "functional": "after functionalize: values only",
    "rewrites": "how often each registered rule (rewrite, derivative, decomposition) was used",
    "prim": "after decompose: primitives",
    "joint": "forward and backward in one function, simplified",
    "metadata": "the boundary: training or not, tangents, what inputs and outputs alias and mutate",
    "forward": "the forward function after the cut",
    "backward": "the backward function after the cut",
    "kernels": "fused kernels and library calls, with their schedule and places",
    "fusion": "pairs of kernels that were not fused, with the reason",
    "llvm": "LLVM IR of kernels and of the native call",
    "asm": "machine code of the kernels as assembly",
    "saved": "what is saved for backward, bytes and reason",
    "graph_breaks": "where Dynamo split the program, and why",
    "guards": "what compiled code was specialised on",
    "recompiles": "why a program was compiled again",
    "fallbacks": "operators that run as library calls because no rule exists",
    "cuda_graphs": "captures of CUDA graphs and the memory they hold; what runs without one, and why",
    "times": "milliseconds per stage",
}
"""Artifact -> what it is; `ISTHMUS_LOGS=graph,joint` selects, `ISTHMUS_LOGS=?` lists, `all` gives everything."""

_SUFFIX = {"llvm": "ll", "asm": "s"}
"""How the dump's files of an artifact end, where they are not .mlir."""

_graphs = count()


def selected() -> frozenset[str]:
    """Give the artifacts that ISTHMUS_LOGS asks for; unknown names are reported once, `?` lists them all."""
    wanted = frozenset(w.strip().lstrip("+") for w in os.environ.get("ISTHMUS_LOGS", "").split(",") if w.strip())
    if "all" in wanted:
        return frozenset(ARTIFACTS)
    unknown = wanted - set(ARTIFACTS)
    if unknown and unknown not in _reported:
        _reported.append(unknown)
        if misspelt := unknown - {"?"}:
            print(f"isthmus: ISTHMUS_LOGS has no {', '.join(sorted(misspelt))}", file=sys.stderr)
        print(listing(), file=sys.stderr)
    return wanted - unknown


_reported: list[frozenset[str]] = []


def listing() -> str:
    """Give the table of artifacts."""
    width = max(map(len, ARTIFACTS))
    rows = [f"  {name:{width}}  {what}" for name, what in ARTIFACTS.items()]
    return "isthmus: artifacts for ISTHMUS_LOGS (comma-separated, or 'all'):\n" + "\n".join(rows)


def log(artifact: str, text: str | Callable[[], str], graph: int | None = None) -> None:
    """Print an artifact to stderr if it is asked for."""
    if artifact not in selected():
        return
    body = text if isinstance(text, str) else text()
    where = "" if graph is None else f" of graph {graph}"
    print(f"# ---- isthmus: {artifact}{where}\n{body.rstrip()}", file=sys.stderr)


@dataclass
class Record:
    """The stages of one compiled graph: texts for those who asked, milliseconds for everybody."""

    name: str = "graph"
    graph: int = field(default_factory=lambda: next(_graphs))
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    _written: int = 0
    _started: float = field(default_factory=time.perf_counter)

    def stage(self, name: str, artifact: str | None, content: ModuleOp | Callable[[], str] | None) -> None:
        """Note the end of a stage; `content`, where it has any, becomes text only when somebody asked for it."""
        now = time.perf_counter()
        self.milliseconds[name] = self.milliseconds.get(name, 0.0) + 1e3 * (now - self._started)
        PROGRESS.note(self.name, name)
        if content is not None and (os.environ.get("ISTHMUS_DUMP") or os.environ.get("ISTHMUS_LOGS")):
            self._show(name, artifact, content)
        self._started = time.perf_counter()

    def restart(self) -> None:
        """Begin timing here (what happened since the last stage belongs to nobody)."""
        self._started = time.perf_counter()

    def _show(self, name: str, artifact: str | None, content: ModuleOp | Callable[[], str]) -> None:
        folder = os.environ.get("ISTHMUS_DUMP")
        if not folder and (artifact is None or artifact not in selected()):
            return
        text = module_text(content) if isinstance(content, ModuleOp) else content()
        if artifact is not None:
            log(artifact, text, self.graph)
        if folder:
            self._dump(Path(folder), name, _SUFFIX.get(artifact or "", "mlir"), text)

    def _dump(self, folder: Path, name: str, suffix: str, text: str) -> None:
        where = folder / f"{self.graph:02d}-{self.name}"
        try:
            where.mkdir(parents=True, exist_ok=True)
            (where / f"{self._written:02d}-{name.replace(' ', '-')}.{suffix}").write_text(text)
        except OSError as error:
            print(f"isthmus: cannot write to ISTHMUS_DUMP={folder}: {error}", file=sys.stderr)
        self._written += 1


EntryT = TypeVar("EntryT")


class Announced(list[EntryT]):
    """A list that logs each entry, as an artifact, when it is appended."""

    def __init__(self, artifact: str) -> None:
        super().__init__()
        self._artifact = artifact

    def append(self, entry: EntryT, /) -> None:
        """Add an entry and show it to whoever asked."""
        super().append(entry)
        log(self._artifact, lambda: str(entry))
