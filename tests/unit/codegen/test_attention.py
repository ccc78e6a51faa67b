"""Attention kernels as machine code against float64: sizes, masks, shared heads, strides; no machine changes a bit."""

from __future__ import annotations

import ctypes
import math
import re
from dataclasses import dataclass

import pytest
import torch
from run_kernel import TORCH, native, parse, same_bits

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.llvm_text import Module
from isthmus.codegen.targets import assembly, named_target
from isthmus.dialects import kernel as k
from isthmus.ir import Literal
from isthmus.passes.memory.attention_schedule import schedule_attention
from isthmus.runtime import cpu, interpret
from isthmus.sizes import evaluate


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@dataclass(frozen=True)
class Case:
    """Sizes and options of an attention."""

    batch: int = 2
    heads: int = 2
    shared: int = 2
    queries: int = 16
    keys: int = 16
    width: int = 8
    tall: int = 8
    causal: bool = False
    mask: str = ""
    fill: float | None = None
    empty: bool = False
    dtype: str = "f32"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        b, h, g, n, m = self.batch, self.heads, self.shared, self.queries, self.keys
        return {
            "q": (b, h, n, self.width),
            "k": (b, g, m, self.width),
            "v": (b, g, m, self.tall),
            "o": (b, h, n, self.tall),
            "delta": (b, h, n),
            "lse": (2, b, h, n) if self.mask == "add" or self.fill is not None else (b, h, n),
            "mask": (b, h, n, m),
        }

    def type(self, name: str) -> str:
        dtype = "i1" if name == "mask" and self.mask == "bool" else self.dtype
        return f"tensor<{'x'.join(map(str, self.shapes[name]))}x{dtype}>"

    def text(self, backward: bool) -> str:
        fill = "" if self.fill is None else f", fill = {self.fill!r}"
        empty = ', empty = "nan"' if self.empty else ""
        literals = f"{{scale = 0.25, causal = {str(self.causal).lower()}{empty}{fill}}}"
        names = ["o", "q", "k", "v", "delta", "lse"] if backward else ["q", "k", "v"]
        names += ["mask"] if self.mask else []
        results = ["q", "k", "v"] if backward else ["o", "lse"]
        types = ", ".join(map(self.type, results))
        given = ", ".join(f"%a{i}: {self.type(n)}" for i, n in enumerate(names))
        used = ", ".join(f"%a{i}" for i in range(len(names)))
        made = ", ".join(f"%r{i}" for i in range(len(results)))
        op = "kernel.attention_bwd" if backward else "kernel.attention"
        return (
            f"func.func @f({given}) -> ({types}) {{\n"
            f"  {made} = {op} {used} {literals} : {types}\n  func.return {made} : {types}\n}}"
        )

    def inputs(self) -> dict[str, torch.Tensor]:
        found = {n: torch.randn(self.shapes[n], dtype=TORCH[self.dtype]) for n in ("q", "k", "v", "o")}
        if self.mask == "bool":
            found["mask"] = torch.rand(self.shapes["mask"]) > 0.4
            found["mask"][:, :, ::5] = False
        elif self.mask == "add":
            found["mask"] = torch.randn(self.shapes["mask"], dtype=TORCH[self.dtype])
            found["mask"][:, :, ::5] -= 32
        return found


