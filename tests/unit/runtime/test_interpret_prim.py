from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from xdsl.ir import SSAValue

from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.runtime.interpret import run
from isthmus.runtime.interpret_structured import philox
from isthmus.runtime.interpret_table import TABLE
from tests.unit.runtime.interpreted import build, compute, same

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.5, 3.5, math.inf, -math.inf, math.nan, 1e-40, 1e30]


def special(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x = torch.tensor(SPECIAL, dtype=dtype)
    a, b = torch.meshgrid(x, x, indexing="ij")
    return a.reshape(-1).contiguous(), b.reshape(-1).contiguous()


def test_every_primitive_is_in_the_table():
    run(build([], lambda e: e.const(1.0)), [])
    assert [op for op in prim.PRIM_OPS if op is not prim.YieldOp and op not in TABLE] == []


def test_special_values_of_elementwise_ops():
    a, b = special()
    nan = torch.isnan(a) | torch.isnan(b)
    (largest,) = compute(lambda e, a, b: e.max(a, b), a, b)
    assert torch.equal(torch.isnan(largest), nan)
    (smallest,) = compute(lambda e, a, b: e.min(a, b), a, b)
    assert torch.equal(torch.isnan(smallest), nan)
    (sign,) = compute(lambda e, a, b: e.sign(a), a, b)
    same(sign, (a > 0).float() - (a < 0).float())
    (relu,) = compute(lambda e, a, b: e.relu(a), a, b)
    same(relu, torch.where(a < 0, torch.zeros(()), a))
    assert torch.equal(torch.signbit(relu), torch.signbit(a) & ((a == 0) | torch.isnan(a)))
    (rounded,) = compute(lambda e, a, b: e.round(a), a, b)
    assert rounded[a == 2.5].eq(2.0).all() and rounded[a == 3.5].eq(4.0).all()
    (holds,) = compute(lambda e, a, b: e.cmp("ne", a, b), a, b)
    assert holds[nan].all()
    for predicate in ("eq", "lt", "le", "gt", "ge"):
        (holds,) = compute(lambda e, a, b, p=predicate: e.cmp(p, a, b), a, b)
        assert not holds[nan].any()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_shifts_of_any_width(dtype: torch.dtype):
    width = dtype.itemsize * 8
    amounts = torch.tensor([0, 1, width - 1, width, width + 3, 100]).to(dtype)
    values = torch.tensor([1, 3, -1 if dtype.is_signed else 255, 100]).to(dtype)
    a, b = (t.reshape(-1).contiguous() for t in torch.meshgrid(values, amounts, indexing="ij"))
    left, right = compute(lambda e, a, b: (e.binary(prim.ShlOp, a, b), e.binary(prim.ShrOp, a, b)), a, b)

    def wrapped(n: int) -> int:
        n %= 2**width
        return n - 2**width if dtype.is_signed and n >= 2 ** (width - 1) else n

    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    assert left.tolist() == [wrapped(x << s) if s < width else 0 for x, s in pairs]
    assert right.tolist() == [x >> s for x, s in pairs]


def test_integer_division_rounds_toward_zero_and_refuses_zero():
    a, b = torch.tensor([7, -7, 7, -7]), torch.tensor([2, 2, -2, -2])
    quotient, rest = compute(lambda e, a, b: (e.div(a, b), e.rem(a, b)), a, b)
    assert quotient.tolist() == [3, -3, -3, 3] and rest.tolist() == [1, -1, 1, -1]
    for op in (prim.DivOp, prim.RemOp):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compute(lambda e, a, b, op=op: e.binary(op, a, b), a, torch.zeros_like(b))


def test_conversions():
    x = torch.tensor([1.9, -1.9, 0.0, 0.3, 257.0])
    (whole,) = compute(lambda e, x: e.convert(x, "i32"), x)
    assert whole.tolist() == [1, -1, 0, 0, 257]
    (truth,) = compute(lambda e, x: e.convert(x, "i1"), x)
    assert truth.tolist() == [True, True, False, True, True]
    (narrow,) = compute(lambda e, x: e.convert(x, "bf16"), x)
    assert narrow.tolist()[-1] == 256.0  # ties to even
    (narrow,) = compute(lambda e, x: e.convert(x, "i1"), torch.tensor([1j, 0j]))
    assert narrow.tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_fma_rounds_once(dtype: torch.dtype):
    from fractions import Fraction

    torch.manual_seed(0)
    a, b, c = (torch.randn(300, dtype=torch.float64).to(dtype) for _ in range(3))
    c[:150] = -(a * b)[:150]  # cancellation: the rounding of the product shows
    (y,) = compute(lambda e, a, b, c: e.fma(a, b, c), a, b, c)

    def rounded(value: Fraction, near: float) -> float:
        eps = torch.finfo(dtype).eps
        candidates = {torch.tensor(near * (1 + k * eps), dtype=dtype).item() for k in (-2, -1, 0, 1, 2)}
        return min(candidates, key=lambda n: abs(Fraction(n) - value))

    for p, q, r, s in zip(a.tolist(), b.tolist(), c.tolist(), y.tolist(), strict=True):
        exact = Fraction(p) * Fraction(q) + Fraction(r)
        best = rounded(exact, float(exact))
        assert abs(Fraction(s) - exact) <= abs(Fraction(best) - exact), (p, q, r)


def test_movement():
    x = torch.arange(24.0).reshape(2, 3, 4)
    same(
        compute(lambda e, x: e.broadcast(x, (4, 5, 3, 2), (3, 2, 0)), x)[0],
        x.permute(2, 1, 0)[:, None].expand(4, 5, 3, 2),
    )
    same(compute(lambda e, x: e.transpose(x, (2, 0, 1)), x)[0], x.permute(2, 0, 1))
    same(compute(lambda e, x: e.slice(x, 2, 1, 4, 2), x)[0], x[:, :, 1:4:2])
    padded = compute(lambda e, x: e.pad(x, 1, 2, 1, 1, 7.0), x)[0]
    expected = torch.full((2, 8, 4), 7.0)
    expected[:, 2:7:2] = x
    same(padded, expected)
    same(compute(lambda e, x: e.reverse(x, (0, 2)), x)[0], x.flip(0, 2))
    same(compute(lambda e, x: e.concat([x, x], 1), x)[0], torch.cat([x, x], 1))
    same(compute(lambda e: e.iota((2, 3), 1, "f32"))[0], torch.arange(3.0).expand(2, 3))


def test_gather_and_scatter_follow_their_formulas():
    torch.manual_seed(0)
    x = torch.randn(4, 5, 3)
    i, j = torch.randint(0, 3, (2, 2)), torch.randint(0, 4, (2, 2))
    (y,) = compute(lambda e, x, i, j: e.gather(x, [i, j], (2, 0)), x, i, j)
    same(y, x.permute(2, 0, 1)[i, j])
    for kind in ("set", "add", "mul", "max", "min"):
        u = torch.randn(2, 2, 5)
        (z,) = compute(lambda e, x, u, i, j, k=kind: e.scatter(x, u, [i, j], (2, 0), k), x, u, i, j)
        expected = x.clone()
        for p in range(2):
            for q in range(2):
                at = expected[j[p, q], :, i[p, q]]
                new = {
                    "set": u[p, q],
                    "add": at + u[p, q],
                    "mul": at * u[p, q],
                    "max": torch.maximum(at, u[p, q]),
                    "min": torch.minimum(at, u[p, q]),
                }[kind]
                expected[j[p, q], :, i[p, q]] = new
        same(z, expected)


@pytest.mark.parametrize("bad", [4, -1])
def test_an_index_out_of_range_is_an_index_error(bad: int):
    x, i = torch.randn(4, 2), torch.tensor([0, bad])
    with pytest.raises(IndexError, match=f"index {bad} is out of bounds for dimension 0 with size 4"):
        compute(lambda e, x, i: e.gather(x, [i], (0,)), x, i)
    with pytest.raises(IndexError):
        compute(lambda e, x, u, i: e.scatter(x, u, [i], (0,), "set"), x, torch.zeros(2, 2), i)


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
def test_reductions_of_nothing_give_the_identity(kind: str):
    x = torch.zeros(3, 0)
    (y,) = compute(lambda e, x: e.reduce(kind, x, (1,)), x)
    same(y, torch.full((3,), {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}[kind]))


def test_reductions_keep_dtypes_and_nan():
    x = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int8)
    total, product, both = compute(
        lambda e, x: (e.reduce("add", x, (0, 1)), e.reduce("mul", x, (1,)), e.reduce("and", x, (0,))), x
    )
    assert (total.dtype, total.item()) == (torch.int8, 21)
    assert product.tolist() == [6, 120] and both.tolist() == [0, 0, 2]
    y = torch.tensor([1.0, math.nan, 3.0, math.nan])
    high, low, where = compute(
        lambda e, y: (e.reduce("max", y, (0,)), e.reduce("min", y, (0,)), e.arg_reduce("min", y, 0)), y
    )
    assert high.isnan() and low.isnan() and where.item() == 1
    (running,) = compute(lambda e, y: e.cumulative("max", y, 0, True), torch.tensor([1.0, 3.0, 2.0]))
    assert running.tolist() == [3.0, 3.0, 2.0]


