"""What capture hands to the compiler: the aten module, and who its arguments are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from isthmus.diagnostics import SourceLocation


@dataclass(frozen=True)
class Input:
    """One argument of `@main`, in order."""

    name: str
    """How the user names it: `x`, `self.weight`, or "constant 0"."""
    kind: Literal["tensor", "parameter", "buffer", "constant", "size", "number"]
    """`size`: an int that is a symbol. `number`: a Python float that torch passes as a 0-d float64 tensor."""
    requires_grad: bool = False


@dataclass(frozen=True)
class Captured:
    """A captured program.

    `@main` of `module` takes what the caller passes (tensors; ints for symbolic sizes), then `constants`. It returns
    references; its attribute `isthmus.outputs` says how the caller's flat output list is made from them.
    """

    module: ModuleOp
    inputs: tuple[Input, ...]
    constants: tuple[Tensor, ...] = ()
    name: str = "main"
    location: SourceLocation | None = None
    notes: tuple[str, ...] = ()
    """Facts worth telling in `explain`: numbers that varied and had to be fixed, so that others compile again."""
    grad_mode_left: bool | None = None
    """The grad mode that the program leaves behind, where it is another than before."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where the program runs."""

    @property
    def training(self) -> bool:
        """Whether any input asks for a gradient."""
        return any(i.requires_grad for i in self.inputs)


Value = Tensor | int | float | bool | None

Compiled = Callable[[list[Value]], Sequence[Value]]
"""Takes the caller's arguments (without the constants), gives the caller's flat outputs."""

CompileCaptured = Callable[[Captured], Compiled]
"""What the driver gives to a capture function: it compiles what was captured."""
