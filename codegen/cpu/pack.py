"""What happens to elements on their way into and out of a contraction: packed panels, finished tiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.codegen.cpu.block_moves import transposed
from isthmus.codegen.cpu.body import Body
from isthmus.codegen.cpu.memory import pointer
from isthmus.codegen.cpu.nest import Nest
from isthmus.codegen.cpu.sizes import SizeValues
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import REGISTER, round_to
from isthmus.codegen.llvm_text import I1, I64, PTR, Function, Module, Type, Value
from isthmus.codegen.vector_math import Math
from isthmus.dialects import kernel as k
from isthmus.dialects.kernel.lanes import Steps
from isthmus.dialects.target import Target


class _Part:
    """A function that emits a part of the body at places given by its arguments."""

    def __init__(self, module: Module, nest: Nest, target: Target, name: str, more: Sequence[tuple[str, Type]]) -> None:
        self.name, self.nest, self.kernel = name, nest, cast(k.ContractOp, nest.kernel)
        f = self.f = Function(
            module, name, [("buffers", PTR), ("sizes", PTR), ("batch", PTR), *more], linkage="internal"
        )
        buffers, sizes, batch = f.arguments[:3]
        with f.at_entry():
            symbols = {s: f.load(f.address(sizes, i, "i64"), I64) for i, s in enumerate(self.kernel.symbols_)}
        self.state = State(nest, f, Math(f, target), SizeValues(f, symbols))
        self.body = Body(self.state)
        count = len(self.kernel.inputs) + len(self.kernel.results)
        with f.at_entry():
            self.state.buffers = [f.load(f.address(buffers, i, "ptr"), PTR) for i in range(count)]
        for d in self.kernel.batch:
            self.state.indices[d] = f.load(f.address(batch, d, "i64"), I64)
        self.scalar = REGISTER[ir.dtype_of(self.kernel.dot.y)]

    def scope(self, number: int) -> None:
        """Emit the ops that belong into a loop, and what is known there of the addresses further inside."""
        for op in self.nest.ops:
            if self.nest.home(op) == number and self.nest.is_uniform(op):
                with self.state.vector(1):
                    self.body.emit(op)
            elif self.nest.home(op) == number:
                self.body.emit(op)
        if number + 1 < len(self.nest.scopes):
            with self.state.vector(1):
                for op in self.nest.ops:
                    access = self.nest.accesses.get(op)  # pyright: ignore[reportArgumentType]
                    if access is not None and self.nest.home(op) > number:
                        pointer(self.state, access, number)

    def zero(self, lanes: int) -> Value:
        """A vector of zeros."""
        return self.f.const(0.0, Type.of(self.scalar, lanes))


def sliced(kernel: k.ContractOp, roots: Iterable[SSAValue]) -> list[Operation]:
    """The ops that values are computed from, up to the product, in order."""
    wanted: set[Operation] = set()
    stack = [cast(Operation, v.owner) for v in roots]
    while stack:
        op = stack.pop()
        if op not in wanted and not isinstance(op, k.DotOp):
            wanted.add(op)
            stack += [cast(Operation, v.owner) for v in ir.operands_of(op)]
    return [op for op in kernel.block.ops if op in wanted]


class Pack(_Part):
    """Writes panels of one factor: for each k, the elements at `width` neighbours along its own dim.

    `void @name(ptr buffers, ptr sizes, ptr batch, i64 first, i64 count, i64 start, i64 steps, ptr out)`; neighbours
    from `count` on are 0. Where rows of memory run along k, squares are transposed in registers.
    """

    def __init__(
        self,
        module: Module,
        kernel: k.ContractOp,
        target: Target,
        name: str,
        value: SSAValue,
        own: int,
        width: int,
        steps: int,
        lanes: int,
    ) -> None:
        """`width`: neighbours of a panel; `steps`: of k that are packed at most, from a multiple of them on."""
        depth = kernel.mnk[2]
        ops = sliced(kernel, [value])
        down, across = Steps(depth, lanes, steps % lanes == 0), Steps(own, lanes, width % lanes == 0)
        self.turned = _runs_along(kernel, ops, down) and not _runs_along(kernel, ops, across)
        nest = Nest(kernel, ops, (depth, own), down if self.turned else across)
        more = [("first", I64), ("count", I64), ("start", I64), ("steps", I64), ("out", PTR)]
        super().__init__(module, nest, target, name, more)
        self.value, self.own, self.depth, self.width, self.lanes = value, own, depth, width, lanes

    def emit(self) -> None:
        """Write the function."""
        self.scope(0)
        self.scope(1)
        if self.turned:
            self._turned()
        else:
            self._straight()
        self.f.finish()

    def _straight(self) -> None:
        """Vectors along the own dim, one k after the other; a vector may reach into the next k, which comes later."""
        f = self.f
        first, count = f.arguments[3:5]
        span = -(-self.width // self.lanes) * self.lanes
        extent = self.state.size(self.kernel.sizes_[self.own])
        inside = f.compare("sle", first + span, extent) & f.compare("eq", count, self.width)
        if extent.constant is not None and self.width == span and extent.constant % span == 0:
            inside = f.const(1, I1)
        yes, no, after = f.label("whole"), f.label("edge"), f.label("packed")
        f.line(f"br {inside!r}, label %{yes}, label %{no}")
        f.start(yes)
        self._steps(f.index(span), None)
        f.line(f"br label %{after}")
        f.start(no)
        if inside.constant is None:
            self._steps(f.index(span), count)
        f.line(f"br label %{after}")
        f.start(after)

    def _steps(self, span: Value, count: Value | None) -> None:
        """Every k; where a count is given elements beyond it are 0 and not read."""
        f, state = self.f, self.state
        first, _, start, steps, out = f.arguments[3:]
        with f.loop(0, steps) as step, state.frame():
            state.indices[self.depth] = start + step
            with state.vector(1):
                self.scope(2)
            row = f.address(out, step * self.width, self.scalar)
            with f.loop(0, span, self.lanes) as i, state.frame():
                mask = None if count is None else state.mask_below(count - i)
                with state.vector(self.lanes, mask):
                    state.indices[self.own] = first + i
                    self.scope(3)
                    x = state.splat_value(cast(Value, state.get(self.value)))
                    x = x if mask is None else f.select(mask, x, self.zero(self.lanes))
                    f.store(x, f.address(row, i, self.scalar))

    def _turned(self) -> None:
        """Vectors along k, `lanes` steps at once: rows go to a square in memory, and leave it transposed."""
        f, state, lanes = self.f, self.state, self.lanes
        first, count, start, steps, out = f.arguments[3:]
        groups = -(-self.width // lanes)
        square = f.slot(Type.of(self.scalar), groups * lanes * lanes)
        with f.loop(count, groups * lanes) as r:
            f.store(self.zero(lanes), f.address(square, r * lanes, self.scalar), 64)
        with f.loop(0, steps, lanes) as step, state.frame():
            state.indices[self.depth] = start + step
            left = steps - step
            full = f.compare("sge", left, lanes)
            yes, no, after = f.label("full"), f.label("part"), f.label("square")
            f.line(f"br {full!r}, label %{yes}, label %{no}")
            for label, mask in ((yes, None), (no, left)):
                f.start(label)
                with state.frame():
                    self._rows(square, first, count, None if mask is None else state.mask_below(mask))
                f.line(f"br label %{after}")
            f.start(after)
            target = f.address(out, step * self.width, self.scalar)
            turned = [self._transposed(square, g) for g in range(groups)]
            for row in range(lanes):
                for g in range(groups):
                    f.store(turned[g][row], f.address(target, row * self.width + g * lanes, self.scalar))

    def _rows(self, square: Value, first: Value, count: Value, mask: Value | None) -> None:
        f, state = self.f, self.state
        with state.vector(self.lanes, mask):
            self.scope(2)
            with f.loop(0, count) as r, state.frame():
                state.indices[self.own] = first + r
                self.scope(3)
                x = state.splat_value(cast(Value, state.get(self.value)))
                f.store(x, f.address(square, r * self.lanes, self.scalar), 64)

    def _transposed(self, square: Value, group: int) -> list[Value]:
        """A square of memory in registers, rows and columns exchanged."""
        f, lanes = self.f, self.lanes
        type_ = Type.of(self.scalar, lanes)
        rows = [f.load(f.address(square, (group * lanes + r) * lanes, self.scalar), type_, 64) for r in range(lanes)]
        return transposed(f, rows)


def _runs_along(kernel: k.ContractOp, ops: Sequence[Operation], steps: Steps) -> bool:
    """Whether most of the elements that are read of memory are neighbours along a dim."""
    near = other = 0
    depth = kernel.mnk[2]
    for op in ops:
        if isinstance(op, k.LoadOp):
            (linear,) = k.linear_map(kernel, op).data
            if depth in linear.dims() and len(linear.dims()) > 1:
                near, other = near + (steps.of(linear) == 1), other + (steps.of(linear) != 1)
    return near > 0 and near >= other


class Finish(_Part):
    """Takes a finished tile of sums to the results.

    `void @name(ptr buffers, ptr sizes, ptr batch, i64 row, i64 rows, i64 column, i64 columns, ptr sums, i64 pitch,
    i64 part)`.
    """

    def __init__(self, module: Module, kernel: k.ContractOp, target: Target, name: str, lanes: int) -> None:
        m, n, _ = kernel.mnk
        sinks = [op for op in kernel.block.ops if isinstance(op, k.SinkOp)]
        before = {op for op in sliced(kernel, [v for s in sinks for v in ir.operands_of(s)])}
        ops = [op for op in kernel.block.ops if op in before or op in sinks]
        nest = Nest(kernel, ops, (m, n), Steps(n, lanes, aligned=True))
        more = [("row", I64), ("rows", I64), ("column", I64), ("columns", I64), ("sums", PTR), ("pitch", I64)]
        super().__init__(module, nest, target, name, [*more, ("part", I64)])
        self.lanes = lanes
        (linear, *_) = k.linear_map(kernel, sinks[0]).data
        self.store = sinks[0]
        whole = kernel.sums == ir.dtype_of(kernel.dot.y)
        self.plain = len(ops) == 1 and whole and linear.is_affine() and linear.coefficient(n) == 1
        """Whether the sums themselves are all there is to write."""

    def emit(self) -> None:
        """Write the function."""
        f, state = self.f, self.state
        m, n, _ = self.kernel.mnk
        row, rows, column, columns, sums, pitch, part = f.arguments[3:]
        dot = self.kernel.dot.y
        state.partition = part
        self.scope(0)
        self.scope(1)
        whole = columns & -self.lanes
        with f.loop(0, rows) as i, state.frame():
            state.indices[m] = row + i
            with state.vector(1):
                self.scope(2)
            line = f.address(sums, i * pitch, self.scalar)
            for low, high, mask in ((f.index(0), whole, None), (whole, columns, state.mask_below(columns - whole))):
                with f.loop(low, high, self.lanes) as j, state.frame(), state.vector(self.lanes, mask):
                    state.indices[n] = column + j
                    at = f.address(line, j, self.scalar)
                    total = f.load(at, Type.of(self.scalar, self.lanes))
                    state.set(dot, round_to(state.math, total, ir.dtype_of(dot)))
                    self.scope(3)
        f.finish()
