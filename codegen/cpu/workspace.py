"""Memory that a kernel packs blocks in: one block for each running thread, kept by the process.

The functions are the runtime's (`runtime/workspace_text.py`), which says why `malloc` will not do.
"""

from __future__ import annotations

from isthmus.codegen.llvm_text import PTR, Function, Value


def take_workspace(f: Function, nbytes: Value) -> Value:
    """Get so many bytes from the start of a line on, their content undefined."""
    return f.call("isthmus_workspace", PTR, nbytes)


def leave_workspace(f: Function, workspace: Value) -> None:
    """Leave it for the next kernel."""
    f.call_void("isthmus_leave", workspace)
