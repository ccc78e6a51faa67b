"""Gradient transforms of functions while a program is traced: each asks torch.autograd.grad, which is recorded.

    vjp    (y, ȳ -> Jᵀ·ȳ)       grad        the same with ȳ = 1
    jvp    J·u = d⟨Jᵀ·t, u⟩/dt   the vjp of the vjp in its cotangent t, whose value does not matter

The arguments are aliased first: only what the function does with them is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from isthmus.frontend.active import active_recorder

Function = Callable[..., Any]


def value_and_grad(function: Function, argnums: int | tuple[int, ...], has_aux: bool) -> Function:
    """Give the function (args..) -> (value, gradients), or ((value, aux), gradients).

    TypeError where the value is not one real number.
    """

    def evaluate(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        positions = positions_of(argnums, len(args))
        with torch.enable_grad():
            fresh, variables, structure = _opened([args[i] for i in positions])
            given = list(args)
            for i, value in zip(positions, fresh, strict=True):
                given[i] = value
            result = function(*given, **kwargs)
            value, aux = split_aux(result, has_aux, "grad")
            _require_number(value)
            found = gradients([value], variables, [torch.ones_like(value)])
        grads = pytree.tree_unflatten(found, structure)
        grads = tuple(grads) if isinstance(argnums, tuple) else grads[0]
        return ((value, aux) if has_aux else value), grads

    return evaluate


def grad(function: Function, argnums: int | tuple[int, ...], has_aux: bool) -> Function:
    """Give the function (args..) -> gradients, or (gradients, aux)."""
    both = value_and_grad(function, argnums, has_aux)

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return evaluate


def positions_of(argnums: int | tuple[int, ...], count: int) -> list[int]:
    """Give the positions of the chosen arguments, ascending from 0 as asked; ValueError where there is none such."""
    asked = argnums if isinstance(argnums, tuple) else (argnums,)
    if not all(-count <= i < count for i in asked):
        raise ValueError(f"argnums={argnums} is out of range: the function is called with {count} positional arguments")
    positions = [i % count for i in asked]
    if len(set(positions)) != len(positions):
        raise ValueError(f"argnums={argnums} names an argument twice")
    return positions


def of_arguments(
    function: Function, argnums: int | tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Function, tuple[Any, ...]]:
    """Give the function of the chosen arguments alone, and these."""
    positions = positions_of(argnums, len(args))

    def of_chosen(*chosen: Any) -> Any:
        given = list(args)
        for i, value in zip(positions, chosen, strict=True):
            given[i] = value
        return function(*given, **kwargs)

    return of_chosen, tuple(args[i] for i in positions)


def _opened(values: Any) -> tuple[Any, list[Tensor], pytree.TreeSpec]:
    """Give the values with variables of their own in them, these variables, and the structure."""
    leaves, structure = pytree.tree_flatten(values)
    fresh = [_variable(leaf) for leaf in leaves]
    return pytree.tree_unflatten(fresh, structure), fresh, structure


def _variable(leaf: Any) -> Tensor:
    if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        kind = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
        raise TypeError(
            f"only float and complex tensors can be differentiated, not {kind}; "
            "choose the arguments by argnums, or pass the others through the closure"
        )
    variable = torch.ops.aten.alias.default(leaf)
    return variable if variable.requires_grad else variable.requires_grad_()


def split_aux(result: Any, has_aux: bool, name: str) -> tuple[Any, Any]:
    """Give a result and what goes along with it; TypeError unless it is a pair where has_aux."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"{name} with has_aux=True needs a function that returns (output, aux)")
    return result


def _require_number(value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"grad needs a function that returns a tensor, not {type(value).__name__}; "
            "for (value, anything else) use has_aux=True"
        )
    if value.numel() != 1 or value.dim() > 1 or value.is_complex():
        raise TypeError(
            f"grad needs a function that returns one real number, not shape {list(value.shape)} of {value.dtype}; "
            "sum it, or use isthmus.vjp or isthmus.jacrev"
        )


def gradients(
    outs: Sequence[Tensor], ins: Sequence[Tensor], seeds: Sequence[Tensor], *, again: bool = True
) -> list[Tensor]:
    """Give Jᵀ·seeds, differentiable `again`; zeros where outs do not depend on an input."""
    pairs = [(o, s) for o, s in zip(outs, seeds, strict=True) if o.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in ins]
    found = torch.autograd.grad(
        [o for o, _ in pairs],
        list(ins),
        [s for _, s in pairs],
        retain_graph=True,
        create_graph=again,
        allow_unused=True,
    )
    given = cast("tuple[Tensor | None, ...]", found)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(ins, given, strict=True)]


def vjp(function: Function, primals: Sequence[Any], has_aux: bool) -> tuple[Any, ...]:
    """Give (output, pull[, aux]): pull(cotangents) is the tuple of gradients of the primals."""
    recorder = active_recorder()

    def forward() -> tuple[Any, list[Tensor], pytree.TreeSpec, Any]:
        fresh, variables, structure = _opened(tuple(primals))
        output, aux = split_aux(function(*fresh), has_aux, "vjp")
        return output, variables, structure, aux

    with torch.enable_grad():
        kept = forward()
    output, _, _, aux = kept

    def pull(*cotangents: Any) -> Any:
        here = active_recorder()
        with torch.enable_grad():
            # A branch or a loop's body sees nothing of what led to its inputs: the forward computation is repeated.
            elsewhere = here is not None and here is recorder and not all(map(here.scope.sees_history_of, kept[1]))
            out, variables, structure, _ = forward() if elsewhere else kept
            seeds = _cotangents(out, cotangents[0] if len(cotangents) == 1 else cotangents)
            outer = any(t.requires_grad for t in [*seeds, *pytree.tree_leaves(primals)])
            found = gradients(pytree.tree_leaves(out), variables, seeds, again=outer or here is not None)
        return pytree.tree_unflatten(found, structure)

    return (output, pull, aux) if has_aux else (output, pull)


def _cotangents(output: Any, cotangents: Any) -> list[Tensor]:
    outs, wanted = pytree.tree_flatten(output)
    seeds, found = pytree.tree_flatten(cotangents)
    if found != wanted or any(s.shape != o.shape for s, o in zip(seeds, outs, strict=True)):
        raise ValueError(
            f"the cotangent must be like the output, {[tuple(o.shape) for o in outs]}, "
            f"not {[tuple(s.shape) for s in seeds]}"
        )
    return seeds


def jvp(function: Function, primals: Any, tangents: Any, has_aux: bool) -> tuple[Any, ...]:
    """Give (output, J·tangents[, aux])."""
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise TypeError("jvp takes primals and tangents as tuples: jvp(f, (x,), (u,))")
    directions, given = pytree.tree_flatten(tangents)
    with torch.enable_grad():
        fresh, variables, structure = _opened(primals)
        if given != structure or any(u.shape != x.shape for u, x in zip(directions, variables, strict=True)):
            raise ValueError(f"tangents must be like primals, {[tuple(x.shape) for x in variables]}")
        output, aux = split_aux(function(*fresh), has_aux, "jvp")
        outs, out_structure = pytree.tree_flatten(output)
        dummies = [_variable(torch.zeros_like(o.detach())) for o in outs]
        pulled = gradients(outs, variables, dummies)
        pushed = gradients(pulled, dummies, directions)
    moved = pytree.tree_unflatten(pushed, out_structure)
    return (output, moved, aux) if has_aux else (output, moved)
