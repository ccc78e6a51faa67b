"""Isthmus: an ahead-of-time compiler for PyTorch programs, training steps above all."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isthmus.diagnostics import CompileError, UnsupportedError
    from isthmus.driver.api import compile, reset, trace
    from isthmus.driver.compilers import compiler
    from isthmus.driver.explain import explain
    from isthmus.driver.measure import measure
    from isthmus.driver.options import list_mode_options
    from isthmus.driver.rules import register_decomposition, register_derivative, register_rewrite
    from isthmus.driver.train_step import train_step
    from isthmus.frontend.custom_vjp import custom_vjp
    from isthmus.runtime.call import last_call_native
    from isthmus.transforms import grad, hessian, jacfwd, jacrev, jvp, value_and_grad, vjp, vmap

_PUBLIC = {
    "compile": "isthmus.driver.api",
    "compiler": "isthmus.driver.compilers",
    "custom_vjp": "isthmus.frontend.custom_vjp",
    "explain": "isthmus.driver.explain",
    "grad": "isthmus.transforms",
    "hessian": "isthmus.transforms",
    "jacfwd": "isthmus.transforms",
    "jacrev": "isthmus.transforms",
    "jvp": "isthmus.transforms",
    "register_decomposition": "isthmus.driver.rules",
    "register_derivative": "isthmus.driver.rules",
    "register_rewrite": "isthmus.driver.rules",
    "list_mode_options": "isthmus.driver.options",
    "measure": "isthmus.driver.measure",
    "reset": "isthmus.driver.api",
    "trace": "isthmus.driver.api",
    "train_step": "isthmus.driver.train_step",
    "value_and_grad": "isthmus.transforms",
    "vjp": "isthmus.transforms",
    "vmap": "isthmus.transforms",
    "last_call_native": "isthmus.runtime.call",
    "CompileError": "isthmus.diagnostics",
    "UnsupportedError": "isthmus.diagnostics",
}

__version__ = "0.1.0"
__all__ = [
    "CompileError",
    "UnsupportedError",
    "compile",
    "compiler",
    "custom_vjp",
    "explain",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "last_call_native",
    "list_mode_options",
    "measure",
    "register_decomposition",
    "register_derivative",
    "register_rewrite",
    "reset",
    "trace",
    "train_step",
    "value_and_grad",
    "vjp",
    "vmap",
]


def __getattr__(name: str) -> object:
    """Load what is asked for: the text tools need neither torch nor LLVM."""
    if name not in _PUBLIC:
        message = f"module 'isthmus' has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])  # Python says which was meant
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
