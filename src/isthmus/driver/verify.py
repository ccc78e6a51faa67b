"""`verify="each-pass"`: run the program after every pass on the call's own inputs; name the first that changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from isthmus import ir
from isthmus.diagnostics import CompileError
from isthmus.dialects.signature import Signature
from isthmus.runtime.convention import Executable, Value
from isthmus.runtime.interpret import interpreted


@dataclass(frozen=True)
class Stage:
    """What a pass left."""

    pass_text: str
    module: ModuleOp


@dataclass
class Verifier:
    """Compares each stage with the one before it, function by function.

    Outputs and mutated arguments must agree across all stages; gradients between the joint function, its simplified
    form, and forward plus backward; at the kernel level each function with its own primitives.
    """

    stages: list[Stage] = field(default_factory=list[Stage])
    _arguments: list[Value] | None = None
    _checked: int = 0
    _known: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])
    _tangents: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def note(self, pass_text: str, module: ModuleOp) -> None:
        """Keep what a pass left."""
        self.stages.append(Stage(pass_text, module.clone()))
        if self._arguments is not None:
            self.check()

    def begin(self, arguments: Sequence[Value]) -> None:
        """Take the inputs of the first call and check what was noted so far. CompileError names a wrong pass."""
        if self._arguments is None:
            self._arguments = [a.detach().clone() if isinstance(a, Tensor) else a for a in arguments]
            self.check()

    def check(self) -> None:
        """Check the stages that were not checked yet."""
        while self._checked < len(self.stages):
            stage = self.stages[self._checked]
            self._checked += 1
            for name, func in ir.functions(stage.module).items():
                self._check(stage, name, func)

    def _check(self, stage: Stage, name: str, func: FuncOp) -> None:
        signature = Signature.of(func)
        given = self._given(func, signature)
        if given is None:
            return
        with torch.no_grad():
            results = cast(Executable, interpreted(func, module=stage.module))(given)
        for role, found in self._by_role(name, signature, results).items():
            expected = self._known.setdefault(role, found)
            if len(expected) != len(found):
                continue  # a gradient that turned out to be zero
            for k, (a, b) in enumerate(zip(expected, found, strict=True)):
                if not _agree(a, b):
                    what, _, where = role.partition("/")
                    raise CompileError(
                        f"pass '{stage.pass_text}' changed {what} of @{where}: number {k} by up to {_distance(a, b):g}",
                        cure="please report it with the program; backend='interpret' and 'eager' may avoid it",
                    )
        if name == "forward":
            saved = [(r.saved, v) for r, v in zip(signature.results, results, strict=True) if r.saved is not None]
            self._known["saved/backward"] = [v for _, v in sorted(saved, key=lambda entry: entry[0])]

    def _by_role(self, name: str, signature: Signature, results: Sequence[Tensor]) -> dict[str, list[Tensor]]:
        found: dict[str, list[Tensor]] = {}
        for role, value in zip(signature.results, results, strict=True):
            if role.gradient is not None:
                found.setdefault("gradients/joint", []).append(value)
            elif role.saved is None:
                found.setdefault("results/main", []).append(value)
        return found

    def _given(self, func: FuncOp, signature: Signature) -> list[Value] | None:
        """Put together a function's arguments; None where something is not known yet."""
        primals = list(self._arguments or [])
        given: list[Value] = []
        for role, argument in zip(signature.arguments, func.body.block.args, strict=True):
            if role.tangent is not None:
                given.append(self._tangent(role.tangent, argument))
            elif role.saved is not None:
                saved = self._known.get("saved/backward")
                if saved is None:
                    return None
                given.append(saved[role.saved])
            elif role.key:
                given.append(torch.tensor(0x5EED))
            elif primals:
                given.append(_copy(primals.pop(0)))
            else:
                return None
        return given

    def _tangent(self, k: int, argument: ir.SSAValue) -> Tensor:
        if k not in self._tangents:
            like = self._known["results/main"][k]
            generator = torch.Generator().manual_seed(k)
            real = torch.float64 if like.dtype in (torch.float64, torch.complex128) else torch.float32
            self._tangents[k] = torch.randn(like.shape, generator=generator, dtype=real).to(like.dtype)
        return self._tangents[k]


def _copy(value: Value) -> Value:
    return value.clone() if isinstance(value, Tensor) else value


_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def _agree(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.dtype.is_floating_point and not a.dtype.is_complex:
        return torch.equal(a, b)
    real = a.real.dtype if a.is_complex() else a.dtype
    tolerance = _TOLERANCE.get(real, 1e-4)
    scale = float(a.abs().nan_to_num(0, 0, 0).max()) if a.numel() else 1.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * max(scale, 1e-30), equal_nan=True)


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or not a.numel():
        return float("inf")
    return float((a.to(torch.complex128) - b.to(torch.complex128)).abs().nan_to_num(float("inf")).max())
