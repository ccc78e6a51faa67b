"""A contraction on the tensor cores of a GPU as a function that every thread of a grid runs.

Two forms. Where the engine that copies boxes takes both factors and the chip multiplies 64 rows at once (sm_90a), one
warp feeds warpgroups that only multiply (`contract_boxes`); else each warp copies its share and multiplies 16 x 8
fragments (`contract_warps`). Tiles of the result are those of the schedule; an element is one sum over k, in order, in
f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from isthmus.codegen.cpu.sizes import SizeValues
from isthmus.codegen.llvm_text import I32, I64, PTR, Function, Module, Value
from isthmus.codegen.nvptx.contract_epilogue import Epilogue, FragmentState
from isthmus.codegen.nvptx.contract_plan import ContractPlan, Matrix
from isthmus.codegen.nvptx.shared_memory import declare_tiles, special_register
from isthmus.codegen.vector_math import Math
from isthmus.dialects import kernel as k
from isthmus.dialects.program import TensorMap
from isthmus.dialects.target import Target
from isthmus.sizes import Dim

GROUPED_ROWS = 16
"""Rows of tiles that are walked column by column, so that what they read stays in the cache."""


class Contraction:
    """What both forms share: the function, its sizes, which tile is where."""

    threads: int
    """Of a block."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    resident: ClassVar[int] = 0
    """Blocks of a processor, each of which walks many tiles; 0: a block for each tile."""

    def __init__(
        self,
        module: Module,
        plan: ContractPlan,
        target: Target,
        name: str,
        threads: int,
        staged: Sequence[k.StoreOp],
        maps: Sequence[TensorMap],
    ) -> None:
        kernel = plan.kernel
        self.plan, self.kernel, self.threads, self.maps = plan, kernel, threads, tuple(maps)
        declare_tiles(module)
        count = len(kernel.inputs) + len(kernel.results)
        arguments = [(f"b{n}", PTR) for n in range(count)] + [(f"s{n}", I64) for n in range(len(kernel.symbols_))]
        of = ["noalias readonly" if n < len(kernel.inputs) else "noalias" for n in range(count)]
        of += [""] * len(kernel.symbols_)
        arguments += [(f"t{n}", PTR) for n in range(len(maps))]
        of += ['byval([128 x i8]) align 64 "nvvm.grid_constant"'] * len(maps)
        self.f = f = Function(
            module,
            name,
            arguments,
            linkage="ptx_kernel",
            attributes=f'"nvvm.maxntid"="{threads}" "nvvm.minctasm"="1"',
            of_arguments=of,
        )
        symbols = dict(zip(kernel.symbols_, f.arguments[count:], strict=False))
        self.map_arguments = f.arguments[count + len(symbols) :]
        self.state = FragmentState(plan.fragments, f, Math(f, target), SizeValues(f, symbols))
        self.state.buffers = list(f.arguments[:count])
        self.epilogue = Epilogue(plan, self.state, staged)
        self.thread = special_register(f, "tid.x")
        self.block = special_register(f, "ctaid.x")

    def emit(self) -> None:
        """Emit the function."""
        raise NotImplementedError

    # ---- tiles

    @property
    def tiles(self) -> Dim:
        """How many tiles there are."""
        batch, down, across = self.plan.grid
        return batch * down * across

    def place(self, tile: Value) -> tuple[Value, Value, Value]:
        """Give which product of the batch, which row and which column of tiles the `tile`-th one is; i64."""
        f, state = self.f, self.state
        down, across = (state.size(g) for g in self.plan.grid[1:])
        batch, rest = f.const(0, I64), tile
        if self.plan.batch:
            each = state.size(self.plan.grid[1] * self.plan.grid[2])
            batch, rest = f.binary("udiv", tile, each), f.binary("urem", tile, each)
        if down.constant == 1 or across.constant == 1:
            row, column = (f.const(0, I64), rest) if down.constant == 1 else (rest, f.const(0, I64))
            return batch, row, column
        group = state.size(self.plan.grid[2] * GROUPED_ROWS)
        number, within = f.binary("udiv", rest, group), f.binary("urem", rest, group)
        first = number * GROUPED_ROWS
        height: Value = f.const(GROUPED_ROWS, I64)
        if down.constant is None or down.constant % GROUPED_ROWS:
            height = f.intrinsic("smin", down - first, height)
        return batch, first + f.binary("urem", within, height), f.binary("udiv", within, height)

    def batch_of(self, matrix: Matrix) -> list[Value]:
        """Give the batch indices of a matrix, as its tensor map takes them."""
        indices = self.state.indices
        return [self.f.cast("trunc", indices[d], I32) for d in matrix.batch_dims(self.plan.batch)]

    def steps(self) -> Value:
        """Rows of shared memory that the terms of k fill."""
        size = self.plan.sizes[self.plan.k]
        return self.state.size((size + (self.plan.depth - 1)) // self.plan.depth)

    def ragged(self) -> tuple[bool, bool]:
        """Whether the last row or column of tiles may reach outside."""
        plan = self.plan
        pairs = ((plan.sizes[plan.m], plan.rows), (plan.sizes[plan.n], plan.columns))
        height, width = (not (isinstance(size, int) and size % tile == 0) for size, tile in pairs)
        return height, width

    def entry(self, batch: Value, row: Value) -> tuple[Value, Value]:
        """Give the number of a tile's entry among partial sums, and how many have one."""
        grid, state = self.plan.grid, self.state
        return batch * state.size(grid[1]) + row, state.size(grid[0] * grid[1])
