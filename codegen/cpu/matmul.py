"""`prim.dot` that BLAS cannot make, through torch's own matrix products into memory of the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from isthmus.codegen.cpu.dispatch import blob
from isthmus.codegen.cpu.frame import Frame
from isthmus.codegen.cpu.strided import folded
from isthmus.codegen.llvm_text import F64, I32, Value
from isthmus.dialects.product_views import broadcast
from isthmus.dialects.program import Buffer, LibraryCall
from isthmus.sizes import Dim


def plan_matmul(call: LibraryCall) -> tuple[Buffer, ...] | None:
    """View operands and result as (batched) matrices A, B, C and the bias as C; None where strides do not allow it."""
    a, b, *bias = call.operands
    (c,) = call.results
    literals = dict(cast("tuple[tuple[str, tuple[int, ...]], ...]", call.arguments))
    batch_a, batch_b = literals["batch_a"], literals["batch_b"]
    contract_a, contract_b = literals["contract_a"], literals["contract_b"]
    free_a = [d for d in range(len(a.shape)) if d not in (*batch_a, *contract_a)]
    free_b = [d for d in range(len(b.shape)) if d not in (*batch_b, *contract_b)]
    nb, na, nc = len(batch_a), len(free_a), len(c.shape)
    groups = (
        (_group(a, batch_a), _group(a, free_a), _group(a, contract_a)),
        (_group(b, batch_b), _group(b, contract_b), _group(b, free_b)),
        (_group(c, range(nb)), _group(c, range(nb, nb + na)), _group(c, range(nb + na, nc))),
    )
    views = [_matrix(x, g, bool(nb)) for x, g in zip((a, b, c), groups, strict=True)]
    if bias:
        wide = broadcast(bias[0], c)
        shape = (_group(wide, range(nb)), _group(wide, range(nb, nb + na)), _group(wide, range(nb + na, nc)))
        views.append(_matrix(wide, shape, bool(nb)))
    return None if None in views else tuple(cast("list[Buffer]", views))


def _group(buffer: Buffer, dims: object) -> tuple[Dim, Dim] | None:
    """Size and stride of some dims walked as one."""
    chosen = list(cast("list[int]", dims))
    axes = folded([(buffer.shape[d], (buffer.strides[d],)) for d in chosen])
    if len(axes) > 1:
        return None
    return (axes[0][0], axes[0][1][0]) if axes else (1, 1)


def _matrix(buffer: Buffer, groups: tuple[tuple[Dim, Dim] | None, ...], batched: bool) -> Buffer | None:
    if None in groups:
        return None
    axes = cast("tuple[tuple[Dim, Dim], ...]", groups if batched else groups[1:])
    return replace(buffer, shape=tuple(s for s, _ in axes), strides=tuple(t for _, t in axes))


def emit_matmul(frame: Frame, views: tuple[Buffer, ...], check: Callable[[Value], None]) -> None:
    """Write one call of mm, bmm, addmm or baddbmm; `check(status)` leaves on a failure."""
    f = frame.f
    a, b, c, *bias = (blob(frame, view) for view in views)
    batched = len(views[0].shape) == 3
    if bias:
        name = "baddbmm" if batched else "addmm"
        one = f.const(1.0, F64)
        status = f.call(f"aoti_torch_cpu_{name}_out", I32, c, bias[0], a, b, one, one)
    else:
        status = f.call(f"aoti_torch_cpu_{'bmm' if batched else 'mm'}_out", I32, c, a, b)
    for handle in (a, b, c, *bias):
        f.call("aoti_torch_delete_tensor_object", I32, handle)
    check(status)
