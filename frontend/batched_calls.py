"""What torch makes of one library call for many examples: its own batching rule, traced on fakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute

from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import aten
from isthmus.frontend.derivatives import CallOnFakes, module_of, overload_of
from isthmus.frontend.recorder import BelowAutograd
from isthmus.frontend.torch_private import batched_tensors, schema_of
from isthmus.ir import Dim, LiteralValue
from isthmus.sizes import Size


def draws_random_numbers(name: str) -> bool:
    """Tell whether an overload draws from torch's generators."""
    try:
        return torch.Tag.nondeterministic_seeded in overload_of(name).tags
    except UnsupportedError:  # a call that only we know
        return False


def trace_batched(
    name: str,
    args: Sequence[LiteralValue],
    operands: Sequence[Attribute],
    mapped: Sequence[bool],
    size: Dim,
    *,
    hints: Mapping[str, int] | None = None,
    device: str = "cpu",
) -> ModuleOp | None:
    """Give the call on all examples as an aten function `@main`: of the operands, those `mapped` with the examples in
    front, to the results, all with the examples in front. None where torch would call it once an example itself.
    """
    if any(a.alias_info is not None and a.alias_info.is_write for a in schema_of(overload_of(name)).arguments):
        return None
    call = CallOnFakes(name, args, operands, hints, device)
    recorder = call.recorder
    with call.entered(), torch.no_grad():
        for tensor in call.operands:
            recorder.add_input(tensor)
        count = call.writer.size(size) if isinstance(size, Size) else size
        with batched_tensors(count) as (batched, plain), BelowAutograd(recorder):
            given = [batched(t) if m else t for t, m in zip(call.operands, mapped, strict=True)]
            results = [plain(r) for r in call.run(given) if isinstance(r, Tensor)]
    calls = [op for op in recorder.root.block.ops if isinstance(op, aten.CallOp)]
    if sum(c.overload == name for c in calls) > 1:
        return None
    return module_of(recorder, [recorder.value_of(r) for r in results], may_draw=True)
