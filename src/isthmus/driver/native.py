"""Machine code for one function: kernels, memory plan, LLVM text, objects, the native call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from xdsl.dialects.func import FuncOp

from isthmus.codegen.cpu.kernel import emit_kernel, shared_functions
from isthmus.codegen.cpu.program import program_text
from isthmus.codegen.cpu.read_program import kernels_of, read_program
from isthmus.codegen.llvm_text import Module
from isthmus.dialects import kernel
from isthmus.dialects.program import Program
from isthmus.dialects.target import Target
from isthmus.driver.artifacts import Record
from isthmus.runtime import cpu, library
from isthmus.runtime.build import build
from isthmus.runtime.call import NativeProgram
from isthmus.runtime.layout import native_facts

MATRIX_UNIT = "amx-bf16"
"""LLVM's name for a unit that multiplies half precision by whole tiles: the library uses it, kernels of ours do not."""

Keep = Callable[[Program, str], None]
"""Leaves a program and its text on disk, once its kernels are there."""


def make_native(
    func: FuncOp,
    record: Record,
    *,
    forward: NativeProgram | None = None,
    use_cache: bool = True,
    reuse_results: bool = True,
    keep: Keep | None = None,
) -> NativeProgram:
    """Compile a planned kernel-level function; a backward reads what is saved from the arena of its `forward`."""
    target = cpu.host_target()
    saved_at = dict(forward.program.saved_at) if forward else None
    program = read_program(func, schema_of=library.schema_of, saved_at=saved_at)
    kernels = kernels_of(func)
    text = program_text(program, native_facts())
    record.stage("emit", "llvm", lambda: "\n".join([text, *(kernel_text(k, target) for k in kernels.values())]))
    texts = {name: partial(kernel_text, k, target) for name, k in kernels.items()}
    shared = [item for k in kernels.values() for item in shared_functions(k, target).items()]
    more = {name: partial(_tile_text, write, target) for name, write in shared}
    note = partial(record.stage, artifact=None, content=None)
    kernel_texts = {**texts, **more}
    made = build(program, text, kernel_texts, target, use_cache=use_cache, reuse_results=reuse_results, note=note)
    if keep is not None:
        keep(program, text)
    record.stage("compile", "asm", lambda: assembly_text(kernels.values(), target))
    return made


def for_host(text: str) -> str:
    """Tell a pass of the pipeline, given by its text, about the machine that the kernels run on."""
    host = cpu.host_target()
    if text.startswith("fuse{contractions=") and host.has(MATRIX_UNIT):
        return text.replace("}", " half=library}")
    return f"schedule{{tile_bits={host.vector_bits} cores={host.cores}}}" if text == "schedule" else text


def kernel_text(op: kernel.Kernel, target: Target) -> str:
    """Give the LLVM text of one kernel, without what it shares with others."""
    text_of = _elementwise_text if isinstance(op, kernel.FusedOp) else _tile_text
    return text_of(lambda module: emit_kernel(module, op, target, alone=True), target)


def _elementwise_text(write: Callable[[Module], object], target: Target) -> str:
    """Give the LLVM text of a module of loops over elements, which need all registers for what they compute."""
    return cpu.CONSTANTS_WHERE_USED + function_text(write, target)


def _tile_text(write: Callable[[Module], object], target: Target) -> str:
    """Give the LLVM text of a module of loops over tiles, which hold their addresses."""
    return cpu.ADDRESSES_AS_WRITTEN + function_text(write, target)


def function_text(write: Callable[[Module], object], target: Target) -> str:
    """Give the LLVM text of a module of its own."""
    module = Module(vector_bits=target.vector_bits)
    write(module)
    return str(module)


def assembly_text(kernels: Iterable[kernel.Kernel], target: Target) -> str:
    """Give the machine code of kernels as assembly."""
    return "\n".join(cpu.assembly(kernel_text(k, target), target) for k in kernels)
