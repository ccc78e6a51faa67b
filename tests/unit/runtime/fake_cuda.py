"""A test double of the CUDA driver: an image is the name of a kernel, and a launch runs the CPU's code for it.

It sees what the driver sees: addresses of parameters. Its "device memory" is the host's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from isthmus import ir
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.cpu.read_program import kernels_of, read_program
from isthmus.codegen.llvm_text import Module
from isthmus.dialects import kernel, new_context
from isthmus.driver.on_device import native_of
from isthmus.runtime import cpu, library
from isthmus.runtime.cuda_kernels import Generate, Generated, KernelLoader, LaunchFacts, Loaded
from isthmus.runtime.cuda_launch import Launcher
from isthmus.runtime.device_program import DeviceProgram
from isthmus.runtime.device_steps import Kernel
from isthmus.sizes import Dim

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass
class FakeDriver:
    """Launches are noted in `launched`; `linked` counts how often text was turned into an image."""

    buffers: dict[str, int] = field(default_factory=dict[str, int])
    symbols: dict[str, int] = field(default_factory=dict[str, int])
    texts: dict[str, str] = field(default_factory=dict[str, str])
    launched: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    linked: list[str] = field(default_factory=list[str])
    unloaded: list[object] = field(default_factory=list[object])
    linker: str = "fake 1"
    native: bool = False
    """Whether programs are launched by machine code where they can be."""
    handles: list[str] = field(default_factory=list[str])
    natively: int = 0
    """How many launches machine code has made."""
    refuses: int = 0
    """The status of every launch that machine code asks for."""
    _callbacks: list[object] = field(default_factory=list[object])

    def arch(self, device: int) -> str:
        return "sm_90"

    def link(self, ptx: str, arch: str) -> bytes:
        self.linked.append(ptx)
        return ptx.encode()

    def load(self, image: bytes, device: int) -> object:
        return image.decode()

    def unload(self, module: object, device: int) -> None:
        self.unloaded.append(module)

    def function(self, module: object, name: str, shared_bytes: int, device: int) -> object:
        assert isinstance(module, str) and module.split()[0] == name
        return module

    def launch(self, function: object, grid: int, block: int, shared: int, stream: int, parameters: int) -> None:
        assert isinstance(function, str)
        name = function.split()[0]
        self.launched.append((function, grid))
        n, m = self.buffers[name], self.symbols[name]
        pointers = (ctypes.c_void_p * (n + m)).from_address(parameters)
        words = [ctypes.c_uint64.from_address(p or 0).value for p in pointers]
        if function.endswith(" aligned"):
            assert all(w % 16 == 0 for w in words[:n])
        addresses = (ctypes.c_uint64 * max(1, n))(*words[:n])
        sizes = (ctypes.c_uint64 * max(1, m))(*words[n:])
        target = cpu.host_target()
        code = cpu.load([cpu.compile_text(self.texts[name], target)])
        _KERNEL(code[name])(ctypes.addressof(addresses), ctypes.addressof(sizes), 0, grid)

    def address(self, function: object) -> int:
        assert isinstance(function, str)
        self.handles.append(function)
        return len(self.handles)

    def entry_points(self) -> dict[str, int]:
        def launch(f: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int, at: int,
                   extra: int) -> int:  # fmt: skip
            assert (gy, gz, bx, by, bz) == (1, 1, 1, 1, 1) and not extra
            self.natively += 1
            if not self.refuses:
                self.launch(self.handles[f - 1], gx, bx, shared, stream or 0, at)
            return self.refuses

        def copy(target: int, source: int, count: int, stream: int) -> int:
            if target != source:
                ctypes.memmove(target, source, count)
            return 0

        def record(event: int, stream: int) -> int:
            return 0

        p, i = ctypes.c_void_p, ctypes.c_uint32
        found = {
            "cuLaunchKernel": ctypes.CFUNCTYPE(i, p, i, i, i, i, i, i, i, p, p, p)(launch),
            "cuMemcpyDtoHAsync_v2": ctypes.CFUNCTYPE(i, p, p, ctypes.c_size_t, p)(copy),
            "cuEventRecord": ctypes.CFUNCTYPE(i, p, p)(record),
        }
        self._callbacks.extend(found.values())
        return {name: ctypes.cast(f, p).value or 0 for name, f in found.items()}

    def processors(self, device: int) -> int:
        return 1

    def tensor_map(
        self, dtype: str, address: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]
    ) -> bytes:
        raise NotImplementedError("the CPU's code takes no tensor maps")

    def error(self, status: int, doing: str) -> Exception:
        return RuntimeError(f"{doing}: {status}")


def generators(func: FuncOp, driver: FakeDriver) -> dict[str, Generate]:
    """Give for each kernel what makes its "PTX", and tell the driver what stands behind it."""
    found: dict[str, Generate] = {}
    for name, op in kernels_of(func).items():
        module = Module(vector_bits=cpu.host_target().vector_bits)
        emit_kernel(module, op, cpu.host_target())
        driver.texts[name] = str(module)
        driver.buffers[name] = len(op.inputs) + len(op.results) + kernel.can_fail(op)
        driver.symbols[name] = len(op.symbols_)
        grid: Dim = 1 if op.partitions_ is None else op.partitions_

        symbols = op.symbols_

        def generate(
            arch: str, aligned: bool, name: str = name, grid: Dim = grid, symbols: tuple[str, ...] = symbols
        ) -> Generated:
            text = f"{name} aligned" if aligned else name
            return Generated(lambda: text, LaunchFacts(name, 1, grid, 0, 16 if aligned else 1, symbols))

        found[name] = generate
    return found


def on_fake_device(
    text: str,
    driver: FakeDriver,
    name: str = "main",
    *,
    saved_at: Mapping[int, Dim] | None = None,
    use_cache: bool = False,
) -> DeviceProgram:
    """Compile one function of a module in text for the double."""
    func = ir.function(Parser(new_context(), text).parse_module(), name)
    program = read_program(func, schema_of=library.schema_of, saved_at=saved_at)
    loader = KernelLoader(driver, 0, use_cache=use_cache)
    makers = generators(func, driver)
    loaded = loader.load(makers)
    kernels: list[Kernel] = []
    for step in program.kernel_calls:
        made = loaded[step.symbol]
        assert isinstance(made, Loaded)
        kernels.append(Kernel(Launcher(loader, step.symbol, makers[step.symbol], made)))
    found = DeviceProgram(program, kernels, torch.device("cpu"))
    if driver.native and (native := native_of(program, kernels, loader, found, use_cache=use_cache)) is not None:
        found.use(native)
    return found
