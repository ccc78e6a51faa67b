"""The tape node: a compiled forward and backward as one node of torch's autograd graph.

The backward is compiled at the first `backward()`. With `create_graph=True` the gradients come
from a second node, whose forward is the compiled gradient function and whose own derivative is
built on demand; so derivatives of any order go through compiled code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from isthmus.diagnostics import UnsupportedError
from isthmus.runtime.arena import Lease
from isthmus.runtime.call import note_call
from isthmus.runtime.convention import (
    Convention,
    Executable,
    MakeExecutable,
    RestoringExecutable,
    SavingExecutable,
    Source,
    Value,
)
from isthmus.runtime.fresh import coerce, made_fresh
from isthmus.runtime.torch_private import (
    backward_keeps_graph,
    functorch_is_active,
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


@dataclass
class _Run:
    """What one forward call leaves for its backward, beside the version-checked tensors."""

    clones: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    saves: bool = False
    primals: list[Value] | None = None
    versions: dict[int, int] = field(default_factory=dict[int, int])
    missing: frozenset[int] = frozenset()
    packed: tuple[int, ...] = ()
    shapes: list[tuple[torch.Size, torch.dtype, torch.device]] = field(
        default_factory=list[tuple[torch.Size, torch.dtype, torch.device]]
    )
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    lease: Lease | None = None


class TapeNode:
    """A forward that knows its backward.

    `make_backward` compiles the backward at its first use. `make_derivative` gives the node of
    the gradient function: its arguments are this node's, then the tangents of the differentiable
    results in their order; its results are the gradients in the order of `convention.gradients`.
    None where nobody can derive it. `inference` runs without saving anything; without it,
    the forward runs and what it saves is dropped. With `higher_order`, arguments that the
    program overwrites are copied first, so that the first `create_graph` call can use them.
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
        name: str = "Compiled",
    ) -> None:
        self.convention = convention
        self.counters = Counters()
        self.expects_higher_order = higher_order
        self._forward = forward
        in_arena = isinstance(forward, SavingExecutable) and forward.saves_in_arena
        self._arena_forward = cast(SavingExecutable, forward) if in_arena else None
        self._inference = inference or forward
        self._make_backward = make_backward
        self._backward: Executable | None = None
        self._make_derivative = make_derivative
        self._derivative: TapeNode | None = None
        self._lock = threading.RLock()
        wanted = set(convention.gradients)
        self._unwanted = tuple(i for i in range(convention.arguments) if i not in wanted)
        self._overwritten = frozenset(m.argument for m in convention.mutations)
        tangents = set(convention.differentiable)
        self._handed_over = frozenset(
            convention.results + j for j, source in enumerate(convention.saved) if source.kind != "intermediate"
        )
        self._constant = tuple(k for k in range(convention.results) if k not in tangents)
        self._function = _function_class(self, name)

    def __call__(self, arguments: list[Value]) -> list[Tensor]:
        """Give the node's results: on the tape where a gradient can be asked for, else off it."""
        if not (torch.is_grad_enabled() and self._is_asked_for(arguments)):
            return self.run_detached(arguments)
        if functorch_is_active():
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
            run.clones = {i: cast(Tensor, arguments[i]).clone() for i in self._overwritten}
        return list(cast("tuple[Tensor, ...]", self._function.apply(run, *passed)))

    def run_detached(self, arguments: list[Value]) -> list[Tensor]:
        """Run off the tape: results have no history, nothing is kept for a backward."""
        self.counters.forward_calls += 1
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
        self.counters.forward_calls += 1
        hooked = saved_tensors_are_hooked()
        if self._arena_forward is not None and not hooked:
            note_call(self._forward)
            results, run.lease = self._arena_forward.save_in_arena(arguments)
            saved: list[Tensor] = []
        else:
            results = _run(self._forward, arguments, self._handed_over)
            saved = results[self.convention.results :]
            results = results[: self.convention.results]
        kept = self._kept(arguments, results, saved)
        if run.lease is not None and run.lease.tensor is not None:
            kept.append(run.lease.tensor)
        self._keep_primals(run, arguments)
        if hooked:
            kept.extend(self._packed_primals(run))
        ctx.save_for_backward(*kept)
        run.saves = bool(kept)
        if self._constant:
            ctx.mark_non_differentiable(*(results[k] for k in self._constant))
        run.shapes = [(r.shape, r.dtype, r.device) for r in results]
        run.sizes = self.convention.sizes(arguments)
        cast(Any, ctx).run = run
        return tuple(results)

    def _kept(self, arguments: list[Value], results: list[Tensor], saved: list[Tensor]) -> list[Tensor]:
        """The tensors to save, in the order of `convention.saved`, without those in the arena."""
        kept: list[Tensor] = []
        for j, source in enumerate(self.convention.saved):
            if source.kind == "result":
                kept.append(results[source.index])
            elif source.kind == "intermediate":
                if saved:
                    kept.append(saved[j])
            else:
                value = arguments[source.index]
                assert isinstance(value, Tensor), "only tensors are saved"
                overwritten = source.index in self._overwritten
                kept.append(value.detach().clone() if overwritten else value)
        return kept

    def _keep_primals(self, run: _Run, arguments: list[Value]) -> None:
        """Keep what a derivative of the gradient needs: the arguments, as they are now.

        These are references, so nothing is copied; versions tell later whether one was
        overwritten. What has no history is kept detached: if the user makes the tensor part of
        this node's graph later, it must not keep its own history alive.
        """
        primals: list[Value] = []
        missing: set[int] = set()
        for i, value in enumerate(arguments):
            if isinstance(value, Tensor):
                if i in self._overwritten:
                    value = run.clones.get(i)
                    if value is None:
                        missing.add(i)
                else:
                    run.versions[i] = _version(value)
                    if not value.requires_grad:
                        value = value.detach()
            primals.append(value)
        run.clones = {}
        run.primals, run.missing = primals, frozenset(missing)

    def _packed_primals(self, run: _Run) -> list[Tensor]:
        """Give up the references to the arguments: the user's hooks decide what stays in memory.

        Where a derivative is to be expected the arguments are saved as torch saves tensors.
        """
        primals = run.primals or []
        tensors = {i: p for i, p in enumerate(primals) if isinstance(p, Tensor)}
        run.primals = [None if isinstance(p, Tensor) else p for p in primals]
        run.versions = {}
        if not self.expects_higher_order:
            run.missing = run.missing.union(tensors)
            return []
        run.packed = tuple(tensors)
        return list(tensors.values())

    # ---- Backward

    def pull(self, ctx: FunctionCtx, tangents: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """Give one gradient per argument of the function torch applied (called by torch)."""
        gradients: list[Tensor | None] = [None] * self.convention.arguments
        if any(t is not None for t in tangents):
            run = cast(_Run, cast(Any, ctx).run)
            if torch.is_grad_enabled():
                found = self._pull_differentiably(ctx, run, tangents)
            else:
                found = self._pull_compiled(ctx, run, tangents)
            for i, gradient in zip(self.convention.gradients, found, strict=True):
                gradients[i] = gradient
        return (None, *gradients)

    def _pull_compiled(self, ctx: FunctionCtx, run: _Run, tangents: tuple[Tensor | None, ...]) -> list[Tensor]:
        # A backward that needs nothing may run again; torch refuses even to look once it has freed.
        kept = list(cast("tuple[Tensor, ...]", cast(Any, ctx).saved_tensors)) if run.saves else []
        arena = kept.pop() if run.lease is not None else None
        backward = self._backward_now()
        sources = self.convention.backward
        if arena is not None:
            sources = tuple(s for s in sources if not self._is_in_arena(s))
        places = self._places_of_kept(arena is not None)
        arguments: list[Value] = []
        for source in sources:
            if source.kind == "saved":
                arguments.append(kept[places[source.index]])
            elif source.kind == "tangent":
                arguments.append(self._tangent(run, tangents, source))
            else:
                arguments.append(run.sizes[source.name])
        self.counters.backward_calls += 1
        if arena is None:
            found = _run(backward, arguments)
        else:
            note_call(backward)
            restoring = cast(RestoringExecutable, backward)
            arguments.extend(run.sizes[name] for name in restoring.sizes_wanted)
            found = restoring.run_from_arena(arguments, arena)
        if not backward_keeps_graph():
            run.primals = None
            if run.lease is not None:
                del arena, kept
                run.lease.release()
        return found

    def _pull_differentiably(self, ctx: FunctionCtx, run: _Run, tangents: tuple[Tensor | None, ...]) -> list[Tensor]:
        """The gradients as results of the derivative's node, so that they have a history."""
        derivative = self._derivative_now()
        primals = self._primals_for(ctx, run, derivative.convention.unused)
        seeds: list[Value] = [
            self._tangent(run, tangents, Source("tangent", k)) for k in self.convention.differentiable
        ]
        found = derivative([*primals, *seeds])
        if not backward_keeps_graph():
            run.primals = None
        return found

    def _primals_for(self, ctx: FunctionCtx, run: _Run, unused: frozenset[int]) -> list[Value]:
        """The arguments of the forward call, unchanged since; RuntimeError where one is not."""
        if run.primals is None:
            raise RuntimeError(_FREED)
        primals = list(run.primals)
        if run.packed:
            unpacked = cast("tuple[Tensor, ...]", cast(Any, ctx).saved_tensors)
            for i, value in zip(run.packed, unpacked[-len(run.packed) :], strict=True):
                primals[i] = value
        for i in sorted(run.missing - unused):
            self.expects_higher_order = True
            raise UnsupportedError(
                f"a derivative of this gradient needs the value that {self.convention.name(i)} had"
                " in the forward call, and it was not kept",
                cure='compile with options={"higher_order": True}, or run the step again: from now on it is kept',
            )
        for i, version in run.versions.items():
            if i not in unused and (now := _version(primals[i])) != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an"
                    f" inplace operation: {self.convention.name(i)} is at version {now}; expected"
                    f" version {version} instead. It is needed because the gradient of a compiled"
                    " function is differentiated again"
                )
        return primals

    def _tangent(self, run: _Run, tangents: tuple[Tensor | None, ...], source: Source) -> Tensor:
        tangent = tangents[source.index]
        if tangent is None:
            shape, dtype, device = run.shapes[source.index]
            tangent = torch.zeros(shape, dtype=dtype, device=device)
        if source.strides is None:
            return coerce(tangent)
        return coerce(tangent, [evaluate(s, run.sizes) for s in source.strides])

    def _is_in_arena(self, source: Source) -> bool:
        kind = source.kind
        return kind == "saved" and self.convention.saved[source.index].kind == "intermediate"

    def _places_of_kept(self, in_arena: bool) -> list[int]:
        """Saved value j -> its place among the tensors that were saved one by one."""
        places: list[int] = []
        count = 0
        for source in self.convention.saved:
            places.append(count)
            count += not (in_arena and source.kind == "intermediate")
        return places

    # ---- What is compiled on demand

    def _backward_now(self) -> Executable:
        if self._backward is None:
            with self._lock:
                if self._backward is None:
                    if self._make_backward is None:
                        raise UnsupportedError("this function was compiled without a backward")
                    self._backward = self._make_backward()
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


def _version(value: Value) -> int:
    if isinstance(value, Tensor) and not value.is_inference():
        return value._version
    return 0


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
