"""Runs kernels as GPU code, simulated, and interprets them for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
import torch
from run_kernel import empty, parse, results_before
from simulate_memory import Memory
from simulate_tensor_cores import Grid
from simulate_text import parse as parse_llvm

from isthmus import ir
from isthmus.codegen import nvptx
from isthmus.dialects import kernel as k
from isthmus.runtime import interpret, interpret_kernel  # noqa: F401
from isthmus.sizes import Dim, evaluate


def simplified(text: str) -> str:
    """The text with stack slots as registers, as LLVM prints it."""
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    llvm.initialize_all_targets()
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.run(module, builder)
    return str(module)


def simulate(kernel: k.FusedOp, inputs, sizes: Mapping[str, int], *, aligned: bool = True):
    """Run one scheduled kernel on tensors. Gives the results and the error word."""
    text, launches = nvptx.llvm_text([kernel], "sm_90", aligned=aligned)
    (launch,) = launches.values()
    code = parse_llvm(simplified(text))

    def number(dim: Dim) -> int:
        return evaluate(dim, sizes)

    given = [empty(value, sizes).copy_(x) for value, x in zip(kernel.inputs, inputs, strict=True)]
    results = results_before(kernel, inputs, sizes)
    error = torch.zeros(1, dtype=torch.int64)
    everything = [*given, *results, *([error] if launch.can_fail else [])]
    raw = [_bytes(t).numpy() for t in everything]
    grid = number(launch.grid)
    if grid == 0:
        return results, 0
    memory = Memory(raw, grid, launch.block, code.shared_bytes + launch.shared_bytes, code.constants)
    pointers = list(memory.addresses)
    for n, start in enumerate(k.starts(kernel)):
        pointers[n] += start * everything[n].element_size()
    simulated = Grid(code, grid, launch.block, memory, [*pointers, *(sizes[s] for s in launch.symbols)])
    simulated.run()
    for n, tensor in enumerate(everything):
        _bytes(tensor).copy_(torch.from_numpy(memory.buffer(n, len(raw[n])).astype(np.uint8)))
    return results, int(error)


def _bytes(t: torch.Tensor) -> torch.Tensor:
    """All memory that a tensor spans."""
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    return torch.as_strided(t, (span,), (1,)).view(torch.uint8)


@dataclass
class OnGrid:
    """The one kernel of a function, simulated."""

    func: object
    kernel: k.FusedOp

    def __call__(self, *inputs: torch.Tensor, aligned: bool = True):
        sizes = interpret.bind_symbols(self.func, list(inputs))
        results, self.error = simulate(self.kernel, inputs, sizes, aligned=aligned)
        return results

    def interpreted(self, *inputs: torch.Tensor):
        """What the reference interpreter gives."""
        return interpret.run(self.func, list(inputs))


def on_grid(text: str, **attributes: object) -> OnGrid:
    """Take the one kernel of a text; `attributes` (vector, threads, ...) replace those in it, None takes one away."""
    (func,) = ir.functions(parse(text)).values()
    (kernel,) = k.launches(func)
    for name, value in attributes.items():
        if value is None:
            kernel.properties.pop(name, None)
        else:
            kernel.properties[name] = ir.Literal.of(value)
    return OnGrid(func, kernel)
