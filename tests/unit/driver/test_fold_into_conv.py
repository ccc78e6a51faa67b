"""Batch norm by running statistics folded into convolutions: values, and where it must not happen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

import isthmus
from isthmus.dialects import kernel, prim
from isthmus.driver.api import compile_in
from isthmus.driver.options import Options
from isthmus.driver.session import Session

DIMS = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}


class Net(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, rank: int, dtype: torch.dtype, groups: int = 1, bias: bool = True, affine: bool = True) -> None:
        super().__init__()
        conv, norm = DIMS[rank]
        self.conv = conv(4, 6, 3, padding=1, groups=groups, bias=bias, dtype=dtype)
        self.norm = norm(6, affine=affine, dtype=dtype)
        nn.init.uniform_(self.norm.running_mean, -1, 1)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)
        if affine:
            nn.init.uniform_(self.norm.weight, -2, 2)
            nn.init.uniform_(self.norm.bias, -1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


def folded(model: nn.Module, x: Tensor, *, fold: bool = True) -> tuple[Tensor, ModuleOp]:
    """The result of a call without gradients, and the program before kernels."""
    session = Session(Options(fold_into_conv=fold))
    compiled, _ = compile_in(session, model, "trace")
    with torch.no_grad():
        result = compiled(x)
    (program,) = session.programs
    return result, program.lowering.kernels["main"]


@pytest.mark.row("I10")
@pytest.mark.parametrize("rank", DIMS)
@pytest.mark.parametrize("settings", [{}, {"groups": 2}, {"bias": False}, {"affine": False}])
def test_values_are_those_of_eager(rank: int, settings: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = Net(rank, torch.float64, **settings).eval()  # type: ignore[arg-type]
    x = torch.randn(2, 4, *[7] * rank, dtype=torch.float64)
    found, _ = folded(model, x)
    with torch.no_grad():
        torch.testing.assert_close(found, model(x))
        model.norm.running_var.mul_(3)  # weights are folded at every call
        model.conv.weight.neg_()
        compiled = isthmus.compile(model, options={"fold_into_conv": True})
        torch.testing.assert_close(compiled(x), model(x))
        model.norm.weight.mul_(2) if model.norm.affine else model.norm.running_mean.add_(1)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.row("I10")
def test_the_normalization_is_gone_from_the_image() -> None:
    model, x = Net(2, torch.float32).eval(), torch.randn(2, 4, 9, 9)
    for fold in (False, True):
        _, module = folded(model, x, fold=fold)
        (conv,) = (op for op in module.walk() if isinstance(op, kernel.ExternOp))
        assert (conv.symbol.data, fold) == ("prim.conv", prim.MulOp not in path_of_image(conv))


def path_of_image(conv: kernel.ExternOp) -> list[type[Operation]]:
    """What becomes of an element of the convolution's result, up to where it is stored."""
    (use,) = conv.results[0].uses
    nest = use.operation
    assert isinstance(nest, kernel.FusedOp)
    op: Operation = next(o for o in nest.block.ops if isinstance(o, kernel.LoadOp) and o.operand.data == use.index)
    found: list[type[Operation]] = []
    while op.results:
        (use,) = op.results[0].uses
        op = use.operation
        found.append(type(op))
    return found


def test_training_and_programs_with_gradients_are_left_alone() -> None:
    torch.manual_seed(0)
    model = Net(2, torch.float64).eval()
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    plain, compiled = isthmus.compile(model), isthmus.compile(model, options={"fold_into_conv": True})
    assert torch.equal(plain(x), compiled(x))
    grads = [torch.autograd.grad(f(x).square().sum(), list(model.parameters())) for f in (plain, compiled)]
    assert all(map(torch.equal, *grads))
    model.train()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
