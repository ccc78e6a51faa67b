"""The kernels that every model has: right, and no register spilled where there are 32 of them."""

from __future__ import annotations

import re

import named_kernels as named
import pytest
import torch
import torch.nn.functional as F
from run_kernel import compiled, parse

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.llvm_text import Module
from isthmus.codegen.targets import assembly, named_target
from isthmus.dialects import kernel as k

N, D = named.N, named.D


def close(result, wanted, tolerance=2e-6):
    scale = wanted.abs().max()
    assert (result - wanted).abs().max() <= tolerance * scale


def test_softmax():
    x = torch.randn(N, D)
    close(compiled(named.SOFTMAX)(x)[0], torch.softmax(x.double(), 1))


def test_layer_norm_and_its_gradient():
    x, w, b, g = torch.randn(N, D), torch.randn(D), torch.randn(D), torch.randn(N, D)
    inputs = [t.double().requires_grad_() for t in (x, w, b)]
    wanted = F.layer_norm(inputs[0], (D,), inputs[1], inputs[2])
    y, mean, scale = compiled(named.LAYER_NORM)(x, w, b)
    close(y, wanted)
    dx, dw, db = torch.autograd.grad(wanted, inputs, g.double())
    results = compiled(named.LAYER_NORM_BACKWARD)(x, w, g, mean, scale)
    close(results[0], dx)
    close(results[1].sum(0), dw)
    close(results[2].sum(0), db)


def test_gelu():
    x, b, r = torch.randn(N, D), torch.randn(D), torch.randn(N, D)
    close(compiled(named.GELU)(x, b, r)[0], F.gelu(x.double() + b) + r)


@pytest.mark.parametrize("name", ["SOFTMAX", "LAYER_NORM", "LAYER_NORM_BACKWARD", "GELU"])
@pytest.mark.parametrize("unroll", [1, 4])
def test_no_vector_register_is_spilled(name, unroll):
    target = named_target("x86-64-v4")
    (func,) = ir.functions(parse(getattr(named, name))).values()
    (kernel,) = k.launches(func)
    kernel.properties["unroll"] = ir.Literal.of(unroll)
    module = Module(vector_bits=target.vector_bits)
    emit_kernel(module, kernel, target)
    text = assembly(str(module), target)
    spills = re.findall(r"%zmm\d+, -?\d*\(%rsp\)", text)
    # A strip of kept values is on the stack too, but is addressed with an index.
    assert "zmm" in text and not spills
