"""torch.func called while a program is traced: the same transforms as isthmus's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._functorch import apis, eager_transforms

from isthmus.frontend import batching, transforms
from isthmus.frontend.active import active_recorder

Function = Callable[..., Any]
Argnums = int | tuple[int, ...] | None


def patches() -> list[tuple[object, str, object]]:
    """Give (module, name, replacement) of what torch.func's functions are made of, as far as this torch has it."""
    replacements: list[tuple[object, str, Function]] = [
        (apis, "vmap_impl", _vmap),
        (eager_transforms, "grad_and_value_impl", _grad_and_value),
        (eager_transforms, "_vjp_with_argnums", _vjp),
        (eager_transforms, "_jvp_with_argnums", _jvp),
    ]
    return [(m, name, _in_a_trace(ours, getattr(m, name))) for m, name, ours in replacements if hasattr(m, name)]


def _in_a_trace(ours: Function, theirs: Function) -> Function:
    """Other threads get torch's own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (theirs if active_recorder() is None else ours)(*args, **kwargs)

    return call


def _vmap(
    func: Function, in_dims: Any, out_dims: Any, randomness: str, chunk_size: int | None, *args: Any, **kwargs: Any
) -> Any:
    return batching.vmap(func, in_dims, out_dims, randomness, chunk_size)(*args, **kwargs)


def _grad_and_value(func: Function, argnums: int | tuple[int, ...], has_aux: bool, args: Any, kwargs: Any) -> Any:
    value, gradient = transforms.value_and_grad(func, argnums, has_aux)(*args, **kwargs)
    return gradient, value


def _vjp(func: Function, *primals: Any, argnums: Argnums = None, has_aux: bool = False) -> Any:
    if argnums is None:
        return transforms.vjp(func, primals, has_aux)
    of_chosen, chosen = transforms.of_arguments(func, argnums, primals, {})
    output, pull, *aux = transforms.vjp(of_chosen, chosen, has_aux)
    one = isinstance(argnums, int)
    return output, lambda *cotangents: pull(*cotangents)[0] if one else pull(*cotangents), *aux


def _jvp(
    func: Function,
    primals: Any,
    tangents: Any,
    argnums: Argnums = None,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    if argnums is None:
        return transforms.jvp(func, primals, tangents, has_aux)
    of_chosen, chosen = transforms.of_arguments(func, argnums, primals, {})
    return transforms.jvp(of_chosen, chosen, tangents, has_aux)
