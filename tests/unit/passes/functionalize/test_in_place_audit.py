"""Every in-place operator of torch's database, on values: the same new contents as eager's."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from isthmus.diagnostics import UnsupportedError
from isthmus.passes.functionalize.emission import SCHEMAS
from tests.unit.passes.functionalize.harness import capture, functionalized

IN_PLACE = [op for op in op_db if op.inplace_variant is not None]

SEED = 42
"""What the database's own random samples set at each call."""

REPLACES_STORAGE = ("resize_", "resize_as_")
META_FAILS = ("addbmm",)
"""Torch's own shape function refuses what its kernel accepts."""


def dtype_of(op: OpInfo) -> torch.dtype | None:
    allowed = op.supported_dtypes("cpu")
    return next((d for d in (torch.float64, torch.int64, torch.bool, torch.complex128) if d in allowed), None)


@pytest.mark.parametrize("op", IN_PLACE, ids=lambda op: op.full_name)
def test_new_contents(op: OpInfo):
    dtype = dtype_of(op)
    if dtype is None or op.name in REPLACES_STORAGE + META_FAILS:
        pytest.skip("has no compiled form")
    torch.manual_seed(0)
    ran = 0
    for sample in list(op.sample_inputs("cpu", dtype))[:3]:
        if not isinstance(sample.input, Tensor):
            continue
        tensors = [sample.input, *(a for a in sample.args if isinstance(a, Tensor))]

        def program(x: Tensor, *rest: Tensor, sample=sample) -> Tensor:
            given = iter(rest)
            args = [next(given) if isinstance(a, Tensor) else a for a in sample.args]
            y = x.clone()
            op.inplace_variant(y[None][0], *args, **sample.kwargs)
            return y.clone()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                torch.manual_seed(SEED)
                want = program(*tensors)
            except (RuntimeError, IndexError, TypeError, ValueError):
                continue  # eager refuses: another shape or dtype than the tensor's own
            try:
                functional = functionalized(capture(program, tensors))
            except UnsupportedError as error:
                pytest.skip(str(error))
            torch.manual_seed(SEED)
            (got,) = functional(*tensors)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12, equal_nan=True)
        ran += 1
    if not ran:
        pytest.skip("eager refuses every sample")


def test_schemas_are_torchs_own():
    for text in SCHEMAS:
        name = text[: text.index("(")]
        packet, _, overload = name.partition(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
        assert str(schema).removeprefix("aten::") == text
