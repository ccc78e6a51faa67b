"""Views and writes of every kind become values; what the caller must see is replayed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus import ir
from isthmus.diagnostics import CompileError, UnsupportedError
from isthmus.dialects import autodiff
from isthmus.dialects.signature import Signature
from tests.unit.passes.functionalize.harness import agree, functional, tensor


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


# ---- Writes


@pytest.mark.row("T4")
def test_no_in_place_op_is_left():
    def f(x: Tensor) -> Tensor:
        y = x + 1
        y.mul_(2)
        return y.sin()

    program = agree(f, tensor(4))
    assert program.overloads == ["add.Tensor", "mul_.Tensor", "sin.default"]
    assert program.calls[1].updates == (0,)
    assert not any(c.mutates or any(a >= 0 for a in c.aliases) for c in program.calls)


@pytest.mark.row("T21")
def test_a_written_argument_is_copied_back():
    def f(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        return (a * b).sum()

    program = agree(f, tensor(4), tensor(4))
    signature = Signature.of(program.func)
    assert [(r.output, r.mutated, r.hidden) for r in signature.results] == [(True, None, False), (False, 0, False)]


def test_a_write_through_a_view_reaches_base_and_siblings():
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x + 0
        a, b = y[0], y.t()
        a.mul_(3)
        return b.sin(), y.cos(), a.exp()

    program = agree(f, tensor(3, 3))
    assert program.overloads.count("select_scatter.default") == 1


def test_a_copy_of_a_slice_onto_itself_costs_nothing():
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y[1:3] += 1
        return y.sin()

    assert agree(f, tensor(4)).overloads == [
        "mul.Tensor",
        "slice.Tensor",
        "add_.Tensor",
        "slice_scatter.default",
        "sin.default",
    ]


def test_views_that_nobody_reads_again_are_not_taken():
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        y.t(), y[0], y.view(-1)
        for _ in range(3):
            y.t().add_(1)
        return y

    assert agree(f, tensor(3, 4)).overloads == ["sin.default", *("t.default", "add_.Tensor", "permute.default") * 3]


def test_disjoint_parts_do_not_disturb_each_other():
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        q, k = y.split(2)
        first = k.sin()
        q.mul_(2)
        return first, k.cos()

    assert agree(f, tensor(4, 3, grad=False)).overloads.count("split.Tensor") == 1


def test_a_plain_copy_is_the_other_value():
    def f(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        y.copy_(x)
        return y.sin()

    assert "copy_.default" not in agree(f, tensor(3)).overloads


def test_a_copy_that_converts_and_broadcasts():
    def f(x: Tensor, y: Tensor) -> Tensor:
        y.copy_(x)
        return y * 2

    agree(f, torch.randn(3, 1), torch.zeros(2, 3, 4, dtype=torch.float64))


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics(training: bool):
    def f(x: Tensor, mean: Tensor, var: Tensor, w: Tensor) -> Tensor:
        y = F.batch_norm(x, mean, var, w, None, training, 0.1, 1e-5)
        return y * mean[None, :, None]

    program = agree(f, tensor(4, 3, 5), torch.zeros(3).double(), torch.ones(3).double(), tensor(3))
    mutated = Signature.of(program.func).mutated
    assert set(mutated) == ({1, 2} if training else set())
    assert all(r.hidden for r in Signature.of(program.func).results if r.mutated is not None)


# ---- What eager refuses

REFUSED: list[Callable[[Tensor], object]] = [
    lambda x: x[:1].expand(4, 4).mul_(2),
    lambda x: x[0].expand(2, 4).copy_(x[:2] * 2),
    lambda x: x.view(-1)[1:].add_(x.view(-1)[:-1]),
    lambda x: x.view(-1)[1:].copy_(x.view(-1)[:-1]),
    lambda x: x.add_(x.t()),
]


@pytest.mark.parametrize("program", REFUSED)
def test_overlaps_that_eager_refuses(program: Callable[[Tensor], object]):
    with pytest.raises(RuntimeError, match=r"refers? to a single memory location"):
        program(tensor(4, 4, grad=False))
    with pytest.raises(RuntimeError, match="to a single memory location") as error:
        functional(program, [tensor(4, 4, grad=False)])
    assert not isinstance(error.value, CompileError) or error.value.op is not None


def test_writes_whose_order_would_decide():
    with pytest.raises(UnsupportedError, match="overlap in memory"):
        functional(lambda x: x.unfold(0, 3, 1).mul_(2), [tensor(6, grad=False)])


# ---- Outputs


@pytest.mark.row("T22", "T23")
def test_outputs_that_alias():
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.t(), x.mul(2).view(-1)

    program = agree(f, tensor(2, 3))
    x = tensor(2, 3, grad=False)
    first, second = program(x)
    assert isinstance(first, Tensor) and isinstance(second, Tensor)
    assert first._base is x and second._base is not None
    assert Signature.of(program.func).user_outputs == (
        ("argument", 0, (("t.default", (), ((3, 2), (1, 3), 0), None),)),
        ("alias", 0, (("view.default", ((-1,),), ((6,), (1,), 0), None),)),
    )


def test_outputs_that_share_one_storage():
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x.sin()
        a, b = y.split(2)
        a.mul_(2)
        return a, b, y, y.detach(), a[1], x, x

    agree(f, tensor(4, 3, grad=False))


def test_a_view_of_a_written_argument():
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.view(2, 2)
        y[0].add_(1)
        return y.t(), x

    agree(f, tensor(4))


def test_offsets_count_from_the_argument():
    """The storage offset of an argument is not guarded: another call may have another one."""
    program = functional(lambda x: (x[1:], x.as_strided((2,), (2,), x.storage_offset())), [tensor(6, grad=False)[2:]])
    x = tensor(9, grad=False)[3:7]
    first, second = program(x)
    assert isinstance(first, Tensor) and isinstance(second, Tensor)
    assert torch.equal(first, x[1:]) and torch.equal(second, x[::2]) and first._base is second._base


@pytest.mark.row("T25")
@pytest.mark.parametrize("written", [False, True])
def test_an_argument_that_is_transposed_in_place(written: bool):
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = x.view(-1)
        x.t_()
        if written:
            x.mul_(2)
        return x.sin(), x[1:], before

    program = agree(f, tensor(2, 3, grad=False))
    x = tensor(2, 3, grad=False)
    program(x)
    assert x.shape == (3, 2)


# ---- Arguments that share storage


@pytest.mark.row("T24")
def test_a_view_passed_beside_its_base():
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x * y.view(-1)

    x = torch.ones(4)
    program = agree(f, x, x.view(2, 2))
    x = torch.ones(4)
    (out,) = program(x, x.view(2, 2))
    assert out.tolist() == [4.0] * 4 and x.tolist() == [2.0] * 4  # type: ignore[union-attr]
    assert "as_strided.default" not in program.overloads


@pytest.mark.row("T20")
def test_the_same_tensor_twice():
    def f(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        return a + b

    a = torch.ones(3)
    agree(f, a, a)
    program = functional(f, [a, a])
    (out,) = program(a, a)
    assert out.tolist() == [4.0, 4.0, 4.0] and a.tolist() == [2.0, 2.0, 2.0]  # type: ignore[union-attr]
    assert list(Signature.of(program.func).mutated) == [0]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_parts_of_one_tensor_that_overlap(which: int):
    def f(*parts: Tensor) -> tuple[Tensor, ...]:
        parts[which].mul_(2)
        parts[1].add_(1)
        return (*(p.sin() for p in parts), parts[which][1:])

    base = tensor(10, grad=False)
    agree(f, base[:5], base[3:8], base[4::2])


# ---- What autograd must not see


def test_writes_behind_autograds_back():
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        with torch.no_grad():
            y.mul_(2)
            y[0].add_(w[0])
        return y.sin() * x

    agree(f, tensor(3), tensor(3))


def test_a_parameter_updated_under_no_grad():
    def f(p: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            p.sub_(x * 0.1)
        return (p * x).sum()

    program = agree(f, tensor(3), tensor(3))
    (mutated,) = (r for r in Signature.of(program.func).results if r.mutated is not None)
    assert mutated.hidden


def test_a_detached_alias_and_its_own_history():
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        d = y.detach()
        before = d + w
        d.mul_(w)
        y.mul_(3)
        return before + d.sin(), y.cos()

    agree(f, tensor(3), tensor(3))


def test_results_under_no_grad_are_constants():
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.abs().max()
        return x / scale

    program = agree(f, tensor(4))
    assert sum(isinstance(op, autodiff.StopGradientOp) for op in program.func.walk()) >= 1


def test_inference_is_free_of_it():
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            return (x.detach() * 2).add_(1)

    program = agree(f, tensor(4, grad=False))
    assert not any(isinstance(op, autodiff.StopGradientOp | autodiff.CustomOp) for op in program.func.walk())


def test_a_detached_output_with_a_history_of_its_own_is_refused():
    def f(x: Tensor, w: Tensor) -> Tensor:
        d = x.detach()
        d.mul_(w)
        return d

    with pytest.raises(UnsupportedError, match="clone"):
        functional(f, [tensor(3), tensor(3)])


# ---- Linear time


def test_long_chains_are_neither_deep_nor_slow():
    import time

    def f(x: Tensor, n: int) -> Tensor:
        y = x + 0
        for _ in range(n):
            y = y.t()
        y.mul_(2)
        return y.sin()

    def seconds(n: int) -> float:
        from isthmus.dialects import new_context
        from isthmus.passes.functionalize.functionalize import FunctionalizePass
        from tests.unit.passes.functionalize.harness import capture, tensor

        module = capture(lambda x: f(x, n), [tensor(2, 3, grad=False)]).module
        start = time.perf_counter()
        FunctionalizePass().apply(new_context(), module)
        ir.verify(module)
        return time.perf_counter() - start

    seconds(100)
    assert seconds(3000) < 60 * seconds(100) + 1
