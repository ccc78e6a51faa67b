"""What a failing pass leaves behind: its name, and the IR before it in a file that `isthmus-opt` runs."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from isthmus.dialects import new_context
from isthmus.passes.pipelines import PassFailure, module_text, pass_text


@dataclass
class Trail:
    """How the module at hand came about: a source that stays as it is, and the passes that ran on a copy of it.

    Passes are deterministic, so the IR before one is made again when it is wanted; no copy is kept for that.
    """

    source: ModuleOp
    passes: list[ModulePass] = field(default_factory=list[ModulePass])

    def failure(self, failing: ModulePass, error: Exception, name: str) -> PassFailure:
        """Give the error that names a failing pass; the IR goes to $ISTHMUS_DUMP or the folder for temporary files."""
        module = self.source.clone()
        for earlier in self.passes:
            earlier.apply(new_context(), module)
        found = PassFailure(pass_text(failing), error, module_text(module))
        folder = Path(os.environ.get("ISTHMUS_DUMP") or tempfile.gettempdir())
        kept = found.keep(str(folder / f"isthmus-{os.getpid()}-{name}.mlir"))
        found.what = f"{found.what}\n    {kept}"
        found.args = (found.render(),)
        return found
