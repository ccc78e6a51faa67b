"""What a user can choose when compiling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import cast

from isthmus.diagnostics import nearest
from isthmus.driver.compilers import BUILT_IN, Compiler
from isthmus.passes.partition.partition import Choose

BACKENDS = ("native", "interpret", "eager")
"""native: machine code; interpret: every ahead-of-time pass, run by the reference interpreter; eager: capture only."""

STRATEGIES = ("min-cut", "min-cut-late", "min-traffic", "default", "optimal")
"""How forward and backward are cut."""

MODES: dict[str, Mapping[str, object]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True},
    "max-autotune-no-cudagraphs": {},
}
"""torch.compile's modes -> options that differ from the default; on a CPU CUDA graphs change nothing."""


@dataclass(frozen=True)
class Options:
    """Options of one compilation.

    `backend`: one of BACKENDS. `strategy`: how forward and backward are cut: min-cut (fewest bytes saved; a scalar loss
    may compute the beginning of its gradient, which min-cut-late leaves to backward), min-traffic
    (fewest bytes moved), default (save what backward reads) or optimal (recompute as little as `memory_budget` allows:
    the most bytes that backward holds at once, or up to 1 a fraction of what it holds with min-cut; a budget implies
    the strategy). `verify`: "none", "once" (the joint program), "each-pass" (run the program on the call's own inputs
    after every pass and name the first that changes a result). `higher_order`: keep what second derivatives need from
    the first call on.
    `fallback_random`: torch's own random streams (library calls), equal to eager's; numbers are drawn row by row, eager
    draws them in the order of memory where a tensor is transposed. `decompositions`: "default", or "none" to keep every
    operator a library call. `cache`: use the disk cache. `recompile_limit`: so many compilations of one function; then
    calls that none of them fits run as in eager, with a warning that names the guard (under `fullgraph` they raise).
    `contractions`: which matrix products are kernels of ours, on a CPU: "joined" (those that join with what makes their
    operands or reads their result, where that saves more than it costs on the machine that was measured), "auto" (also
    large ones with no such neighbour), "own" (all that join and then move fewer bytes), "large" (of those, the large
    ones) or "library" (none). On a GPU products in half precision, and of f32 where
    torch's setting allows TF32: "joined" those with an epilogue, "own" and "large"
    others, too, "auto" none: whole steps were measured faster with the library's. `cuda_graphs`: on a GPU, replay a
    direction as one CUDA graph from its third call with the same shapes on.
    `chunk_rows`: a matrix of 256 MiB or more that is made from rows of 1024 numbers or more, an eighth as wide, and
    used row by row (logits of many classes, under their loss and its gradient in one program) is computed for some rows
    at a time; a weight's gradient is then added up piece by piece, rounded after each. A number: pieces of so many
    mebibytes of a matrix of twice as many, however short the rows.
    `fold_into_conv`: in programs without gradients, scales and shifts of channels after a convolution (batch norm by
    running statistics) become part of its weight, at every call; results differ by rounding.
    `prices`: on a CPU, by what costs programs are fused, cut and scheduled: "measured" (what `isthmus calibrate` has
    found on this machine, where it was run) or "default".
    `reuse_results`: on a CPU, memory that a large result has left (1 MiB or more) is kept for the next call's.
    `past_caches`: on a CPU, large results that nobody reads soon are stored past the caches.
    `forward_compiler`, `backward_compiler`: what makes the functions callable (`driver.compilers.Compiler`, or a
    built-in one by name; None: what `backend` says). The forward one compiles programs without gradients too, the
    backward one derivatives of every order. `partition`: a function from the joint program (`passes.partition.Joint`)
    to the values that forward hands to backward, instead of a strategy.
    """

    backend: str = "native"
    fullgraph: bool = False
    dynamic: bool | None = None
    strategy: str = "min-cut"
    memory_budget: float | None = None
    verify: str = "none"
    math: str = "strict"
    higher_order: bool = False
    fallback_random: bool = False
    decompositions: str = "default"
    cache: bool = True
    recompile_limit: int = 64
    contractions: str = "auto"
    cuda_graphs: bool = False
    chunk_rows: bool | int = True
    fold_into_conv: bool = False
    prices: str = "measured"
    reuse_results: bool = True
    past_caches: bool = True
    forward_compiler: Compiler | str | None = None
    backward_compiler: Compiler | str | None = None
    partition: Choose | None = None

    def __post_init__(self) -> None:
        """Check the values; ValueError names what is allowed."""
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(
                    f"{name}={value!r} is none of {', '.join(map(repr, allowed))}{nearest(value, allowed)}"
                )
        for option in fields(self):
            value = getattr(self, option.name)
            sized = option.name == "chunk_rows" and _is_a(int, value) and value > 0
            if isinstance(option.default, bool) and not isinstance(value, bool) and not sized:
                sizes = ", nor a number of mebibytes" if option.name == "chunk_rows" else ""
                raise ValueError(f"{option.name}={value!r} is neither True nor False{sizes}")
        if self.dynamic not in (None, False, True):
            raise ValueError(f"dynamic={self.dynamic!r} is none of None, False, True")
        for name in ("forward_compiler", "backward_compiler"):
            value = getattr(self, name)
            if isinstance(value, str) and value not in BUILT_IN:
                raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, BUILT_IN))}")
            if value is not None and not isinstance(value, str) and not callable(value):
                raise ValueError(f"{name} must be callable, not {type(value).__name__}")
        if self.partition is not None and not callable(self.partition):
            raise ValueError(f"partition must be callable, not {type(self.partition).__name__}")
        if not _is_a(int, self.recompile_limit) or self.recompile_limit < 1:
            raise ValueError(f"recompile_limit={self.recompile_limit!r} is no number of compilations")
        budget = self.memory_budget
        if budget is not None and (not _is_a((int, float), budget) or budget < 0):
            raise ValueError(f"memory_budget={budget!r} is neither a number of bytes nor a fraction")

    def compiler(self, direction: str) -> Compiler | str:
        """What compiles a direction, "forward" or "backward": a built-in's name or the user's own."""
        return getattr(self, f"{direction}_compiler") or self.backend

    @property
    def cut(self) -> tuple[str, float]:
        """The strategy of the partition and its budget."""
        if self.memory_budget is None:
            return self.strategy, 1.0
        return "optimal", float(self.memory_budget)

    def with_settings(self, mode: str | None, settings: Mapping[str, object] | None) -> Options:
        """Add a mode and an options dictionary; ValueError on unknown ones, naming those that exist."""
        known = set(settable())
        if settings is not None and not _is_a(Mapping, settings):
            raise TypeError(f"options is a dictionary from names to values, not {type(settings).__name__}")
        merged = {**_mode(mode or "default"), **(settings or {})}
        unknown = sorted(set(merged) - known)
        if unknown:
            meant = nearest(unknown[0], known)
            raise ValueError(f"unknown options {unknown}; there are {', '.join(sorted(known))}{meant}")
        return replace(self, **cast(dict[str, str], merged))


