"""Compiles the one kernel of a function in text, runs it on tensors, and interprets it for comparison."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.llvm_text import Module
from isthmus.dialects import dialect_factories
from isthmus.dialects import kernel as k
from isthmus.dialects.target import Target
from isthmus.runtime import cpu, interpret, interpret_kernel  # noqa: F401
from isthmus.runtime.support import external_symbols
from isthmus.sizes import evaluate

TORCH = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i1": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}


def parse(text: str):
    """The module of a text, verified."""
    ctx = Context()
    for name, factory in dialect_factories().items():
        ctx.register_dialect(name, factory)
    for dialect in (Builtin, Func):
        if dialect.name not in ctx.registered_dialect_names:
            ctx.load_dialect(dialect)
    module = Parser(ctx, text).parse_module()
    ir.verify(module)
    return module


def empty(value, sizes: Mapping[str, int]) -> torch.Tensor:
    """Memory for a value, in its strides."""
    shape, strides = ([evaluate(d, sizes) for d in dims] for dims in (ir.shape_of(value), k.strides_of(value)))
    return torch.empty_strided(shape, strides, dtype=TORCH[ir.dtype_of(value)])


def results_before(kernel: k.FusedOp, inputs, sizes: Mapping[str, int]) -> list[torch.Tensor]:
    """What a kernel's results hold before it runs: what they start as, else NaN where that exists."""
    results = []
    for value, source in zip(kernel.results, kernel.initial_, strict=True):
        made = empty(value, sizes)
        if source is not None:
            made.copy_(inputs[source])
        elif made.dtype.is_floating_point:  # gaps between rows too
            everything = made.untyped_storage().nbytes() // made.element_size()
            made.as_strided((everything,), (1,), 0).fill_(float("nan"))
        results.append(made)
    return results


def launch(kernel: k.FusedOp, loaded: cpu.Loaded, inputs, sizes: Mapping[str, int], calls: int = 1):
    """Run the function `kernel` of loaded code on tensors. Gives the results, filled with NaN before, and the error."""

    given = []
    for value, x in zip(kernel.inputs, inputs, strict=True):
        steps = zip(x.stride(), k.strides_of(value), x.shape, strict=True)
        fits = all(s == evaluate(w, sizes) or d < 2 for s, w, d in steps)
        given.append(x if fits else empty(value, sizes).copy_(x))
    results = results_before(kernel, inputs, sizes)
    error = torch.zeros(1, dtype=torch.int64)
    shown = zip((*given, *results), k.starts(kernel), strict=True)
    pointers = [t.data_ptr() + start * t.element_size() for t, start in shown] + [error.data_ptr()]
    buffers = (ctypes.c_void_p * len(pointers))(*pointers)
    names = kernel.symbols_
    symbols = (ctypes.c_int64 * max(1, len(names)))(*[sizes[n] for n in names])
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    function = prototype(loaded["kernel"])
    count = evaluate(kernel.partitions_ or 1, sizes)
    for n in range(calls):
        function(buffers, symbols, n * count // calls, (n + 1) * count // calls)
    return results, int(error)


def native(kernel: k.FusedOp, target: Target) -> tuple[str, cpu.Loaded]:
    """The text of one kernel, and its code."""
    llvm = Module(vector_bits=target.vector_bits)
    emit_kernel(llvm, kernel, target, "kernel")
    text = str(llvm)
    return text, cpu.load([cpu.compile_text(text, target)], external_symbols())


@dataclass
class Compiled:
    """The one kernel of a module as machine code."""

    module: object
    func: object
    kernel: k.FusedOp
    text: str
    target: Target
    loaded: cpu.Loaded

    def __call__(self, *inputs: torch.Tensor, calls: int = 1):
        """Run on tensors; `calls`: cut the partitions into so many calls. Gives the results."""
        sizes = interpret.bind_symbols(self.func, list(inputs))
        results, self.error = launch(self.kernel, self.loaded, inputs, sizes, calls)
        return results

    def interpreted(self, *inputs: torch.Tensor):
        """What the reference interpreter gives."""
        return interpret.run(self.func, list(inputs))

    def assembly(self) -> str:
        return cpu.assembly(self.text, self.target)


def compiled(text: str, target: Target | None = None, **attributes: object) -> Compiled:
    """Compile the one kernel of a text; `attributes` (vector, width, ...) replace those in it."""
    target = target or cpu.host_target()
    module = parse(text)
    (func,) = ir.functions(module).values()
    (kernel,) = k.launches(func)
    for name, value in attributes.items():
        if value is None:
            kernel.properties.pop(name, None)
        else:
            kernel.properties[name] = ir.Literal.of(value)
    source, loaded = native(kernel, target)
    return Compiled(module, func, kernel, source, target, loaded)


def same_bits(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Whether results are equal bit by bit."""
    return all(
        torch.equal(x.flatten().view(torch.uint8), y.flatten().view(torch.uint8)) for x, y in zip(a, b, strict=True)
    )