class Kernel:
    """One direction, scheduled and compiled."""

    def __init__(self, text: str, bits: int | None = None, **attributes: object) -> None:
        target = cpu.host_target()
        (self.func,) = ir.functions(parse(text)).values()
        (self.op,) = k.launches(self.func)
        schedule_attention(self.op, bits or target.vector_bits, cores=1)
        for name, value in attributes.items():
            self.op.properties[name] = Literal.of(value)
        self.text, self.loaded = native(self.op, target)

    def __call__(self, *inputs: torch.Tensor, calls: int = 1) -> list[torch.Tensor]:
        sizes = interpret.bind_symbols(self.func, list(inputs))
        shapes = [[evaluate(d, sizes) for d in ir.shape_of(r)] for r in self.op.results]
        results = [
            torch.full(shape, math.nan, dtype=TORCH[ir.dtype_of(r)])
            for shape, r in zip(shapes, self.op.results, strict=True)
        ]
        held = [*(x.contiguous() for x in inputs), *results]
        buffers = (ctypes.c_void_p * len(held))(*[t.data_ptr() for t in held])
        symbols = (ctypes.c_int64 * 8)(*[sizes[n] for n in self.op.symbols_])
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
            self.loaded["kernel"]
        )
        count = evaluate(self.op.partitions_ or 1, sizes)
        for n in range(calls):
            run(buffers, symbols, n * count // calls, (n + 1) * count // calls)
        return results


def truth(case: Case, given: dict[str, torch.Tensor]):
    """Output, log-sums and gradients in float64, as softmax by hand gives them."""
    q, key, v = (given[n].double().requires_grad_() for n in ("q", "k", "v"))
    shared = [t.repeat_interleave(case.heads // case.shared, 1) for t in (key, v)]
    s = q @ shared[0].mT * 0.25
    if case.mask == "bool":
        s = s.masked_fill(~given["mask"], -math.inf if case.fill is None else case.fill)
    elif case.mask == "add":
        s = s + given["mask"].double()
    if case.causal:
        s = s.masked_fill(torch.ones(case.queries, case.keys).triu(1).bool(), -math.inf)
    p = s.softmax(-1)
    p = p if case.empty else torch.where(p.isnan(), 0.0, p)
    o = p @ shared[1]
    gradients = torch.autograd.grad(o, (q, key, v), given["o"].double())
    top = s.detach().amax(-1).clamp(min=-1e300)
    lse = s.logsumexp(-1)
    if len(case.shapes["lse"]) == 4:
        lse = torch.stack([top, (s - top[..., None]).logsumexp(-1)])
    return o, lse, gradients


def run(case: Case, **attributes: object) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What both kernels give, beside the truth."""
    given = case.inputs()
    o, lse, gradients = truth(case, given)
    mask = [given["mask"]] if case.mask else []
    forward = Kernel(case.text(False), **attributes)
    found = forward(given["q"], given["k"], given["v"], *mask)
    delta = (given["o"] * torch.nan_to_num(found[0])).sum(-1)
    backward = Kernel(case.text(True), **attributes)
    back = backward(given["o"], given["q"], given["k"], given["v"], delta, found[1], *mask)
    return list(zip([*found, *back], [o, lse, *gradients], strict=True))


CASES = {
    "square": Case(queries=64, keys=64, width=32, tall=32),
    "one query": Case(queries=1, keys=300, width=64, tall=64),
    "one key": Case(queries=5, keys=1),
    "blocks": Case(queries=200, keys=97, width=16, tall=16),
    "ragged": Case(batch=1, queries=101, keys=133, width=33, tall=7),
    "causal": Case(queries=193, keys=193, width=64, tall=64, causal=True),
    "causal, wide": Case(queries=50, keys=130, causal=True),
    "causal, tall": Case(queries=130, keys=50, causal=True),
    "shared heads": Case(heads=6, shared=2, queries=100, keys=40, causal=True),
    "booleans": Case(queries=70, keys=110, mask="bool"),
    "booleans, NaN where empty": Case(queries=70, keys=110, mask="bool", empty=True),
    "filled": Case(queries=70, keys=110, mask="bool", fill=-1e9, empty=True),
    "added": Case(queries=110, keys=70, mask="add", empty=True),
    "added, causal": Case(queries=110, keys=110, mask="add", causal=True, shared=1),
}


IN_DOUBLE = ("ragged", "causal", "shared heads", "filled", "added")


@pytest.mark.parametrize("name,dtype", [*((n, "f32") for n in CASES), *((n, "f64") for n in IN_DOUBLE)])
def test_both_directions_are_as_accurate_as_the_dtype(name: str, dtype: str) -> None:
    case = Case(**{**CASES[name].__dict__, "dtype": dtype})
    epsilon = torch.finfo(TORCH[dtype]).eps
    for got, wanted in run(case):
        assert torch.equal(got.isnan(), wanted.isnan())
        infinite = wanted.isinf()
        assert torch.equal(got.isinf(), infinite)
        finite = ~(infinite | wanted.isnan())
        bound = 32 * epsilon * (1 + wanted[finite].abs().max()) if finite.any() else 0
        assert bool(((got[finite].double() - wanted[finite]).abs() <= bound).all())


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_neither_vectors_nor_the_cut_change_a_bit(bits: int) -> None:
    case = Case(heads=3, shared=1, queries=110, keys=130, width=24, tall=40, causal=True)
    given = case.inputs()
    whole = Kernel(case.text(False), 256)(given["q"], given["k"], given["v"])
    other = Kernel(case.text(False), bits)
    assert same_bits(other(given["q"], given["k"], given["v"], calls=3), whole)
    rest = [given["o"], given["q"], given["k"], given["v"], (given["o"] * whole[0]).sum(-1), whole[1]]
    assert same_bits(Kernel(case.text(True), bits)(*rest, calls=2), Kernel(case.text(True), 256)(*rest))


@pytest.mark.parametrize("mask", ["", "bool"])
def test_units_of_few_heads_change_no_bit(mask: str) -> None:
    case = Case(batch=1, heads=4, shared=2, queries=210, keys=130, width=24, tall=40, causal=True, mask=mask)
    given = case.inputs()
    masks = [given["mask"]] if mask else []
    o, lse = Kernel(case.text(False))(given["q"], given["k"], given["v"], *masks)
    rest = [given["o"], given["q"], given["k"], given["v"], (given["o"] * o).sum(-1), lse, *masks]
    split = Kernel(case.text(True), split=True, partitions=7)
    assert same_bits(split(*rest, calls=3), Kernel(case.text(True))(*rest))


def test_few_heads_are_split_where_there_are_many_cores() -> None:
    (func,) = ir.functions(parse(Case(batch=1, heads=2, queries=300, keys=300).text(True))).values()
    (op,) = k.launches(func)
    for cores, partitions in ((2, 2), (8, 2 * 4 + 2 * 4)):
        schedule_attention(op, 256, cores)
        assert op.partitions_ == partitions


def test_sizes_may_be_known_at_the_call() -> None:
    lit = '#isthmus.lit<[2, <"h">, <"n">, 8]>'
    q, row = f"tensor<2x?x?x8xf32, {lit}>", 'tensor<2x?x?xf32, #isthmus.lit<[2, <"h">, <"n">]>>'
    kernel = Kernel(
        f"func.func @f(%q: {q}, %k: {q}, %v: {q}) -> ({q}, {row}) {{\n"
        f"  %o, %l = kernel.attention %q, %k, %v {{scale = 0.25, causal = false}} : {q}, {row}\n"
        f"  func.return %o, %l : {q}, {row}\n}}"
    )
    for heads, n in ((1, 1), (3, 100), (2, 0)):
        x = [torch.randn(2, heads, n, 8) for _ in range(3)]
        o, _ = kernel(*x)
        torch.testing.assert_close(o, (x[0] @ x[1].mT * 0.25).softmax(-1) @ x[2], rtol=1e-5, atol=1e-5)


def test_operands_are_read_as_they_lie() -> None:
    """Queries, keys and values side by side in one buffer, the heads inside; the output lies like the queries."""
    view = "[[2, 4, 60, 16], [11520, 16, 192, 1], {}]"
    views = ", ".join([view.format(i * 64) for i in range(3)] + ["none", "none"])
    x, o, row = "tensor<2x60x192xf32>", "tensor<2x4x60x16xf32>", "tensor<2x4x60xf32>"
    text = (
        f"func.func @f(%x: {x}) -> ({o}, {row}) {{\n"
        f"  %o, %l = kernel.attention %x, %x, %x {{scale = 0.25, causal = true, views = [{views}],"
        f" layouts = [[3840, 16, 64, 1], none]}} : {o}, {row}\n  func.return %o, %l : {o}, {row}\n}}"
    )
    given = torch.randn(2, 60, 192)
    kernel = Kernel(text)
    buffers = [given, given[..., 64:], given[..., 128:], torch.empty(2, 60, 4, 16), torch.empty(2, 4, 60)]
    pointers = (ctypes.c_void_p * 5)(*[t.data_ptr() for t in buffers])
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    run(kernel.loaded["kernel"])(pointers, None, 0, kernel.op.partitions_)
    q, key, v = given.view(2, 60, 3, 4, 16).permute(2, 0, 3, 1, 4)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, key, v, is_causal=True, scale=0.25)
    torch.testing.assert_close(buffers[3].transpose(1, 2), wanted, rtol=1e-5, atol=1e-5)
    (interpreted, _) = interpret.run(kernel.func, [given])
    torch.testing.assert_close(interpreted, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level,bits,register", [("x86-64-v3", 256, "ymm"), ("x86-64-v4", 512, "zmm")])
def test_sums_of_products_stay_in_registers(level: str, bits: int, register: str) -> None:
    case = Case(queries=128, keys=128, width=64, tall=64)
    (func,) = ir.functions(parse(case.text(False))).values()
    (op,) = k.launches(func)
    schedule_attention(op, bits, cores=1)
    module, target = Module(vector_bits=bits), named_target(level)
    emit_kernel(module, op, target, "kernel")
    products = re.findall(r"^kernel_product\d+:.*?\.Lfunc_end", assembly(str(module), target), re.S | re.M)
    assert len(products) == 2
    for text in products:
        assert re.search(rf"vfmadd\w+\s.*%{register}", text)
        assert not re.search(rf"%{register}\d+, -?\d*\(%rsp\)", text)
