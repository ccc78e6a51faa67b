"""Library calls of compiled code that need Python: operators that torch's C interface cannot carry, and failures.

Machine code comes here with addresses. Memory becomes tensors that own nothing, the operator runs, and its results go
where the program wants them. A failed call is made again here, so that eager's own exception is raised.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from xdsl.ir import Block, Region

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.program import Buffer, LibraryCall, Program, numbers
from isthmus.dialects.schema import parse_schema
from isthmus.ir import Literal, LiteralValue
from isthmus.runtime import handles
from isthmus.runtime.interpret_library import call_on_values
from isthmus.runtime.interpret_table import DTYPES, TABLE, Value
from isthmus.runtime.torch_private import kernel_arguments

NATIVE = frozenset(
    {
        # contractions
        *("prim.dot", "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "_int_mm", "_grouped_mm"),
        # convolutions
        *("prim.conv", "prim.conv_dx", "prim.conv_dw", "convolution", "convolution_backward"),
        # attention
        *("prim.attention", "_scaled_dot_product_flash_attention_for_cpu"),
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        *("isthmus::attention", "isthmus::attention_backward"),
        # order
        *("prim.sort", "sort", "topk", "kthvalue", "median", "nanmedian", "mode", "searchsorted", "bucketize"),
        # Fourier transforms
        *("_fft_c2c", "_fft_r2c", "_fft_c2r"),
        *(f"fft_{kind}{dims}" for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for dims in ("", "2", "n")),
        # linear algebra
        *("linalg_inv_ex", "linalg_cholesky_ex", "linalg_eigh", "_linalg_eigh", "linalg_eig", "_linalg_svd"),
        *("linalg_qr", "_linalg_solve_ex", "linalg_solve_triangular", "_linalg_det", "_linalg_slogdet"),
        *("linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve", "lu_unpack", "cholesky_solve", "cholesky_inverse"),
        *("triangular_solve", "linalg_lstsq", "linalg_householder_product", "geqrf", "ormqr", "linalg_ldl_factor_ex"),
        *("linalg_matrix_exp", "linalg_eigvals", "_linalg_eigvals", "linalg_vector_norm"),
        *("linalg_inv", "linalg_cholesky", "linalg_eigvalsh", "linalg_svd", "linalg_svdvals", "linalg_solve"),
        *("linalg_solve_ex", "linalg_det", "linalg_slogdet", "linalg_lu_factor", "linalg_ldl_factor"),
        *("linalg_ldl_solve", "linalg_tensorinv", "linalg_tensorsolve", "linalg_matrix_power", "linalg_matrix_norm"),
        *("linalg_matrix_rank", "linalg_pinv", "linalg_cond"),
        *("cholesky", "svd", "qr", "logdet", "lu_solve", "_lu_with_info", "matrix_exp", "pinverse"),
    }
)
"""The library calls that a native program may make: those that a hand-written kernel seldom beats."""


def is_native(call: LibraryCall) -> bool:
    """Whether a program with this call still counts as native: no Python, and on the allow-list."""
    return call.route != "python" and is_allowed(call)


def is_allowed(call: LibraryCall) -> bool:
    """Whether a call is on the allow-list."""
    if call.symbol.startswith("prim."):
        name = call.symbol
    else:
        name = call.symbol.removeprefix("aten.").removeprefix("aten::").partition(".")[0]
    return name in NATIVE


@functools.cache
def schema_of(overload: str) -> str | None:
    """Torch's schema of an overload such as "add.Tensor" or "mylib::scale.default", as text.

    None where there is none, and where torch's C interface cannot make the call whatever its arguments.
    """
    namespace, _, rest = overload.removeprefix("aten::").rpartition("::")
    name, _, version = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace or "aten"), name, None)
    found = getattr(packet, version or "default", None)
    if found is None:
        return None
    text = str(cast("torch._ops.OpOverload", found)._schema)  # pyright: ignore[reportPrivateUsage]
    return text.removeprefix("aten::") if _lists_arrive(text) else None


def _lists_arrive(schema: str) -> bool:
    """Whether the kernel takes every `SymInt[]` of the schema: the C interface passes it as that, never as `int[]`."""
    wanted = sum(a.is_list and a.base == "SymInt" for a in parse_schema(schema).arguments)
    if not wanted:
        return True
    taken = kernel_arguments(schema.partition("(")[0])
    return taken is None or taken.count("SymInt[]") == wanted


# ---- Programs that may call back


_programs: weakref.WeakValueDictionary[int, Registered] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)
_raised = threading.local()


class Registered:
    """A loaded program, known to machine code by its number."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.number = next(_numbers)
        _programs[self.number] = self


def raised() -> BaseException | None:
    """What the last failed call on this thread raised; None where it left nothing."""
    found: BaseException | None = getattr(_raised, "error", None)
    _raised.error = None
    return found


