"""Functions that are random only by an argument: what they draw comes from torch's own generator, as in eager.

Attention is compared with eager under one seed like any deterministic function: see
docs/decisions/dropout-of-attention-is-torchs.md. `scaled_dot_product_attention` is one operator and knows that itself;
a function of Python that is made of operators is seen here.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from torch.nn.functional import multi_head_attention_forward

from isthmus.frontend.recorder import Recorder

FUNCTIONS = frozenset[object]({multi_head_attention_forward})


@contextmanager
def torchs_own(recorder: Recorder) -> Generator[None]:
    """Mark what is recorded meanwhile."""
    before, recorder.torchs_noise = recorder.torchs_noise, True
    try:
        yield
    finally:
        recorder.torchs_noise = before
