"""The picture of a program: every kernel and every saved value is in it, and it is well-formed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import isthmus
from isthmus.driver import commands

SVG = "{http://www.w3.org/2000/svg}"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.down(torch.relu(self.up(x))), -1)


def shown(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def test_kernels_and_what_crosses_are_drawn() -> None:
    (graph,) = isthmus.explain(Layer())(torch.randn(16, 8)).graphs
    root = ElementTree.fromstring(graph.picture())
    boxes = [g for g in root.iter(f"{SVG}g") if g.find(f"{SVG}rect") is not None]
    steps = sum(d.kernels + d.library_calls.total() for d in graph.directions)
    assert len(boxes) == steps + 1  # the arguments'
    bands = " ".join(g.findtext(f"{SVG}title") or "" for g in root.iter(f"{SVG}g") if g.find(f"{SVG}path") is not None)
    assert graph.cut is not None
    kept = sum(s.costs for s in graph.cut.saved)
    assert kept > 0 and all(name in bands for name in ("x: 512 bytes", "self_down_weight"))
    assert any("test_picture.py" in text for text in shown(root))
    widths = [float(p.get("stroke-width", "0")) for p in root.iter(f"{SVG}path")]
    assert max(widths) == 14.0 and min(widths) >= 1.0


def test_a_program_without_gradients_is_one_column() -> None:
    (graph,) = isthmus.explain(lambda x: x.sin() < x)(torch.randn(16)).graphs
    root = ElementTree.fromstring(graph.picture())
    assert not list(root.iter(f"{SVG}path"))
    assert any("sin cmp" in text for text in shown(root))


def test_the_command_writes_a_file_for_each_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.py"
    path.write_text("def f(x):\n    return x if x.sum() > 0 else x * 2\n")
    where = tmp_path / "f.svg"
    assert commands.run(["explain", f"{path}:f", "3x4xf32", "--picture", str(where)]) == 0
    assert where.exists() and (tmp_path / "f_1.svg").exists()
    assert f"graph_1 is drawn in {tmp_path / 'f_1.svg'}" in capsys.readouterr().out
