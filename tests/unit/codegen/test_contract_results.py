"""How warpgroups take sums to the results, on a simulated grid: rooms for boxes, rounds, operands, sums of columns."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from kernel_text import tensor
from run_grid import simplified
from run_kernel import TORCH
from simulate_boxes import Grid
from simulate_memory import Memory
from simulate_text import parse as parse_llvm
from test_contraction_ptx import scheduled
from test_tensor_cores import product

from isthmus import ir
from isthmus.codegen.llvm_text import F32, I32, I64, Module
from isthmus.codegen.nvptx.contract_boxes import Boxes
from isthmus.codegen.nvptx.contract_epilogue import batch_indices
from isthmus.codegen.nvptx.contract_plan import ContractPlan
from isthmus.codegen.nvptx.contract_results import Results, Share
from isthmus.codegen.nvptx.module import gpu_target
from isthmus.dialects import kernel as k


def sums(m: int, n: int) -> torch.Tensor:
    """What takes the place of the product: exact in bf16."""
    rows, columns = torch.arange(m)[:, None], torch.arange(n)[None, :]
    return ((rows * 7 + columns * 3) % 64 - 32) / 16


class OnlyResults(Boxes):
    """Two warpgroups that take numbers of their places to the results; nobody multiplies."""

    def emit(self) -> None:
        f, plan = self.f, self.plan
        group = f.binary("lshr", self.thread, f.const(7, I32))
        share = Share(self.row_blocks, not self.taking_turns, self.operand, self.operand_barrier)
        results = Results(self, share, group, self.results_start)
        tile, row = f.cast("zext", self.block, I64), group
        if self.taking_turns:
            tile, row = tile * 2 + f.cast("zext", group, I64), f.const(0, I32)
        with f.when(f.compare("slt", tile, self.state.size(self.tiles))), self.state.frame():
            place = self.place(tile)
            batch_indices(self.state, plan, place[0])
            steps = self.steps().constant
            assert steps is not None
            results.fetch(f.index(min(2, steps - 1)), row, place)
            above = row * 64 + results.warp * 16 + f.binary("lshr", results.lane, f.const(2, I32))
            top = place[1] * plan.rows + f.cast("zext", above, I64)
            left = place[2] * plan.columns + f.cast("zext", (results.lane & 3) * 2, I64)
            values = [
                [
                    self.number(top + (64 * block + 8 * h), left + (8 * b + e))
                    for b in range(plan.columns // 8)
                    for h in range(2)
                    for e in range(2)
                ]
                for block in range(self.row_blocks)
            ]
            results.take(values, row, place)
        f.finish()

    def number(self, row, column):
        f = self.f
        found = f.binary("urem", row * 7 + column * 3, f.const(64, I64)) - 32
        return f.cast("sitofp", found, F32) * (1 / 16)


def run(op: k.ContractOp, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], Grid]:
    plan, module = ContractPlan(op, aligned=True), Module()
    form = OnlyResults(module, plan, gpu_target("sm_90a"), "f")
    form.emit()
    text = str(module).replace('byval([128 x i8]) align 64 "nvvm.grid_constant" ', "")
    code = parse_llvm(re.sub(r'asm sideeffect ".*?"', lambda found: found[0].replace(";", ""), simplified(text)))
    results = [torch.full(ir.shape_of(r), float("nan"), dtype=TORCH[ir.dtype_of(r)]) for r in op.results]
    everything = [*inputs, *results]
    raw = [t.contiguous().view(-1).view(torch.uint8).numpy() for t in everything]
    blocks = -(-int(form.tiles) // (2 if form.taking_turns else 1))  # type: ignore[arg-type]
    memory = Memory(raw, blocks, 256, form.shared_bytes, code.constants)
    grid = Grid(code, blocks, 256, memory, [*memory.addresses, *range(len(form.maps))])
    grid.maps = form.maps
    grid.run()
    for n, t in enumerate(everything):
        t.view(-1).view(torch.uint8).copy_(torch.from_numpy(memory.buffer(n, len(raw[n])).astype(np.uint8)))
    return results, grid


BODY = """
    %w = prim.convert %d : f32
    %c = kernel.load {operand = 2, map = [d1]} : f32
    %z = prim.add %w, %c : f32
    %r = kernel.load {operand = 3, map = [d0, d1]} : bf16
    %q = prim.convert %r : f32
    %o = prim.mul %z, %q : f32
    %n = prim.convert %o : bf16
    kernel.store %n {result = 0, map = [d0, d1]}"""
SECOND = """
    %p = prim.convert %z : bf16
    kernel.store %p {result = 1, map = [d0, d1]}"""


@pytest.mark.parametrize("columns", [128, 192])
@pytest.mark.parametrize("stored,summed", [(1, True), (2, True), (2, False)])
@pytest.mark.parametrize("m,n", [(256, 384), (200, 328)])
def test_operands_and_results_share_their_rooms(m: int, n: int, stored: int, summed: bool, columns: int) -> None:
    body, results = BODY + (SECOND if stored == 2 else ""), [tensor([m, n], "bf16")] * stored
    if summed:
        body += f'\n    kernel.accumulate %o {{result = {stored}, map = [d1], kind = "add"}}'
        results = [*results, tensor([3, n])]
    more = [tensor([n]), tensor([m, n], "bf16")]
    op = scheduled(product(m, n, 320, body=body, more=more, results=results), columns)
    c, r = torch.randn(n), torch.randn(m, n).bfloat16()
    factors = [torch.zeros(m, 320).bfloat16(), torch.zeros(n, 320).bfloat16()]
    found, grid = run(op, [*factors, c, r])
    z = sums(m, n) + c
    torch.testing.assert_close(found[0], (z * r.float()).bfloat16(), rtol=2**-7, atol=1e-6)
    if stored == 2:
        torch.testing.assert_close(found[1], z.bfloat16(), rtol=2**-7, atol=1e-6)
    if summed:
        torch.testing.assert_close(found[-1].sum(0), (z * r.float()).sum(0), rtol=1e-4, atol=1e-3)
    boxes = -(-m // 128) * -(-n // columns) * 2 * columns // 64
    assert grid.boxes_in in ((boxes,) if stored == 1 or (columns == 128 and not summed) else (0, boxes))
    assert grid.boxes_out == stored * boxes
