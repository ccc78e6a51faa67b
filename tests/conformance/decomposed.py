"""One operator as a program: captured, decomposed, interpreted, differentiated, and compared with eager torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.signature import Signature
from isthmus.frontend.import_fx import import_graph
from isthmus.passes import elementary_form
from isthmus.passes.autodiff.differentiate import differentiate
from isthmus.passes.autodiff.pull import Fallbacks
from isthmus.passes.pipelines import run_passes
from isthmus.runtime.interpret import run

CONTEXT = Context()
FALLBACKS = Fallbacks(elementary_form)
KEY = torch.tensor(20260)
"""The random key of every run."""

SEED = 42
"""Of torch's generator, for library calls that draw from it: what torch's samples of random operators set."""

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}

Function = Callable[..., object]


def of_arguments(
    function: Function, args: Sequence[object], kwargs: dict[str, object]
) -> tuple[Function, list[Tensor]]:
    """A function of the tensors among the arguments, which gives fresh tensors only, and those tensors."""
    flat, spec = pytree.tree_flatten((tuple(args), kwargs))
    places = [i for i, value in enumerate(flat) if isinstance(value, Tensor)]

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = list(flat)
        for i, tensor in zip(places, tensors, strict=True):
            values[i] = tensor
        given, named = pytree.tree_unflatten(values, spec)
        results = pytree.tree_leaves(function(*given, **named))
        return tuple(t.clone() for t in results if isinstance(t, Tensor))  # a view alone would be left to the caller

    return call, [flat[i] for i in places]


def captured(function: Function, tensors: Sequence[Tensor]) -> tuple[ModuleOp, Sequence[Tensor]]:
    """The aten program of a function, and the constants that it takes after the tensors."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(len(tensors))]
    graph.output(graph.call_function(function, tuple(inputs)))
    program = import_graph(fx.GraphModule(torch.nn.Module(), graph), list(tensors))
    return program.module, program.constants


@dataclass
class Decomposed:
    """A function in primitives."""

    module: ModuleOp
    constants: Sequence[Tensor]
    library: list[str] = field(default_factory=list)
    """Calls that are left to the library."""

    @property
    def signature(self) -> Signature:
        return Signature.of(ir.function(self.module, "main"))

    @property
    def random(self) -> bool:
        return any(a.key for a in self.signature.arguments)

    def arguments(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [*tensors, *self.constants, *([KEY] if self.random else [])]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """All results of the function."""
        return run(ir.function(self.module, "main"), self.arguments(tensors), module=self.module)

    def outputs(self, results: Sequence[Tensor]) -> list[Tensor | None]:
        """What the user gets; None where it is an argument itself."""
        listed = self.signature.user_outputs
        assert listed is not None
        return [results[entry[1]] if entry[0] == "value" else None for entry in listed]  # pyright: ignore


def decomposed(function: Function, tensors: Sequence[Tensor], *passes: str) -> Decomposed:
    """Capture and decompose; `passes` run after that."""
    module, constants = captured(function, tensors)
    run_passes(CONTEXT, module, ["functionalize", "decompose", *passes])
    ir.verify(module)
    library = [str(op.callee.data) for op in module.walk() if isinstance(op, prim.OpaqueOp)]
    return Decomposed(module, constants, library)


def gradients(program: Decomposed, tensors: Sequence[Tensor], cotangents: dict[int, Tensor]) -> dict[int, Tensor]:
    """The gradients of all arguments that ask for one, by position, from cotangents of the function's results."""
    joint = differentiate(ir.function(program.module, "main"), FALLBACKS)
    ir.verify_order(joint)
    signature = Signature.of(joint)
    given = iter(program.arguments(tensors))
    arguments: list[Tensor] = []
    for argument, value in zip(signature.arguments, joint.body.block.args, strict=True):
        if argument.tangent is None:
            arguments.append(next(given))
        else:
            zeros = torch.zeros(tuple(ir.shape_of(value)), dtype=torch.float64)  # pyright: ignore
            arguments.append(cotangents.get(argument.tangent, zeros))
    results = run(joint, arguments)
    return {r.gradient: results[i] for i, r in enumerate(signature.results) if r.gradient is not None}


def differs(actual: Tensor, expected: Tensor, tolerance: float) -> str | None:
    """Say how two tensors differ, dtype and shape included, or None."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}"
    try:
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return str(error)
    return None


def check_values(program: Decomposed, function: Function, tensors: Sequence[Tensor], tolerance: float) -> None:
    """Compare the outputs with eager's; of random programs shapes and dtypes."""
    torch.manual_seed(SEED)
    expected = function(*[t.clone() for t in tensors])
    assert isinstance(expected, tuple)
    torch.manual_seed(SEED)
    actual = program.outputs(program.run([t.clone() for t in tensors]))
    for k, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if a is None:
            continue
        if program.random:
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            continue
        wrong = differs(a, b, tolerance)
        assert wrong is None, f"output {k}: {wrong}"


def check_gradients(program: Decomposed, function: Function, leaves: Sequence[Tensor], tolerance: float) -> bool:
    """Compare the gradients with autograd's for random cotangents; False where autograd has none."""
    torch.manual_seed(SEED)
    outputs = function(*leaves)
    assert isinstance(outputs, tuple)
    listed = program.signature.user_outputs
    assert listed is not None
    wanted = [(e[1], t) for e, t in zip(listed, outputs, strict=True) if t.requires_grad and e[0] == "value"]
    asked = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]
    if not wanted or not asked:
        return False
    generator = torch.Generator().manual_seed(3)
    seeds = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for _, t in wanted]
    try:
        expected = torch.autograd.grad([t for _, t in wanted], [leaves[i] for i in asked], seeds, allow_unused=True)
    except (RuntimeError, NotImplementedError):
        return False  # eager has no derivative here
    cotangents: dict[int, Tensor] = {}
    for (k, _), seed in zip(wanted, seeds, strict=True):
        cotangents[k] = cotangents[k] + seed if k in cotangents else seed  # pyright: ignore
    torch.manual_seed(SEED)
    actual = gradients(program, [leaf.detach() for leaf in leaves], cotangents)
    for i, gradient in zip(asked, expected, strict=True):
        zeros = torch.zeros_like(leaves[i])
        given = actual.get(i, zeros)
        wrong = differs(given, zeros if gradient is None else gradient.detach(), tolerance)
        assert wrong is None, f"gradient of argument {i}: {wrong}"
    return True
