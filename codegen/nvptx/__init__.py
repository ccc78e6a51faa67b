"""Fused kernels for GPUs: LLVM text for nvptx64, and PTX."""

from isthmus.codegen.nvptx.module import ARCHES, GpuKernel, GpuModule, emit, llvm_text, ptx

__all__ = ["ARCHES", "GpuKernel", "GpuModule", "emit", "llvm_text", "ptx"]
