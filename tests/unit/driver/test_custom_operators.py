"""torch.library.custom_op in compiled programs: mutation, fake rules, autograd rules, opacity."""

import pytest
import torch

import isthmus
from isthmus.dialects import kernel
from isthmus.driver.api import compile_in
from isthmus.driver.explain import explain
from isthmus.driver.options import Options
from isthmus.driver.session import Session
from tests.cube import Cube


@torch.library.custom_op("isthmus_ops::fma", mutates_args=())
def fma(x: torch.Tensor, y: torch.Tensor, z: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * y.detach().numpy() + z)


@fma.register_fake
def _(x, y, z):
    if x.shape != y.shape:
        raise ValueError(f"fma: x is {tuple(x.shape)}, y is {tuple(y.shape)}")
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[1])


fma.register_autograd(lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0], None), setup_context=_setup)


@torch.library.custom_op("isthmus_ops::add_into", mutates_args=("out",))
def add_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.add_(x)


@torch.library.custom_op("isthmus_ops::lonely", mutates_args=())
def lonely(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@lonely.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


@pytest.fixture(params=["dynamo", "trace"])
def capture(request):
    return request.param


@pytest.mark.row("X1")
@pytest.mark.parametrize("backend", ["eager", "interpret", "native"])
def test_callable_eager_and_compiled(capture, backend):
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    f = isthmus.compile(lambda x, y: fma(x, y, 2.0).relu(), capture=capture, backend=backend, fullgraph=True)
    torch.testing.assert_close(fma(x, y, 2.0), x * y + 2)
    torch.testing.assert_close(f(x, y), (x * y + 2).relu())


@pytest.mark.row("X1")
def test_what_it_declares_to_write_is_written(capture):
    def program(x, out):
        add_into(x * 2, out)
        scratch = x.clone()
        add_into(out, scratch)
        return scratch * 3

    x, out = torch.randn(4), torch.randn(4)
    expected_out = out.clone()
    expected = program(x, expected_out)
    found = isthmus.compile(program, capture=capture, fullgraph=True)(x, out)
    torch.testing.assert_close((found, out), (expected, expected_out))


@pytest.mark.row("X2")
def test_a_check_of_the_fake_rule_fails_at_compile_with_the_users_line(capture):
    def program(x, y):
        return fma(x, y, 1.0)

    ran = []
    f = isthmus.compile(program, capture=capture, fullgraph=True)
    with pytest.raises(Exception, match="fma: x is \\(3,\\), y is \\(4,\\)") as error:
        f(torch.randn(3), torch.randn(4))
    line = program.__code__.co_firstlineno + 1
    text = str(error.value) + "".join(str(e.path) + f":{e.lineno + 1}" for e in error.traceback)
    assert "test_custom_operators.py" in text and f"{line}" in text and not ran


@pytest.mark.row("X3")
def test_gradients_of_the_registered_rule(capture):
    x, y = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    f = isthmus.compile(lambda x, y: fma(x, y, 2.0).sin(), capture=capture, fullgraph=True)
    g = (x * y + 2).cos()
    torch.testing.assert_close(torch.autograd.grad(f(x, y).sum(), (x, y)), (g * y, g * x))


@pytest.mark.row("X3")
def test_second_derivatives_of_the_registered_rule(capture):
    x, y = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def second(f):
        first = torch.autograd.grad(f(x, y).sum(), (x, y), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, y))

    f = isthmus.compile(
        lambda x, y: fma(x, y, 2.0) ** 2, capture=capture, fullgraph=True, options={"higher_order": True}
    )
    torch.testing.assert_close(second(f), second(lambda x, y: (x * y + 2) ** 2))


@pytest.mark.row("X3")
def test_no_rule_means_no_gradient_loudly(capture):
    f = isthmus.compile(lambda x: lonely(x) * 2, capture=capture, fullgraph=True)
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(Exception, match=r"isthmus_ops::lonely.*autograd|isthmus_ops.lonely.*autograd") as error:
        f(x).sum().backward()
    assert "register" in str(error.value)
    with torch.no_grad():
        torch.testing.assert_close(f(x), x.sin() * 2)


@pytest.mark.row("X4")
def test_it_is_one_external_call(capture):
    def program(x, y):
        return fma(x + 1, y, 2.0).exp() * 2

    session = Session(Options(fullgraph=True))
    f, _ = compile_in(session, program, capture)
    x, y = torch.randn(8), torch.randn(8)
    torch.testing.assert_close(f(x, y), ((x + 1) * y + 2).exp() * 2)
    (module,) = session.programs[0].lowering.kernels.values()
    calls = [op for op in module.walk() if isinstance(op, kernel.ExternOp)]
    assert len(calls) == 1 and "isthmus_ops::fma.default" in str(calls[0])
    assert sum(isinstance(op, kernel.FusedOp) for op in module.walk()) == 2
    report = explain(program, capture=capture)(x, y)
    assert report.graphs[0].directions[0].library_calls == {"isthmus_ops::fma.default": 1}


@pytest.mark.row("C1")
@pytest.mark.row("C2")
@pytest.mark.parametrize("backend", ["eager", "interpret", "native"])
def test_my_cube_at_three_orders(capture, backend):
    options = {"higher_order": True}
    f = isthmus.compile(lambda x: Cube.apply(x), capture=capture, backend=backend, fullgraph=True, options=options)
    x = torch.tensor(2.0, requires_grad=True)
    y, slope = f(x)
    assert (y.item(), slope.item()) == (8, 12)
    found = []
    for _ in range(3):
        (y,) = torch.autograd.grad(y, x, create_graph=True)
        found.append(y.item())
    assert found == [12, 12, 6]
