"""A planned function on a GPU: kernels generated and loaded, what has no kernel by torch's operators on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from xdsl.dialects.func import FuncOp
from xdsl.ir import Region

from isthmus.codegen import nvptx
from isthmus.codegen.cpu.frame import Tensors
from isthmus.codegen.cpu.read_program import kernels_of, read_program
from isthmus.codegen.nvptx import host_program
from isthmus.codegen.nvptx.rechecks import rechecks
from isthmus.diagnostics import CompileError, UnsupportedError
from isthmus.dialects import kernel
from isthmus.dialects.native_facts import NativeFacts
from isthmus.dialects.program import KernelCall, Program
from isthmus.driver.artifacts import Record, log
from isthmus.driver.native import Keep
from isthmus.runtime import library
from isthmus.runtime.cuda_driver import Driver, driver
from isthmus.runtime.cuda_kernels import Generate, Generated, KernelLoader, LaunchFacts, Loaded
from isthmus.runtime.cuda_launch import Launcher
from isthmus.runtime.device_attention import register
from isthmus.runtime.device_native import NativeCall, native_call
from isthmus.runtime.device_program import DeviceProgram
from isthmus.runtime.device_steps import Kernel
from isthmus.runtime.interpret import load_tables
from isthmus.runtime.interpret_kernel import fused
from isthmus.runtime.interpret_table import Value as RunValue


def make_on_device(
    func: FuncOp,
    device: torch.device,
    record: Record,
    *,
    forward: Program | None = None,
    use_cache: bool = True,
    with_driver: Driver | None = None,
    keep: Keep | None = None,
) -> DeviceProgram:
    """Compile a planned kernel-level function; a backward reads what is saved from the arena of its `forward`.

    UnsupportedError where cuda-bindings or a GPU is missing, or its driver is too old.
    """
    register()
    saved_at = dict(forward.saved_at) if forward else None
    program = _with_rechecks(read_program(func, schema_of=library.schema_of, saved_at=saved_at), func)
    loader = KernelLoader(with_driver or driver(), device.index or 0, use_cache=use_cache)
    generators = {name: _generator(op) for name, op in _loop_nests(func).items()}
    record.stage("emit", "llvm", lambda: _text(func, loader.arch))
    loaded = loader.load(generators)
    ops = [op for op in kernel.launches(func) if isinstance(op, kernel.LoopNest)]
    kernels = [
        _kernel(op, step.symbol, loader, generators, loaded) for op, step in zip(ops, program.kernel_calls, strict=True)
    ]
    made = DeviceProgram(program, kernels, device)
    if made.native:
        native = native_of(program, kernels, loader, made, use_cache=use_cache)
        if native is not None:
            made.use(native)
        if keep is not None:
            keep(program, "")
    record.stage("compile", "asm", lambda: _ptx(func, loader.arch))
    log("fallbacks", lambda: "\n".join(f"{name}: {why}" for name, why in made.fallbacks) or "none", record.graph)
    return made


def _with_rechecks(program: Program, func: FuncOp) -> Program:
    """Note the kernels that can fail only after others: nobody has to wait for them."""
    ops = [op for op in kernel.launches(func) if isinstance(op, kernel.LoopNest)]
    again = rechecks([op for op in ops if op.parent is func.body.block])
    marked = {id(step) for op, step in zip(ops, program.kernel_calls, strict=True) if op in again}
    steps = [replace(s, rechecks=True) if isinstance(s, KernelCall) and id(s) in marked else s for s in program.steps]
    return replace(program, steps=tuple(steps))


def native_of(
    program: Program, kernels: Sequence[Kernel], loader: KernelLoader, made: DeviceProgram, *, use_cache: bool = True
) -> NativeCall | None:
    """The program as machine code of the host, where it has such a form."""
    steps = zip(program.kernel_calls, kernels, strict=True)
    launchers = {s.symbol: k.launch for s, k in steps if isinstance(k.launch, Launcher)}
    facts = {name: launcher.facts for name, launcher in launchers.items()}
    if refusal := host_program.refusal(program, facts):
        log("fallbacks", f"@{program.name} is launched by Python: {refusal}")
        return None
    code = {name: launcher.aligned for name, launcher in launchers.items()}
    for name in host_program.anywhere(program, facts):
        code[f"{name}{host_program.ANYWHERE}"] = launchers[name].unaligned()

    def text(native: NativeFacts) -> str:
        tensors = Tensors(int(made.device.type == "cuda"), made.device.index or 0)
        processors = loader.processors if any(f.resident for f in facts.values()) else 1
        return host_program.host_program_text(program, native, facts, tensors, processors=processors)

    return native_call(program, text, code, loader.driver, made.errors, made.device, use_cache=use_cache)


def _generator(op: kernel.LoopNest) -> Generate:
    def generate(arch: str, aligned: bool) -> Generated:
        if (op.threads if isinstance(op, kernel.FusedOp) else op.tile) is None:
            raise UnsupportedError("has no schedule for a GPU", op=op.name)
        text, kernels = nvptx.llvm_text([op], arch, aligned=aligned)
        (made,) = kernels.values()
        launch = (made.entry, made.block, made.grid, made.shared_bytes, made.alignment, made.symbols)
        facts = LaunchFacts(*launch, maps=made.maps, resident=made.resident)
        return Generated(lambda: nvptx.ptx(text, arch), facts)

    return generate


def _kernel(
    op: kernel.LoopNest,
    name: str,
    loader: KernelLoader,
    generators: Mapping[str, Generate],
    loaded: Mapping[str, Loaded | CompileError],
) -> Kernel:
    made = loaded[name]
    if isinstance(made, Loaded):
        return Kernel(Launcher(loader, name, generators[name], made))
    load_tables()
    return Kernel(on_tensors=_Interpreted(op), starts=kernel.starts(op), reason=made.what)


@dataclass(frozen=True)
class _Sizes:
    """What the interpreter asks of its surroundings."""

    sizes: Mapping[str, int]

    def run_region(self, region: Region, arguments: Sequence[RunValue]) -> list[RunValue]:
        raise NotImplementedError("a kernel has no regions that run by themselves")


@dataclass(frozen=True)
class _Interpreted:
    """A kernel by torch's operators: one tensor over the whole space for each value of its body."""

    op: kernel.LoopNest

    def __call__(self, operands: Sequence[Tensor], sizes: Mapping[str, int]) -> Sequence[Tensor]:
        """Give the results as new tensors."""
        return cast("Sequence[Tensor]", fused(self.op, operands, _Sizes(sizes)))


def _loop_nests(func: FuncOp) -> dict[str, kernel.LoopNest]:
    """One kernel per name; no other kind of kernel is made for a GPU."""
    return {name: op for name, op in kernels_of(func).items() if isinstance(op, kernel.LoopNest)}


def _text(func: FuncOp, arch: str) -> str:
    texts: list[str] = []
    for op in _loop_nests(func).values():
        try:
            texts.append(nvptx.llvm_text([op], arch)[0])
        except CompileError as error:
            texts.append(f"; {error}")
    return "\n".join(texts)


def _ptx(func: FuncOp, arch: str) -> str:
    texts: list[str] = []
    for op in _loop_nests(func).values():
        try:
            texts.append(_generator(op)(arch, True).ptx())
        except CompileError as error:
            texts.append(f"// {error}")
    return "\n".join(texts)
