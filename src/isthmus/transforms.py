"""`isthmus.grad` and its kin: part of the graph under Dynamo and in a trace, compiled by themselves elsewhere.

Dynamo knows torch.func: what it traces of a transform of ours is torch's transform, with guards on all that it reads,
and the graph's levels become our ops (`frontend/functorch.py`).
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar, cast

import torch
from torch._dynamo import disable
from torch.compiler import is_compiling

from isthmus.driver.api import compile_in
from isthmus.driver.options import Options
from isthmus.driver.session import Session
from isthmus.frontend import batching, jacobians, transforms
from isthmus.frontend.active import active_recorder, joins_the_graph

Function = Callable[..., Any]
FunctionT = TypeVar("FunctionT", bound=Function)


def outside_of_dynamo(function: FunctionT) -> FunctionT:
    """Let Dynamo leave the graph where the function is called."""
    return cast(FunctionT, disable(function))


def _in_graph() -> bool:
    """Whether Dynamo traces this, and with the transform as part of the graph."""
    return is_compiling() and joins_the_graph()


class Transformed:
    """A transformed function.

    Under Dynamo it is torch's transform, inside a trace it is recorded; elsewhere it is compiled at its first call and
    kept.
    """

    def __init__(self, function: Function, inside: Function, under_dynamo: Function) -> None:
        self._inside = functools.wraps(function)(inside) if hasattr(function, "__name__") else inside
        self._inside.__dict__.setdefault("__wrapped__", function)
        self._under_dynamo = under_dynamo
        self._compiled: Function | None = None
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))
        self.__wrapped__ = self._inside

    def __repr__(self) -> str:
        return f"<transformed {self.__name__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the transformed function."""
        return self._under_dynamo(*args, **kwargs) if _in_graph() else self._apart(*args, **kwargs)

    @outside_of_dynamo
    def _apart(self, *args: Any, **kwargs: Any) -> Any:
        if active_recorder() is not None:
            return self._inside(*args, **kwargs)
        if self._compiled is None:
            self._compiled = compiled(self._inside, self._under_dynamo)
        return self._compiled(*args, **kwargs)


def _transformed(theirs: Function, ours: Function, function: Function, *settings: Any) -> Function:
    """Give `function` transformed: by Dynamo as torch does, else as we do; both take the function and the settings."""
    return theirs(function, *settings) if _in_graph() else _apart(theirs, ours, function, settings)


@outside_of_dynamo
def _apart(theirs: Function, ours: Function, function: Function, settings: tuple[Any, ...]) -> Function:
    if not callable(function):
        raise TypeError(f"{ours.__name__} takes a function, not {type(function).__name__}")
    return cast(Function, Transformed(function, ours(function, *settings), theirs(function, *settings)))


def compiled(function: Function, as_written: Function) -> Function:
    """Compile by direct tracing, with ordinary options; `as_written` is the same without a trace, by torch's means."""
    return compile_in(Session(Options(), warm=True), function, "trace", as_written=as_written)[0]


MOST_KEPT = 64
"""Functions whose compiled forms are kept: a program that makes a new one at each step must not fill the memory."""

_KEPT: OrderedDict[Any, dict[Any, Function]] = OrderedDict()
"""The functions that were given to vjp and jvp last -> their compiled forms, which hold them: no key dies by itself."""

_KEEPS = Lock()


def _kept(function: Function, what: object, make: Callable[[], Function]) -> Function:
    with _KEEPS:
        try:
            forms = _KEPT.setdefault(function, {})
        except TypeError:  # not hashable
            return make()
        _KEPT.move_to_end(function)
        if len(_KEPT) > MOST_KEPT:
            _KEPT.popitem(last=False)
    return forms[what] if what in forms else forms.setdefault(what, make())


