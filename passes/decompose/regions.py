"""Control flow with regions: captured conditions and loops become primitive ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xdsl.ir import Operation, SSAValue

if TYPE_CHECKING:
    from isthmus.passes.decompose.decompose import Rebuild, Scope

Loop = Callable[["Rebuild", "Scope", Operation], Sequence[SSAValue]]

LOOPS: dict[type[Operation], Loop] = {}
