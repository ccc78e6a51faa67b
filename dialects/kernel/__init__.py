"""The kernel dialect: one op per launch, with its iteration space, index maps, scalar body and every decision.

`FusedOp` is one loop nest, `ExternOp` a library call; `Map` says where a point reads and writes.
"""

from xdsl.ir import Dialect

from isthmus.dialects.kernel.base import (
    ARG_REDUCTIONS,
    KERNEL_OPS,
    REDUCTIONS,
    RESIDENCES,
    STORE_KINDS,
    KernelOp,
)
from isthmus.dialects.kernel.body import (
    AccumulateOp,
    BodyOp,
    CheckOp,
    CumulativeOp,
    IndexOp,
    LoadOp,
    ReduceOp,
    RngOp,
    SinkOp,
    StoreOp,
)
from isthmus.dialects.kernel.facts import (
    can_fail,
    checks,
    key,
    launches,
    levels,
    linear_map,
    points,
    result_of,
    strides_of,
    varying,
)
from isthmus.dialects.kernel.index import Bounds, Expr, constant, dim, is_nonnegative, sizes_as_bounds, value
from isthmus.dialects.kernel.map import Map
from isthmus.dialects.kernel.ops import ExternOp, FusedOp, LaunchOp, ReshapeOp

KERNEL = Dialect("kernel", list(KERNEL_OPS), [Map])

__all__ = [
    "ARG_REDUCTIONS",
    "KERNEL",
    "KERNEL_OPS",
    "REDUCTIONS",
    "RESIDENCES",
    "STORE_KINDS",
    "AccumulateOp",
    "BodyOp",
    "Bounds",
    "CheckOp",
    "CumulativeOp",
    "Expr",
    "ExternOp",
    "FusedOp",
    "IndexOp",
    "KernelOp",
    "LaunchOp",
    "LoadOp",
    "Map",
    "ReduceOp",
    "ReshapeOp",
    "RngOp",
    "SinkOp",
    "StoreOp",
    "can_fail",
    "checks",
    "constant",
    "dim",
    "is_nonnegative",
    "key",
    "launches",
    "levels",
    "linear_map",
    "points",
    "result_of",
    "sizes_as_bounds",
    "strides_of",
    "value",
    "varying",
]
