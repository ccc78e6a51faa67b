"""The one native call of a compiled function, and whether the last call was one."""

from __future__ import annotations

from isthmus.runtime.convention import Executable

_last_native = False


def last_call_native() -> bool:
    """Whether the last compiled forward or backward of this process ran as one native call.

    That is: machine code from entry to exit, with no Python inside and no library call that is
    not on the allow-list (`runtime.library.NATIVE`).
    """
    return _last_native


def note_call(executable: Executable) -> None:
    """Record what kind of executable runs now."""
    global _last_native
    _last_native = bool(getattr(executable, "native", False))
