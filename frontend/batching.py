"""vmap while a program is traced: the function runs once on one example, into the region of an `autodiff.batch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from xdsl.ir import Region

from isthmus.dialects import autodiff
from isthmus.frontend.python_calls import active_recorder
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.structure import create, emit_yield
from isthmus.frontend.torch_private import spread_over
from isthmus.ir import LiteralValue

Dims = Any
"""An int, None, or a pytree of these that is a prefix of the arguments' structure."""

RANDOMNESS = ("error", "same", "different")


def vmap(function: Callable[..., Any], in_dims: Dims, out_dims: Dims, randomness: str) -> Callable[..., Any]:
    """Give the function over all examples, to be called while a program is traced."""
    if randomness not in RANDOMNESS:
        raise ValueError(f"randomness={randomness!r} is none of {', '.join(RANDOMNESS)}")

    def mapped(*args: Any, **kwargs: Any) -> Any:
        recorder = active_recorder()
        assert recorder is not None
        leaves, structure = pytree.tree_flatten(args)
        named, named_structure = pytree.tree_flatten(kwargs)
        dims = [*_in_dims(leaves, structure, in_dims), *(0 if isinstance(v, Tensor) else None for v in named)]
        leaves = [*leaves, *named]
        size = _size(leaves, dims)
        inputs = [(t, d) for t, d in zip(leaves, dims, strict=True) if isinstance(t, Tensor) and d is not None]
        examples = [_example(recorder, t, d) for t, d in inputs]
        rest = iter(examples)
        given = [v if d is None else next(rest) for v, d in zip(leaves, dims, strict=True)]
        count = structure.num_leaves
        with recorder.region(examples) as scope:
            result = function(
                *pytree.tree_unflatten(given[:count], structure),
                **pytree.tree_unflatten(given[count:], named_structure),
            )
            outs, out_structure = pytree.tree_flatten(result)
            _require_tensors(outs)
            emit_yield(recorder, outs)
        operands = [*(t for t, _ in inputs), *scope.captured]
        places: list[LiteralValue] = [*(d for _, d in inputs), *(None for _ in scope.captured)]
        whole = [_stacked(recorder, o, size, operands) for o in outs]
        properties: dict[str, LiteralValue] = {
            "mapped": tuple(places),
            "size": recorder.sizes.dim(size) if isinstance(size, torch.SymInt) else size,
            "randomness": randomness,
        }
        create(recorder, autodiff.BatchOp, operands, properties, [Region(scope.block)], whole)
        return pytree.tree_unflatten(_placed(whole, out_dims, out_structure), out_structure)

    return mapped


def _in_dims(leaves: Sequence[Any], structure: pytree.TreeSpec, in_dims: Dims) -> list[int | None]:
    """Give the mapped dimension of each leaf; ValueError where `in_dims` does not fit the arguments."""
    wanted = tuple(in_dims) if isinstance(in_dims, list) else in_dims
    spread = spread_over(wanted, structure)
    if spread is None:
        raise ValueError(
            f"in_dims={in_dims} does not fit the arguments: give an int, or a tuple with one entry per positional "
            "argument, each an int, None or a structure like the argument"
        )
    found: list[int | None] = []
    for leaf, dim in zip(leaves, spread, strict=True):
        if dim is None:
            found.append(None)
            continue
        if not isinstance(leaf, Tensor):
            raise ValueError(
                f"in_dims={in_dims} maps {type(leaf).__name__}, which is no tensor; its entry must be None"
            )
        if not isinstance(dim, int) or not -leaf.dim() <= dim < leaf.dim():
            raise ValueError(f"in_dims={in_dims} names dimension {dim} of a tensor of shape {tuple(leaf.shape)}")
        found.append(dim % leaf.dim())
    return found


def _size(leaves: Sequence[Any], dims: Sequence[int | None]) -> int | torch.SymInt:
    sizes = [leaf.shape[d] for leaf, d in zip(leaves, dims, strict=True) if d is not None]
    if not sizes:
        raise ValueError("vmap maps none of the arguments: at least one entry of in_dims must be an int")
    if any(s != sizes[0] for s in sizes):
        raise ValueError(f"the mapped dimensions must have one size, not {list(map(int, sizes))}; see in_dims")
    return sizes[0]


def _example(recorder: Recorder, tensor: Tensor, dim: int) -> Tensor:
    with recorder.unrecorded(), torch.no_grad():
        one = torch.empty_like(tensor.select(dim, 0), memory_format=torch.contiguous_format)
    return recorder.like(one, requires_grad=tensor.requires_grad, derived_from=[tensor])


def _require_tensors(outs: Sequence[Any]) -> None:
    for out in outs:
        if not isinstance(out, Tensor):
            raise ValueError(f"a function under vmap must return tensors, not {type(out).__name__}")


def _stacked(recorder: Recorder, one: Tensor, size: int | torch.SymInt, sources: Sequence[Tensor]) -> Tensor:
    with recorder.unrecorded(), torch.no_grad():
        whole = one.new_empty((size, *one.shape))
    return recorder.like(whole, requires_grad=one.requires_grad, derived_from=[one, *sources])


def _placed(whole: Sequence[Tensor], out_dims: Dims, structure: pytree.TreeSpec) -> list[Tensor]:
    """Move the examples of each result to where they are wanted; None takes those of the first one."""
    wanted = tuple(out_dims) if isinstance(out_dims, list) else out_dims
    spread = spread_over(wanted, structure)
    if spread is None and isinstance(wanted, tuple) and len(wanted) == 1:
        spread = spread_over(wanted[0], structure)
    if spread is None:
        raise ValueError(f"out_dims={out_dims} does not fit the {structure.num_leaves} results of the function")
    return [
        t[0] if d is None else t.movedim(0, d) for t, d in zip(whole, cast("list[int | None]", spread), strict=True)
    ]
