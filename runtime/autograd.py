"""The tape node: a compiled forward and backward as one node of torch's autograd graph.

The backward is compiled at the first `backward()`. With `create_graph=True` the gradients come
from a second node, whose forward is the compiled gradient function and whose own derivative is
built on demand; so derivatives of any order go through compiled code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from isthmus.diagnostics import UnsupportedError
from isthmus.runtime.arena import Lease
from isthmus.runtime.batched import any_batched, one_by_one
from isthmus.runtime.call import note_call
from isthmus.runtime.convention import (
    Convention,
    Executable,
    MakeExecutable,
    RestoringExecutable,
    Saved,
    SavingExecutable,
    Source,
    Value,
)
from isthmus.runtime.fresh import coerce, made_fresh
from isthmus.runtime.generators import Generators
from isthmus.runtime.primals import PrimalKeeper, Primals
from isthmus.runtime.torch_private import (
    backward_keeps_graph,
    functorch_is_active,
    is_wrapped,
    saved_tensors_are_hooked,
)
from isthmus.sizes import evaluate

_FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after"
    " they have already been freed). Specify retain_graph=True if you need to backward through"
    " the graph a second time."
)


@dataclass
class Counters:
    """What a node compiled and ran; `explain` and tests read them."""

    backward_compiles: int = 0
    derivative_builds: int = 0
    forward_calls: int = 0
    backward_calls: int = 0


class _Run:
    """What one forward call leaves for its backward, beside the tensors that torch saves."""

    __slots__ = ("clones", "generators", "lease", "primals", "saves", "shapes", "sizes")

    def __init__(self) -> None:
        self.clones: dict[int, Tensor] | None = None
        self.generators: Generators | None = None
        self.lease: Lease | None = None
        self.primals: Primals | None = None
        self.saves = False
        self.shapes: list[tuple[torch.Size, torch.dtype, torch.device]] | None = None
        self.sizes: dict[str, int] = {}


@dataclass(frozen=True)
class _Sources:
    """What is saved one by one, and what the backward takes: `saved` indices count what was saved."""

    saved: tuple[Saved, ...]
    backward: tuple[Source, ...]

    @staticmethod
    def of(convention: Convention, in_arena: bool) -> _Sources:
        """With an arena, intermediates are neither saved nor passed one by one."""
        kept = [j for j, s in enumerate(convention.saved) if not (in_arena and s.kind == "intermediate")]
        place = {j: k for k, j in enumerate(kept)}
        sources = [s for s in convention.backward if s.kind != "saved" or s.index in place]
        renamed = [replace(s, index=place[s.index]) if s.kind == "saved" else s for s in sources]
        return _Sources(tuple(convention.saved[j] for j in kept), tuple(renamed))


class _Backward:
    """A compiled backward and what it says of itself, asked once: it runs where Python is slow."""

    __slots__ = ("from_arena", "overwrites", "run", "sizes_wanted")

    def __init__(self, run: Executable) -> None:
        self.run = run
        self.overwrites: frozenset[int] = getattr(run, "overwrites", frozenset())
        restores = cast(RestoringExecutable, run) if hasattr(run, "run_from_arena") else None
        self.from_arena = restores.run_from_arena if restores is not None else None
        self.sizes_wanted = restores.sizes_wanted if restores is not None else ()


class TapeNode:
    """A forward that knows its backward.

    `make_backward` compiles the backward at its first use. `make_derivative` gives the node of
    the gradient function: its arguments are this node's, then the tangents of the differentiable
    results in their order; its results are the gradients in the order of `convention.gradients`.
    None where nobody can derive it. `inference` runs without saving anything; without it,
    the forward runs and what it saves is dropped. With `higher_order`, arguments that the
    program overwrites are copied first, so that the first `create_graph` call can use them. `draws`: the forward
    draws from torch's generators, and the derivative draws the same again.
    """

    def __init__(
        self,
        convention: Convention,
        forward: Executable,
        make_backward: MakeExecutable | None = None,
        *,
        make_derivative: Callable[[], TapeNode] | None = None,
        inference: Executable | None = None,
        higher_order: bool = False,
        draws: bool = False,
        name: str = "Compiled",
    ) -> None:
        self.convention = convention
        self.counters = Counters()
        self.expects_higher_order = higher_order
        self._draws = draws
        self._forward = forward
        in_arena = isinstance(forward, SavingExecutable) and forward.saves_in_arena
        # Values that were found equal after the cut: what backward takes by itself may be a result of the node's.
        elsewhere: frozenset[int] = getattr(forward, "saved_elsewhere", frozenset())
        self._found_equal = [j for j, s in enumerate(convention.saved) if s.kind == "intermediate" and j in elsewhere]
        in_arena &= not self._found_equal
        self._arena_forward = cast(SavingExecutable, forward) if in_arena else None
        self._inference = inference or forward
        self._make_backward = make_backward
        self._backward: _Backward | None = None
        self._make_derivative = make_derivative
        self._derivative: TapeNode | None = None
        self._lock = threading.RLock()
        wanted = set(convention.gradients)
        self._unwanted = tuple(i for i in range(convention.arguments) if i not in wanted)
        self._gives_all = convention.gradients == tuple(range(convention.arguments))
        self._keeper = PrimalKeeper(convention)
        self._sources = {in_arena: _Sources.of(convention, in_arena) for in_arena in (False, True)}
        self._handed_over = frozenset(
            convention.results + j for j, source in enumerate(convention.saved) if source.kind != "intermediate"
        )
        tangents = set(convention.differentiable)
        self._constant = tuple(k for k in range(convention.results) if k not in tangents)
        self._apply = _apply_of(_function_class(self, name))

    def __call__(self, arguments: list[Value]) -> list[Tensor]:
        """Give the node's results: on the tape where a gradient can be asked for, else off it."""
        if not (torch.is_grad_enabled() and self._is_asked_for(arguments)):
            return self.run_detached(arguments)
        if functorch_is_active() and any(isinstance(a, Tensor) and is_wrapped(a) for a in arguments):
            raise UnsupportedError(
                "a compiled function cannot be differentiated inside a torch.func transform",
                cure="compile the transformed function instead, or use isthmus.grad and friends",
            )
        run = _Run()
        passed = list(arguments)
        for i in self._unwanted:  # autograd must not walk what gets no gradient
            value = passed[i]
            if isinstance(value, Tensor) and value.requires_grad:
                passed[i] = value.detach()
        if self.expects_higher_order:
            run.clones = {i: cast(Tensor, arguments[i]).clone() for i in self._keeper.overwritten}
        return list(self._apply(run, *passed))

    @property
    def inference(self) -> Executable:
        """What runs where no gradient is asked for."""
        return self._inference

    def run_detached(self, arguments: list[Value]) -> list[Tensor]:
        """Run off the tape: results have no history, nothing is kept for a backward."""
        self.counters.forward_calls += 1
        if self._arena_forward is not None and self._inference is self._forward:
            note_call(self._forward)
            return self._arena_forward.save_in_arena(arguments)[0]
        return _run(self._inference, arguments)[: self.convention.results]

    def _is_asked_for(self, arguments: list[Value]) -> bool:
        for i in self.convention.gradients:
            value = arguments[i]
            if isinstance(value, Tensor) and value.requires_grad:
                return True
        return False

    # ---- Forward

    def record(self, ctx: FunctionCtx, run: _Run, arguments: list[Value]) -> tuple[Tensor, ...]:
        """Run the forward and leave on `ctx` what the backward needs (called by torch)."""
        ctx.set_materialize_grads(False)
        if self._draws:
            run.generators = Generators(arguments)
        self.counters.forward_calls += 1
        hooked = saved_tensors_are_hooked()
        intermediates: list[Tensor] = []
        arena_forward = None if hooked else self._arena_forward
        if arena_forward is not None:
            note_call(self._forward)
            results, run.lease = arena_forward.save_in_arena(arguments)
        else:
            results = _run(self._forward, arguments, self._handed_over)
            intermediates = results[self.convention.results :]
            del results[self.convention.results :]
            for j in self._found_equal:  # the caller may write to what it gets
                intermediates[j] = intermediates[j].clone()
        kept = self._kept(self._sources[arena_forward is not None].saved, arguments, results, intermediates)
        if run.lease is not None and run.lease.tensor is not None:
            kept.append(run.lease.tensor)
        run.primals = Primals(arguments, self._keeper, run.clones)
        run.clones = None
        if hooked:
            kept.extend(run.primals.pack(expected=self.expects_higher_order))
        if kept:
            ctx.save_for_backward(*kept)
            run.saves = True
        if self._constant:
            ctx.mark_non_differentiable(*(results[k] for k in self._constant))
        if len(results) > 1:  # else a missing tangent is the only one, and nothing is computed
            run.shapes = [(r.shape, r.dtype, r.device) for r in results]
        if self.convention.symbols:
            run.sizes = self.convention.sizes(arguments)
        ctx.run = run  # pyright: ignore[reportAttributeAccessIssue]
        return tuple(results)

    def _kept(
        self, saved: tuple[Saved, ...], arguments: list[Value], results: list[Tensor], intermediates: list[Tensor]
    ) -> list[Tensor]:
        """The tensors to save; an argument that the program overwrites is copied while it has its old value."""
        overwritten = self._keeper.overwritten
        kept: list[Tensor] = []
        for j, source in enumerate(saved):
            at = source.index
            if source.kind == "argument":
                value = arguments[at]
                kept.append(value.detach().clone() if at in overwritten else value)  # pyright: ignore
            else:
                kept.append(results[at] if source.kind == "result" else intermediates[j])
        return kept

    # ---- Backward

    def pull(self, ctx: FunctionCtx, tangents: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """Give one gradient per argument of the function torch applied (called by torch)."""
        gradients: list[Tensor | None] = [None] * self.convention.arguments
        if tangents[0] is None and all([t is None for t in tangents]):
            return (None, *gradients)
        run: _Run = ctx.run  # pyright: ignore
        pull = self._pull_differentiably if torch.is_grad_enabled() else self._pull_compiled
        keeps = backward_keeps_graph()
        if any_batched(tangents):
            found = one_by_one(lambda entries: pull(ctx, run, entries, keeps=True), tangents)
        else:
            found = pull(ctx, run, tangents, keeps=keeps)
        if not keeps:
            self._let_go(run)
        if self._gives_all:
            return (None, *found)
        for i, gradient in zip(self.convention.gradients, found, strict=True):
            gradients[i] = gradient
        return (None, *gradients)

    def _pull_compiled(
        self, ctx: FunctionCtx, run: _Run, tangents: tuple[Tensor | None, ...], *, keeps: bool
    ) -> list[Tensor]:
        """Run the backward; where what is saved must stay (`keeps`), it writes over a copy of it if at all."""
        # A backward that needs nothing may run again; torch refuses even to look once it has freed.
        kept: tuple[Tensor, ...] = ctx.saved_tensors if run.saves else ()  # pyright: ignore
        backward = self._backward or self._backward_now()
        arguments: list[Value] = []
        for source in self._sources[run.lease is not None].backward:
            if source.kind == "saved":
                arguments.append(kept[source.index])
            elif source.kind == "tangent":
                arguments.append(self._tangent(run, tangents, source))
            else:
                arguments.append(run.sizes[source.name])
        self.counters.backward_calls += 1
        if run.lease is None:
            for k in backward.overwrites:  # tensors of hooks
                arguments[k] = cast(Tensor, arguments[k]).clone()
            return _run(backward.run, arguments)
        note_call(backward.run)
        assert backward.from_arena is not None
        if backward.sizes_wanted:
            arguments.extend([run.sizes[name] for name in backward.sizes_wanted])
        arena = kept[len(self._sources[True].saved)]
        return backward.from_arena(arguments, arena.clone() if backward.overwrites and keeps else arena)

    def _let_go(self, run: _Run) -> None:
        """The engine frees what torch saved; free the rest."""
        if run.primals is not None:
            run.primals.release()
        if run.lease is not None:
            run.lease.release()

    def _pull_differentiably(
        self, ctx: FunctionCtx, run: _Run, tangents: tuple[Tensor | None, ...], *, keeps: bool
    ) -> list[Tensor]:
        """The gradients as results of the derivative's node, so that they have a history."""
        derivative = self._derivative_now()
        if run.primals is None or run.primals.is_released:
            raise RuntimeError(_FREED)
        kept = cast("tuple[Tensor, ...]", cast(Any, ctx).saved_tensors) if run.primals.is_packed else ()
        try:
            primals = run.primals.restore(self._keeper, kept, derivative.convention.unused)
        except UnsupportedError:
            self.expects_higher_order = True
            raise
        seeds: list[Value] = [
            self._tangent(run, tangents, Source("tangent", k)) for k in self.convention.differentiable
        ]
        with nullcontext() if run.generators is None else run.generators.replayed():
            return derivative([*primals, *seeds])

    def _tangent(self, run: _Run, tangents: tuple[Tensor | None, ...], source: Source) -> Tensor:
        tangent = tangents[source.index]
        if tangent is None:
            assert run.shapes is not None
            shape, dtype, device = run.shapes[source.index]
            tangent = torch.zeros(shape, dtype=dtype, device=device)
        if source.strides is None:
            return coerce(tangent)
        return coerce(tangent, [evaluate(s, run.sizes) for s in source.strides])

    # ---- What is compiled on demand

    def _backward_now(self) -> _Backward:
        if self._backward is None:
            with self._lock:
                if self._backward is None:
                    if self._make_backward is None:
                        raise UnsupportedError("this function was compiled without a backward")
                    self._backward = _Backward(self._make_backward())
                    self.counters.backward_compiles += 1
        return self._backward

    def _derivative_now(self) -> TapeNode:
        if self._derivative is None:
            with self._lock:
                if self._derivative is None:
                    if self._make_derivative is None:
                        raise UnsupportedError(
                            "this gradient cannot be differentiated again: it was compiled"
                            " without a derivative of its own"
                        )
                    self._derivative = self._make_derivative()
                    self.counters.derivative_builds += 1
        return self._derivative


def _run(executable: Executable, arguments: list[Value], shared: frozenset[int] = frozenset()) -> list[Tensor]:
    """Run off the tape and without autocast: the program says itself what is cast.

    Results share no storage, but for those at the positions `shared`.
    """
    note_call(executable)
    if getattr(executable, "native", False):
        return executable(arguments)
    with torch.no_grad():
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                results = executable(arguments)
        else:
            results = executable(arguments)
        fresh = getattr(executable, "fresh", False)
        return list(results) if fresh else made_fresh(results, arguments, shared)


def _function_class(node: TapeNode, name: str) -> type[torch.autograd.Function]:
    def forward(ctx: FunctionCtx, run: _Run, *arguments: Value) -> tuple[Tensor, ...]:
        return node.record(ctx, run, list(arguments))

    def backward(ctx: FunctionCtx, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return node.pull(ctx, tangents)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return cast("type[torch.autograd.Function]", type(name, (torch.autograd.Function,), dict(methods)))


def _apply_of(function: type[torch.autograd.Function]) -> Callable[..., tuple[Tensor, ...]]:
    """`function.apply` without its Python part, which is about functorch; that is refused before."""
    return cast(Any, super(torch.autograd.Function, function)).apply
