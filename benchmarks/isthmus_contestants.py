"""Contestants of peer benchmarks: `--contestant trace=isthmus_contestants:trace` with this folder on PYTHONPATH."""

from __future__ import annotations

from functools import partial

import isthmus

trace = partial(isthmus.compile, capture="trace")
