"""What `isthmus trace` prints at each stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.driver import commands

PROGRAM = """
def f(x):
    y = x.sin()
    y.mul_(2)
    return y
"""


@pytest.mark.parametrize(
    ("stage", "shown"),
    [
        ("graph", "aten.ref"),
        ("functional", "updates = [0]"),
        ("prim", "prim.sin"),
        ("joint", "func @joint"),
        ("forward", "func @forward"),
        ("backward", "func @backward"),
        ("kernels", "kernel.fused"),
    ],
)
def test_every_stage_can_be_printed(stage: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    assert commands.run(["trace", f"{path}:f", "3x4xf64!", "--stage", stage]) == 0
    assert shown in capsys.readouterr().out
