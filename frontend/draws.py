"""Python's and NumPy's random numbers: what a trace draws would be the same at every call, so it may draw none."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any, cast


class Draws:
    """The states of the generators that `random` and `numpy.random` share among all who use them."""

    def __init__(self) -> None:
        """Look at the states now."""
        self._python = random.getstate()
        self._numpy = _numpy_state()

    def changed(self) -> str | None:
        """Say which was drawn from; None where neither was."""
        if random.getstate() != self._python:
            return "the state of Python's random"
        return None if _numpy_state() == self._numpy else "the state of numpy.random"

    def put_back(self) -> None:
        """Make both states as they were."""
        random.setstate(self._python)
        if self._numpy is not None and _numpy_state() != self._numpy:
            cast(Any, sys.modules["numpy.random"]).set_state(pickle.loads(self._numpy))


def _numpy_state() -> bytes | None:
    """Give the state as bytes, which compare; None where nobody has imported NumPy's generators."""
    module = cast(Any, sys.modules.get("numpy.random"))
    return None if module is None else pickle.dumps(module.get_state(legacy=False))
