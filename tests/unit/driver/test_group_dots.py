"""Narrow layers on one input: one product, the values and gradients of eager."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from isthmus.driver.api import compile_in
from isthmus.driver.options import Options
from isthmus.driver.session import Session
from isthmus.runtime.call import NativeProgram


class Heads(nn.Module):
    """Several linear layers that read the same."""

    def __init__(self, inputs: int, outputs: int, count: int, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs, bias, dtype=torch.float64) for _ in range(count))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first, *rest = [layer(x) for layer in self.layers]
        return torch.tanh(first), *rest


@pytest.mark.row("I2")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("outputs", "products"), [(8, 1), (16, 1), (17, 3)])
def test_layers_side_by_side_are_one_product_where_they_are_narrow(outputs: int, products: int, bias: bool) -> None:
    torch.manual_seed(0)
    model, x = Heads(12, outputs, 3, bias), torch.randn(5, 12, dtype=torch.float64, requires_grad=True)
    session = Session(Options(contractions="library"))
    compiled, _ = compile_in(session, model, "trace")
    leaves = [x, *model.parameters()]

    def run(called: nn.Module) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        results = called(x)
        loss = sum((r * (k + 1)).square().sum() for k, r in enumerate(results))
        return results, torch.autograd.grad(loss, leaves)

    torch.testing.assert_close(run(compiled), run(model))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    (node,) = [p.node for p in session.programs[1:] if p.node is not None]
    assert isinstance(node.inference, NativeProgram)
    assert len(node.inference.program.library_calls) == products


def test_a_size_that_varies_is_no_obstacle() -> None:
    model = Heads(12, 8, 3)
    session = Session(Options(dynamic=True))
    compiled, _ = compile_in(session, model, "trace")
    with torch.no_grad():
        for n in (3, 7):
            x = torch.randn(n, 12, dtype=torch.float64)
            torch.testing.assert_close(compiled(x), model(x))
