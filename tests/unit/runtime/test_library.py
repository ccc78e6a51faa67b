"""Library calls of native programs: which way they go, what they compute, how they fail."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch
from torch import Tensor

from isthmus.ir import contiguous_strides
from isthmus.runtime import library
from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.call import last_call_native
from isthmus.runtime.convention import Convention, UserOutput
from tests.unit.runtime.library_calls import DTYPES, Native, extern, library_operand


def dot_args(batch: object, contract: object, **more: object) -> object:
    (ba, bb), (ca, cb) = cast("tuple[tuple[object, object], ...]", (batch, contract))
    pairs = [("batch_a", ba), ("batch_b", bb), ("contract_a", ca), ("contract_b", cb), *more.items()]
    return tuple(pairs)


def einsum_of(a: Tensor, b: Tensor, batch: object, contract: object) -> Tensor:
    (ba, bb), (ca, cb) = cast("tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]", (batch, contract))
    letters = iter("abcdefghijklmnop")
    at, bt = [""] * a.dim(), [""] * b.dim()
    for i, j in zip((*ba, *ca), (*bb, *cb), strict=True):
        at[i] = bt[j] = next(letters)
    at = [x or next(letters) for x in at]
    bt = [x or next(letters) for x in bt]
    out = [at[i] for i in ba] + [x for d, x in enumerate(at) if d not in (*ba, *ca)]
    out += [x for d, x in enumerate(bt) if d not in (*bb, *cb)]
    exact = torch.complex128 if a.is_complex() else torch.float64
    wide = torch.einsum(f"{''.join(at)},{''.join(bt)}->{''.join(out)}", a.to(exact), b.to(exact))
    return wide.to(a.dtype)


CONTRACTIONS = {
    "matmul": ((5, 7), (7, 3), ((), ()), ((1,), (0,))),
    "linear": ((5, 7), (3, 7), ((), ()), ((1,), (1,))),
    "gradient of a weight": ((7, 5), (7, 3), ((), ()), ((0,), (0,))),
    "rows of a batch": ((2, 3, 7), (7, 4), ((), ()), ((2,), (0,))),
    "batch": ((4, 5, 7), (4, 7, 3), ((0,), (0,)), ((2,), (1,))),
    "attention": ((2, 3, 5, 7), (2, 3, 6, 7), ((0, 1), (0, 1)), ((3,), (3,))),
    "heads inside": ((2, 5, 3, 7), (2, 6, 3, 7), ((0, 2), (0, 2)), ((3,), (3,))),
    "two contracted": ((4, 5, 7), (5, 7, 3), ((), ()), ((1, 2), (0, 1))),
    "two contracted apart": ((5, 4, 7), (7, 3, 5), ((), ()), ((0, 2), (2, 0))),
    "outer product": ((5,), (3,), ((), ()), ((), ())),
    "inner product": ((5,), (5,), ((), ()), ((0,), (0,))),
    "matrix and vector": ((5, 7), (7,), ((), ()), ((1,), (0,))),
    "vector and matrix": ((7,), (7, 5), ((), ()), ((0,), (0,))),
    "free dims apart": ((3, 7, 4), (7, 5), ((), ()), ((1,), (0,))),
    "nothing contracted is there": ((5, 0), (0, 3), ((), ()), ((1,), (0,))),
    "single row": ((1, 7), (7, 1), ((), ()), ((1,), (0,))),
    "no rows": ((0, 7), (7, 3), ((), ()), ((1,), (0,))),
}


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i64", "c64"])
@pytest.mark.parametrize("name", list(CONTRACTIONS))
def test_contractions(name: str, dtype: str, native: Native) -> None:
    sa, sb, batch, contract = CONTRACTIONS[name]
    torch.manual_seed(0)
    a, b = ((torch.randn(s, dtype=torch.complex64).real * 3).to(DTYPES[dtype]) for s in (sa, sb))
    want = einsum_of(a, b, batch, contract)
    program = native(extern("prim.dot", dot_args(batch, contract), [a, b], [want]))
    (call,) = program.program.library_calls
    blas = dtype in ("f32", "f64") and name != "two contracted apart"  # there no operand can be read as a matrix
    assert call.route == "gemm" if blas else call.route in ("shim", "dispatcher")
    torch.testing.assert_close(program([a, b])[0], want)
    held = native(extern("prim.dot", dot_args(batch, contract), [a, b], [want], handle=True))
    torch.testing.assert_close(held([a, b])[0], want)


def test_contractions_of_any_strides(native: Native) -> None:
    """Random dims, permuted and sliced operands: what BLAS cannot read goes another way, never wrong."""
    rng = random.Random(1)
    routes: set[str] = set()
    for _ in range(60):
        count = [rng.randint(0, 2) for _ in range(4)]
        sizes = {
            f"{kind}{k}": rng.choice([1, 2, 3, 5]) for kind, n in zip("bmnk", count, strict=True) for k in range(n)
        }
        left = [d for d in sizes if d[0] in "bmk"]
        right = [d for d in sizes if d[0] in "bnk"]
        rng.shuffle(left)
        rng.shuffle(right)
        a, b = (_strided([sizes[d] for d in dims], rng) for dims in (left, right))
        pairs = [[(left.index(d), right.index(d)) for d in sizes if d[0] == kind] for kind in "bk"]
        batch, contract = ((tuple(i for i, _ in p), tuple(j for _, j in p)) for p in pairs)
        want = einsum_of(a, b, batch, contract)
        program = native(extern("prim.dot", dot_args(batch, contract), [a, b], [want]))
        routes |= {c.route for c in program.program.library_calls}
        torch.testing.assert_close(program([a, b])[0], want, msg=f"{a.shape} {a.stride()} {b.shape} {b.stride()}")
    assert "gemm" in routes and len(routes) > 1


def _strided(shape: Sequence[int], rng: random.Random) -> Tensor:
    order = list(range(len(shape)))
    rng.shuffle(order)
    steps = [rng.choice([1, 1, 2]) for _ in shape]
    base = torch.randn([shape[d] * steps[d] for d in order], dtype=torch.float64)
    sliced = base[tuple(slice(None, None, steps[d]) for d in order)]
    return sliced.permute([order.index(d) for d in range(len(shape))])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("bias_shape", [(3,), (1,), (5, 1), (4, 1, 3), ()])
def test_contraction_with_bias(dtype: str, bias_shape: tuple[int, ...], native: Native) -> None:
    torch.manual_seed(0)
    a, b, c = (torch.randn(s).to(DTYPES[dtype]) for s in ((4, 5, 7), (4, 7, 3), bias_shape))
    want = (torch.bmm(a.double(), b.double()) + c.double()).to(a.dtype)
    args = dot_args(((0,), (0,)), ((2,), (1,)), bias="c")
    program = native(extern("prim.dot", args, [a, b, c], [want]))
    for _ in range(2):
        torch.testing.assert_close(program([a, b, c])[0], want)


def test_views_of_operands_cost_nothing(native: Native) -> None:
    """x [B, T, H·E] seen as heads [B, H, T, E] and transposed."""
    x, y = torch.randn(2, 5, 12), torch.randn(2, 5, 12)
    heads = ((2, 3, 5, 4), (60, 4, 12, 1), 0)
    want = torch.einsum("bthe,bshe->bhts", x.view(2, 5, 3, 4), y.view(2, 5, 3, 4)).contiguous()
    args = dot_args(((0, 1), (0, 1)), ((3,), (3,)))
    program = native(extern("prim.dot", args, [x, y], [want], views=(heads, heads, None)))
    assert program.program.library_calls[0].route == "gemm"
    torch.testing.assert_close(program([x, y])[0], want)


CONV = (("strides", (2, 1)), ("padding", (1, 2)), ("dilations", (1, 2)), ("groups", 2))


@pytest.mark.parametrize("handle", [False, True])
def test_convolution_and_its_transposes(handle: bool, native: Native) -> None:
    x = torch.randn(2, 4, 9, 8, requires_grad=True)
    w = torch.randn(6, 2, 3, 3, requires_grad=True)
    y = torch.nn.functional.conv2d(x, w, None, (2, 1), (1, 2), (1, 2), 2)
    g = torch.randn_like(y)
    dx, dw = torch.autograd.grad(y, [x, w], g)
    x, w, y = x.detach(), w.detach(), y.detach()
    for symbol, inputs, want in (("conv", [x, w], y), ("conv_dx", [g, w], dx), ("conv_dw", [g, x], dw)):
        program = native(extern(f"prim.{symbol}", CONV, inputs, [want], handle=handle))
        assert program.program.library_calls[0].route == "dispatcher" and program.native
        for _ in range(2):
            torch.testing.assert_close(program(inputs)[0], want)


def test_results_of_another_layout_are_laid_out(native: Native) -> None:
    """A convolution of channels-last operands gives channels-last results; the program was promised row-major ones."""
    x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    w = torch.randn(3, 4, 3, 3).to(memory_format=torch.channels_last)
    want = torch.conv2d(x, w)
    args = (("strides", (1, 1)), ("padding", (0, 0)), ("dilations", (1, 1)), ("groups", 1))
    for handle in (False, True):
        (got,) = native(extern("prim.conv", args, [x, w], [want], handle=handle))([x, w])
        assert got.is_contiguous()
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("handle", [False, True])
def test_sort(handle: bool, native: Native) -> None:
    x = torch.tensor([[3.0, float("nan"), 1.0, 1.0], [0.0, -0.0, 5.0, -1.0]])
    want = x.sort(dim=1, descending=True, stable=True)
    program = native(extern("prim.sort", (("dim", 1), ("descending", True)), [x], list(want), handle=handle))
    values, index = program([x])
    torch.testing.assert_close(values, want.values, equal_nan=True)
    assert torch.equal(index, want.indices) and program.native


def test_attention(native: Native) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    scores = (q @ k.transpose(2, 3)) * 0.3
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    want = [scores.softmax(-1) @ v, scores.logsumexp(-1)]
    program = native(extern("prim.attention", (("scale", 0.3), ("causal", True)), [q, k, v], want))
    assert program.native
    torch.testing.assert_close(program([q, k, v]), want)


OPAQUE: dict[str, tuple[object, list[Tensor], Callable[..., object]]] = {}


def _opaque(name: str, args: object, inputs: list[Tensor], reference: Callable[..., object]) -> None:
    OPAQUE[name] = (args, inputs, reference)


def _fill_table() -> None:
    from isthmus.ir import Operand

    torch.manual_seed(0)
    a, b = Operand(0), Operand(1)
    x, m = torch.randn(4, 5), torch.randn(4, 4)
    _opaque("aten.cumsum.default", (a, 1, None), [x], lambda x: x.cumsum(1))
    _opaque("aten.cumsum.default ", (a, 0, "f64"), [x], lambda x: x.cumsum(0, dtype=torch.float64))
    _opaque("aten.topk.default", (a, 2, -1, True, True), [x], lambda x: x.topk(2))
    _opaque("aten._linalg_det.default", (a,), [m], lambda m: torch.ops.aten._linalg_det(m))
    _opaque("aten.linalg_inv_ex.default", (a, False), [m], lambda m: torch.linalg.inv_ex(m))
    _opaque("aten.split_with_sizes_copy.default", (a, (2, 3), 1), [x], lambda x: x.split([2, 3], 1))
    _opaque("aten.einsum.default", ("ij,ik->jk", (a, b), None), [x, x], lambda x, y: x.T @ y)
    _opaque(
        "aten.nan_to_num.default", (a, 1.0, None, 2.5), [x / x[:, :1].floor()], lambda x: x.nan_to_num(1.0, None, 2.5)
    )
    _opaque("aten.roll.default", (a, (1,), (0,)), [x], lambda x: x.roll(1, 0))
    _opaque("aten.index.Tensor", (a, (None, b)), [x, torch.tensor([0, 4])], lambda x, i: x[:, i])
    _opaque("aten._fft_c2c.default", (a, (1,), 0, True), [x.to(torch.complex64)], lambda x: torch.fft.fft(x))
    _opaque("aten.clone.default", (a, "contiguous_format"), [x.t()], lambda x: x.contiguous())
    _opaque(
        "aten.new_zeros.default", (a, (2, 3), "f64", "strided", "cpu", False), [x], lambda x: x.new_zeros(2, 3).double()
    )
    _opaque("aten.threshold.default", (a, 0.5, 2.0), [x], lambda x: torch.threshold(x, 0.5, 2.0))
    _opaque("aten.add.Tensor", (a, b, 2), [x, x], lambda x, y: x + 2 * y)
    image = torch.randn(1, 2, 6, 6)
    _opaque(  # its kernel takes no symbolic sizes
        "aten._upsample_bilinear2d_aa.default",
        (a, (3, 3), False, None, None),
        [image],
        lambda x: torch.ops.aten._upsample_bilinear2d_aa(x, [3, 3], False),
    )


_fill_table()


@pytest.mark.parametrize(("name", "handle"), list(itertools.product(OPAQUE, [False, True])))
def test_any_operator_by_name(name: str, handle: bool, native: Native) -> None:
    args, inputs, reference = OPAQUE[name]
    outcome = reference(*inputs)
    want = [outcome] if isinstance(outcome, Tensor) else list(cast("tuple[Tensor, ...]", outcome))
    inputs = [t.contiguous() if name != "aten.clone.default" else t for t in inputs]
    want = [w.contiguous() if w.dtype is not torch.int32 else w.to(torch.int32) for w in want]
    text = extern(name.strip(), args, inputs, want, handle=handle)
    program = native(text)
    (call,) = program.program.library_calls
    needs_python = name in ("aten.threshold.default", "aten.add.Tensor", "aten._upsample_bilinear2d_aa.default")
    assert call.route == ("python" if needs_python else "dispatcher")
    for _ in range(2):
        got = program(inputs)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, equal_nan=True)
            assert g.stride() == contiguous_strides(tuple(g.shape)) or g.numel() <= 1
    assert not needs_python or not program.native


def test_what_counts_as_native(native: Native) -> None:
    x = torch.randn(3, 4)
    allowed = native(extern("prim.dot", dot_args(((), ()), ((1,), (1,))), [x, x], [x @ x.T]))
    other = native(extern("aten.roll.default", (library_operand(0), (1,), (0,)), [x], [x]))
    python = native(extern("aten.threshold.default", (library_operand(0), 0.5, 2.0), [x], [x]))
    assert [p.native for p in (allowed, other, python)] == [True, False, False]
    for program, inputs in ((allowed, [x, x]), (other, [x]), (python, [x])):
        TapeNode(Convention(len(inputs), 1, (UserOutput("value", 0),)), program)(inputs)
        assert last_call_native() == program.native
    assert {"prim.dot", "prim.conv", "sort", "_fft_c2c", "convolution"} <= library.NATIVE


def test_result_that_would_share_an_operands_memory_is_copied(native: Native) -> None:
    x = torch.randn(3, 4)
    args = (library_operand(0), "f32", False, False, None)  # a conversion to the same dtype gives the tensor itself
    for route, name, arguments in (
        ("dispatcher", "aten.contiguous.default", (library_operand(0), "contiguous_format")),
        ("dispatcher", "aten.to.dtype", args),
    ):
        program = native(extern(name, arguments, [x], [x], handle=True))
        assert program.program.library_calls[0].route == route
        (got,) = program([x])
        assert torch.equal(got, x) and got.data_ptr() != x.data_ptr()
