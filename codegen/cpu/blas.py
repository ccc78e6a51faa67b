"""Contractions as BLAS calls on raw pointers: `prim.dot` of any dims, bias in the result first, batches at once.

BLAS is column-major and our results are row-major: C = A·B row by row is Cᵀ = Bᵀ·Aᵀ column by column, so the
operands change places and "not transposed" means that the last index is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from isthmus.codegen.cpu.frame import Frame
from isthmus.codegen.cpu.sizes import product
from isthmus.codegen.cpu.strided import Axis, copy_elements, folded, walk
from isthmus.codegen.llvm_text import I32, I64, PTR, Type, Value
from isthmus.dialects.product_views import broadcast
from isthmus.dialects.program import LibraryCall
from isthmus.sizes import Dim

PREFIX = {"f32": "s", "f64": "d"}
_SCALAR = {"f32": "float", "f64": "double"}


@dataclass(frozen=True)
class Gemm:
    """C[m, n] (+)= Σ_k A[m, k]·B[k, n], once for each point of the outer loops (size, strides in A, B, C)."""

    m: Dim
    n: Dim
    k: Dim
    a: tuple[Dim, Dim]
    b: tuple[Dim, Dim]
    c: Dim
    batch: tuple[Axis, ...]
    sums: tuple[Axis, ...]


def plan_gemm(call: LibraryCall) -> Gemm | None:
    """Find the matrix products that a `prim.dot` is made of; None where BLAS cannot read an operand as it lies."""
    a, b, *_ = call.operands
    (c,) = call.results
    literals = dict(cast("tuple[tuple[str, tuple[int, ...]], ...]", call.arguments))
    batch_a, batch_b = literals["batch_a"], literals["batch_b"]
    contract_a, contract_b = literals["contract_a"], literals["contract_b"]
    if a.dtype not in PREFIX or not (a.dtype == b.dtype == c.dtype):
        return None
    free_a = [d for d in range(len(a.shape)) if d not in (*batch_a, *contract_a)]
    free_b = [d for d in range(len(b.shape)) if d not in (*batch_b, *contract_b)]
    nb, na = len(batch_a), len(free_a)
    batch = [(a.shape[i], (a.strides[i], b.strides[j], c.strides[p])) for p, (i, j) in _numbered(batch_a, batch_b)]
    rows = [(a.shape[i], (a.strides[i], c.strides[nb + p])) for p, i in enumerate(free_a)]
    columns = [(b.shape[j], (b.strides[j], c.strides[nb + na + p])) for p, j in enumerate(free_b)]
    inner = [(a.shape[i], (a.strides[i], b.strides[j])) for i, j in zip(contract_a, contract_b, strict=True)]
    inner.sort(key=lambda axis: _order(axis[1][0]), reverse=True)
    rows, columns, inner = folded(rows), folded(columns), folded(inner)
    m, (am, cm) = rows[-1] if rows else (1, (1, 1))
    n, (bn, cn) = columns[-1] if columns else (1, (1, 1))
    k, (ak, bk) = inner[-1] if inner else (1, (1, 1))
    if not (_is_matrix((am, ak), (m, k)) and _is_matrix((bk, bn), (k, n))):
        return None
    if cn != 1 and n != 1:
        return None
    outer = [*batch, *((s, (x, 0, z)) for s, (x, z) in rows[:-1]), *((s, (0, y, z)) for s, (y, z) in columns[:-1])]
    sums = tuple((s, (x, y, 0)) for s, (x, y) in inner[:-1])
    return Gemm(m, n, k, (am, ak), (bk, bn), cm, tuple(folded(outer)), sums)


def _numbered(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, tuple[int, int]]]:
    return list(enumerate(zip(left, right, strict=True)))


def _is_matrix(strides: tuple[Dim, Dim], shape: tuple[Dim, Dim]) -> bool:
    """Tell whether BLAS can read a matrix as it lies: elements side by side one way, lines that do not overlap."""
    (outer, inner), (rows, columns) = strides, shape
    if inner == 1 or columns == 1:
        return rows == 1 or _covers(outer, columns)
    return (outer == 1 or rows == 1) and _covers(inner, rows)


def _covers(stride: Dim, length: Dim) -> bool:
    """Tell whether a step from line to line is known to be no shorter than a line; sizes are not negative."""
    if stride == length:
        return True
    if isinstance(stride, int):
        return isinstance(length, int) and stride >= length
    if isinstance(length, int):
        return all(c > 0 and c % max(length, 1) == 0 for _, c in stride.terms)
    if len(length.terms) != 1 or len(stride.terms) != 1:
        return False
    (least, factor), (atoms, times) = length.terms[0], stride.terms[0]
    return factor > 0 and times >= factor and all(atoms.count(a) >= least.count(a) for a in least)


def _order(stride: Dim) -> tuple[int, int]:
    """Unknown strides count as the larger ones."""
    return (0, stride) if isinstance(stride, int) else (1, 0)


def emit_gemm(frame: Frame, call: LibraryCall, gemm: Gemm) -> None:
    """Write the calls: one `gemm`, or one `gemm_batch` where several products are independent."""
    f = frame.f
    dtype = call.results[0].dtype
    literals = dict(cast("tuple[tuple[str, str], ...]", call.arguments))
    biased = literals.get("bias") is not None
    if biased and call.operands[2] != call.results[0]:  # a product may add to what is in its place
        copy_elements(frame, broadcast(call.operands[2], call.results[0]), call.results[0])
    bases = [frame.address(buffer) for buffer in (call.operands[0], call.operands[1], call.results[0])]
    writer = _Writer(frame, gemm, dtype)
    if gemm.batch and not gemm.sums:
        writer.batched(bases, 1.0 if biased else 0.0)
        return
    with walk(frame, gemm.batch, bases, dtype) as outer:
        if not gemm.sums:
            writer.single(outer, 1.0 if biased else 0.0)
        else:
            beta = f.slot(Type.of(_SCALAR[dtype]), align=8)
            f.store(f.const(1.0 if biased else 0.0, Type.of(_SCALAR[dtype])), beta)
            with walk(frame, gemm.sums, outer, dtype) as inner:
                writer.single(inner, beta)
                f.store(f.const(1.0, Type.of(_SCALAR[dtype])), beta)


class _Writer:
    """Writes the calls of one contraction: dimensions, leading dimensions and transpositions are the same in all."""

    def __init__(self, frame: Frame, gemm: Gemm, dtype: str) -> None:
        self._frame, self._dtype = frame, dtype
        self._scalar = Type.of(_SCALAR[dtype])
        self._m, self._n, self._k = (self._int(d) for d in (gemm.m, gemm.n, gemm.k))
        self._gemm = gemm
        # (letter, leading dimension) of A and B as row-major matrices
        self._a = self._layout(gemm.a, (gemm.m, gemm.k))
        self._b = self._layout(gemm.b, (gemm.k, gemm.n))
        self._ldc = self._leading(gemm.c if gemm.m != 1 else gemm.n, gemm.n)

    def _layout(self, strides: tuple[Dim, Dim], shape: tuple[Dim, Dim]) -> tuple[str, Value]:
        (outer, inner), (rows, columns) = strides, shape
        if inner == 1 or columns == 1:
            if columns == 1 and inner != 1 and outer == 1:
                return "T", self._leading(inner, rows)
            return "N", self._leading(outer if rows != 1 else columns, columns)
        return "T", self._leading(inner if columns != 1 else rows, rows)

    def _leading(self, stride: Dim, least: Dim) -> Value:
        f = self._frame.f
        value, floor = self._frame.size(stride), self._frame.size(least)
        if value.constant is not None and floor.constant is not None:
            return self._place(f.const(max(value.constant, floor.constant, 1), I64))
        one = f.const(1, I64)
        floor = f.select(f.compare("sgt", floor, one), floor, one)
        return self._place(f.select(f.compare("sgt", value, floor), value, floor))

    def _int(self, dim: Dim) -> Value:
        return self._place(self._frame.size(dim))

    def _place(self, value: Value) -> Value:
        """BLAS takes its integers (32 bits) by address."""
        if value.constant is not None:
            return self._frame.constant_array("i32", [str(value.constant)])
        slot = self._frame.f.slot(I32, align=4)
        self._frame.f.store(self._frame.f.cast("trunc", value, I32), slot)
        return slot

    def _number(self, value: float) -> Value:
        return self._frame.constant_array(self._scalar.text, [f"{value:.1f}"])

    def single(self, bases: Sequence[Value], beta: Value | float) -> None:
        f = self._frame.f
        a, b, c = bases
        (letter_a, lda), (letter_b, ldb) = self._a, self._b
        scale = beta if isinstance(beta, Value) else self._number(beta)
        letters = [self._frame.text(letter) for letter in (letter_b, letter_a)]
        f.call_void(
            f"{PREFIX[self._dtype]}gemm_",
            *letters,
            *(self._n, self._m, self._k, self._number(1.0)),
            *(b, ldb, a, lda, scale, c, self._ldc),
        )

    def batched(self, bases: Sequence[Value], beta: float) -> None:
        """Independent products in one call; BLAS spreads them over the threads."""
        frame, f = self._frame, self._frame.f
        count = frame.size(product(tuple(size for size, _ in self._gemm.batch)))
        pointers = f.call("malloc", PTR, count * 24)
        at = f.slot(I64, align=8)
        f.store(f.const(0, I64), at)
        with walk(frame, self._gemm.batch, bases, self._dtype) as point:
            index = f.load(at, I64)
            for k, address in enumerate(point):
                f.store(address, f.address(pointers, count * k + index, "ptr"))
            f.store(index + 1, at)
        arrays = [f.address(pointers, count * k, "ptr") for k in range(3)]
        letters = {"N": "111", "T": "112"}
        (letter_a, lda), (letter_b, ldb) = self._a, self._b
        group = f.slot(I32, align=4)
        f.store(f.cast("trunc", count, I32), group)
        f.call_void(
            f"cblas_{PREFIX[self._dtype]}gemm_batch",
            f.const(101, I32),
            *(frame.constant_array("i32", [letters[x]]) for x in (letter_a, letter_b)),
            *(self._m, self._n, self._k, self._number(1.0)),
            *(arrays[0], lda, arrays[1], ldb, self._number(beta), arrays[2], self._ldc),
            f.const(1, I32),
            group,
        )
        f.call_void("free", pointers)