def test_windows_agree_with_torch():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 8)
    x[0, 0, 2, 2] = math.nan
    x[0, 1] = -math.inf
    literals = dict(dims=(2, 3), window=(3, 2), strides=(2, 1), low=(1, 0), high=(1, 0), dilations=(1, 2))
    y, index = compute(lambda e, x: e.max_pool(x, **literals), x)
    expected, where = F.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2), return_indices=True)
    same(y, expected)
    same(index, where)
    (total,) = compute(lambda e, x: e.reduce_window("add", x, **literals), x.nan_to_num(0.0, 0.0, 0.0))
    ones = torch.ones(3, 1, 3, 2)
    torch.testing.assert_close(
        total, F.conv2d(x.nan_to_num(0.0, 0.0, 0.0), ones, None, (2, 1), (1, 0), (1, 2), groups=3)
    )


def test_sorting_is_stable():
    x = torch.tensor([2.0, 1.0, math.nan, 1.0, 2.0])
    y, index = compute(lambda e, x: e.sort(x, 0), x)
    assert index.tolist() == [1, 3, 0, 4, 2] and y[-1].isnan()
    y, index = compute(lambda e, x: e.sort(x, 0, True), x)
    assert index.tolist() == [2, 0, 4, 1, 3]


def test_contractions_agree_with_torch():
    torch.manual_seed(0)
    a, b = torch.randn(3, 4, 5, 2, dtype=torch.float64), torch.randn(5, 6, 3, 2, dtype=torch.float64)
    (y,) = compute(lambda e, a, b: e.dot(a, b, ((2, 3), (0, 3)), ((0,), (2,))), a, b)
    torch.testing.assert_close(y, torch.einsum("bmkl,knbl->bmn", a, b))
    x, w = torch.randn(2, 4, 9, dtype=torch.float64), torch.randn(6, 2, 3, dtype=torch.float64)
    x.requires_grad_()
    w.requires_grad_()
    expected = F.conv1d(x, w, None, 2, 1, 2, 2)
    g = torch.randn_like(expected)
    dx, dw = torch.autograd.grad(expected, (x, w), g)
    literals = dict(strides=(2,), padding=(1,), dilations=(2,), groups=2)
    y, ex, ew = compute(
        lambda e, x, w, g: (
            e.conv(x, w, **literals),
            e.conv_dx(g, w, (2, 4, 9), **literals),
            e.conv_dw(g, x, (6, 2, 3), **literals),
        ),
        x.detach(),
        w.detach(),
        g,
    )
    for actual, wanted in ((y, expected.detach()), (ex, dx), (ew, dw)):
        torch.testing.assert_close(actual, wanted)


