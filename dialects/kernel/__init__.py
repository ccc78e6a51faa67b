"""The kernel dialect: one op per launch, with its iteration space, index maps, scalar body and every decision.

`FusedOp` is one loop nest, `ContractOp` a matrix product with what is computed around it, `ExternOp` a library call;
`Map` says where a point reads and writes.
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
    DotOp,
    IndexOp,
    LoadOp,
    ReduceOp,
    RngOp,
    SinkOp,
    StoreOp,
)
from isthmus.dialects.kernel.facts import (
    LINE,
    buffer_of,
    can_fail,
    checks,
    copy_into,
    key,
    launches,
    leading_to,
    levels,
    linear_map,
    points,
    result_of,
    seen_of,
    size_symbols,
    starts,
    strides_of,
    varying,
)
from isthmus.dialects.kernel.index import Bounds, Expr, constant, dim, is_nonnegative, sizes_as_bounds, value
from isthmus.dialects.kernel.map import Map
from isthmus.dialects.kernel.ops import ContractOp, ExternOp, FusedOp, JoinOp, LaunchOp, LoopNest, ReshapeOp
from isthmus.dialects.kernel.stream import AttentionBwdOp, AttentionOp, Kernel, StreamOp

KERNEL = Dialect("kernel", list(KERNEL_OPS), [Map])

__all__ = [
    "ARG_REDUCTIONS",
    "KERNEL",
    "KERNEL_OPS",
    "LINE",
    "REDUCTIONS",
    "RESIDENCES",
    "STORE_KINDS",
    "AccumulateOp",
    "AttentionBwdOp",
    "AttentionOp",
    "BodyOp",
    "Bounds",
    "CheckOp",
    "ContractOp",
    "CumulativeOp",
    "DotOp",
    "Expr",
    "ExternOp",
    "FusedOp",
    "IndexOp",
    "JoinOp",
    "Kernel",
    "KernelOp",
    "LaunchOp",
    "LoadOp",
    "LoopNest",
    "Map",
    "ReduceOp",
    "ReshapeOp",
    "RngOp",
    "SinkOp",
    "StoreOp",
    "StreamOp",
    "buffer_of",
    "can_fail",
    "checks",
    "constant",
    "copy_into",
    "dim",
    "is_nonnegative",
    "key",
    "launches",
    "leading_to",
    "levels",
    "linear_map",
    "points",
    "result_of",
    "seen_of",
    "size_symbols",
    "sizes_as_bounds",
    "starts",
    "strides_of",
    "value",
    "varying",
]
