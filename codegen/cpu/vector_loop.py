"""A loop over positions, many at once: unrolled, then a vector at a time, then what is left under a mask."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from isthmus.codegen.cpu.reductions import Accumulator
from isthmus.codegen.cpu.state import State
from isthmus.codegen.llvm_text import Function, Value

CHUNK = 64
"""Steps of the unrolled loop after which float sums move to their totals."""


def vector_loop(
    state: State,
    bounds: tuple[Value, Value],
    lanes: int,
    unroll: int,
    body: Callable[[Value, Value | None, int], None],
    sums: Sequence[Accumulator],
    length: int | None = None,
) -> None:
    """Run `body(position, mask, copy)` over low..high; `sums` are what it adds to.

    `length` is high - low where that is known and they are not: a rest that is never there is not written.
    """
    f, span = state.f, lanes * unroll
    low, high = bounds
    left = high - low if length is None else f.index(length)
    whole = multiple(f, left, span)
    start, stop = low, low + whole
    if whole.constant != 0:
        with _chunks(f, (start, stop), span, sums) as (first, last), f.loop(first, last, span) as i:
            for copy in range(unroll):
                body(i + copy * lanes, None, copy)
    if unroll > 1:
        left = high - stop if left.constant is None else left - whole
        whole = multiple(f, left, lanes)
        start, stop = stop, stop + whole
        if whole.constant != 0:
            with f.loop(start, stop, lanes) as i:
                body(i, None, 0)
    rest = high - stop if left.constant is None else left - whole
    if lanes > 1 and rest.constant != 0:
        with unless_empty(f, f.index(0), rest):
            body(stop, state.mask_below(rest), 0)


@contextmanager
def _chunks(
    f: Function, bounds: tuple[Value, Value], span: int, sums: Sequence[Accumulator]
) -> Generator[tuple[Value, Value]]:
    """Cut a long loop so that its sums move to their totals now and then."""
    low, high = bounds
    chunk = CHUNK * span
    short = low.constant == 0 and high.constant is not None and high.constant <= chunk
    if short or not any(s.two_levels for s in sums):
        yield low, high
        return
    with f.loop(low, high, chunk) as start:
        # Before the chunk: a short loop has the same bits whether it is known to be short or not.
        for accumulator in sums:
            accumulator.flush()
        yield start, f.intrinsic("smin", start + chunk, high)


@contextmanager
def unless_empty(f: Function, low: Value, high: Value) -> Generator[None]:
    """Run what is written inside where low < high."""
    if low.constant is not None and high.constant is not None and low.constant < high.constant:
        yield
        return
    with f.when(f.compare("slt", low, high)):
        yield


def multiple(f: Function, length: Value, span: int) -> Value:
    """Give the largest multiple of `span` that is at most `length`."""
    if length.constant is not None:
        return f.index(length.constant // span * span)
    if span == 1:
        return length
    if span & (span - 1) == 0:
        return length & -span
    return length - f.binary("srem", length, f.index(span))
