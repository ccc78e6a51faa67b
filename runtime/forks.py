"""After a fork: the threads of OpenMP's pool stay with the parent, so the child works alone."""

from __future__ import annotations

import functools
import os

import torch


@functools.cache
def work_alone_in_children() -> None:
    """See that compiled code in a forked child does not wait for threads that exist in its parent only."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_alone)


def _alone() -> None:
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)