def test_structured_ops_agree_with_torch():
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    mean, var = compute(lambda e, x: e.moments(x, (0, 2)), x)
    torch.testing.assert_close((var, mean), torch.var_mean(x, (0, 2), unbiased=False))
    logits, target = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 4, -100, 2, 1, -100])
    loss, lse = compute(lambda e, x, t: e.cross_entropy(x, t, -100), logits, target)
    torch.testing.assert_close(loss, F.cross_entropy(logits, target, reduction="none"))
    torch.testing.assert_close(lse, logits.logsumexp(1))
    with pytest.raises(IndexError, match="Target 5 is out of bounds"):
        compute(lambda e, x, t: e.cross_entropy(x, t, -100), logits, torch.full((6,), 5))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_and_its_backward(causal: bool, masked: bool):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 4, dtype=torch.float64, requires_grad=True) for n in (3, 5, 5))
    mask = torch.randn(2, 2, 3, 5, dtype=torch.float64)
    mask[0, 0, 1] = -math.inf  # a row without keys
    mask[1, 1, 2, 1] = -math.inf
    if not masked:
        mask = torch.zeros_like(mask)
    scores = (q @ k.mT) * 0.3 + mask
    if causal:
        scores = scores.masked_fill(torch.ones(3, 5, dtype=torch.bool).triu(1), -math.inf)
    expected = torch.softmax(scores, -1).nan_to_num(0.0) @ v
    g = torch.randn_like(expected)

    def body(e: Emitter, q: SSAValue, k: SSAValue, v: SSAValue, g: SSAValue, m: SSAValue):
        o, lse = e.attention(q, k, v, m if masked else None, 0.3, causal)
        delta = e.sum(e.mul(g, o), (3,))
        return (o, lse, *e.attention_bwd(g, q, k, v, delta, lse, m if masked else None, 0.3, causal))

    o, lse, *gradients = compute(body, q.detach(), k.detach(), v.detach(), g, mask)
    torch.testing.assert_close(o, expected.detach())
    if masked:  # numbers are added: the maxima, and what log-sums are beyond them
        top = scores.detach().amax(-1)
        torch.testing.assert_close(lse[0], torch.where(top.isneginf(), 0, top))
        lse = lse[0] + lse[1]
    torch.testing.assert_close(lse, scores.detach().logsumexp(-1))
    if masked:  # torch's softmax makes NaN gradients in the empty row: there they are 0
        keep = torch.ones(2, 2, 3, 1, dtype=torch.float64)
        keep[0, 0, 1] = 0
        safe = torch.where(torch.isneginf(scores).all(-1, keepdim=True), torch.zeros_like(scores), scores)
        expected = (torch.softmax(safe, -1) * keep) @ v
    wanted = torch.autograd.grad(expected, (q, k, v), g)
    for actual, gradient in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(actual, gradient)


