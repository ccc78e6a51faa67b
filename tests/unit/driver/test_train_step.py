"""Whole training steps as one program, against the eager loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

import isthmus
from isthmus.driver.train_step import TrainStep

Make = Callable[[Iterable[Tensor]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: SGD(p, 0.1),
    "sgd momentum": lambda p: SGD(p, 0.05, momentum=0.9),
    "sgd dampening": lambda p: SGD(p, 0.05, momentum=0.9, dampening=0.3),
    "sgd nesterov": lambda p: SGD(p, 0.05, momentum=0.9, nesterov=True),
    "sgd decay": lambda p: SGD(p, 0.05, momentum=0.5, weight_decay=0.1),
    "sgd maximize": lambda p: SGD(p, 1e-4, maximize=True),
    "adam": lambda p: Adam(p, 0.01),
    "adam decay": lambda p: Adam(p, 0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-5),
    "adam amsgrad": lambda p: Adam(p, 0.01, amsgrad=True),
    "adam maximize": lambda p: Adam(p, 1e-4, maximize=True),
    "adamw": lambda p: AdamW(p, 0.01, weight_decay=0.1),
    "adamw amsgrad": lambda p: AdamW(p, 0.01, amsgrad=True),
}


def make_model(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


def batches(count: int, dtype: torch.dtype = torch.float64, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(count):
        x = torch.randn(size, 6, generator=generator, dtype=torch.float64)
        made.append((x.to(dtype), x[:, :3].sin().to(dtype)))
    return made


def eager_step(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, loss_fn: Callable[..., Tensor] = mse
) -> Tensor:
    optimizer.zero_grad()
    loss = loss_fn(model, x, y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_same(a: nn.Module, b: nn.Module, dtype: torch.dtype = torch.float64) -> None:
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    for (name, p), q in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


def assert_same_state(a: Optimizer, b: Optimizer, dtype: torch.dtype = torch.float64) -> None:
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    left, right = a.state_dict(), b.state_dict()
    assert left["param_groups"] == right["param_groups"]
    assert list(left["state"]) == list(right["state"])
    for index, entry in left["state"].items():
        other = right["state"][index]
        assert list(entry) == list(other)
        for name, value in entry.items():
            if value is None:
                assert other[name] is None
                continue
            assert value.dtype == other[name].dtype and value.shape == other[name].shape
            torch.testing.assert_close(value, other[name], rtol=tolerance, atol=tolerance)


def program_count(step: TrainStep) -> int:
    return len(step.session.programs)


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
