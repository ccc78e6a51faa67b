"""Over torch's operator database: a captured call writes and aliases what the IR says, and computes what eager does.

By default every tenth operator; ISTHMUS_AUDIT=all takes every one (about a minute).
"""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from isthmus.diagnostics import UnsupportedError
from isthmus.frontend.trace import trace

SHARDS = 10
SAMPLES = 2

READS_DATA = {
    "allclose", "argwhere", "combinations", "corrcoef", "cov", "equal", "item", "linalg.lstsq", "masked_select",
    "narrow", "nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss", "nonzero", "tensor_split", "unique",
    "unique_consecutive",
}  # fmt: skip
NO_COMPILED_FORM = {"chalf", "hash_tensor", "resize_", "resize_as_", "sparse.mm", "sparse.sampled_addmm", "to_sparse"}
NOT_HERE = {"as_strided", "as_strided_copy"}  # reads memory beside the sample, which a copy of the sample lacks

RANDOM = {
    "rand", "dropout", "normal", "bernoulli", "multinomial", "exponential", "uniform", "geometric", "cauchy", "rrelu",
    "empty",
}  # fmt: skip


def shard(index):
    ops = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu") and not op.name.startswith("jiterator")]
    return [op for op in ops if op.name not in NOT_HERE][index::SHARDS]


def samples(op):
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=False)):
        if number < SAMPLES:
            yield (sample.input, *sample.args), sample.kwargs


@pytest.mark.parametrize("index", range(SHARDS) if os.environ.get("ISTHMUS_AUDIT") == "all" else [0])
def test_facts_and_values_of_captured_operators(index, captures):
    captures.round_trip = False
    refused, wrong, right = set(), [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in shard(index):
            for args, kwargs in samples(op):
                try:
                    traced = trace(op.op, args, kwargs)
                except UnsupportedError:
                    refused.add(op.name)
                    continue
                try:
                    compare(captures, traced, op.op, args, kwargs)
                    right += 1
                except AssertionError as error:
                    wrong.append(f"{op.name}: {str(error).splitlines()[0]}")
    assert not wrong, "\n".join(wrong)
    assert refused <= READS_DATA | NO_COMPILED_FORM
    assert right > 90


def compare(captures, traced, function, args, kwargs):
    run = captures(traced.captured)
    copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    leaves = pytree.tree_leaves(copies)
    torch.manual_seed(0)
    got = [o for o in run([leaves[i] for i in traced.leaves]) if isinstance(o, torch.Tensor)]
    if not any(word in name for word in RANDOM for name in captures.overloads):
        want = [o for o in pytree.tree_leaves(function(*args, **kwargs)) if isinstance(o, torch.Tensor)]
        torch.testing.assert_close(got, want, equal_nan=True)
