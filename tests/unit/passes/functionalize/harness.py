"""Programs captured without Dynamo, made functional, interpreted, and their effects replayed as the runtime does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from xdsl.dialects.func import FuncOp

from isthmus import ir
from isthmus.dialects import new_context
from isthmus.dialects.aten import CallOp
from isthmus.dialects.signature import Signature
from isthmus.driver.conventions import convention_of
from isthmus.frontend.captured import Captured, Input
from isthmus.frontend.finish import finish
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.symbolic import SizeReader
from isthmus.passes.functionalize.functionalize import FunctionalizePass
from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.boundary import CompiledFunction
from isthmus.runtime.convention import Convention, Value
from isthmus.runtime.interpret import Interpreter, interpreted

Function = Callable[..., object]


def capture(function: Function, arguments: Sequence[Tensor]) -> Captured:
    """Record a function on fakes of its arguments, before autograd."""
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(a, static_shapes=True) for a in arguments]
    recorder = Recorder(mode, SizeReader(None))
    for fake in fakes:
        recorder.add_input(fake)
    inputs = [Input(f"x{i}", "tensor", a.requires_grad) for i, a in enumerate(arguments)]
    grad = torch.is_grad_enabled()
    try:
        with mode, enable_python_dispatcher(), recorder:
            result = function(*fakes)
            outputs = torch.utils._pytree.tree_leaves(result)
    finally:
        torch.set_grad_enabled(grad)
    return finish(recorder, inputs, fakes, arguments, outputs, "main")


@dataclass
class Functional:
    """A captured function after the pass."""

    captured: Captured
    func: FuncOp

    @property
    def calls(self) -> list[CallOp]:
        return [op for op in self.func.walk() if isinstance(op, CallOp)]

    @property
    def overloads(self) -> list[str]:
        return [op.overload for op in self.calls]

    def __call__(self, *arguments: Tensor) -> list[object]:
        """Run as the runtime does: interpret, copy back, rebuild aliases. On the tape, by torch's own autograd."""
        recorded = any(a.wants_gradient for a in Signature.of(self.func).arguments)
        node = _OnTorchsTape(convention_of(self.func), interpreted(self.func), recorded)
        return CompiledFunction(node.convention, node)([*arguments, *self.captured.constants])


class _OnTorchsTape(TapeNode):
    """A node whose derivative is torch's own, through the interpreter."""

    def __init__(self, convention: Convention, execute: Interpreter, recorded: bool) -> None:
        super().__init__(convention, execute)
        self.execute, self.recorded = execute, recorded

    def __call__(self, arguments: list[Value]) -> list[Tensor]:
        taken = {a.untyped_storage().data_ptr() for a in arguments if isinstance(a, Tensor)}
        results = []
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.recorded):
            made = self.execute(arguments)
        for result in made:
            shared = result.untyped_storage().data_ptr() in taken
            results.append(result.clone() if shared else result)
            taken.add(results[-1].untyped_storage().data_ptr())
        return results

    run_detached = __call__


def functional(function: Function, arguments: Sequence[Tensor]) -> Functional:
    """Capture a function and make it functional."""
    return functionalized(capture(function, arguments))


def functionalized(captured: Captured) -> Functional:
    """Make a captured program functional."""
    module = captured.module.clone()
    ir.verify(captured.module)
    FunctionalizePass().apply(new_context(), module)
    ir.verify(module)
    return Functional(captured, ir.function(module, "main"))


def copies(arguments: Sequence[Tensor]) -> list[Tensor]:
    """Copy arguments with their strides, offsets and sharing; those that want gradients become leaves."""
    storages: dict[int, torch.UntypedStorage] = {}
    made: dict[int, Tensor] = {}
    for a in arguments:
        key = a.untyped_storage().data_ptr()
        storages.setdefault(key, a.untyped_storage().clone())
        if id(a) not in made:
            copy = torch.empty(0, dtype=a.dtype).set_(storages[key], a.storage_offset(), a.shape, a.stride())
            made[id(a)] = copy.requires_grad_(a.requires_grad)
    return [made[id(a)] for a in arguments]


def writable(leaves: Sequence[Tensor]) -> list[Tensor]:
    """Give what a program may write although it wants gradients: copies of leaves, on the tape."""
    return [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype).copy_(a) if a.requires_grad else a for a in leaves]