def test_philox_gives_the_published_words():
    """Known answers of the Random123 distribution for philox4x32-10, and of a plain integer implementation."""
    words = philox(0, torch.tensor([0]))
    assert [f"{int(w):08x}" for w in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]

    def plain(key: int, counter: int) -> list[int]:
        m, c, k = (
            0xFFFFFFFF,
            [counter & 0xFFFFFFFF, counter >> 32 & 0xFFFFFFFF, 0, 0],
            [key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF],
        )
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(q >> 32) ^ c[1] ^ k[0], q & m, (p >> 32) ^ c[3] ^ k[1], p & m]
            k = [(k[0] + 0x9E3779B9) & m, (k[1] + 0xBB67AE85) & m]
        return c

    for key, counter in ((-1, 5), (2**63 - 1, 2**40 + 3), (123456789, 2**32 - 1)):
        assert [int(w) for w in philox(key, torch.tensor([counter]))] == plain(key % 2**64, counter)


@pytest.mark.parametrize(("dtype", "bits"), [("f64", 53), ("f32", 24), ("f16", 11), ("bf16", 8)])
def test_uniform_numbers(dtype: str, bits: int):
    key = torch.tensor(-7)
    (y,) = compute(lambda e, k: e.rng(k, "uniform", 3, (50, 40), dtype), key)
    (w,) = compute(lambda e, k: e.rng(k, "bits", 3, (50, 40), "i64"), key)
    if dtype == "f64":  # two words a number: those of twice the position
        (w,) = compute(lambda e, k: e.rng(k, "bits", 6, (50, 40, 2), "i64"), key)
        w = w[..., 0]
    assert y.min() >= 0 and y.max() < 1 and abs(y.double().mean() - 0.5) < 0.02
    assert torch.equal((y.double() * 2.0**bits).frac(), torch.zeros(50, 40, dtype=torch.float64))
    assert torch.equal((y.double() * 2.0 ** min(bits, 32)).long(), w >> (32 - min(bits, 32)))
    (tail,) = compute(lambda e, k: e.rng(k, "uniform", 3 + 40, (49, 40), dtype), key)
    assert torch.equal(tail, y[1:])
