"""Index checks that cannot be the first to fail: an earlier kernel of the function checks all of the same numbers.

    %y = kernel.fused %table, %i ...    checks %i against 50304: each element
    %g = kernel.fused %dy, %i ...       checks %i against 50304: some, all or none of them, after %y

Whoever waits for errors needs not wait for the second.
"""

from __future__ import annotations

from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.dialects.kernel.checked import Checked, checked


def rechecks(launches: list[Operation]) -> set[Operation]:
    """Give the kernels that can fail only where an earlier one of these has failed; they run in this order."""
    known: set[Checked] = set()
    found: set[Operation] = set()
    for op in launches:
        if not isinstance(op, kernel.LoopNest) or not kernel.can_fail(op):
            continue
        made = [checked(op, check) for check in kernel.checks(op)]
        if not _divides(op) and all(m is not None and m[0] in known for m in made):
            found.add(op)
            continue
        known.update(m[0] for m in made if m is not None and m[1])
    return found


def _divides(op: kernel.LoopNest) -> bool:
    """Whether integers are divided: by zero perhaps."""
    divisions = [inner for inner in op.block.ops if isinstance(inner, (prim.DivOp, prim.RemOp))]
    return any(ir.is_integer(ir.dtype_of(inner.results[0])) for inner in divisions)
