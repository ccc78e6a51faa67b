"""The vocabulary of the compiler: the aten, prim, autodiff and kernel dialects, loaded when they are met."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import cast

from xdsl.context import Context
from xdsl.ir import Dialect

DIALECTS: dict[str, str] = {
    "builtin": "xdsl.dialects.builtin:Builtin",
    "func": "xdsl.dialects.func:Func",
    "isthmus": "isthmus.ir:ISTHMUS",
    "prim": "isthmus.dialects.prim:PRIM",
    "aten": "isthmus.dialects.aten:ATEN",
    "autodiff": "isthmus.dialects.autodiff:AUTODIFF",
    "kernel": "isthmus.dialects.kernel:KERNEL",
}
"""Dialect name -> "module:object"."""


def dialect_factories() -> dict[str, Callable[[], Dialect]]:
    """Give a loader for each dialect."""
    return {name: partial(_load, where) for name, where in DIALECTS.items()}


def new_context() -> Context:
    """Give a context that knows the dialects and loads each when it is met."""
    context = Context()
    for name, factory in dialect_factories().items():
        context.register_dialect(name, factory)
    return context


def _load(where: str) -> Dialect:
    module, _, name = where.partition(":")
    return cast(Dialect, getattr(import_module(module), name))
