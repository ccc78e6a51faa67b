"""A failing pass names itself and keeps the IR before it, in a file that `isthmus-opt` runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

import isthmus
from isthmus.cli import opt
from isthmus.diagnostics import CompileError
from isthmus.ir import Literal
from isthmus.passes.memory.plan_memory import PlanMemoryPass


def _double(x: Tensor) -> Tensor:
    return x.sin() * 2


@pytest.mark.parametrize("error", [CompileError("it is broken"), KeyError("it is broken")])
@pytest.mark.parametrize("capture", ["trace", "dynamo"])
def test_the_ir_before_a_failing_pass_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, capture: str
) -> None:
    def fail(self: PlanMemoryPass, ctx: Context, op: ModuleOp) -> None:
        op.attributes["spoilt"] = Literal.of(True)  # what it leaves is not the IR before it
        raise error

    monkeypatch.setenv("ISTHMUS_DUMP", str(tmp_path))
    with monkeypatch.context() as patch, pytest.raises(Exception, match="it is broken") as caught:
        patch.setattr(PlanMemoryPass, "apply", fail)
        isthmus.compile(_double, fullgraph=True, capture=capture)(torch.ones(3))
    (kept,) = tmp_path.glob("isthmus-*-plan-memory.mlir")
    failed = re.search(r"pass '(plan-memory\S*)' failed", str(caught.value))
    assert failed is not None
    assert f"isthmus-opt -p '{failed[1]}' {kept}" in str(caught.value)
    assert "spoilt" not in kept.read_text()
    assert "kernel.fused" in kept.read_text()
    assert opt([str(kept), "-p", failed[1]]) == 0
    assert "places" in capsys.readouterr().out
