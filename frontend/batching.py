"""vmap while a program is traced: the function runs once on one example, into the region of an `autodiff.batch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from xdsl.ir import Region, SSAValue

from isthmus.dialects import autodiff
from isthmus.frontend.active import active_recorder
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.structure import create, emit_yield
from isthmus.frontend.torch_private import spread_over
from isthmus.ir import LiteralValue

Dims = Any
"""An int, None, or a pytree of these that is a prefix of the arguments' structure."""

RANDOMNESS = ("error", "same", "different")


class Batch:
    """A function under vmap while it is captured: the current block takes one example."""

    def __init__(
        self, recorder: Recorder, size: int | torch.SymInt, randomness: str, chunk_size: int | None = None
    ) -> None:
        self.recorder, self.size, self.randomness, self.chunk_size = recorder, size, randomness, chunk_size
        self._mapped: dict[int, tuple[Tensor, int]] = {}  # by the position of the example among the block's arguments
        self._region = recorder.region((), sees_history=True)
        self._scope = self._region.__enter__()

    def leave(self) -> None:
        """Go on in the enclosing block."""
        self._region.__exit__(None, None, None)

    def example(self, tensor: Tensor, dim: int) -> Tensor:
        """Give one example of an outer tensor along a dimension."""
        recorder = self.recorder
        tensor = recorder.fake_of(tensor)
        with recorder.unrecorded(), torch.no_grad():
            dim %= tensor.dim()
            one = tensor.new_empty((*tensor.shape[:dim], *tensor.shape[dim + 1 :]))
        example = recorder.like(one, requires_grad=tensor.requires_grad, derived_from=[tensor])
        self._mapped[len(self._scope.block.args)] = tensor, dim
        recorder.add_input(example)
        return example

    def require_same(self, outs: Sequence[Tensor]) -> None:
        """ValueError for results that may differ from example to example."""
        if not outs:
            return
        block = self._scope.block
        differing: set[SSAValue] = {block.args[i] for i in self._mapped}
        for op in block.ops:
            if any(v in differing for v in op.operands):
                differing.update(op.results)
                if op.properties.get("mutates"):  # the write may show in any view of what is written
                    differing.update(r for each in block.ops for r in each.results)
                    break
        if any(self.recorder.value_of(out) in differing for out in outs):
            raise ValueError("out_dims=None needs a result that is the same for all examples")

    def close(self, outs: Sequence[Tensor]) -> list[Tensor]:
        """Leave, and write the op; gives the results for all examples, which dimension 0 counts."""
        recorder, block = self.recorder, self._scope.block
        emit_yield(recorder, outs)
        self.leave()
        captured = iter(self._scope.captured)
        given = [self._mapped.get(i) or (next(captured), None) for i in range(len(block.args))]
        operands = [tensor for tensor, _ in given]
        whole = [_stacked(recorder, out, self.size, operands) for out in outs]
        properties: dict[str, LiteralValue] = {
            "mapped": tuple(dim for _, dim in given),
            "size": recorder.sizes.dim(self.size) if isinstance(self.size, torch.SymInt) else self.size,
            "randomness": self.randomness,
        }
        if self.chunk_size is not None:
            properties["chunk"] = self.chunk_size
        create(recorder, autodiff.BatchOp, operands, properties, [Region(block)], whole)
        return whole


def vmap(
    function: Callable[..., Any], in_dims: Dims, out_dims: Dims, randomness: str, chunk_size: int | None = None
) -> Callable[..., Any]:
    """Give the function over all examples, to be called while a program is traced."""
    if randomness not in RANDOMNESS:
        raise ValueError(f"randomness={randomness!r} is none of {', '.join(RANDOMNESS)}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be positive, or None for all examples at once")

    def mapped(*args: Any, **kwargs: Any) -> Any:
        recorder = active_recorder()
        assert recorder is not None
        leaves, structure = pytree.tree_flatten(args)
        dims = _in_dims(leaves, structure, in_dims)
        batch = Batch(recorder, _size(leaves, dims), randomness, chunk_size)
        left = False
        try:
            given = [v if d is None else batch.example(v, d) for v, d in zip(leaves, dims, strict=True)]
            result = function(*pytree.tree_unflatten(given, structure), **kwargs)
            outs, out_structure = pytree.tree_flatten(result)
            _require_tensors(outs)
            outs = [recorder.fake_of(out) for out in outs]
            places = _out_dims(outs, out_dims, out_structure)
            batch.require_same([o for o, d in zip(outs, places, strict=True) if d is None])
            left = True
            whole = batch.close(outs)
        finally:
            if not left:
                batch.leave()
        return pytree.tree_unflatten(_placed(whole, places), out_structure)

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


def _require_tensors(outs: Sequence[Any]) -> None:
    for out in outs:
        if not isinstance(out, Tensor):
            raise ValueError(f"a function under vmap must return tensors, not {type(out).__name__}")


def _stacked(recorder: Recorder, one: Tensor, size: int | torch.SymInt, sources: Sequence[Tensor]) -> Tensor:
    with recorder.unrecorded(), torch.no_grad():
        whole = one.new_empty((size, *one.shape))
    return recorder.like(whole, requires_grad=one.requires_grad, derived_from=[one, *sources])


def _out_dims(outs: Sequence[Any], out_dims: Dims, structure: pytree.TreeSpec) -> list[int | None]:
    """Give where the examples are wanted in each result; ValueError where `out_dims` does not fit the results."""
    wanted = tuple(out_dims) if isinstance(out_dims, list) else out_dims
    spread = spread_over(wanted, structure)
    if spread is None and isinstance(wanted, tuple) and len(wanted) == 1:
        spread = spread_over(wanted[0], structure)
    if spread is None:
        raise ValueError(f"out_dims={out_dims} does not fit the {structure.num_leaves} results of the function")
    for out, dim in zip(outs, spread, strict=True):
        if dim is not None and (not isinstance(dim, int) or not -out.dim() - 1 <= dim <= out.dim()):
            raise ValueError(f"out_dims={out_dims} names dimension {dim} of a result with {out.dim() + 1}")
    return cast("list[int | None]", spread)


def _placed(whole: Sequence[Tensor], dims: Sequence[int | None]) -> list[Tensor]:
    """Move the examples of each result to where they are wanted; None is the same for all: that of the first one."""
    return [t[0] if d is None else t.movedim(0, d) for t, d in zip(whole, dims, strict=True)]
