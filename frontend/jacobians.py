"""Jacobians while a program is traced: a pull or a push of every basis vector at once.

jacrev   J[k, :] = Jᵀ·e_k over the outputs' basis       jacfwd   J[:, k] = J·e_k over the inputs' basis
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from isthmus.frontend.batching import vmap
from isthmus.frontend.transforms import jvp, of_arguments, split_aux, vjp

Function = Callable[..., Any]
Argnums = int | tuple[int, ...]


def jacrev(function: Function, argnums: Argnums, has_aux: bool, chunk_size: int | None = None) -> Function:
    """Give the function whose result is the Jacobian of `function`, a row at a time."""

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        of_chosen, chosen = of_arguments(function, argnums, args, kwargs)
        output, pull, *aux = vjp(of_chosen, chosen, has_aux)
        outs, structure = pytree.tree_flatten(output)
        basis = pytree.tree_unflatten(_basis(outs), structure)
        rows = vmap(pull, 0, 0, "same", chunk_size)(basis)
        inputs, input_structure = pytree.tree_flatten(rows)
        found = [
            pytree.tree_unflatten([r.reshape(o.shape + r.shape[1:]) for r in part], input_structure)
            for o, part in zip(outs, zip(*[_split(r, outs, 0) for r in inputs], strict=True), strict=True)
        ]
        result = pytree.tree_unflatten([f if isinstance(argnums, tuple) else f[0] for f in found], structure)
        return (result, aux[0]) if has_aux else result

    return jacobian


def jacfwd(function: Function, argnums: Argnums, has_aux: bool, randomness: str) -> Function:
    """Give the function whose result is the Jacobian of `function`, a column at a time."""

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        of_chosen, chosen = of_arguments(function, argnums, args, kwargs)
        inputs, input_structure = pytree.tree_flatten(chosen)
        basis = pytree.tree_unflatten(_basis(inputs), input_structure)
        aux: list[Any] = []

        def push(*directions: Any) -> Any:
            return jvp(of_chosen, chosen, directions, has_aux)[1]

        columns = vmap(push, 0, -1, randomness)(*basis)
        if has_aux:
            aux = [split_aux(function(*args, **kwargs), True, "jacfwd")[1]]
        outs, structure = pytree.tree_flatten(columns)
        found: list[Any] = []
        for column in outs:
            parts = zip(inputs, _split(column, inputs, -1), strict=True)
            tree = pytree.tree_unflatten([p.reshape(column.shape[:-1] + x.shape) for x, p in parts], input_structure)
            found.append(tree if isinstance(argnums, tuple) else tree[0])
        result = pytree.tree_unflatten(found, structure)
        return (result, aux[0]) if has_aux else result

    return jacobian


def _basis(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Give the unit vectors of the space of all these tensors together, the vectors in dimension 0."""
    count = sum(t.numel() for t in tensors)
    found: list[Tensor] = []
    start = 0
    for t in tensors:
        unit = torch.eye(count, dtype=t.dtype, device=t.device)
        found.append(unit[:, start : start + t.numel()].reshape(count, *t.shape))
        start += t.numel()
    return found


def _split(whole: Tensor, like: Sequence[Tensor], dim: int) -> list[Tensor]:
    found: list[Tensor] = []
    start = 0
    for t in like:
        found.append(whole.narrow(dim, start, t.numel()))
        start += t.numel()
    return found
