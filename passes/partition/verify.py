"""What must hold after a joint function was cut in two."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.signature import Signature, saved_sources
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.recompute import NEVER
from isthmus.passes.partition.split import Halves


def verify_halves(joint: Joint, halves: Halves) -> None:
    """Check the halves against each other and against the joint function; IRError names the first fault."""
    for func in (halves.forward, halves.backward):
        if func is not None:
            ir.verify_order(func)
    for op in halves.recomputed:
        _verify_runs_twice(op)
    _verify_saved(joint, halves)


def _verify_runs_twice(op: Operation) -> None:
    if isinstance(op, NEVER):
        raise IRError("runs in forward and in backward", op=op.name, location=ir.source_location(op))


def _verify_saved(joint: Joint, halves: Halves) -> None:
    handed = _saved_types(halves.forward, results=True)
    taken = {} if halves.backward is None else _saved_types(halves.backward, results=False)
    if handed != taken:
        raise IRError(f"forward hands over {_list(handed)}, backward takes {_list(taken)}")
    if list(handed) != list(range(len(halves.saved))):
        raise IRError(f"saved values are numbered {list(handed)}, not 0 to {len(halves.saved) - 1}")
    for number, (kind, index) in enumerate(saved_sources(halves.forward)):
        if kind == "argument" and halves.saved[number] in joint.overwritten:
            raise IRError(f"saved value {number} is argument {index}, which is overwritten before backward reads it")
    claimed, found = sum(map(joint.nbytes, halves.saved)), sum(map(joint.nbytes, handed.values()))
    if claimed != found:
        raise IRError(f"{claimed} bytes are claimed to be saved, {found} are")


def _saved_types(func: FuncOp, results: bool) -> dict[int, ir.Attribute]:
    """Saved value j -> its type, in the order in which the function has them."""
    signature, kind = Signature.of(func), func.function_type
    roles = signature.results if results else signature.arguments
    types = (kind.outputs if results else kind.inputs).data
    return {r.saved: t for r, t in zip(roles, types, strict=True) if r.saved is not None}


def _list(types: dict[int, ir.Attribute]) -> str:
    return "[" + ", ".join(f"{j}: {t}" for j, t in types.items()) + "]"
