"""Whole programs on disk: what an earlier process compiled of the same captured program runs without any pass.

The key is taken on the captured program and says everything that its code depends on. What it cannot say (Python code
that passes would call: registered rules, compilers and partitions of the user's own, custom operators) is not kept.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, fields
from typing import cast

import torch
import torch.library
import xdsl
from xdsl.dialects.builtin import ModuleOp

from isthmus import diagnostics, ir
from isthmus.dialects import aten
from isthmus.dialects.program import Program
from isthmus.driver.fingerprint import fingerprint
from isthmus.driver.halves import Halves
from isthmus.driver.options import Options
from isthmus.driver.rules import registered
from isthmus.frontend.captured import Captured
from isthmus.runtime import cache, cpu
from isthmus.runtime.build import digest_of_files, source_files, store, stored
from isthmus.runtime.convention import Convention, Executable
from isthmus.runtime.layout import native_facts
from isthmus.runtime.torch_private import multiplies_in_tf32


@dataclass(frozen=True)
class Outline:
    """What the tape node of a program needs beside the code of its directions."""

    convention: Convention
    trains: bool
    """Whether there is a backward."""
    draws: bool = False
    """Whether the forward draws from torch's generators."""


@dataclass(frozen=True)
class Kept:
    """The entries of one captured program: `forward` with its outline, `backward`, `inference`."""

    key: str
    device: torch.device
    graphs: bool = False
    """Whether programs of a GPU are replayed as CUDA graphs."""
    reuse_results: bool = True
    """Whether large results on a CPU get memory that earlier ones have left."""

    def load(self, direction: str) -> tuple[Executable, Outline | None] | None:
        """Give a direction and its outline, where an earlier compilation left it."""
        key = f"{self.key} {direction}"
        if self.device.type == "cpu":
            found = stored(key, cpu.host_target(), reuse_results=self.reuse_results)
            return None if found is None else (found[0], cast("Outline | None", found[1]))
        from isthmus.driver.kept_on_device import kept_on_device
        from isthmus.runtime.cuda_graph import GraphedProgram

        there = kept_on_device(key, self.device)
        if there is None:
            return None
        made, outline = there
        return (GraphedProgram(made) if self.graphs else made), cast("Outline | None", outline)

    def keep(self, direction: str, program: Program, text: str, outline: Outline | None = None) -> None:
        """Leave a direction for later processes."""
        key = f"{self.key} {direction}"
        if self.device.type == "cpu":
            store(key, program, text, cpu.host_target(), outline)
            return
        from isthmus.driver.kept_on_device import keep_on_device

        keep_on_device(key, program, self.device, outline)


def kept_of(captured: Captured, options: Options) -> Kept | None:
    """Give where a captured program is kept; None where its key would not say all that its code depends on."""
    plain = (
        options.cache
        and options.backend == "native"
        and options.verify == "none"
        and options.cut[0] != "optimal"  # where its time ends, the next search may find another cut of the same types
        and not (options.forward_compiler or options.backward_compiler or options.partition)
        and not (os.environ.get("ISTHMUS_LOGS") or os.environ.get("ISTHMUS_DUMP"))  # they show passes
    )
    if not plain or registered() or not _is_torchs_own(captured.module):
        return None
    chosen = [f"{f.name}={getattr(options, f.name)!r}" for f in fields(options)]
    around = (*_surroundings(), str(captured.device), *_of_device(captured.device))
    key = cache.digest(fingerprint(captured.module), *chosen, *around, compiler_version())
    return Kept(key, captured.device, options.cuda_graphs, options.reuse_results)


def _of_device(device: torch.device) -> tuple[str, ...]:
    """What decides about a GPU's code beside its kernels' own keys."""
    if device.type != "cuda":
        return ()
    settings = torch.backends.cuda.cudnn_sdp_enabled(), multiplies_in_tf32(device)
    return (torch.cuda.get_device_name(device), *map(str, settings))


def _is_torchs_own(module: ModuleOp) -> bool:
    """Whether every operator is torch's, and torch's alone say what it means and what its derivative is."""
    added = torch.library._impls - _IMPLEMENTED  # pyright: ignore
    if any(name.startswith("aten/") and not name.endswith(_OF_BATCHES) for name in added):
        return False
    return not any("::" in op.overload for op in module.walk() if isinstance(op, aten.CallOp))


_IMPLEMENTED = frozenset(torch.library._impls)  # pyright: ignore[reportPrivateUsage]
"""What torch itself implements in Python."""

_OF_BATCHES = ("/FuncTorchBatched", "/FuncTorchBatchedDecomposition")
"""Rules of `torch.func.vmap`, which torch enters at its first use; programs are batched by rules of ours."""


def _surroundings() -> tuple[str, ...]:
    """State of torch and of the machine beside the program that traced derivatives, schedules or code depend on."""
    sdp = torch.backends.cuda
    state = (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,  # pyright: ignore[reportAttributeAccessIssue]
        sdp.flash_sdp_enabled(),
        sdp.mem_efficient_sdp_enabled(),
        sdp.math_sdp_enabled(),
    )
    return (*map(str, state), repr(cpu.host_target()), repr(native_facts()))


@functools.cache
def compiler_version() -> str:
    """A digest of the compiler's whole source, of its Python and of the torch that it asks for derivatives."""
    package = os.path.dirname(diagnostics.__file__)
    around = (sys.version, str(torch.version.git_version), str(xdsl.__version__))
    return digest_of_files(source_files(package), package, *around)


def require_same(outline: Outline, halves: Halves | None) -> Halves:
    """Give the halves of a program that was lowered again; IRError where its kept forward was made for others."""
    if halves is None or outline.convention != halves.convention:
        raise ir.IRError(
            "a program that is kept on disk was lowered in another way than now",
            cure="clear the cache (isthmus.runtime.cache.clear()) and report this, please",
        )
    return halves
