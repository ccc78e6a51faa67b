"""Loops over strided buffers, and copies between buffers of the same shape with any strides."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from isthmus import ir
from isthmus.codegen.cpu.frame import Frame
from isthmus.codegen.llvm_text import I1, PTR, Type, Value
from isthmus.dialects.program import Buffer, Copy, Exchange
from isthmus.sizes import Dim

Axis = tuple[Dim, tuple[Dim, ...]]
"""A size, and the stride of each of several buffers along it, in elements."""


@contextmanager
def walk(frame: Frame, axes: Sequence[Axis], bases: Sequence[Value], dtype: str) -> Generator[list[Value]]:
    """Loop over axes, the first outermost; gives the address in each buffer at the current point."""
    f, size = frame.f, ir.itemsize(dtype)
    with ExitStack() as loops:
        here = list(bases)
        for count, strides in axes:
            index = loops.enter_context(f.loop(0, frame.size(count)))
            here = [
                base if stride == 0 else f.address(base, index * frame.size(stride * size), "i8")
                for base, stride in zip(here, strides, strict=True)
            ]
        yield here


def folded(axes: Sequence[Axis]) -> list[Axis]:
    """Join neighbouring axes that all buffers walk as one; drop those of size 1."""
    joined: list[Axis] = []
    for size, strides in axes:
        if size == 1:
            continue
        if joined:
            before, outer = joined[-1]
            if all(o == s * size for o, s in zip(outer, strides, strict=True)):
                joined[-1] = (before * size, strides)
                continue
        joined.append((size, strides))
    return joined


def copy_elements(frame: Frame, source: Buffer, target: Buffer) -> None:
    """Copy element by element in the order of the target; what is contiguous in both goes at once.

    The buffers do not overlap, unless they are the same.
    """
    f, size = frame.f, ir.itemsize(source.dtype)
    axes = folded(list(zip(target.shape, zip(source.strides, target.strides, strict=True), strict=True)))
    run: Dim = 1
    if axes and axes[-1][1] == (1, 1):
        run = axes.pop()[0]
    with walk(frame, axes, (frame.address(source), frame.address(target)), source.dtype) as (here, there):
        if run == 1:
            scalar = Type.of(f"i{8 * size}")
            f.store(f.load(here, scalar, align=1), there, align=1)
        else:
            copy_bytes(frame, here, there, frame.size(run * size))


def exchange_elements(frame: Frame, step: Exchange) -> None:
    """Copies that happen at once: what one of them overwrites and another reads goes through memory of its own."""
    f = frame.f
    targets = {copy.target.place for copy in step.copies}
    aside: list[tuple[Value, Copy]] = []
    for copy in step.copies:
        if copy.source.place in targets:
            target = copy.target
            memory = f.call("malloc", PTR, frame.size(target.bytes))
            copy_bytes(frame, frame.address(copy.source), memory, frame.size(target.bytes))
            aside.append((memory, copy))
    for copy in step.copies:
        if copy.source.place not in targets:
            copy_elements(frame, copy.source, copy.target)
    for memory, copy in aside:
        copy_bytes(frame, memory, frame.address(copy.target), frame.size(copy.target.bytes))
        f.call_void("free", memory)


def copy_bytes(frame: Frame, source: Value, target: Value, count: Value) -> None:
    """Copy memory; equal addresses are allowed."""
    frame.f.call_void("llvm.memmove.p0.p0.i64", target, source, count, frame.f.const(0, I1))
