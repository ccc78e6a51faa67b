"""The program that a command line names: where it is, its inputs, and what is shown of an error inside of it."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchRuntimeError

from isthmus.diagnostics import nearest
from isthmus.frontend.locations import is_library
from isthmus.importing import import_code
from isthmus.runtime import interpret_table

_NAMES = ("f64", "f32", "bf16", "f16", "i64", "i32", "u8")
DTYPES = {name: interpret_table.DTYPES[name] for name in _NAMES} | {"bool": torch.bool}
"""What an input of a command line may be made of."""

_PACKAGE = str(Path(__file__).parents[1])

_TOLD = (ValueError, OSError, AttributeError, ImportError)
"""What `load` and `make_inputs` raise: their sentence is enough."""


def load(text: str) -> Callable[..., object]:
    """Give the program that `module:name` or `file.py:name` names; a class is made without arguments.

    Raises ValueError when the text has no name or the name is no program, ImportError, OSError or AttributeError when
    there is no such thing.
    """
    where, colon, name = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} names no program; write module:name or file.py:name")
    module = import_code(where)
    if not hasattr(module, name):
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise AttributeError(f"{where} has no {name!r}{nearest(name, own)}")
    found: object = getattr(module, name)
    if isinstance(found, type):
        found = _made(found)
    if not callable(found):
        raise ValueError(f"{text} is of type {type(found).__name__}; name a function, a module or a class of one")
    return found


def _made(cls: type) -> object:
    missing = [p.name for p in inspect.signature(cls).parameters.values() if _is_required(p)]
    if missing:
        raise ValueError(
            f"{cls.__name__} is made from {', '.join(missing)}; write `program = {cls.__name__}(...)` in its file and "
            "name that"
        )
    return cls()


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not variadic


def make_inputs(texts: Sequence[str], seed: int = 0) -> list[Tensor]:
    """Make the tensors that texts like `4x8xf32!` or `4xi64%97` describe; ValueError on another form."""
    generator = torch.Generator().manual_seed(seed)
    return [_make_input(text, generator) for text in texts]


def _make_input(text: str, generator: torch.Generator) -> Tensor:
    body, wants = text.removesuffix("!"), text.endswith("!")
    body, _, below = body.partition("%")
    *sizes, dtype = body.split("x")
    if dtype not in DTYPES or not all(s.isdigit() for s in sizes) or (below and not below.isdigit()):
        raise ValueError(f"{text!r} is no input; write e.g. 4x8xf32, 4x8xf32! or 4xi64%97 ({', '.join(DTYPES)})")
    shape, kind = [int(s) for s in sizes], DTYPES[dtype]
    if kind.is_floating_point:
        return torch.randn(shape, generator=generator).to(kind).requires_grad_(wants)
    if wants:
        raise ValueError(f"{text!r} asks for the gradient of integers; leave out the !")
    return torch.randint(0, int(below or 2), shape, generator=generator).to(kind)


def check_inputs(program: Callable[..., object], inputs: Sequence[Tensor]) -> None:
    """Tell how many inputs the program takes: ValueError when it is called with another number."""
    try:
        signature = inspect.signature(program.forward if isinstance(program, nn.Module) else program)
    except (TypeError, ValueError):  # a builtin's may be unknown
        return
    try:
        signature.bind(*inputs)
    except TypeError as error:
        raise ValueError(f"the program's arguments are {signature}: {error} ({len(inputs)} INPUT given)") from None


def error_text(error: Exception) -> str:
    """Give what is shown of an error that a program raised: its own lines; the whole trace where the error is ours."""
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename.startswith(_PACKAGE):
        del frames[0]  # the command itself
    own = [k for k, frame in enumerate(frames) if not is_library(frame.filename)]
    ours = any(frame.filename.startswith(_PACKAGE) for frame in frames[own[-1] if own else 0 :])
    ours = ours or (not frames and not isinstance(error, (*_TOLD, TypeError)))  # in the command itself
    if ours and not isinstance(error, TorchRuntimeError):  # the user's, met by Dynamo: its text names the line
        return "".join(traceback.format_exception(error)).rstrip()
    if not own and isinstance(error, _TOLD):
        return f"error: {error}"
    lines = ["Traceback (most recent call last):\n", *traceback.format_list([frames[k] for k in own])]
    return "".join([*(lines if own else ["error: "]), *traceback.format_exception_only(error)]).rstrip()