def value_and_grad(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """Give the function that computes `func`'s value and its gradient: (value, gradient).

    `func` returns one real number; with `has_aux` a pair (number, aux), and the result is ((value, aux), gradient).
    `argnums` says by which positional arguments: an int gives the gradient itself, a tuple gives a tuple. Arguments
    are pytrees of float or complex tensors, gradients are like them. Raises TypeError where the value is no number or
    an argument no float tensor, ValueError on argnums out of range.
    """
    return _transformed(_value_first, transforms.value_and_grad, func, argnums, has_aux)


def _value_first(func: Function, argnums: int | tuple[int, ...], has_aux: bool) -> Function:
    """torch.func's, whose gradient comes first."""
    gradient_first = torch.func.grad_and_value(func, argnums, has_aux)

    def evaluate(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        gradient, value = gradient_first(*args, **kwargs)
        return value, gradient

    return evaluate


def grad(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """Give the function that computes `func`'s gradient; with `has_aux` (gradient, aux). See `value_and_grad`."""
    return _transformed(torch.func.grad, transforms.grad, func, argnums, has_aux)


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Evaluate `func(*primals)`: (output, vjp_fn), or (output, vjp_fn, aux).

    `vjp_fn(cotangents)`, cotangents like the output, gives the tuple of Jᵀ·cotangents, one for each primal. Raises
    TypeError for primals that are no float tensors, ValueError for a cotangent of another shape.
    """
    return torch.func.vjp(func, *primals, has_aux=has_aux) if _in_graph() else _vjp(func, primals, has_aux)


@outside_of_dynamo
def _vjp(func: Function, primals: tuple[Any, ...], has_aux: bool) -> tuple[Any, ...]:
    if active_recorder() is None:
        func = _kept(func, "call", lambda: compiled(_plain(func), func))
    return transforms.vjp(func, primals, has_aux)


def jvp(func: Function, primals: Any, tangents: Any, *, has_aux: bool = False) -> tuple[Any, ...]:
    """Evaluate `func(*primals)` and its derivative along `tangents`: (output, J·tangents), or with aux as a third.

    `primals` and `tangents` are tuples of the same structure and shapes. Raises TypeError or ValueError otherwise.
    """
    if _in_graph():
        return torch.func.jvp(func, primals, tangents, has_aux=has_aux)
    return _jvp(func, primals, tangents, has_aux)


@outside_of_dynamo
def _jvp(func: Function, primals: Any, tangents: Any, has_aux: bool) -> tuple[Any, ...]:
    inside = functools.partial(transforms.jvp, func, has_aux=has_aux)
    if active_recorder() is not None:
        return inside(primals, tangents)

    def make() -> Function:
        torchs = functools.partial(torch.func.jvp, func, has_aux=has_aux)
        return compiled(functools.wraps(func)(lambda primals, tangents: inside(primals, tangents)), torchs)

    return cast("tuple[Any, ...]", _kept(func, ("jvp", has_aux), make)(primals, tangents))


def jacrev(
    func: Function, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Function:
    """Give the function that computes `func`'s Jacobian in reverse mode: best for fewer outputs than inputs.

    For an output of shape [..a] and an argument of shape [..x] it gives [..a, ..x]; pytrees of outputs give pytrees of
    (pytrees of) Jacobians. `argnums` and `has_aux` as for `grad`; `chunk_size` rows are computed at a time, by default
    all of them.
    """
    return _transformed(_torch_jacrev, jacobians.jacrev, func, argnums, has_aux, chunk_size)


def _torch_jacrev(func: Function, argnums: int | tuple[int, ...], has_aux: bool, chunk_size: int | None) -> Function:
    return torch.func.jacrev(func, argnums, has_aux=has_aux, chunk_size=chunk_size)


def jacfwd(
    func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Function:
    """Give the function that computes `func`'s Jacobian in forward mode: best for fewer inputs. See `jacrev`."""
    return _transformed(_torch_jacfwd, jacobians.jacfwd, func, argnums, has_aux, randomness)


def _torch_jacfwd(func: Function, argnums: int | tuple[int, ...], has_aux: bool, randomness: str) -> Function:
    return torch.func.jacfwd(func, argnums, has_aux, randomness=randomness)


def hessian(func: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """Give the function that computes `func`'s second derivatives: [..a, ..x, ..x] for an output of shape [..a]."""
    return _transformed(_torch_hessian, _hessian, func, argnums)


def _hessian(func: Function, argnums: int | tuple[int, ...]) -> Function:
    return jacobians.jacfwd(jacobians.jacrev(func, argnums, False), argnums, False, "error")


def _torch_hessian(func: Function, argnums: int | tuple[int, ...]) -> Function:
    """Reverse over reverse: Dynamo cannot trace vmap of forward over jacrev."""
    return torch.func.jacrev(torch.func.jacrev(func, argnums), argnums)


def vmap(
    func: Function,
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Function:
    """Give `func` over a dimension of its arguments: one example is what `func` sees, all are computed at once.

    `in_dims` names the mapped dimension of each positional argument: an int for all, or a tuple with an int, None (all
    examples see the whole) or a pytree like the argument; keyword arguments are seen whole. `out_dims` says where the
    examples are in each result, None that it is the same for all. `randomness`: "error" refuses random numbers in
    `func`, "different" draws for each example, "same" draws once. `chunk_size` examples are computed at a time, by
    default all. Raises ValueError where dims do not fit.
    """
    in_dims = tuple(in_dims) if isinstance(in_dims, list) else in_dims
    return _transformed(_torch_vmap, batching.vmap, func, in_dims, out_dims, randomness, chunk_size)


def _torch_vmap(func: Function, in_dims: Any, out_dims: Any, randomness: str, chunk_size: int | None) -> Function:
    return torch.func.vmap(func, in_dims, out_dims, randomness, chunk_size=chunk_size)


def _plain(function: Function) -> Function:
    return (
        function
        if isinstance(function, torch.nn.Module)
        else functools.wraps(function)(lambda *a, **k: function(*a, **k))
    )
