"""Which prices programs are compiled by: those that `isthmus calibrate` left for this machine, else the defaults."""

from __future__ import annotations

import functools
import json
import os
import tempfile
import warnings
from dataclasses import asdict
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, cast

from isthmus.diagnostics import CompileError
from isthmus.dialects import prim
from isthmus.passes.analysis.prices import CPU, Prices, listed
from isthmus.runtime import cache, cpu

if TYPE_CHECKING:
    from isthmus.driver.machine import Machine

REFERENCE = {
    "bandwidth": 24e9,
    "flops": 94e9,
    "launch": 0.48e-6,
    "library_call": 0.12e-6,
    "addition": 0.068e-9,
}
"""What the machine that the defaults were found on shows where another one is measured (AMD EPYC, Zen 3, AVX2)."""

STAYS = 0.75
"""A price that was measured before stays where it is, if the new figure is no farther from it than so many steps."""

MEASURED, DEFAULT = "measured", "default"
"""What the option `prices` and `ISTHMUS_PRICES` may say."""


def prices_from(machine: Machine, before: Prices = CPU) -> Prices:
    """Give the list for a machine: each default times what this machine takes over what the reference took.

    In steps of two, so that measuring again gives the same list; `before`: the list that was found last.
    """
    stated = {op.name: op.COST for op in prim.PRIM_OPS}
    each = sorted(seconds / stated[name] for name, seconds in machine.functions)
    addition = each[len(each) // 2]
    own = {**{k: getattr(machine, k) for k in REFERENCE if k != "addition"}, "addition": addition}
    bandwidth, flops, launch, call, addition_ = (own[name] / REFERENCE[name] for name in REFERENCE)
    ratios = {
        "launch_bytes": launch * bandwidth,
        "partition_bytes": launch * bandwidth,
        "additions_per_byte": 1.0 / (addition_ * bandwidth),
        "flops": flops,
        "flops_per_byte": flops / bandwidth,
        "part_flops": launch * flops,
        "library_call": call * flops,
    }
    found = {name: stepped(getattr(CPU, name), ratio, getattr(before, name)) for name, ratio in ratios.items()}
    earlier = dict(before.functions)
    for name, seconds in machine.functions:
        found[name] = stepped(stated[name], seconds / addition / stated[name], earlier.get(name, stated[name]))
    return listed(tuple((name, price) for name, price in found.items() if price != stated.get(name)))


def stepped(default: float, ratio: float, before: float) -> float:
    """Give a default times the power of two next to a ratio; `before`, where that is as good."""
    exact = log2(max(ratio, 2.0**-20))
    kept = log2(before / default)
    return default * 2.0 ** (kept if abs(exact - kept) <= STAYS else round(exact))


# ---- on disk


def place() -> Path | None:
    """Give the file of this machine's list, whether it is there or not; None where nothing is kept on disk."""
    directory = cache.default_directory()
    target = cpu.host_target()
    return None if directory is None else directory / f"prices-{cache.digest(target.key, str(target.cores))[:16]}.json"


def keep(machine: Machine, prices: Prices) -> Path:
    """Write a list and what it was made from: programs are compiled by it from now on.

    Nobody else may write the file, whatever the umask says. CompileError: no folder, or one that takes no file.
    """
    where = place()
    if where is None:
        raise CompileError("there is no folder to keep prices in", cure=_CURE)
    content = {"machine": cpu.host_target().key, "measured": asdict(machine), "prices": prices.differences}
    try:
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, new = tempfile.mkstemp(dir=where.parent, prefix=f".{where.stem}-")
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(content, indent=1) + "\n")
        os.replace(new, where)
    except OSError as error:
        raise CompileError(f"the prices cannot be kept ({error})", cure=_CURE) from error
    return where


_CURE = "set ISTHMUS_CACHE_DIR to a folder of your own"


def forget() -> bool:
    """Remove this machine's list; whether there was one. CompileError where the disk refuses."""
    where = place()
    try:
        if where is not None:
            where.unlink()
        return where is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CompileError(f"the prices stay ({error})", cure="set ISTHMUS_PRICES=default to ignore them") from error


def measured() -> Prices | None:
    """Give the list that was measured on this machine; None where there is none, or none that can be read."""
    where = place()
    try:
        facts = None if where is None else where.stat()
    except OSError:
        return None
    if where is None or facts is None:
        return None
    return _read(where, facts.st_mtime_ns, facts.st_uid != os.getuid() or bool(facts.st_mode & 0o022))


@functools.lru_cache(maxsize=8)
def _read(where: Path, written: int, is_open: bool) -> Prices | None:
    try:
        if is_open:
            raise ValueError("others than you may write it")
        entries = cast("list[tuple[str, float]]", json.loads(where.read_text())["prices"])
        found = tuple((str(name), float(price)) for name, price in entries)
        if any(not 0.0 < price < float("inf") for _, price in found):
            raise ValueError("a price is no positive number")
        return listed(found)
    except (OSError, ValueError, OverflowError, KeyError, TypeError, CompileError) as error:
        warnings.warn(
            f"the prices in {where} cannot be used ({error}): programs are compiled by the defaults;"
            " `isthmus calibrate` measures anew",
            RuntimeWarning,
            stacklevel=4,
        )
        return None


def chosen(option: str = MEASURED) -> Prices:
    """Give the list that programs for a CPU are compiled by; `option` as `Options.prices`.

    `ISTHMUS_PRICES=default` ignores what was measured. ValueError for any other word than the two.
    """
    said = os.environ.get("ISTHMUS_PRICES") or MEASURED
    if said not in (MEASURED, DEFAULT):
        raise ValueError(f"ISTHMUS_PRICES={said!r} is neither {MEASURED!r} nor {DEFAULT!r}")
    return CPU if DEFAULT in (option, said) else measured() or CPU
