"""Which compiled programs are out of date: a count that grows when everything must be compiled again."""

from __future__ import annotations

import torch._dynamo as dynamo

_current = 0


def generation() -> int:
    """Give the count; programs compiled under another one must not run."""
    return _current


def advance() -> None:
    """Forget every compiled program of this process, Dynamo's too."""
    global _current
    _current += 1
    dynamo.reset()
