"""The user's own compilers of forward and backward, and their own partition."""

import pytest
import torch

import isthmus
from isthmus.diagnostics import CompileError
from isthmus.dialects.signature import Signature
from isthmus.driver.compilers import compiler, function_of
from isthmus.driver.explain import explain
from isthmus.passes.partition import choose


class Recording:
    """Hands on to a built-in compiler and remembers what it was given."""

    def __init__(self, name):
        self.inner, self.modules, self.examples, self.calls = compiler(name), [], [], 0

    def __call__(self, module, examples):
        self.modules.append(module.clone())
        self.examples.append(examples)
        run = self.inner(module, examples)

        def counted(arguments):
            self.calls += 1
            return run(arguments)

        return counted


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


def step(x, w):
    return torch.tanh(x @ w).sum()


def leaves():
    return torch.randn(4, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)


def gradients(function, x, w, order=1):
    found = torch.autograd.grad(function(x, w), (x, w), create_graph=order > 1)
    return found if order == 1 else torch.autograd.grad(sum(g.square().sum() for g in found), (x, w))


@pytest.mark.row("T16")
@pytest.mark.row("D14")
@pytest.mark.row("X6")
@pytest.mark.parametrize("names", [("native", "native"), ("interpret", "native"), ("native", "interpret")])
def test_each_compiler_gets_its_own_graph_once(names):
    first, second = Recording(names[0]), Recording(names[1])
    f = isthmus.compile(step, options={"forward_compiler": first, "backward_compiler": second})
    x, w = leaves()
    loss = f(x, w)
    assert (len(first.modules), len(second.modules)) == (1, 0)  # the backward waits for its first use
    loss.backward()
    assert (len(first.modules), len(second.modules)) == (1, 1)
    for found, wanted in zip((x.grad, w.grad), gradients(step, x, w), strict=True):
        torch.testing.assert_close(found, wanted)
    f(x, w).backward()
    assert (len(first.modules), len(second.modules), first.calls, second.calls) == (1, 1, 2, 2)
    forward, backward = function_of(first.modules[0]), function_of(second.modules[0])
    assert (forward.sym_name.data, backward.sym_name.data) == ("forward", "backward")
    assert any(r.saved is not None for r in Signature.of(forward).results)
    assert Signature.of(backward).tangents
    assert [tuple(e.shape) for e in first.examples[0]] == [(4, 3), (3, 5)]
    assert all(e.device.type == "meta" for e in first.examples[0])


@pytest.mark.row("T16")
@pytest.mark.parametrize("first", ["native", "interpret", Recording("native"), None])
@pytest.mark.parametrize("second", ["native", "interpret", Recording("interpret"), None])
def test_any_two_compilers_work_together_at_any_order(first, second):
    f = isthmus.compile(step, options={"forward_compiler": first, "backward_compiler": second, "higher_order": True})
    x, w = leaves()
    for order in (1, 2):
        for found, wanted in zip(gradients(f, x, w, order), gradients(step, x, w, order), strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.row("D14")
@pytest.mark.row("G1")
def test_both_compilers_swapped_for_the_interpreter():
    f = isthmus.compile(step, options={"forward_compiler": "interpret", "backward_compiler": "interpret"})
    x, w = leaves()
    loss = f(x, w)
    assert not isthmus.last_call_native()
    loss.backward()
    for found, wanted in zip((x.grad, w.grad), gradients(step, x, w), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.row("T16")
def test_a_program_without_gradients_goes_to_the_forward_compiler():
    first = Recording("native")
    f = isthmus.compile(torch.sin, options={"forward_compiler": first})
    x = torch.randn(3)
    torch.testing.assert_close(f(x), x.sin())
    assert [function_of(m).sym_name.data for m in first.modules] == ["main"]


def test_sizes_that_vary_have_examples_too():
    first = Recording("native")
    f = isthmus.compile(lambda x: x.sin().sum(), dynamic=True, options={"forward_compiler": first})
    x = torch.randn(7, requires_grad=True)
    f(x).backward()
    torch.testing.assert_close(x.grad, x.cos())
    assert any(isinstance(e, torch.Tensor) and tuple(e.shape) == (7,) for e in first.examples[0])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (3, "gave int"),
        (lambda arguments: torch.zeros(()), "returns Tensor"),
        (lambda arguments: [torch.zeros(3, dtype=torch.int64)], "int64"),
        (lambda arguments: [torch.zeros(())], r"result 0 has the shape \[\], not \[3\]"),
    ],
)
def test_what_a_compiler_gives_is_checked(made, message):
    def bad(module, examples):
        return made

    f = isthmus.compile(torch.sin, options={"forward_compiler": bad}, fullgraph=True)
    with pytest.raises(CompileError, match=message) as error:
        f(torch.randn(3))
    assert "bad" in str(error.value) and "test_custom_compilers.py" in str(error.value)


def test_names_are_checked():
    with pytest.raises(ValueError, match="forward_compiler='fast'"):
        isthmus.compile(step, options={"forward_compiler": "fast"})
    with pytest.raises(ValueError, match="partition must be callable"):
        isthmus.compile(step, options={"partition": 3})


# ---- Partition


def deep(x, w):
    return torch.sin(torch.exp(torch.sin(x @ w))).sum()


@pytest.mark.row("X6")
@pytest.mark.parametrize("choice", [choose.everything, choose.inputs, choose.min_cut, choose.default])
@pytest.mark.parametrize("backend", ["native", "interpret"])
def test_any_choice_gives_the_same_gradients(choice, backend):
    f = isthmus.compile(deep, backend=backend, options={"partition": choice})
    x, w = leaves()
    for found, wanted in zip(gradients(f, x, w), gradients(deep, x, w), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.row("X6")
def test_explain_shows_what_a_choice_keeps():
    reports = {c: explain(deep, partition=c)(*leaves()) for c in (choose.everything, choose.inputs)}
    everything, inputs = (reports[c].graphs[0].cut for c in (choose.everything, choose.inputs))
    assert "everything" in str(reports[choose.everything]) and "inputs" in str(reports[choose.inputs])
    assert not everything.recomputed or all(r.nbytes == 0 for r in everything.recomputed)
    assert {s.name for s in inputs.saved} == {"x", "w"} and inputs.saved_bytes == 0
    assert inputs.recomputed and len(everything.saved) > len(inputs.saved)


@pytest.mark.row("X6")
def test_a_choice_that_does_not_suffice_names_what_is_missing():
    def nothing(joint):
        return ()

    f = isthmus.compile(deep, fullgraph=True, options={"partition": nothing})
    with pytest.raises(CompileError, match=r"nothing' does not keep .*which backward reads"):
        f(*leaves())


@pytest.mark.row("X6")
def test_a_choice_of_nothing_at_all_is_named():
    def forgetful(joint):
        return None

    f = isthmus.compile(deep, fullgraph=True, options={"partition": forgetful})
    with pytest.raises(CompileError, match=r"forgetful' gives NoneType, not the values to keep"):
        f(*leaves())


@pytest.mark.row("X6")
def test_a_choice_of_a_value_behind_a_tangent_is_refused():
    def late(joint):
        return [*choose.everything(joint), *list(joint.gradients)[:1]]

    f = isthmus.compile(deep, fullgraph=True, options={"partition": late})
    with pytest.raises(CompileError, match="late' keeps a value that depends on a tangent"):
        f(*leaves())
