"""The CUDA driver, as far as it is needed here: images of code in, functions out, launches on a stream.

The only place that knows the package cuda-bindings; it is imported when the first kernel is loaded.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, cast

import torch

from isthmus.diagnostics import CompileError, UnsupportedError

_CURE = "pip install 'isthmus[cuda]'"
_DYNAMIC_SHARED = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
_FREE_SHARED = 48 << 10
"""Bytes of dynamic shared memory that a function has without being told."""


_TENSOR_DTYPES = {"bf16": "BFLOAT16", "f16": "FLOAT16", "f32": "FLOAT32", "tf32": "TFLOAT32"}
"""How the driver calls the dtypes of tensor maps."""


ENTRY_POINTS = ("cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuTensorMapEncodeTiled")
"""What machine code of the host calls of the driver."""


class Driver(Protocol):
    """What the loader of kernels asks for; tests have one of their own, without a GPU."""

    @property
    def linker(self) -> str:
        """Name and version of what makes machine code of PTX, for cache keys."""
        ...

    def arch(self, device: int) -> str:
        """The architecture to generate code for, e.g. "sm_90a"."""
        ...

    def link(self, ptx: str, arch: str) -> bytes:
        """Make an image that `load` takes; safe to call from several threads."""
        ...

    def load(self, image: bytes, device: int) -> object:
        """Load an image into a device; gives the module."""
        ...

    def unload(self, module: object, device: int) -> None:
        """Give a module up; nothing that uses it may be running."""
        ...

    def function(self, module: object, name: str, shared_bytes: int, device: int) -> object:
        """Find a kernel that will be launched with so much dynamic shared memory."""
        ...

    def address(self, function: object) -> int:
        """What machine code passes to `cuLaunchKernel` for a kernel."""
        ...

    def entry_points(self) -> dict[str, int]:
        """The addresses of the driver's own functions that machine code calls, by name."""
        ...

    def error(self, status: int, doing: str) -> Exception:
        """The exception for a status that the driver gave to machine code."""
        ...

    def launch(self, function: object, grid: int, block: int, shared: int, stream: int, parameters: int) -> None:
        """Launch on a stream of the current device; `parameters` is the address of an array of pointers to values."""
        ...

    def processors(self, device: int) -> int:
        """How many multiprocessors a device has."""
        ...

    def tensor_map(
        self, dtype: str, address: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]
    ) -> bytes:
        """Describe a tensor for the copy engine, innermost dim first (`dialects.program.TensorMap`): 128 bytes."""
        ...


class DriverError(RuntimeError):
    """The driver refused a call."""


