"""What `isthmus trace` prints at each stage, and what it says of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import isthmus
from isthmus.driver import commands
from isthmus.runtime import cache

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


def test_several_programs_are_separated_as_isthmus_opt_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text("def f(x):\n    return x if x.sum() > 0 else x * 2\n")
    assert commands.run(["trace", f"{path}:f", "3x4xf64"]) == 0
    assert len(capsys.readouterr().out.split("\n// -----\n")) == 2


MISTAKES = """
import torch
from torch import nn

number = 3

def product(x, w):
    return x @ w

def without_tensors(x):
    return 3

def raises(x):
    return {}["absent"]

class Sized(nn.Module):
    def __init__(self, size):
        super().__init__()
"""


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "names no program"),
        (":produkt 4xf32", "has no 'produkt'; did you mean 'product'?"),
        (":product 4x4xf32", "arguments are (x, w): missing a required argument: 'w' (1 INPUT given)"),
        (":product 4x4xf99 4x4xf32", "'4x4xf99' is no input"),
        (":product 4xi64! 4xi64", "gradient of integers"),
        (":product 4x4xf32 5x5xf32", "return x @ w"),
        (":number", "is of type int"),
        (":raises 4xf32", "KeyError: 'absent'"),
        (":Sized 4xf32", "Sized is made from size"),
        (":product 4x4xf32 4x4xf32 --stage joint", "nothing asks for a gradient"),
    ],
)
def test_a_mistake_is_told_without_the_compilers_own_frames(
    arguments: str, said: str, capture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mistakes.py"
    path.write_text(MISTAKES)
    where, *rest = arguments.split(" ")
    assert commands.run(["trace", f"{path}{where}", *rest, "--capture", capture]) == 1
    shown = capsys.readouterr().err
    assert said in shown
    assert "isthmus/" not in shown and "_dynamo/" not in shown


def test_a_program_without_tensors_gives_dynamo_no_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mistakes.py"
    path.write_text(MISTAKES)
    assert commands.run(["trace", f"{path}:without_tensors", "4xf32"]) == 1
    assert "computes with no tensor" in capsys.readouterr().err


def test_a_mistake_of_the_compiler_shows_all_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.setattr("isthmus.driver.session.aten.hints_of", None)
    assert commands.run(["trace", f"{path}:f", "3x4xf64!"]) == 1
    shown = capsys.readouterr().err
    assert "not callable" in shown and "compile_captured" in shown


def test_a_mistake_of_the_command_itself_shows_all_frames(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "load", {}.__getitem__)
    assert commands.run(["trace", "absent"]) == 1
    shown = capsys.readouterr().err
    assert "KeyError: 'absent'" in shown and "in _program" in shown


def test_an_import_that_fails_inside_the_program_names_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "imports.py"
    path.write_text("import there_is_no_such_module\n")
    assert commands.run(["explain", f"{path}:f", "4xf32"]) == 1
    assert "line 1" in capsys.readouterr().err


def test_neighbours_of_a_program_can_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "neighbour_of_it.py").write_text("def f(x):\n    return x.sin()\n")
    (tmp_path / "program.py").write_text("from neighbour_of_it import f\n")
    assert commands.run(["trace", f"{tmp_path}/program.py:f", "4xf32"]) == 0
    assert "sin.default" in capsys.readouterr().out


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_a_program_is_explained_as_it_is_captured(
    capture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    assert commands.run(["explain", f"{path}:f", "3x4xf64!", "--capture", capture]) == 0
    shown = capsys.readouterr().out
    assert "1 graph, 0 graph breaks" in shown and "program.py:3:9" in shown


def test_explain_takes_the_arguments_of_compile() -> None:
    report = isthmus.explain(torch.sin, mode="reduce-overhead", dynamic=True, fullgraph=True, strategy="default")
    assert "1 graph" in str(report(torch.ones(3, requires_grad=True)))
    assert "nothing was captured" in str(isthmus.explain(lambda: 3)())


def test_what_was_not_joined_is_named_by_what_it_is_and_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text("def f(x, w):\n    return (x @ w).relu().sum()\n")
    assert commands.run(["explain", f"{path}:f", "4x4xf32", "4x4xf32!"]) == 0
    shown = capsys.readouterr().out
    assert "not fused with prim.dot of" in shown and "not fused with the kernel of" in shown
    assert "program.py:2:13: it needs whole rows of the product" in shown


def test_what_is_kept_is_shown_and_cleared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ISTHMUS_CACHE_SIZE", "500M")
    cache.current().put(cache.digest("a"), b"x" * 5000)
    for arguments in (["cache"], ["cache", "--clear"], ["cache"]):
        assert commands.run(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}: 1 entries, 8.0 KiB (at most 500.0 MiB)",
        f"removed 1 entries, 8.0 KiB, of {tmp_path}",
        f"{tmp_path}: 0 entries, 0 bytes (at most 500.0 MiB)",
    ]
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", "")
    assert commands.run(["cache"]) == 0
    assert "nothing is kept on disk" in capsys.readouterr().out
