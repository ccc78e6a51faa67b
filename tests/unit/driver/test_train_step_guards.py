"""Whole steps: what is compiled again, what is refused with a cure, what is read at every step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import isthmus
from tests.unit.driver.whole_steps import (
    assert_same,
    assert_same_state,
    batches,
    eager_step,
    make_model,
    mse,
    program_count,
)


def test_another_batch_size_is_another_program_at_most_twice() -> None:
    eager, compiled = make_model(), make_model()
    theirs, ours = Adam(eager.parameters(), 0.01), Adam(compiled.parameters(), 0.01)
    step = isthmus.train_step(compiled, mse, ours)
    for size in (8, 8, 5, 7, 8, 3):
        x, y = batches(1, size=size)[0]
        eager_step(eager, theirs, x, y)
        step(x, y)
    assert program_count(step) == 2
    assert_same(eager, compiled)
    assert_same_state(theirs, ours)


def test_what_has_no_compiled_step_is_refused_with_a_cure() -> None:
    model = make_model()
    with pytest.raises(isthmus.UnsupportedError, match="LBFGS has no compiled form"):
        isthmus.train_step(model, mse, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(isthmus.UnsupportedError, match="differentiable"):
        isthmus.train_step(model, mse, SGD(model.parameters(), 0.1, differentiable=True))
    with pytest.raises(ValueError, match="micro_batches"):
        isthmus.train_step(model, mse, SGD(model.parameters(), 0.1), micro_batches=0)
    x, y = batches(1)[0]
    with pytest.raises(isthmus.UnsupportedError, match="one number"):
        isthmus.train_step(model, lambda m, x, y: m(x), SGD(model.parameters(), 0.1))(x, y)
    step = isthmus.train_step(model, mse, SGD(model.parameters(), 0.1))
    handle = model.get_parameter("0.weight").register_hook(lambda g: g * 2)
    with pytest.raises(isthmus.UnsupportedError, match="hooks on parameters"):
        step(x, y)
    handle.remove()
    step(x, y)
    handle = model.get_parameter("0.weight").register_hook(lambda g: g * 2)
    with pytest.raises(isthmus.UnsupportedError, match="hooks on parameters"):
        step(x, y)
    handle.remove()


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(10, 4, sparse=True)
    step = isthmus.train_step(model, lambda m, i: m(i).sum(), SGD(model.parameters(), 0.1))
    with pytest.raises(isthmus.UnsupportedError, match="sparse"):
        step(torch.tensor([1, 2]))


def test_an_index_out_of_range_leaves_the_parameters_as_they_were() -> None:
    model = nn.Embedding(10, 4)
    before = model.weight.detach().clone()
    step = isthmus.train_step(model, lambda m, i: m(i).sum(), SGD(model.parameters(), 0.1, momentum=0.9))
    with pytest.raises(IndexError):
        step(torch.tensor([1, 12]))
    assert torch.equal(model.weight.detach(), before)


def test_a_closure_value_of_the_loss_function_is_guarded() -> None:
    scale = 1.0

    def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return scale * mse(model, x, y)

    model = make_model()
    step = isthmus.train_step(model, loss_fn, SGD(model.parameters(), 0.0))
    x, y = batches(1)[0]
    first = step(x, y)
    scale = 3.0
    torch.testing.assert_close(step(x, y), 3 * first)


@pytest.mark.parametrize("change", ["list of betas", "tensor as learning rate"])
def test_numbers_that_change_in_place_are_read_at_every_step(change: str) -> None:
    mine, theirs = make_model(), make_model()
    optimizers = []
    for model in (mine, theirs):
        rate = torch.tensor(0.01, dtype=torch.float64) if change == "tensor as learning rate" else 0.01
        optimizers.append(AdamW(model.parameters(), rate, foreach=False))
        optimizers[-1].param_groups[0]["betas"] = [0.9, 0.999] if change == "list of betas" else (0.9, 0.999)
    step = isthmus.train_step(mine, mse, optimizers[0])
    for k, (x, y) in enumerate(batches(4)):
        for optimizer in optimizers:
            group = optimizer.param_groups[0]
            if change == "list of betas":
                group["betas"][0] = 0.9 - 0.1 * k
            else:
                group["lr"].fill_(0.01 * (k + 1))
        step(x, y)
        eager_step(theirs, optimizers[1], x, y)
        assert_same(mine, theirs)


def test_a_loss_that_is_none_is_named_by_what_it_is_and_its_line() -> None:
    def rows(model: nn.Module, x: Tensor) -> Tensor:
        return model(x)

    model = make_model()
    x = torch.randn(2, 6).double()
    optimizer = SGD(model.parameters(), 0.1)
    with pytest.raises(isthmus.UnsupportedError, match=r"guards.py:\d+: .* a tensor of shape \[2, 3\], not one number"):
        isthmus.train_step(model, rows, optimizer)(x)
    with pytest.raises(isthmus.UnsupportedError, match="gave nothing, not one number"):
        isthmus.train_step(model, lambda model, x: None, optimizer)(x)
    with pytest.raises(isthmus.UnsupportedError, match="depends on no parameter that the optimizer has"):
        isthmus.train_step(make_model(), mse, optimizer)(x, torch.randn(2, 3).double())