class CudaDriver:
    """The real driver, through cuda-bindings."""

    def __init__(self) -> None:
        try:
            self._cu = cast(Any, importlib.import_module("cuda.bindings.driver"))
        except ImportError as error:
            raise UnsupportedError(
                f"kernels for the GPU need the package cuda-bindings ({error})", cure=_CURE
            ) from error
        try:
            self._nvjitlink: Any = importlib.import_module("cuda.bindings.nvjitlink")
            self._version = "nvjitlink " + ".".join(map(str, self._nvjitlink.version()))
        except Exception:  # the wrapper is there and the library is not, by several kinds of errors
            self._nvjitlink, self._version = None, ""
        if not torch.cuda.is_available():
            raise UnsupportedError("there is no CUDA device that torch can use", cure="run on the CPU")
        torch.cuda.init()
        self._contexts: dict[int, object] = {}
        self._success = self._cu.CUresult.CUDA_SUCCESS
        self._unbound = self._cu.CUresult.CUDA_ERROR_INVALID_CONTEXT
        self._launch = self._cu.cuLaunchKernel

    @property
    def linker(self) -> str:
        """Without nvJitLink the driver compiles PTX itself, at each load."""
        return self._version or "driver"

    def arch(self, device: int) -> str:
        """The device's own architecture, with the instructions that only it has."""
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    def link(self, ptx: str, arch: str) -> bytes:
        """A cubin by nvJitLink where it is installed, else the text itself."""
        data = ptx.encode()
        if self._nvjitlink is None:
            return data + b"\0"
        link = self._nvjitlink
        handle = link.create(2, [f"-arch={arch}", "-O3"])
        try:
            link.add_data(handle, link.InputType.PTX, data, len(data), "kernel")
            link.complete(handle)
            image = bytearray(link.get_linked_cubin_size(handle))
            link.get_linked_cubin(handle, image)
            return bytes(image)
        except Exception as error:
            log = bytearray(link.get_error_log_size(handle))
            if log:
                link.get_error_log(handle, log)
            what = log.rstrip(b"\0").decode(errors="replace").strip() or str(error)
            raise CompileError(f"nvJitLink refuses the generated code: {what}") from error
        finally:
            link.destroy(handle)

    def load(self, image: bytes, device: int) -> object:
        """Load a cubin, or PTX that the driver compiles."""
        memory = ctypes.create_string_buffer(image, len(image))
        with torch.cuda.device(device):
            self.bind(device)
            status, module = self._cu.cuModuleLoadData(ctypes.addressof(memory))
        if status != self._success:
            self._fail(status, "loading a kernel")
        return module

    def unload(self, module: object, device: int) -> None:
        """Wait for the device, then give the module up."""
        with torch.cuda.device(device):
            torch.cuda.synchronize()
            self._cu.cuModuleUnload(module)

    def function(self, module: object, name: str, shared_bytes: int, device: int) -> object:
        """Find a kernel; above 48 KiB of dynamic shared memory the driver has to be told."""
        with torch.cuda.device(device):
            return self._function(module, name, shared_bytes)

    def _function(self, module: object, name: str, shared_bytes: int) -> object:
        status, function = self._cu.cuModuleGetFunction(module, name.encode())
        if status != self._success:
            self._fail(status, f"looking up {name}")
        if shared_bytes > _FREE_SHARED:
            attribute = getattr(self._cu.CUfunction_attribute, _DYNAMIC_SHARED)
            (status,) = self._cu.cuFuncSetAttribute(function, attribute, shared_bytes)
            if status != self._success:
                self._fail(status, f"giving {name} {shared_bytes} bytes of shared memory")
        return function

    def launch(self, function: object, grid: int, block: int, shared: int, stream: int, parameters: int) -> None:
        """Launch; DriverError names what the driver said."""
        (status,) = self._launch(function, grid, 1, 1, block, 1, 1, shared, stream, parameters, 0)
        if status == self._unbound:  # a thread that torch has not used
            self.bind(torch.cuda.current_device())
            (status,) = self._launch(function, grid, 1, 1, block, 1, 1, shared, stream, parameters, 0)
        if status != self._success:
            self._fail(status, f"launching {grid} blocks of {block} threads")

    def processors(self, device: int) -> int:
        """How many multiprocessors a device has."""
        return torch.cuda.get_device_properties(device).multi_processor_count

    def tensor_map(
        self, dtype: str, address: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]
    ) -> bytes:
        """Rows of 128 bytes, swizzled; what lies outside of the tensor is read as 0."""
        cu = self._cu
        kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TENSOR_DTYPES[dtype]}")
        wide = [[cu.cuuint64_t(n) for n in numbers] for numbers in (shape, strides)]
        short = [[cu.cuuint32_t(n) for n in numbers] for numbers in (box, [1] * len(box))]
        status, made = cu.cuTensorMapEncodeTiled(
            kind,
            len(shape),
            address,
            *wide,
            *short,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        if status != self._success:
            self._fail(status, f"describing a tensor of {list(shape)} elements")
        return ctypes.string_at(made.getPtr(), 128)

    def address(self, function: object) -> int:
        """The handle as a number."""
        return int(cast(Any, function))

    def entry_points(self) -> dict[str, int]:
        """Looked up in the driver's library, which torch has loaded."""
        library = ctypes.CDLL("libcuda.so.1")
        found = {
            name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            for name in ENTRY_POINTS
            if hasattr(library, name)
        }
        return {name: address for name, address in found.items() if address is not None}

    def error(self, status: int, doing: str) -> Exception:
        """What `launch` would raise."""
        try:
            self._fail(self._cu.CUresult(status), doing)
        except RuntimeError as error:
            return error
        except CompileError as error:
            return error

    def bind(self, device: int) -> None:
        """Make the context that torch works in current on this thread: torch does it at its own first launch."""
        context = self._contexts.get(device)
        if context is None:
            status, handle = self._cu.cuDeviceGet(device)
            if status == self._success:
                status, context = self._cu.cuDevicePrimaryCtxRetain(handle)
            if status != self._success:
                self._fail(status, f"using device {device}")
            self._contexts[device] = context
        (status,) = self._cu.cuCtxSetCurrent(context)
        if status != self._success:
            self._fail(status, f"using device {device}")

    def _fail(self, status: object, doing: str) -> NoReturn:
        _, name = self._cu.cuGetErrorName(status)
        _, text = self._cu.cuGetErrorString(status)
        name, text = (t.decode() if isinstance(t, bytes) else str(t) for t in (name, text))
        if "UNSUPPORTED_PTX_VERSION" in name or "NO_BINARY_FOR_GPU" in name:
            _, version = self._cu.cuDriverGetVersion()
            have = f"{version // 1000}.{version % 1000 // 10}"
            raise UnsupportedError(
                f"the GPU's driver (CUDA {have}) is too old for the generated code ({name})", cure="update the driver"
            )
        if "OUT_OF_MEMORY" in name:
            raise torch.OutOfMemoryError(f"{doing}: {text}")
        raise DriverError(f"{doing}: {name}, {text}")


@functools.cache
def driver() -> CudaDriver:
    """The process's driver. UnsupportedError where cuda-bindings or a GPU is missing."""
    return CudaDriver()
