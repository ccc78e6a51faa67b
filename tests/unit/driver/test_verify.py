"""`verify="each-pass"` runs every stage and names a pass that changes results."""

import pytest
import torch
import torch.nn.functional as F

import isthmus
from isthmus.diagnostics import CompileError
from isthmus.driver import lowering
from isthmus.passes.pipelines import parse_pass


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


def program(x, w):
    h = F.gelu(F.layer_norm(x @ w, (16,)))
    h[:, 0].mul_(2)
    return h.softmax(-1).log().sum()


@pytest.mark.parametrize("backend", ["interpret", "native"])
def test_a_right_program_passes(backend):
    x, w = torch.randn(6, 8), torch.randn(8, 16, requires_grad=True)
    loss = isthmus.compile(program, backend=backend, options={"verify": "each-pass"}, fullgraph=True)(x, w)
    loss.backward()
    v = w.detach().clone().requires_grad_()
    program(x, v).backward()
    torch.testing.assert_close(w.grad, v.grad, rtol=1e-4, atol=1e-5)


def test_a_wrong_pass_is_named(monkeypatch: pytest.MonkeyPatch):
    class Wrong:
        name = "simplify"

        def __init__(self, inner):
            self.inner = inner

        def spec(self):
            return self.inner.spec()

        def apply(self, ctx, module):
            self.inner.apply(ctx, module)
            for op in module.walk():
                if op.name == "prim.exp":
                    op.results[0].replace_all_uses_with(op.operands[0])

    monkeypatch.setattr(lowering, "parse_pass", lambda t: Wrong(parse_pass(t)) if t == "simplify" else parse_pass(t))
    w = torch.randn(4, requires_grad=True)
    compiled = isthmus.compile(lambda w: w.exp().sum(), options={"verify": "each-pass"}, backend="interpret")
    with pytest.raises(CompileError, match="pass 'simplify' changed results"):
        compiled(w)
