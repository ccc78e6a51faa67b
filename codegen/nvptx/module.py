"""Kernels as one module of PTX, and what a launch of each must be given."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import llvmlite.binding as llvm

from isthmus.codegen.cpu.kernel import kernel_name
from isthmus.codegen.llvm_text import Module
from isthmus.codegen.nvptx.body import DYNAMIC
from isthmus.codegen.nvptx.contract import Contraction
from isthmus.codegen.nvptx.contract_boxes import Boxes
from isthmus.codegen.nvptx.contract_plan import ContractPlan
from isthmus.codegen.nvptx.contract_warps import Warps
from isthmus.codegen.nvptx.kernel import Grid
from isthmus.codegen.nvptx.plan import ALIGNMENT
from isthmus.diagnostics import CompileError, IRError, UnsupportedError
from isthmus.dialects import kernel as k
from isthmus.dialects.program import TensorMap
from isthmus.dialects.target import Target
from isthmus.sizes import Dim

TRIPLE = "nvptx64-nvidia-cuda"
ARCHES = ("sm_80", "sm_90", "sm_90a", "sm_100")
"""The architectures that code is made for; PTX of one runs on later ones, that of sm_90a on 9.0 alone."""
WITH_WARPGROUPS = ("sm_90a",)
"""Those whose tensor cores take 64 rows at once from shared memory."""


@dataclass(frozen=True)
class GpuKernel:
    """How one kernel is launched: `grid` blocks of `block` threads.

    Parameters in order: a pointer per buffer (operands, then results), a pointer to the error word where `can_fail`,
    an i64 per symbol, 128 bytes (at a multiple of 64) per tensor map. `grid` is a number or a size of these symbols;
    where `resident` is not 0, no more blocks are launched than so many for each processor: they share out the work.
    `shared_bytes`: dynamic shared memory.
    """

    entry: str
    block: int
    grid: Dim
    shared_bytes: int
    buffers: int
    symbols: tuple[str, ...]
    can_fail: bool
    alignment: int
    maps: tuple[TensorMap, ...] = ()
    resident: int = 0


@dataclass(frozen=True)
class GpuModule:
    """PTX, and its kernels by name."""

    ptx: str
    arch: str
    kernels: dict[str, GpuKernel]


def gpu_target(arch: str) -> Target:
    """Describe a GPU by LLVM's name; CompileError names those that exist."""
    if arch not in ARCHES:
        raise CompileError(f"there is no GPU '{arch}'", cure=f"choose from {', '.join(ARCHES)}")
    return Target(TRIPLE, "", arch, "", 128)


def llvm_text(kernels: Iterable[k.LoopNest], arch: str, *, aligned: bool = True) -> tuple[str, dict[str, GpuKernel]]:
    """Give the LLVM text of kernels, equal ones once, and how each is launched.

    Raises UnsupportedError for what has no GPU code, IRError where `schedule-gpu` has not run.
    """
    target, module = gpu_target(arch), Module()
    module.global_text(f"@{DYNAMIC} = external addrspace(3) global [0 x i8], align 16")
    found: dict[str, GpuKernel] = {}
    for kernel in kernels:
        name = kernel_name(kernel)
        if name not in found:
            found[name] = add_kernel(module, kernel, target, name, aligned=aligned)
    return str(module), found


def add_kernel(module: Module, kernel: k.LoopNest, target: Target, name: str, *, aligned: bool) -> GpuKernel:
    """Add one kernel's function to a module."""
    if isinstance(kernel, k.ContractOp):
        return _add_contraction(module, kernel, target, name, aligned=aligned)
    if kernel.threads is None:
        raise IRError("has no threads: schedule-gpu has not run", op=kernel.name)
    grid = Grid(module, kernel, target, name, aligned=aligned)
    grid.emit()
    plan = grid.plan
    count = kernel.partitions_ or 1
    return GpuKernel(
        entry=name,
        block=plan.threads,
        grid=count if plan.groups == 1 else (count + (plan.groups - 1)) // plan.groups,
        shared_bytes=grid.body.shared.nbytes,
        buffers=len(kernel.inputs) + len(kernel.results),
        symbols=kernel.symbols_,
        can_fail=k.can_fail(kernel),
        alignment=ALIGNMENT if aligned else 1,
    )


def _add_contraction(module: Module, kernel: k.ContractOp, target: Target, name: str, *, aligned: bool) -> GpuKernel:
    plan = ContractPlan(kernel, aligned=aligned)
    boxes = plan.can_be_mapped and target.cpu in WITH_WARPGROUPS
    made: Contraction = Boxes(module, plan, target, name) if boxes else Warps(module, plan, target, name)
    made.emit()
    return GpuKernel(
        entry=name,
        block=made.threads,
        grid=made.tiles,
        shared_bytes=made.shared_bytes,
        buffers=len(kernel.inputs) + len(kernel.results),
        symbols=kernel.symbols_,
        can_fail=False,
        alignment=ALIGNMENT if aligned else 1,
        maps=made.maps,
        resident=made.resident,
    )


def emit(kernels: Iterable[k.LoopNest], arch: str, *, aligned: bool = True) -> GpuModule:
    """Compile kernels to PTX; `aligned`: every buffer is a multiple of 16 bytes."""
    text, launches = llvm_text(kernels, arch, aligned=aligned)
    return GpuModule(ptx(text, arch), arch, launches)


def ptx(text: str, arch: str) -> str:
    """Compile LLVM text to PTX. Raises UnsupportedError where something outside would be called."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=arch, features="", opt=3)
    with llvm.parse_assembly(text, llvm.create_context()) as module:  # closed before its context goes
        module.triple, module.data_layout = TRIPLE, str(machine.target_data)
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
        manager = llvm.create_new_module_pass_manager()
        manager.add_sroa_pass()
        manager.add_simplify_cfg_pass()
        manager.add_new_gvn_pass()
        manager.add_instruction_combine_pass()
        manager.run(module, builder)
        result = machine.emit_assembly(module)
    if "\n.extern .func" in result:
        called = re.findall(r"\.extern \.func\s+(?:\(.*?\))?\s*(\w+)", result)
        raise UnsupportedError(f"has no GPU code: calls {', '.join(called)}", cure="it runs on tensors")
    return result
