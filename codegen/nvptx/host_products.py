"""`prim.dot` on a device from machine code: torch's own matrix products into memory of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from isthmus.codegen.cpu.dispatch import blob
from isthmus.codegen.cpu.frame import Frame
from isthmus.codegen.llvm_text import F64, I32, Value
from isthmus.dialects.product_views import joined, product_views
from isthmus.dialects.program import Buffer, LibraryCall


def plan_product(call: LibraryCall) -> tuple[Buffer, ...] | None:
    """View A, B, C and the bias as matrices or batches of them; None where strides or dtypes do not allow it.

    A bias of one row stays one: the library adds it in the product.
    """
    a, b, *bias = call.operands
    (c,) = call.results
    dtypes = {x.dtype for x in (a, b, c, *bias)}
    if len(dtypes) != 1 or dtypes.pop()[0] not in "fbc":
        return None
    a_view, b_view, *bias_views, c_view = (
        x if groups is None else joined(x, groups) for x, groups in product_views(call)
    )
    views = [a_view, b_view, c_view, *bias_views]
    return None if None in views else tuple(cast("list[Buffer]", views))


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
