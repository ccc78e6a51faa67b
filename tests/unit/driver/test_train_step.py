"""Whole training steps as one program, against the eager loop."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

import isthmus
from isthmus.dialects.program import Copy
from tests.unit.driver.whole_steps import (
    OPTIMIZERS,
    assert_same,
    assert_same_state,
    batches,
    eager_step,
    make_model,
    mse,
    program_count,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hundred_steps_are_those_of_the_eager_loop(name: str, dtype: torch.dtype) -> None:
    eager, compiled = make_model(dtype), make_model(dtype)
    theirs, ours = OPTIMIZERS[name](eager.parameters()), OPTIMIZERS[name](compiled.parameters())
    step = isthmus.train_step(compiled, mse, ours)
    for x, y in batches(100, dtype):
        wanted = eager_step(eager, theirs, x, y)
        found = step(x, y)
        assert isinstance(found, Tensor) and not found.requires_grad
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
        assert isthmus.last_call_native()
    assert program_count(step) == 1
    assert_same(eager, compiled, dtype)
    assert_same_state(theirs, ours, dtype)
    assert all(p.grad is None for p in compiled.parameters())


def test_the_state_goes_through_a_state_dict_in_the_middle() -> None:
    for name in ("sgd momentum", "sgd dampening", "adam amsgrad"):
        eager, compiled, third = make_model(), make_model(), make_model()
        theirs, ours = OPTIMIZERS[name](eager.parameters()), OPTIMIZERS[name](compiled.parameters())
        step = isthmus.train_step(compiled, mse, ours)
        for x, y in batches(5):
            eager_step(eager, theirs, x, y)
            step(x, y)
        other = OPTIMIZERS[name](third.parameters())
        assert_same_state(theirs, ours)
        other.load_state_dict(deepcopy(ours.state_dict()))
        third.load_state_dict(compiled.state_dict())
        ours.load_state_dict(deepcopy(theirs.state_dict()))  # new tensors in the same optimizer
        second = isthmus.train_step(third, mse, other)
        for x, y in batches(5):
            eager_step(eager, theirs, x, y)
            step(x, y)
            second(x, y)
        assert_same(eager, compiled)
        assert_same(eager, third)
        assert_same_state(theirs, ours)
        assert_same_state(theirs, other)


def test_state_before_the_first_step_is_empty_and_eager_steps_may_come_between() -> None:
    eager, compiled = make_model(), make_model()
    theirs, ours = Adam(eager.parameters(), 0.01), Adam(compiled.parameters(), 0.01)
    step = isthmus.train_step(compiled, mse, ours)
    assert ours.state_dict()["state"] == {}
    for i, (x, y) in enumerate(batches(9)):
        eager_step(eager, theirs, x, y)
        step(x, y) if i % 3 else eager_step(compiled, ours, x, y)
    assert program_count(step) == 1
    assert_same(eager, compiled)
    assert_same_state(theirs, ours)


def test_cleared_state_starts_anew() -> None:
    eager, compiled = make_model(), make_model()
    theirs, ours = Adam(eager.parameters(), 0.01), Adam(compiled.parameters(), 0.01)
    step = isthmus.train_step(compiled, mse, ours)
    for i, (x, y) in enumerate(batches(6)):
        if i == 3:
            theirs.state.clear()
            ours.state.clear()
        eager_step(eager, theirs, x, y)
        step(x, y)
    assert_same(eager, compiled)
    assert_same_state(theirs, ours)


def test_a_schedule_compiles_nothing() -> None:
    eager, compiled = make_model(), make_model()
    pairs = []
    for model in (eager, compiled):
        optimizer = AdamW(model.parameters(), 0.05, weight_decay=0.1)
        pairs.append((optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=30)))
    (theirs, their_schedule), (ours, our_schedule) = pairs
    step = isthmus.train_step(compiled, mse, ours)
    for x, y in batches(25):
        eager_step(eager, theirs, x, y)
        step(x, y)
        their_schedule.step()
        our_schedule.step()
    assert program_count(step) == 1
    assert_same(eager, compiled)
    assert_same_state(theirs, ours)


def test_a_schedule_does_not_miss_the_optimizer_step(recwarn: pytest.WarningsRecorder) -> None:
    model = make_model()
    optimizer = SGD(model.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step = isthmus.train_step(model, mse, optimizer)
    step(*batches(1)[0])
    schedule.step()
    assert not [w for w in recwarn if "lr_scheduler.step" in str(w.message)]


def test_groups_have_their_own_numbers_and_may_be_added() -> None:
    def make(model: nn.Module) -> Optimizer:
        first, last = model.get_submodule("0"), model.get_submodule("2")
        optimizer = SGD([{"params": first.parameters(), "lr": 0.2}, {"params": [last.weight], "momentum": 0.9}], 0.05)
        return optimizer

    eager, compiled = make_model(), make_model()
    theirs, ours = make(eager), make(compiled)
    step = isthmus.train_step(compiled, mse, ours)
    for i, (x, y) in enumerate(batches(8)):
        if i == 4:
            theirs.add_param_group({"params": [eager.get_submodule("2").bias], "lr": 0.3})
            ours.add_param_group({"params": [compiled.get_submodule("2").bias], "lr": 0.3})
        eager_step(eager, theirs, x, y)
        step(x, y)
    assert_same(eager, compiled)
    assert_same_state(theirs, ours)


@pytest.mark.parametrize("name", ["sgd dampening", "adam"])
def test_frozen_and_unused_parameters_get_no_update_and_no_state(name: str) -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.used, self.unused, self.frozen = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)
            self.frozen.requires_grad_(False)
            self.both = False

        def forward(self, x: Tensor) -> Tensor:
            y = self.used(x) + self.frozen(x)
            return y + self.unused(x) if self.both else y

    eager, compiled = Partial().double(), Partial().double()
    theirs, ours = OPTIMIZERS[name](eager.parameters()), OPTIMIZERS[name](compiled.parameters())
    step = isthmus.train_step(compiled, mse, ours)
    for i, (x, y) in enumerate(batches(12)):
        if i in (3, 6, 9):
            eager.both = compiled.both = i != 6
        if i == 10:
            eager.frozen.requires_grad_(True)
            compiled.frozen.requires_grad_(True)
        eager_step(eager, theirs, x, y)
        step(x, y)
        if i == 2:
            assert set(ours.state_dict()["state"]) == {0, 1}
        assert_same(eager, compiled)
        assert {k: len(v) for k, v in theirs.state_dict()["state"].items()} == {
            k: len(v) for k, v in ours.state_dict()["state"].items()
        }
    ours_state, theirs_state = ours.state_dict()["state"], theirs.state_dict()["state"]
    for index, entry in theirs_state.items():
        for key, value in entry.items():
            torch.testing.assert_close(ours_state[index][key], value)


def test_tied_weights_get_one_update() -> None:
    def make() -> nn.Module:
        model = make_model()
        tied = nn.Linear(16, 3).double()
        tied.weight = model.get_parameter("2.weight")
        return nn.Sequential(model, nn.Linear(3, 16).double(), tied)

    torch.manual_seed(3)
    eager = make()
    torch.manual_seed(3)
    compiled = make()
    theirs, ours = Adam(eager.parameters(), 0.01), Adam(compiled.parameters(), 0.01)
    step = isthmus.train_step(compiled, mse, ours)
    compiled.load_state_dict(eager.state_dict())
    for x, y in batches(10):
        eager_step(eager, theirs, x, y)
        step(x, y)
    assert_same(eager, compiled)


def test_running_statistics_are_kept_and_modes_are_told_apart() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()

    eager, compiled = make(), make()
    theirs, ours = SGD(eager.parameters(), 0.1), SGD(compiled.parameters(), 0.1)
    step = isthmus.train_step(compiled, mse, ours)
    for i, (x, y) in enumerate(batches(10)):
        eager.train(i < 6)
        compiled.train(i < 6)
        eager_step(eager, theirs, x, y)
        step(x, y)
    assert_same(eager, compiled)
    assert program_count(step) == 2


def test_dropout_has_a_new_mask_at_each_step() -> None:
    class Drop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1000))

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x * self.scale, 0.5)

    model = Drop()
    optimizer = SGD(model.parameters(), 0.0)

    def loss_fn(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        y = model(x)
        return y.sum(), y

    step = isthmus.train_step(model, loss_fn, optimizer)
    torch.manual_seed(5)
    _, first = step(torch.ones(1000))
    _, second = step(torch.ones(1000))
    torch.manual_seed(5)
    _, again = step(torch.ones(1000))
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert 0.4 < (first == 0).double().mean() < 0.6


def test_gradients_are_clipped_as_torch_clips_them() -> None:
    for bounds in ({"max_norm": 0.3}, {"clip_value": 0.02}, {"max_norm": 0.05, "clip_value": 0.02}):
        eager, compiled = make_model(), make_model()
        theirs, ours = SGD(eager.parameters(), 0.5), SGD(compiled.parameters(), 0.5)
        step = isthmus.train_step(
            compiled, mse, ours, max_norm=bounds.get("max_norm"), clip_value=bounds.get("clip_value")
        )
        for x, y in batches(10):
            theirs.zero_grad()
            mse(eager, x, y).backward()
            if "clip_value" in bounds:
                nn.utils.clip_grad_value_(eager.parameters(), bounds["clip_value"])
            if "max_norm" in bounds:
                nn.utils.clip_grad_norm_(eager.parameters(), bounds["max_norm"])
            theirs.step()
            step(x, y)
        assert_same(eager, compiled)
        if "max_norm" in bounds:
            step.max_norm = bounds["max_norm"] / 2
            step(*batches(1)[0])
        assert program_count(step) == 1


def test_micro_batches_average_the_gradients_of_their_parts() -> None:
    eager, compiled = make_model(), make_model()
    theirs, ours = Adam(eager.parameters(), 0.01), Adam(compiled.parameters(), 0.01)

    def with_output(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        found = model(x)
        return F.mse_loss(found, y), {"output": found, "rows": torch.tensor(2.0)}

    step = isthmus.train_step(compiled, with_output, ours, micro_batches=4)
    for x, y in batches(10):
        output = eager(x).detach()
        wanted = eager_step(eager, theirs, x, y)
        loss, more = step(x, y)
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(more["output"], output)
        assert more["rows"].item() == 2 and not more["output"].requires_grad
    assert_same(eager, compiled)
    with pytest.raises(isthmus.UnsupportedError, match="batch of 6 cannot be split in 4"):
        step(torch.randn(6, 6).double(), torch.randn(6, 3).double())


def test_micro_batches_write_buffers_one_after_the_other_and_draw_masks_of_their_own() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).double()

    eager, compiled = make(), make()
    theirs, ours = SGD(eager.parameters(), 0.1), SGD(compiled.parameters(), 0.1)
    step = isthmus.train_step(compiled, mse, ours, micro_batches=2)
    for x, y in batches(5, size=8):
        theirs.zero_grad()
        for half in (slice(0, 4), slice(4, 8)):
            (mse(eager, x[half], y[half]) / 2).backward()
        theirs.step()
        step(x, y)
    torch.testing.assert_close(compiled.state_dict(), eager.state_dict())

    identity = nn.Linear(200, 200, bias=False)
    with torch.no_grad():
        identity.weight.copy_(torch.eye(200))
    step = isthmus.train_step(
        identity,
        lambda m, x: (m(x).sum(), F.dropout(m(x), 0.5)),
        SGD(identity.parameters(), 0.0),
        micro_batches=2,
    )
    _, masked = step(torch.ones(2, 200))
    assert masked.shape == (2, 200) and not torch.equal(masked[0], masked[1])
    assert 0.4 < (masked == 0).double().mean() < 0.6


def test_the_program_is_as_large_for_many_micro_batches_as_for_two() -> None:
    """And a parameter that no micro-batch reaches is left alone."""
    sizes: list[int] = []
    for n in (2, 8):
        model = make_model()
        unused = nn.Parameter(torch.ones(2))
        optimizer = Adam([*model.parameters(), unused], 0.01)
        step = isthmus.train_step(model, mse, optimizer, micro_batches=n)
        step(*batches(1, size=32)[0])
        assert unused not in optimizer.state and unused.tolist() == [1.0, 1.0]
        (program,) = step.session.programs
        sizes.append(sum(1 for _ in program.lowering.kernels["main"].walk()))
        assert isthmus.last_call_native()
    assert sizes[0] == sizes[1]


def test_a_loss_may_read_parameters_without_the_model() -> None:
    """Weight decay written by hand, micro-batched."""
    eager, compiled = make_model(), make_model()
    theirs, ours = SGD(eager.parameters(), 0.1), SGD(compiled.parameters(), 0.1)

    def decayed(model: nn.Module, weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return mse(model, x, y) + (weight * weight).sum()

    own = compiled.get_parameter("0.weight")
    step = isthmus.train_step(compiled, lambda m, x, y: decayed(m, own, x, y), ours, micro_batches=2)
    for x, y in batches(3):
        theirs.zero_grad()
        decayed(eager, eager.get_parameter("0.weight"), x, y).backward()
        theirs.step()
        step(x, y)
    assert_same(eager, compiled)


def test_gradients_are_kept_where_asked_for_as_they_were_applied() -> None:
    mine, theirs = make_model(), make_model()
    unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    unused.grad = torch.ones(3, dtype=torch.float64)
    a, b = AdamW([*mine.parameters(), unused], 0.01), AdamW(theirs.parameters(), 0.01)
    step = isthmus.train_step(mine, mse, a, max_norm=0.1, keep_gradients=True)

    def eager_and_clipped(x: Tensor, y: Tensor) -> None:
        b.zero_grad()
        mse(theirs, x, y).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        b.step()

    for x, y in batches(3):
        eager_and_clipped(x, y)
        step(x, y)
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        assert unused.grad is None
    kept = [p.grad for p in mine.parameters()]
    step.keep_gradients = False
    eager_and_clipped(*batches(1)[0])
    step(*batches(1)[0])
    assert all(p.grad is g for p, g in zip(mine.parameters(), kept, strict=True))
    assert_same(mine, theirs)


def test_what_cannot_be_made_in_place_is_copied_by_the_program() -> None:
    model = make_model()
    step = isthmus.train_step(model, mse, AdamW(model.parameters(), 0.01))
    for x, y in batches(2):
        step(x, y)
    node = step.session.programs[-1].node
    assert node is not None
    program = node.inference.program  # type: ignore[union-attr]
    assert any(isinstance(s, Copy) and s.target.place.kind == "argument" for s in program.steps)
    assert [r.place.kind for r in program.results].count("output") == 1  # the loss
