"""Switching off what torch's dispatcher does around an operator: autograd, autocast, Python's modes."""

from __future__ import annotations

from isthmus.codegen.llvm_text import I64, Function, Value
from isthmus.dialects.native_facts import NativeFacts

_GUARD = "_ZN3c104impl23ExcludeDispatchKeyGuard"
"""c10::impl::ExcludeDispatchKeyGuard: its constructor and destructor are exported by libc10."""


def exclude_keys(f: Function, facts: NativeFacts) -> Value | None:
    """Begin; gives what `include_keys` needs to end. None where this torch does not export the guard."""
    if facts.excluded_keys == 0:
        return None
    guard = f.slot(I64, 8, align=16)
    f.call_void(f"{_GUARD}C1ENS_14DispatchKeySetE", guard, f.const(facts.excluded_keys, I64))
    return guard


def include_keys(f: Function, guard: Value | None) -> None:
    """End."""
    if guard is not None:
        f.call_void(f"{_GUARD}D1Ev", guard)
