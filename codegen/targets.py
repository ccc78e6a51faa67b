"""What `isthmus-opt -t llvm` and `-t asm` print: the kernels of a module, each distinct one once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

import llvmlite.binding as llvm
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target as OutputTarget

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel, kernel_name
from isthmus.codegen.llvm_text import Module
from isthmus.diagnostics import CompileError
from isthmus.dialects import kernel
from isthmus.dialects.target import Target

TRIPLE = "x86_64-unknown-linux-gnu"
LAYOUT = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
_V3 = "+sse4.1,+avx,+avx2,+fma,+f16c,+bmi2"
_V4 = f"{_V3},+avx512f,+avx512bw,+avx512dq,+avx512vl"
LEVELS = {
    "x86-64": ("", 128),
    "x86-64-v3": (_V3, 256),
    "x86-64-v4": (_V4, 512),
    "znver4": (f"{_V4},+avx512bf16", 512),
}
"""The x86-64 levels by LLVM's name, and a machine that multiplies bf16: features, and bits of a vector."""


def named_target(cpu: str) -> Target:
    """Describe a machine by the name of its level; CompileError names those that exist."""
    if cpu not in LEVELS:
        raise CompileError(f"there is no cpu '{cpu}'", cure=f"choose from {', '.join(LEVELS)}")
    features, bits = LEVELS[cpu]
    return Target(TRIPLE, LAYOUT, cpu, features, bits)


def kernels_text(module: ModuleOp, target: Target) -> str:
    """Give the LLVM text of all kernels of a module, in order, equal ones once."""
    text = Module(vector_bits=target.vector_bits)
    done: set[str] = set()
    for function in ir.functions(module).values():
        for launch in kernel.launches(function):
            if isinstance(launch, kernel.Kernel) and kernel_name(launch) not in done:
                done.add(emit_kernel(text, launch, target))
    return str(text)


@dataclass(frozen=True)
class LLVMTarget(OutputTarget):
    """The LLVM IR text of the kernels, for one level of x86-64."""

    name = "llvm"
    cpu: str = "x86-64-v3"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Write the text."""
        output.write(kernels_text(module, named_target(self.cpu)))


@dataclass(frozen=True)
class AssemblyTarget(OutputTarget):
    """The assembly of the kernels, for one level of x86-64."""

    name = "asm"
    cpu: str = "x86-64-v3"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Write the assembly."""
        output.write(assembly(kernels_text(module, named_target(self.cpu)), named_target(self.cpu)))


def assembly(text: str, target: Target) -> str:
    """Compile LLVM text to assembly with the passes that explicit vector code needs."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )
    with llvm.parse_assembly(text, llvm.create_context()) as module:
        module.triple, module.data_layout = target.triple, target.layout
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
        manager = llvm.create_new_module_pass_manager()
        manager.add_sroa_pass()
        manager.run(module, builder)
        return machine.emit_assembly(module)
