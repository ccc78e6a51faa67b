"""Functions at the kernel level, written as text with places, as native programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from xdsl.parser import Parser

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.cpu.program import program_text
from isthmus.codegen.cpu.read_program import kernels_of, read_program
from isthmus.codegen.llvm_text import Module
from isthmus.dialects import kernel, new_context
from isthmus.dialects.native_facts import NativeFacts
from isthmus.runtime import build, cpu, library
from isthmus.runtime.call import NativeProgram
from isthmus.runtime.layout import native_facts
from isthmus.sizes import Dim

sys.path.insert(0, str(Path(__file__).parent))


def compile_native(
    text: str, name: str = "main", *, saved_at: Mapping[int, Dim] | None = None, facts: NativeFacts | None = None
) -> NativeProgram:
    """Compile one function of a module."""
    func = ir.function(Parser(new_context(), text).parse_module(), name)
    target = cpu.host_target()
    program = read_program(func, schema_of=library.schema_of, saved_at=saved_at)

    def kernel_text(op: kernel.FusedOp) -> str:
        module = Module(vector_bits=target.vector_bits)
        emit_kernel(module, op, target)
        return str(module)

    kernels = {n: (lambda op=op: kernel_text(op)) for n, op in kernels_of(func).items()}
    return build.build(program, program_text(program, facts or native_facts()), kernels, target)


Native = Callable[..., NativeProgram]


@pytest.fixture
def native() -> Native:
    """Compile one function of a module in text: `native(text, name, saved_at=.., facts=..)`."""
    return compile_native
