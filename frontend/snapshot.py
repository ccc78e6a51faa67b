"""Modules while a function is traced: which attributes it reads, and that it leaves them as they were."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from isthmus.diagnostics import UnsupportedError

if TYPE_CHECKING:
    from isthmus.frontend.recorder import Recorder

_TABLES = ("_parameters", "_buffers", "_modules")

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Values that a guard compares by equality; others by identity."""


def is_equal(now: object, then: object) -> bool:
    """Whether two numbers or strings are the same for a program; 0.0 and -0.0 are not."""
    if not isinstance(now, PLAIN) or type(now) is not type(then) or now != then:
        return False
    return (bool(now) and not isinstance(now, complex)) or repr(now) == repr(then)


ABSENT = object()
"""Stands for an attribute that is not there."""


class AttributeReads:
    """Notes every attribute of a module that is read in this thread while it is entered."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], tuple[object, str, object]] = {}
        self._thread = threading.get_ident()

    @property
    def found(self) -> tuple[tuple[object, str, object], ...]:
        """(module, name, value) in the order of the first reads."""
        return tuple(self._found.values())

    def __enter__(self) -> AttributeReads:
        reads = self

        def read(module: nn.Module, name: str) -> Any:
            value = object.__getattribute__(module, name)
            if threading.get_ident() == reads._thread and not name.startswith("__"):
                reads._note(module, name, value)
            return value

        self._before = nn.Module.__dict__.get("__getattribute__")
        nn.Module.__getattribute__ = read  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del nn.Module.__getattribute__
        else:
            nn.Module.__getattribute__ = self._before  # type: ignore[method-assign]

    def _note(self, module: nn.Module, name: str, value: object) -> None:
        key = (id(module), name)
        if key in self._found or name in _TABLES:
            return
        if name in HOOKS:
            self._found[key] = (module, name, dict(value))  # type: ignore[call-overload]
        elif name.startswith("_"):
            return
        elif name in vars(module):
            self._found[key] = (module, name, value)
        else:
            self._note_inherited(key, module, name)

    def _note_inherited(self, key: tuple[int, str], module: nn.Module, name: str) -> None:
        """A number or a method of the class: it stays that, and the module gets none of its own."""
        owner = next((cls for cls in type(module).__mro__ if name in vars(cls)), nn.Module)
        if owner is nn.Module or not isinstance(vars(owner)[name], (*PLAIN, FunctionType)):
            return
        self._found[key] = (module, name, ABSENT)
        self._found[id(owner), name] = (owner, name, vars(owner)[name])


@contextmanager
def unchanged(modules: Sequence[tuple[str, nn.Module]], recorder: Recorder) -> Generator[None]:
    """Refuse programs that assign attributes of modules: the assignment would not happen at later calls.

    The attributes are put back in any case, so that no fake tensor stays behind.
    """
    before = [(name, m, _state(m)) for prefix, root in modules for name, m in _submodules(prefix, root)]
    try:
        yield
    finally:
        changed: list[str] = []
        for name, module, state in before:
            changed.extend(_restore(name, module, state))
    if changed:
        raise UnsupportedError(
            f"the program assigns {changed[0]}",
            location=recorder.location,
            op="setattr",
            cure="return the value instead, write a registered buffer in place, or use capture='dynamo'",
        )


def _submodules(prefix: str, root: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(f"{prefix}.{name}" if name else prefix, m) for name, m in root.named_modules()]


def _state(module: nn.Module) -> dict[str, dict[str, object]]:
    return {"": dict(vars(module)), **{t: dict(vars(module)[t]) for t in _TABLES}}


def _restore(name: str, module: nn.Module, state: dict[str, dict[str, object]]) -> list[str]:
    changed: list[str] = []
    for table, values in state.items():
        live: dict[str, object] = vars(module) if not table else vars(module)[table]
        for key in {*live, *values}:
            now, then = live.get(key, ABSENT), values.get(key, ABSENT)
            if now is then or (not isinstance(now, Tensor) and isinstance(now, PLAIN) and now == then):
                continue
            changed.append(f"{name}.{key}")
            if then is ABSENT:
                del live[key]
            else:
                live[key] = then
    return changed
