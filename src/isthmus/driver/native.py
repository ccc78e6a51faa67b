"""Machine code for one function: kernels, memory plan, LLVM text, objects, the native call."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from isthmus.diagnostics import UnsupportedError
from isthmus.driver.artifacts import Record
from isthmus.driver.options import Options
from isthmus.runtime.convention import Executable


def make_native(module: ModuleOp, name: str, options: Options, record: Record) -> Executable:
    """Compile a prim-level function of a module to machine code."""
    raise UnsupportedError(f"@{name} has no native code yet", cure='compile with backend="interpret"')
