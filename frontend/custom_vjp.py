"""`custom_vjp`: the user's own reverse rule for a function of tensors, in JAX's sense, on torch's tape.

A call runs `fwd` as ordinary differentiable code, then `_Rule` puts its outputs behind a node whose backward is `bwd`:

    out, residuals = fwd(x)              residuals keep their history
    y = _Rule(x, out, residuals)         ȳ -> x̄ = bwd(residuals, ȳ); nothing to out or to residuals

so that the first derivative is the rule alone, and higher ones differentiate `bwd`, the residuals as functions of x.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class custom_vjp:
    """A function with its own reverse rule: `f = custom_vjp(fun, nondiff_argnums=())`, then `f.defvjp(fwd, bwd)`.

    `fwd(*args)` gives `(output, residuals)`, output being what `fun(*args)` gives;
    `bwd(*nondiff, residuals, cotangent)` gives a tuple with the gradient of each argument that is not in
    `nondiff_argnums`: a pytree like it, None where there is none. Arguments, output and residuals are pytrees;
    leaves that are no tensors are passed through.
    Where no gradient is recorded `fun` itself runs, and so it does where fwd calls the function. Raises TypeError where
    bwd gives another structure, and RuntimeError when it is called before `defvjp`.
    """

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        self.fun = fun
        self.nondiff_argnums = tuple(nondiff_argnums)
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None
        self.__name__ = getattr(fun, "__name__", "custom_vjp")
        self.__qualname__ = getattr(fun, "__qualname__", self.__name__)
        self.__doc__ = fun.__doc__
        self.__wrapped__ = fun
        self._defaults = _defaults(fun)
        self._traced = False
        self._here = threading.local()

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Give the rule; see the class."""
        self.fwd, self.bwd = fwd, bwd

    def _is_inside(self) -> bool:
        """Tell whether fwd runs now, in this thread; while compiling, which one thread does at a time, in any."""
        return self._traced if torch.compiler.is_compiling() else getattr(self._here, "inside", False)

    def _enter(self, inside: bool) -> None:
        if torch.compiler.is_compiling():
            self._traced = inside
        else:
            self._here.inside = inside

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; its gradients are those of the rule."""
        if self.fwd is None or self.bwd is None:
            raise RuntimeError(f"{self.__name__} has no rule yet: call {self.__name__}.defvjp(fwd, bwd)")
        if kwargs:
            args = _positional(inspect.signature(self.fun), args, kwargs)
        rest = self._defaults[len(args) :]
        if rest and rest[0] is not inspect.Parameter.empty:
            args += rest
        silent = self.nondiff_argnums
        given = tuple(a for i, a in enumerate(args) if i not in silent)
        leaves, structure = pytree.tree_flatten(given)
        if not (torch.is_grad_enabled() and _wants_gradient(leaves)):
            return self.fun(*args)
        if self._is_inside():
            return self.fun(*args)  # fwd calls the function itself
        self._enter(True)
        try:
            both = self.fwd(*args)
        finally:
            self._enter(False)
        if not isinstance(both, tuple | list) or len(both) != 2:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"fwd of {self.__name__} must give (output, residuals), not {type(both).__name__}")
        output, residuals = both
        outputs, output_structure = pytree.tree_flatten(output)
        kept, kept_structure = pytree.tree_flatten(residuals)
        fixed = tuple(args[i] for i in silent)
        name, bwd = self.__name__, self.bwd

        def rule(cotangents: Sequence[Any], residual_tensors: Sequence[Tensor]) -> list[Any]:
            cotangent = pytree.tree_unflatten(_filled(outputs, cotangents), output_structure)
            residual = pytree.tree_unflatten(_filled(kept, residual_tensors), kept_structure)
            return _per_leaf(name, bwd(*fixed, residual, cotangent), leaves, structure)

        tensors: list[Tensor] = []  # each once: Dynamo takes no tensor twice
        places = tuple(_places(part, tensors) for part in (leaves, outputs, kept))
        made = _Rule.apply(rule, places, *tensors)
        return pytree.tree_unflatten(_filled(outputs, made), output_structure)


class _Rule(torch.autograd.Function):
    """(rule, places, tensors..) -> outputs; backward is the rule on the residuals.

    `places` says which of the tensors are the arguments, the outputs and the residuals.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(rule: Any, places: _Places, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple([tensors[k].clone() for k in places[1]])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        rule, places, *tensors = inputs
        ctx.rule, ctx.places, ctx.count = rule, places, len(tensors)
        ctx.save_for_backward(*[tensors[k] for k in places[2]])
        silent = [t for t in output if not (t.is_floating_point() or t.is_complex())]
        if silent:
            ctx.mark_non_differentiable(*silent)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        found: list[Any] = [None] * ctx.count
        for k, gradient in zip(ctx.places[0], ctx.rule(cotangents, ctx.saved_tensors), strict=True):
            if gradient is not None:
                found[k] = gradient if found[k] is None else found[k] + gradient
        return (None, None, *found)


_Places = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _places(leaves: Sequence[Any], tensors: list[Tensor]) -> tuple[int, ...]:
    """Say where in `tensors` each tensor of `leaves` is; those that are not there yet are added."""
    found: list[int] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            at = [k for k, t in enumerate(tensors) if t is leaf]
            if not at:
                at = [len(tensors)]
                tensors.append(leaf)
            found.append(at[0])
    return tuple(found)


def _wants_gradient(leaves: Sequence[Any]) -> bool:
    return any(isinstance(t, Tensor) and t.requires_grad for t in leaves)


def _filled(leaves: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """Put tensors in the place of the tensors among leaves."""
    rest = list(tensors)
    return [rest.pop(0) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _per_leaf(name: str, gradients: Any, leaves: Sequence[Any], structure: Any) -> list[Any]:
    """Give the gradient of each tensor among the arguments' leaves, None standing for a whole argument too."""
    arguments = structure.children()
    if not isinstance(gradients, (tuple, list)) or len(gradients) != len(arguments):
        found = f"{len(gradients)} values" if isinstance(gradients, (tuple, list)) else type(gradients).__name__
        raise TypeError(f"bwd of {name} must give a tuple of {len(arguments)} gradients, one per argument, not {found}")
    flat: list[Any] = []
    for gradient, argument in zip(gradients, arguments, strict=True):
        if gradient is None:
            flat += [None] * argument.num_leaves
            continue
        found, _ = pytree.tree_flatten(gradient)
        if len(found) != argument.num_leaves:
            raise TypeError(
                f"bwd of {name} gives {len(found)} gradients for an argument of {argument.num_leaves} leaves"
            )
        flat += found
    return [g for g, leaf in zip(flat, leaves, strict=True) if isinstance(leaf, Tensor)]


def _defaults(fun: Callable[..., Any]) -> tuple[Any, ...]:
    """Give the default of each positional parameter, where the function shows them; only the last ones have any."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return ()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return tuple(p.default for p in positional)


def _positional(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(f"keyword-only arguments {sorted(bound.kwargs)} cannot have a custom rule")
    return bound.args
