"""The record of a program's boundary: training flag, tangents, aliases and mutations."""

import pytest
import torch

import isthmus
from isthmus.driver.api import compile_in
from isthmus.driver.explain import explain
from isthmus.driver.options import Options
from isthmus.driver.session import Session


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()


def record(f, *args, capture="dynamo"):
    own = Session(Options(fullgraph=True))
    compile_in(own, f, capture)[0](*args)
    return own.programs[0].lowering.metadata


def loss(x, w):
    return (x @ w).relu().sum()


@pytest.mark.row("T14")
def test_training_has_one_scalar_tangent():
    found = record(loss, torch.randn(4, 4), torch.randn(4, 4, requires_grad=True))
    assert found.is_train and found.traced_tangents == ("f32[]",)
    assert [(i.name, i.requires_grad) for i in found.inputs] == [("x", False), ("w", True)]
    assert [(o.kind, o.of, o.requires_grad) for o in found.outputs] == [("value", "f32[]", True)]


@pytest.mark.row("T14")
def test_inference_has_none():
    with torch.no_grad():
        found = record(loss, torch.randn(4, 4), torch.randn(4, 4, requires_grad=True))
    assert not found.is_train and found.traced_tangents == ()
    assert found.table().splitlines()[0] == "is_train: false, traced tangents: none"
    assert not any(i.requires_grad for i in found.inputs)


@pytest.mark.row("T14")
def test_aliases_and_mutations_of_inputs_and_outputs():
    def f(x, y, z):
        x.mul_(2)
        y.t_()
        with torch.no_grad():
            z.add_(1)
        return x.t(), (x + 1).view(-1), z, x.sum(), 3

    x, y, z = torch.randn(2, 3), torch.randn(2, 3), torch.randn(3)
    found = record(f, x, y, z, capture="trace")
    by_name = {i.name: i for i in found.inputs}
    assert by_name["x"].mutates_data and not by_name["x"].mutates_metadata
    assert by_name["y"].mutates_metadata
    assert by_name["z"].mutates_data
    kinds = [o.kind for o in found.outputs[:4]]
    assert kinds == ["alias of input", "alias of intermediate", "input", "value"]
    assert found.outputs[0].of == "x" and found.outputs[0].views == ("t.default",)


@pytest.mark.row("T14")
@pytest.mark.row("G2")
def test_printed_with_the_graphs_and_by_explain(monkeypatch, capsys):
    monkeypatch.setenv("ISTHMUS_LOGS", "metadata,joint")
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    report = explain(loss)(x, w)
    shown = capsys.readouterr().err
    assert "isthmus: metadata of graph" in shown and "is_train: true, traced tangents: f32[]" in shown
    assert "  input  w: f32[4, 4] (requires grad)" in shown and "@joint" in shown
    assert "is_train: true, traced tangents: f32[]" in str(report)
