"""What `isthmus-opt -t nvptx` and `-t ptx` print: the kernels of a module for a GPU, each distinct one once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target as OutputTarget

from isthmus import ir
from isthmus.codegen.nvptx.module import emit, llvm_text
from isthmus.dialects import kernel


def scheduled_kernels(module: ModuleOp) -> list[kernel.LoopNest]:
    """Give the kernels of a module that are ours, in order."""
    found = [op for function in ir.functions(module).values() for op in kernel.launches(function)]
    return [op for op in found if isinstance(op, kernel.LoopNest)]


@dataclass(frozen=True)
class NvptxTarget(OutputTarget):
    """The LLVM IR text of the kernels, for one architecture of GPUs."""

    name = "nvptx"
    arch: str = "sm_90"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Write the text."""
        output.write(llvm_text(scheduled_kernels(module), self.arch)[0])


@dataclass(frozen=True)
class PtxTarget(OutputTarget):
    """The PTX of the kernels, for one architecture of GPUs."""

    name = "ptx"
    arch: str = "sm_90"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Write the PTX."""
        output.write(emit(scheduled_kernels(module), self.arch).ptx)
