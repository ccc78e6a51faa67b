"""ISTHMUS_LOGS and ISTHMUS_DUMP show every stage; bad names and folders cost a message, nothing else."""

import pytest
import torch

import isthmus
from isthmus.driver.artifacts import ARTIFACTS


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()


def train():
    w = torch.randn(3, 3, requires_grad=True)
    isthmus.compile(lambda x, w: (x @ w).relu().sum())(torch.randn(2, 3), w).backward()


@pytest.mark.row("G2")
@pytest.mark.parametrize(
    "artifact", ["graph", "functional", "prim", "joint", "forward", "backward", "kernels", "llvm", "asm"]
)
def test_each_stage_prints_to_stderr_with_its_graph(artifact, monkeypatch, capsys):
    monkeypatch.setenv("ISTHMUS_LOGS", artifact)
    train()
    err = capsys.readouterr().err
    assert f"isthmus: {artifact} of graph" in err and any(word in err for word in ("func.func", "define", ".globl"))
    others = {"graph", "joint", "llvm"} - {artifact}
    assert not any(f"isthmus: {o} of graph" in err for o in others)


@pytest.mark.row("G2")
def test_breaks_recompiles_guards_and_saved_values(monkeypatch, capsys):
    monkeypatch.setenv("ISTHMUS_LOGS", "graph_breaks,recompiles,guards,saved,times")

    def f(x):
        x = x + 1
        print("a break")
        return x * 2

    compiled = isthmus.compile(f, dynamic=False)
    compiled(torch.randn(3, requires_grad=True))
    compiled(torch.randn(4, requires_grad=True))
    err = capsys.readouterr().err
    for artifact in ("graph_breaks", "recompiles", "guards", "saved", "times"):
        assert f"isthmus: {artifact}" in err, artifact


@pytest.mark.row("G2")
def test_a_question_mark_lists_the_artifacts(monkeypatch, capsys):
    monkeypatch.setenv("ISTHMUS_LOGS", "?")
    train()
    err = capsys.readouterr().err
    assert all(name in err for name in ARTIFACTS)


def test_unknown_artifacts_are_named(monkeypatch, capsys):
    monkeypatch.setenv("ISTHMUS_LOGS", "grpah")
    train()
    assert "grpah" in capsys.readouterr().err


@pytest.mark.row("G4", "I1")
def test_the_dump_has_one_file_per_stage_and_each_can_be_fed_back(monkeypatch, tmp_path):
    from xdsl.parser import Parser

    from isthmus import ir
    from isthmus.dialects import new_context

    monkeypatch.setenv("ISTHMUS_DUMP", str(tmp_path))
    train()
    names = [f.name.partition("-")[2] for f in sorted(tmp_path.rglob("*.mlir"))]
    order = ["capture.mlir", "functionalize.mlir", "decompose.mlir", "differentiate.mlir", "simplify.mlir", "fuse.mlir"]
    assert [n for n in names if n in order][: len(order)] == order or set(order) <= set(names)
    for file in tmp_path.rglob("*.mlir"):
        ir.verify(Parser(new_context(), file.read_text()).parse_module())


def test_a_dump_that_cannot_be_written_costs_a_message(monkeypatch, tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("ISTHMUS_DUMP", str(blocked))
    train()
    assert "cannot write" in capsys.readouterr().err
