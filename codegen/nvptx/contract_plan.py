"""What the code of a contraction on a GPU is made from: its factors and results as matrices in memory, its tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.codegen.cpu.pack import sliced
from isthmus.codegen.cpu.plan import Access, Plan
from isthmus.codegen.nvptx.plan import ALIGNMENT, bytes_aligned, factor
from isthmus.codegen.nvptx.tensor_cores import ROW_BYTES
from isthmus.diagnostics import IRError, UnsupportedError
from isthmus.dialects import kernel as k
from isthmus.dialects.kernel import Expr
from isthmus.dialects.program import TensorMap
from isthmus.sizes import Dim

DTYPES = ("bf16", "f16")
"""Of 16 bits, what tensor cores multiply here, summed in f32."""
TF32 = "f32"
"""Multiplied in TF32, where the product allows that, and both factors run along k in memory."""
PAIR = 2
"""Neighbours of a row of the result that one thread holds."""
MOST_MAP_DIMS = 5


@dataclass(frozen=True)
class Matrix:
    """An operand or a result as memory: an affine position in elements, counted from the kernel's start."""

    buffer: int
    dtype: str
    position: Expr
    sizes: tuple[Dim, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ir.itemsize(self.dtype)

    def stride(self, dim: int) -> Dim:
        """Elements between neighbours along a dim."""
        return self.position.coefficient(dim)

    def known_alignment(self, inner: int) -> int:
        """The bytes that every row along `inner` is known to start at a multiple of, for buffers at multiples of 16."""
        steps = [factor(c) for (_, d, _), c in self.position.terms if d != inner]
        return gcd(ALIGNMENT, self.itemsize * gcd(factor(self.position.constant), *steps))

    def batch_dims(self, batch: tuple[int, ...]) -> tuple[int, ...]:
        """The batch dims that it has."""
        return tuple(d for d in batch if self.stride(d) != 0)

    def can_be_mapped(self, inner: int, outer: int, batch: tuple[int, ...]) -> bool:
        """Whether the copy engine takes it: neighbours along `inner`, everything else at multiples of 16 bytes."""
        fits = len(self.batch_dims(batch)) + 2 <= MOST_MAP_DIMS and isinstance(self.position.constant, int)
        return fits and self.stride(outer) != 0 and self.stride(inner) == 1 and self.known_alignment(inner) == ALIGNMENT

    def map(self, inner: int, outer: int, batch: tuple[int, ...], rows: int, dtype: str | None = None) -> TensorMap:
        """Describe it for copies of boxes of so many rows of 128 bytes along `inner`; `dtype`: what they arrive as."""
        dims = (outer, *self.batch_dims(batch))
        return TensorMap(
            self.buffer,
            dtype or self.dtype,
            tuple(self.sizes[d] for d in (inner, *dims)),
            tuple(self.stride(d) * self.itemsize for d in dims),
            (ROW_BYTES // self.itemsize, rows, *(1 for _ in dims[1:])),
            cast(int, self.position.constant) * self.itemsize,
        )


class Fragments(Plan):
    """The epilogue: pairs of neighbouring columns at some rows. Its scopes: nothing, the batch, a row, a column."""

    def __init__(self, kernel: k.ContractOp, lanes: int, base_alignment: int) -> None:
        sinks = [op for op in kernel.block.ops if isinstance(op, k.SinkOp)]
        before = set(sliced(kernel, [v for s in sinks for v in ir.operands_of(s)]))
        self.kernel = kernel
        self.sizes = kernel.sizes_
        self.starts = k.starts(kernel)
        self.levels = k.levels(kernel)
        self.varying = k.varying(kernel)
        m, n, depth = kernel.mnk
        self.vector, self.lanes, self.unroll = n, lanes, None
        self.scopes = ((), (*kernel.batch, depth), (m,), (n,))
        self.point = 1
        self._scope_of_dim = {d: s for s, dims in enumerate(self.scopes) for d in dims}
        self.ops = tuple(op for op in kernel.block.ops if op in before or op in sinks)
        self.accesses = {op: self._access(op) for op in self.ops if isinstance(op, (k.LoadOp, k.SinkOp))}
        self.base_alignment = base_alignment

    def alignment(self, access: Access) -> int:
        """Give the bytes that the address of a pair is known to be a multiple of."""
        return bytes_aligned(access, self.vector, self.lanes, self.base_alignment)

    def dims_of(self, op: Operation) -> frozenset[int]:
        """Give the dims that an op depends on, with those of its map where it writes."""
        return self._dims_of(op)


class ContractPlan:
    """The decisions about one contraction, and what follows from its sizes."""

    def __init__(self, kernel: k.ContractOp, *, aligned: bool) -> None:
        """Raises IRError where `schedule-gpu` has not run, UnsupportedError for what tensor cores do not do here."""
        if kernel.tile is None or kernel.grid is None or kernel.block_sizes is not None:
            raise IRError("has no tile of a GPU: schedule-gpu has not run", op=kernel.name)
        self.kernel = kernel
        self.aligned = aligned
        self.rows, self.columns, depth = cast("tuple[int, int, int]", kernel.tile.data)
        self.grid = cast("tuple[Dim, Dim, Dim]", kernel.grid.data)
        self.m, self.n, self.k = kernel.mnk
        self.sizes = kernel.sizes_
        self.dtype = dtype = ir.dtype_of(kernel.dot.y)
        self.depth = ROW_BYTES // ir.itemsize(dtype)
        """Terms of k in a row of shared memory."""
        allowed = dtype in DTYPES or (dtype == TF32 and kernel.dot.precision is not None)
        if not allowed or depth != self.depth:
            raise self.unsupported(f"has no code for tensor cores of {dtype} in steps of {depth}")
        self.a, self.b = self._factor(kernel.dot.a), self._factor(kernel.dot.b)
        if dtype == TF32 and not (self.runs_along_k(self.a) and self.runs_along_k(self.b)):
            raise self.unsupported("has factors in f32 that do not run along k")
        even = factor(self.sizes[self.n]) % PAIR == 0
        self.fragments = Fragments(kernel, PAIR if even else 1, ALIGNMENT if aligned else 1)
        self.sinks = [op for op in self.fragments.ops if isinstance(op, k.AccumulateOp)]
        for sink in self.sinks:
            if ir.dtype_of(sink.x) != "f32":
                raise self.unsupported("sums its rows in another dtype than f32")

    def unsupported(self, what: str) -> UnsupportedError:
        """What to raise, with the op and its place."""
        return UnsupportedError(what, op=self.kernel.name, location=ir.source_location(self.kernel))

    def _factor(self, value: SSAValue) -> Matrix:
        load = value.owner
        if not isinstance(load, k.LoadOp) or load.predicate is not None:
            raise self.unsupported("computes a factor")
        return self._matrix(load)

    def _matrix(self, access: k.LoadOp | k.StoreOp) -> Matrix:
        (linear,) = k.linear_map(self.kernel, access).data
        buffer = k.buffer_of(self.kernel, access)
        if not linear.is_affine() or linear.values():
            raise self.unsupported("has a factor whose rows are no plain matrix")
        dtype = ir.dtype_of(access.y if isinstance(access, k.LoadOp) else access.x)
        return Matrix(buffer, dtype, linear - k.starts(self.kernel)[buffer], self.sizes)

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch dims."""
        return self.kernel.batch

    def runs_along_k(self, matrix: Matrix) -> bool:
        """Whether neighbours of a factor in memory are neighbours along k."""
        return matrix.stride(self.k) == 1

    def inner(self, matrix: Matrix, own: int) -> int:
        """The dim along which a factor's neighbours in memory are."""
        return self.k if self.runs_along_k(matrix) else own

    @cached_property
    def can_be_mapped(self) -> bool:
        """Whether the copy engine takes both factors."""
        pairs = ((self.a, self.m), (self.b, self.n))
        dims = [(x, (self.k, own) if self.runs_along_k(x) else (own, self.k)) for x, own in pairs]
        return self.aligned and all(x.can_be_mapped(*inner_outer, self.batch) for x, inner_outer in dims)

    @cached_property
    def staged(self) -> dict[k.StoreOp, Matrix]:
        """The results that leave through shared memory, as boxes."""
        found: dict[k.StoreOp, Matrix] = {}
        for op in self.fragments.ops:
            if isinstance(op, k.StoreOp) and ir.itemsize(ir.dtype_of(op.x)) == 2 and self.fragments.lanes == PAIR:
                (linear,) = k.linear_map(self.kernel, op).data
                if linear.is_affine() and not op.index_values and op.kind is None and self.aligned:
                    matrix = self._matrix(op)
                    if matrix.dtype in DTYPES and matrix.can_be_mapped(self.n, self.m, self.batch):
                        found[op] = matrix
        return found

    @cached_property
    def operand(self) -> k.LoadOp | None:
        """What the epilogue reads where results that leave as boxes are written, if it can come as boxes, too."""
        if not self.staged or not isinstance(self.sizes[self.k], int) or self.sizes[self.k] == 0:
            return None
        for op in self.fragments.ops:
            if isinstance(op, k.LoadOp) and op.predicate is None and {self.m, self.n} <= op.map.dims():
                (linear,) = k.linear_map(self.kernel, op).data
                plain = linear.is_affine() and not linear.values() and ir.dtype_of(op.y) in DTYPES
                if plain and self._matrix(op).can_be_mapped(self.n, self.m, self.batch):
                    return op
        return None

    def matrix_of(self, access: k.LoadOp | k.StoreOp) -> Matrix:
        """Give what an access of the epilogue touches as a matrix."""
        return self._matrix(access)