def _is_a(kind: type | tuple[type, ...], value: object) -> bool:
    """Check at run time what a type checker believes of a caller."""
    return isinstance(value, kind)


def settable() -> list[str]:
    """Give the names of the options that `isthmus.compile(options=...)` takes."""
    return [f.name for f in fields(Options) if f.name not in ("fullgraph", "dynamic")]


def _mode(mode: str) -> Mapping[str, object]:
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is none of {', '.join(map(repr, MODES))}{nearest(mode, MODES)}")
    return MODES[mode]


def list_mode_options(mode: str | None = None) -> dict[str, dict[str, object]]:
    """Give what each mode of `isthmus.compile(mode=...)` sets every option to: mode -> option -> value.

    With `mode`, that one alone. `isthmus modes` prints it as a table. ValueError on an unknown mode, which names those
    that exist.
    """
    found: dict[str, dict[str, object]] = {}
    for name in MODES if mode is None else (mode,):
        chosen = Options().with_settings(name, None)
        found[name] = {option: getattr(chosen, option) for option in settable()}
    return found


def mode_table() -> str:
    """Give the options of all modes as text, a line per option; a star marks what differs from the default mode."""
    modes = list_mode_options()
    plain = modes["default"]
    rows = [["option", *modes]]
    for option, usual in plain.items():
        values = [modes[name][option] for name in modes]
        rows.append([option, *(f"{_shown(v)}{'' if v == usual else ' *'}" for v in values)])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)


_ALLOWED: dict[str, tuple[object, ...]] = {
    "backend": BACKENDS,
    "strategy": STRATEGIES,
    "verify": ("none", "once", "each-pass"),
    "math": ("strict",),
    "decompositions": ("default", "none"),
    "contractions": ("auto", "joined", "own", "large", "library"),
    "prices": ("measured", "default"),
}