def agree(function: Function, *arguments: Tensor, gradients: bool = True) -> Functional:
    """Compare eager with the functional program: outputs, arguments afterwards, sharing, gradients."""
    mine, theirs = copies(arguments), copies(arguments)
    inner, outer = writable(mine), writable(theirs)
    program = functional(function, inner)
    want = torch.utils._pytree.tree_leaves(function(*outer))
    got = program(*inner)
    compare(got, want, inner, outer)
    if gradients:
        compare_gradients([*got, *inner], [*want, *outer], mine, theirs)
    return program


def strides_that_matter(x: Tensor) -> list[int]:
    """Give the strides of dimensions with more than one index."""
    return [s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1] if x.numel() else []


def compare(got: Sequence[object], want: Sequence[object], mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Compare outputs, arguments, and which of them share storage at which offset."""
    assert len(got) == len(want)
    for g, w in zip([*got, *mine], [*want, *theirs], strict=True):
        if not isinstance(w, Tensor):
            assert g == w
            continue
        assert isinstance(g, Tensor)
        torch.testing.assert_close(g.detach(), w.detach(), rtol=1e-12, atol=1e-12, equal_nan=True)
        assert strides_that_matter(g) == strides_that_matter(w)
    ours = [g for g in [*got, *mine] if isinstance(g, Tensor)]
    others = [w for w in [*want, *theirs] if isinstance(w, Tensor)]
    for (g, h), (w, v) in zip(itertools.combinations(ours, 2), itertools.combinations(others, 2), strict=True):
        shares = w.untyped_storage().data_ptr() == v.untyped_storage().data_ptr() and w.numel() and v.numel()
        mine_share = g.untyped_storage().data_ptr() == h.untyped_storage().data_ptr() and g.numel() and h.numel()
        assert bool(shares) == bool(mine_share)
        if shares and w.dtype == v.dtype:
            assert g.storage_offset() - h.storage_offset() == w.storage_offset() - v.storage_offset()


def compare_gradients(
    got: Sequence[object], want: Sequence[object], mine: Sequence[Tensor], theirs: Sequence[Tensor]
) -> None:
    """Compare the gradients of a weighted sum of everything that has a history."""
    pairs = [(g, w) for g, w in zip(got, want, strict=True) if isinstance(w, Tensor) and w.is_floating_point()]
    if not pairs:
        return

    def total(tensors: Sequence[Tensor]) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        terms = [(torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).double() for t in tensors]
        return torch.stack([(t * torch.rand(t.shape, generator=generator, dtype=t.dtype)).sum() for t in terms]).sum()

    ours = [a for a in mine if a.requires_grad and a.is_leaf]
    others = [a for a in theirs if a.requires_grad and a.is_leaf]
    found = gradients_of(total([g for g, _ in pairs]), ours)
    wanted = gradients_of(total([w for _, w in pairs]), others)
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f, w, rtol=1e-10, atol=1e-10, equal_nan=True)


def gradients_of(total: Tensor, leaves: Sequence[Tensor]) -> Sequence[Tensor]:
    """Give the gradients, zeros where nothing flows."""
    if not total.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    return torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)


def check_program(
    function: Function, arguments: Sequence[Tensor], compiled: Callable[..., Function] = functional
) -> str:
    """Compare as far as eager goes with what `compiled(function, arguments)` gives.

    Gives "agrees", "values agree" where eager's tape refuses the program, "refused" where eager refuses it anyway.
    """
    wants = any(a.requires_grad for a in arguments)
    theirs = copies(arguments)
    outer = writable(theirs)
    tape = "on the tape"
    try:
        want = torch.utils._pytree.tree_leaves(function(*outer))
    except RuntimeError as error:
        if "unsupported operation" in str(error):
            return "refused"
        tape = "off the tape"
        theirs = [a.detach() for a in copies(arguments)]
        outer = writable(theirs)
        want = torch.utils._pytree.tree_leaves(function(*outer))
    mine = copies(arguments)
    if tape == "off the tape":
        mine = [a.detach() for a in mine]
    inner = writable(mine)
    try:
        program = compiled(function, inner)
    except ValueError as error:
        if "Cannot view a tensor" not in str(error):
            raise
        return "refused"  # torch replays views of a tensor that was transposed in place
    got = program(*inner)
    compare(got, want, inner, outer)
    if not wants or tape == "off the tape":
        return "values agree"
    try:
        compare_gradients([*got, *inner], [*want, *outer], mine, theirs)
    except RuntimeError as error:
        reasons = ("modified by an inplace operation", "modified inplace", "unsupported operation")
        if not any(reason in str(error) for reason in reasons):
            raise
        return "values agree"
    return "agrees"


def tensor(*shape: int, grad: bool = True) -> Tensor:
    """Give random numbers in double precision."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)
