"""Gradients that are multiples of what was saved: they take its place, unless it is needed again."""

from __future__ import annotations

import pytest
import torch

from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.convention import Convention, Saved, Source, UserOutput
from tests.unit.runtime.fake_cuda import FakeDriver, on_fake_device

SQUARES = """
func.func @forward(%x: tensor<3x5xf32>) -> (tensor<f32>, tensor<3x5xf32> {autodiff.saved = 0})
    attributes {isthmus.saved_bytes = #isthmus.lit<60>} {
  %y, %d = kernel.fused %x {sizes = [3, 5], classes = ["row", "row"], places = [["output", 0], ["saved", 0]]} ({
    %a = kernel.load {operand = 0, map = [d0, d1]} : f32
    %s = prim.mul %a, %a : f32
    %r = kernel.reduce %s {kind = "add", dims = [0, 1]} : f32
    %d = prim.add %a, %a : f32
    kernel.store %r {result = 0, map = []}
    kernel.store %d {result = 1, map = [d0, d1]}
  }) : tensor<f32>, tensor<3x5xf32>
  func.return %y, %d : tensor<f32>, tensor<3x5xf32>
}
func.func @backward(%d: tensor<3x5xf32> {autodiff.saved = 0}, %t: tensor<f32> {autodiff.tangent = 0})
    -> (tensor<3x5xf32> {autodiff.gradient = 0}) {
  %g = kernel.fused %d, %t {sizes = [3, 5], classes = ["parallel", "parallel"], unless_one = 1,
                            places = [["argument", 0]]} ({
    %a = kernel.load {operand = 0, map = [d0, d1]} : f32
    %b = kernel.load {operand = 1, map = []} : f32
    %m = prim.mul %a, %b : f32
    kernel.store %m {result = 0, map = [d0, d1]}
  }) : tensor<3x5xf32>
  func.return %g : tensor<3x5xf32>
}
"""


@pytest.fixture(params=[False, True], ids=["python", "native"])
def node(request: pytest.FixtureRequest) -> TapeNode:
    driver = FakeDriver(native=request.param)
    forward = on_fake_device(SQUARES, driver, "forward")
    backward = on_fake_device(SQUARES, driver, "backward", saved_at=dict(forward.program.saved_at))
    assert backward.overwrites == {0} and not forward.overwrites and backward.program.handed_over == (0,)
    convention = Convention(
        arguments=1,
        results=1,
        outputs=(UserOutput("value", 0),),
        differentiable=(0,),
        saved=(Saved("intermediate", 0),),
        backward=(Source("saved", 0), Source("tangent", 0)),
        gradients=(0,),
    )
    return TapeNode(convention, forward, lambda: backward)


@pytest.mark.parametrize("scale", [1.0, -2.5])
def test_the_gradient_takes_the_place_of_what_was_saved(node: TapeNode, scale: float) -> None:
    x = torch.randn(3, 5, requires_grad=True)
    (y,) = node([x])
    torch.testing.assert_close(y, (x * x).sum())
    (arena,) = getattr(y.grad_fn, "saved_tensors")  # noqa: B009
    y.backward(torch.tensor(scale))
    assert x.grad is not None and not x.grad._is_view()
    torch.testing.assert_close(x.grad, 2 * scale * x.detach())
    assert x.grad.untyped_storage().data_ptr() == arena.untyped_storage().data_ptr()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_what_is_needed_again_stays(node: TapeNode) -> None:
    x = torch.randn(3, 5, requires_grad=True)
    (y,) = node([x])
    for scale in (3.0, 0.5, 1.0):
        (g,) = torch.autograd.grad(y, x, torch.tensor(scale), retain_graph=True)
        torch.testing.assert_close(g, 2 * scale * x.detach())
        g.zero_()
    seeds = torch.tensor([2.0, 0.0, -1.0])
    (rows,) = torch.autograd.grad(y, x, seeds, is_grads_batched=True)
    torch.testing.assert_close(rows, 2 * seeds[:, None, None] * x.detach())


def test_what_hooks_keep_stays(node: TapeNode) -> None:
    x, packed = torch.randn(3, 5, requires_grad=True), list[torch.Tensor]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        (y,) = node([x])
    kept = [t.clone() for t in packed]
    y.backward(torch.tensor(4.0))
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 8 * x.detach())
    for tensor, before in zip(packed, kept, strict=True):
        torch.testing.assert_close(tensor, before)
