"""Random numbers of kernels: the words that `prim.rng` names, whatever the loops, and what they look like together."""

from __future__ import annotations

import itertools

import pytest
import torch
from kernel_text import PARALLEL, ROW, function, tensor
from run_kernel import compiled, parse, same_bits

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.llvm_text import Module
from isthmus.codegen.targets import assembly, named_target
from isthmus.dialects import kernel as k
from isthmus.runtime import cpu
from isthmus.runtime.interpret_structured import philox

LENGTHS = [1, 3, 4, 5, 7, 16, 17, 64, 100]
DRAWS = [("uniform", "f32"), ("uniform", "f64"), ("uniform", "f16"), ("uniform", "bf16"), ("bits", "i64")]


def wanted(key: int, kind: str, dtype: str, first: int, count: int) -> torch.Tensor:
    """The numbers by their definition, one after the other."""
    made = []
    for q in range(first, first + count):
        served = 2 if dtype == "f64" else 4
        words = [int(w) for w in philox(key, torch.tensor([q // served]))]
        if kind == "bits":
            made.append(words[q % 4])
        elif dtype == "f64":
            w = 2 * (q % 2)
            made.append(((words[w] << 32 | words[w + 1]) >> 11) * 2.0**-53)
        else:
            n = {"f32": 24, "f16": 11, "bf16": 8}[dtype]
            made.append((words[q % 4] >> (32 - n)) * 2.0**-n)
    types = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
    return torch.tensor(made, dtype=types.get(dtype, torch.int64))


def draw(kind: str, dtype: str, rows: object, columns: object, index: str, classes: list[str], more: str = "") -> str:
    body = f"""
    %k = kernel.load {{operand = 0, map = []}} : i64
    %c = kernel.index {{map = [{index}]}} : i64
    %u = kernel.rng %k, %c {{kind = "{kind}"}} : {dtype}
    kernel.store %u {{result = 0, map = [d0, d1]}}"""
    shape = [rows, columns]
    given = [tensor([], "i64"), tensor(shape, "f32")]
    return function(given, [tensor(shape, dtype)], shape, classes, body, more=more)


@pytest.mark.row("M8")
@pytest.mark.parametrize("vector", [None, 0, 1])
@pytest.mark.parametrize(("kind", "dtype"), DRAWS)
def test_numbers_are_those_of_the_definition(kind: str, dtype: str, vector: int | None):
    classes = [PARALLEL, ROW] if vector != 0 else [PARALLEL, PARALLEL]
    key = 0x123456789ABCDEF
    for n, columns in enumerate(LENGTHS):
        offset = n % 6
        text = draw(kind, dtype, 3, columns, f"d0*{columns} + d1 + {offset}", classes)
        (got,) = compiled(text, vector=1 if vector == 0 else vector)(torch.tensor(key), torch.empty(3, columns))
        assert torch.equal(got.flatten(), wanted(key, kind, dtype, offset, 3 * columns))


@pytest.mark.parametrize("offset", range(6))
@pytest.mark.parametrize(("kind", "dtype"), DRAWS)
def test_offsets_unrolling_and_partitions_change_nothing(kind: str, dtype: str, offset: int):
    for classes, unroll in (([PARALLEL, ROW], 1 + offset % 3), ([PARALLEL, PARALLEL], 3 - offset % 3)):
        text = draw(kind, dtype, 5, 37, f"d0*37 + d1 + {offset + 4294967290}", classes)
        c = compiled(text, vector=1, unroll=unroll)
        inputs = torch.tensor(-3), torch.empty(5, 37)
        assert same_bits(c(*inputs), c.interpreted(*inputs))
        assert same_bits(c(*inputs, calls=3), c.interpreted(*inputs))


@pytest.mark.parametrize("classes", [[PARALLEL, ROW], [PARALLEL, PARALLEL]])
@pytest.mark.parametrize(("kind", "dtype"), DRAWS)
def test_symbolic_rows(kind: str, dtype: str, classes: list[str]):
    text = draw(kind, dtype, "s0", "s1", 'd0*<"s1"> + d1 + <"s0*4">', classes, ', symbols = ["s0", "s1"]')
    c = compiled(text, vector=1)
    for rows, columns in itertools.product((1, 2, 5), LENGTHS):
        inputs = torch.tensor(12345678901234567), torch.empty(rows, columns)
        assert same_bits(c(*inputs), c.interpreted(*inputs))


@pytest.mark.parametrize("index", ["d0 + d1*9", "d1*2 + d0", "d0*4 + d1 floordiv 4", "d0", "(d0*11 + d1) mod 32"])
@pytest.mark.parametrize(("kind", "dtype"), DRAWS)
def test_lanes_that_are_no_neighbours(kind: str, dtype: str, index: str):
    for classes in ([PARALLEL, ROW], [PARALLEL, PARALLEL]):
        c = compiled(draw(kind, dtype, 9, 11, index, classes), vector=1)
        inputs = torch.tensor(99), torch.empty(9, 11)
        assert same_bits(c(*inputs), c.interpreted(*inputs))


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_a_vector_multiplies_once_for_four_numbers(target: str):
    """20 products make 16 numbers with 256 bits: less than a tenth of what one counter a number would take."""
    text = draw("uniform", "f32", 8, 1024, "d0*1024 + d1", [PARALLEL, ROW], ", vector = 1")
    (func,) = ir.functions(parse(text)).values()
    module = Module()
    emit_kernel(module, k.launches(func)[0], named_target(target), "kernel")
    assert 16 <= assembly(str(module), named_target(target)).count("pmuludq") <= 20


def test_baseline_target_draws_the_same():
    for kind, dtype in DRAWS:
        for columns in (5, 16):
            text = draw(kind, dtype, 6, columns, f"d0*{columns} + d1", [PARALLEL, ROW])
            c = compiled(text, vector=1, target=cpu.baseline_target())
            inputs = torch.tensor(5), torch.empty(6, columns)
            assert same_bits(c(*inputs), c.interpreted(*inputs))


# ---- what they look like together


def stream(kind: str, dtype: str, count: int, key: int = 2**40 + 17) -> torch.Tensor:
    text = draw(kind, dtype, count // 4096, 4096, "d0*4096 + d1", [PARALLEL, ROW])
    (numbers,) = compiled(text, vector=1)(torch.tensor(key), torch.empty(count // 4096, 4096))
    return numbers.flatten()


def chi_square(counts: torch.Tensor) -> float:
    """(χ² - dof) / √(2 dof): about a standard normal number."""
    expected = float(counts.sum()) / counts.numel()
    dof = counts.numel() - 1
    return (float(((counts.double() - expected) ** 2).sum() / expected) - dof) / (2 * dof) ** 0.5


@pytest.mark.row("M8")
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_mean_and_variance(dtype: str):
    n = 1 << 18
    u = stream("uniform", dtype, n).double()
    step = {"f16": 2.0**-11, "bf16": 2.0**-8}.get(dtype, 0.0)  # multiples of the step: half of one is missing
    assert abs(float(u.mean()) - (1 - step) / 2) < 5 * (1 / 12 / n) ** 0.5
    assert abs(float(u.var()) - (1 - step**2) / 12) < 5 * (1 / 180 / n) ** 0.5
    assert float(u.min()) >= 0 and float(u.max()) < 1


@pytest.mark.row("M8")
def test_bytes_are_uniform_in_every_word():
    words = stream("bits", "i64", 1 << 18).view(-1, 4)
    for word, shift in itertools.product(range(4), (0, 8, 16, 24)):
        assert abs(chi_square(torch.bincount((words[:, word] >> shift) & 255, minlength=256))) < 5


@pytest.mark.row("M8")
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 8, 16, 4096])
def test_neighbours_are_independent(distance: int, dtype: str):
    """Pairs fall into the cells of a 16x16 grid equally often; so they do between draws of neighbouring keys."""
    u = stream("uniform", dtype, 1 << 18)
    cells = (u * 16).long()
    assert abs(chi_square(torch.bincount(cells[:-distance] * 16 + cells[distance:], minlength=256))) < 6
    if distance == 1:
        other = (stream("uniform", dtype, 1 << 18, key=2**40 + 18) * 16).long()
        assert abs(chi_square(torch.bincount(cells * 16 + other, minlength=256))) < 6