@dataclass(frozen=True)
class _Frame:
    """What the interpreter's table asks for."""

    sizes: Mapping[str, int]

    def run_region(self, region: Region, arguments: Sequence[Value]) -> list[Value]:
        raise NotImplementedError("library calls have no regions")


def _entry(number: int, step: int, failed: int, operands: int, results: int, sizes: int) -> int:
    """Called by machine code; gives 0, or 1 after leaving an exception in `_raised`."""
    call = None
    try:
        program = _programs[number].program
        call = cast(LibraryCall, program.step(step))
        values = (ctypes.c_int64 * len(program.symbols)).from_address(sizes) if program.symbols else ()
        known = {source.name: int(v) for source, v in zip(program.symbols, values, strict=True)}
        _make(call, operands, results, known, bool(failed))
    except BaseException as error:
        if call is not None and call.location is not None:
            error.add_note(f"in '{call.symbol}' from {call.location}")
        _raised.error = error
        return 1
    return 0


def _make(call: LibraryCall, operands: int, results: int, sizes: Mapping[str, int], failed: bool) -> None:
    why = handles.last_error() if failed else ""
    inputs = [_tensor_at(address, b, sizes) for address, b in zip(_pointers(operands), call.operands, strict=False)]
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        made = evaluate(call, inputs, sizes)
    if failed:
        wanted = [f"{b.dtype}{list(numbers(b.shape, sizes))}" for b in call.results]
        raise RuntimeError(f"'{call.symbol}' failed, or gave other results than {', '.join(wanted)}: {why}")
    for k, (result, buffer) in enumerate(zip(made, call.results, strict=True)):
        place = ctypes.c_uint64.from_address(results + 8 * k)
        _deliver(result, buffer, place, sizes)


def _pointers(array: int) -> Sequence[int]:
    return _Words(array)


class _Words(Sequence[int]):
    """64-bit words from an address on; the end is not known."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: object) -> int:  # type: ignore[override]
        return ctypes.c_uint64.from_address(self._address + 8 * cast(int, index)).value


def _tensor_at(address: int, buffer: Buffer, sizes: Mapping[str, int]) -> Tensor:
    shape, strides = numbers(buffer.shape, sizes), numbers(buffer.strides, sizes)
    return handles.from_memory(address, DTYPES[buffer.dtype], shape, strides)


def _deliver(made: Value, buffer: Buffer, place: ctypes.c_uint64, sizes: Mapping[str, int]) -> None:
    """Put a result where the program wants it: into its memory, or into a new tensor."""
    if not isinstance(made, Tensor):
        made = torch.tensor(made)
    shape, strides = numbers(buffer.shape, sizes), numbers(buffer.strides, sizes)
    dtype = DTYPES[buffer.dtype]
    if made.dtype != dtype or tuple(made.shape) != shape:
        raise RuntimeError(f"a library call gave {made.dtype}{list(made.shape)}, compiled for {dtype}{list(shape)}")
    address = place.value
    if not address:
        place.value, address = handles.empty(dtype, shape, strides)
    _tensor_at(address, buffer, sizes).copy_(made)


def evaluate(call: LibraryCall, operands: Sequence[Tensor], sizes: Mapping[str, int]) -> list[Value]:
    """Make a library call on tensors, as the reference interpreter would."""
    frame = _Frame(sizes)
    if not call.symbol.startswith("prim."):
        return call_on_values(call.symbol.removeprefix("aten."), call.arguments, operands, frame)
    for module in ("reduce", "structured"):
        importlib.import_module(f"isthmus.runtime.interpret_{module}")
    literals = dict(cast("tuple[tuple[str, LiteralValue], ...]", call.arguments))
    bias = literals.pop("bias", None)
    op = _primitive(call, literals)
    results = list(TABLE[type(op)](op, operands[: len(op.operands)], frame))
    return [cast(Tensor, results[0]) + operands[2]] if bias is not None else results


def _primitive(call: LibraryCall, literals: Mapping[str, LiteralValue]) -> prim.PrimOp:
    """The primitive that a call stands for, as an op on operands of the call's types."""
    (cls,) = [c for c in prim.PRIM_OPS if c.name == call.symbol]
    count = 2 if call.symbol == "prim.dot" else len(call.operands)
    block = Block(arg_types=[ir.tensor(b.shape, b.dtype) for b in call.operands[:count]])
    types = [ir.tensor(b.shape, b.dtype) for b in call.results]
    properties = {key: Literal.of(value) for key, value in literals.items()}
    return cls.create(operands=block.args, result_types=types, properties=properties)


@functools.cache
def entry() -> tuple[int, object]:
    """The address of the C function that machine code calls, and what keeps it alive."""
    words = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *words)
    function = kind(cast("Callable[..., int]", _entry))
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address, function
