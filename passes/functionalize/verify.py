"""What holds after functionalization: no reference types, and no call that mutates or aliases."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import aten


def verify_functional(module: ModuleOp) -> None:
    """Check that the module is on values; IRError on the first op that is not."""
    for op in module.walk():
        for name in ("mutates", "aliases"):
            if op.properties.get(name) is not None:
                raise IRError(f"{name} an operand after functionalize", op=op.name, location=ir.source_location(op))
        values = [*ir.operands_of(op), *op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]
        if any(isinstance(v.type, aten.RefType) for v in values):
            raise IRError("holds a reference after functionalize", op=op.name, location=ir.source_location(op))
