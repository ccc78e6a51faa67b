"""`prim.dot` on a device from machine code: torch's own matrix products into memory of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from isthmus.codegen.cpu.blas import broadcast
from isthmus.codegen.cpu.dispatch import blob
from isthmus.codegen.cpu.frame import Frame
from isthmus.codegen.llvm_text import F64, I32, Value
from isthmus.dialects.program import Buffer, LibraryCall
from isthmus.sizes import Dim


def plan_product(call: LibraryCall) -> tuple[Buffer, ...] | None:
    """View A, B, C and the bias as matrices or batches of them; None where strides or dtypes do not allow it.

    A bias of one row stays one: the library adds it in the product.
    """
    a, b, *bias = call.operands
    (c,) = call.results
    dtypes = {x.dtype for x in (a, b, c, *bias)}
    if len(dtypes) != 1 or dtypes.pop()[0] not in "fbc":
        return None
    literals = dict(cast("tuple[tuple[str, tuple[int, ...]], ...]", call.arguments))
    batch_a, batch_b = literals["batch_a"], literals["batch_b"]
    contract_a, contract_b = literals["contract_a"], literals["contract_b"]
    free_a = tuple(d for d in range(len(a.shape)) if d not in (*batch_a, *contract_a))
    free_b = tuple(d for d in range(len(b.shape)) if d not in (*batch_b, *contract_b))
    nb, na, order = len(batch_a), len(free_a), tuple(range(len(c.shape)))
    of_c = (order[:nb], order[nb : nb + na], order[nb + na :])
    skip = 0 if batch_a else 1
    views = [
        _viewed(a, (batch_a, free_a, contract_a)[skip:]),
        _viewed(b, (batch_b, contract_b, free_b)[skip:]),
        _viewed(c, of_c[skip:]),
    ]
    for x in bias:
        is_row = len(x.shape) == 1 and len(of_c[2]) == 1 and not batch_a
        views.append(x if is_row else _viewed(broadcast(x, c), of_c[skip:]))
    return None if None in views else tuple(cast("list[Buffer]", views))


def _viewed(buffer: Buffer, groups: Sequence[Sequence[int]]) -> Buffer | None:
    """Join each group of dims to one by strides alone; None where they do not join."""
    shape: list[Dim] = []
    strides: list[Dim] = []
    for dims in groups:
        size: Dim = 1
        stride: Dim = 1
        for d in dims:
            if buffer.shape[d] == 1:
                continue
            if size != 1 and stride != buffer.shape[d] * buffer.strides[d]:
                return None
            size, stride = size * buffer.shape[d], buffer.strides[d]
        shape.append(size)
        strides.append(stride)
    for k in reversed(range(len(shape))):  # what has one element is stepped over as in a row-major matrix
        if shape[k] == 1:
            strides[k] = shape[k + 1] * strides[k + 1] if k + 1 < len(shape) else 1
    return replace(buffer, shape=tuple(shape), strides=tuple(strides))


def emit_product(frame: Frame, views: tuple[Buffer, ...], check: Callable[[Value], None]) -> None:
    """Write one call of mm, bmm, addmm or baddbmm; `check(status)` leaves on a failure."""
    f = frame.f
    a, b, c, *bias = (blob(frame, view) for view in views)
    batched = len(views[0].shape) == 3
    if bias:
        one = f.const(1.0, F64)
        name = f"aoti_torch_{frame.tensors.name}_{'baddbmm' if batched else 'addmm'}_out"
        status = f.call(name, I32, c, bias[0], a, b, one, one)
    else:
        status = f.call(f"aoti_torch_{frame.tensors.name}_{'bmm' if batched else 'mm'}_out", I32, c, a, b)
    for handle in (a, b, c, *bias):
        f.call("aoti_torch_delete_tensor_object", I32, handle)
    check(status)
