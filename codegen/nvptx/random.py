"""Random numbers in one thread: every counter's words are made where they are used, nothing is kept between vectors."""

from __future__ import annotations

from typing import cast

from xdsl.ir import Operation

from isthmus import ir
from isthmus.codegen.cpu.random import Draws, philox, without_vector
from isthmus.codegen.llvm_text import I32, I64, Value
from isthmus.dialects import kernel as k
from isthmus.sizes import exact_quotient


class ThreadDraws(Draws):
    """The random numbers of a kernel, in one thread."""

    def _run(self, op: k.RngOp, key: Value, start: Value, served: int, aligned: bool) -> Value:
        """Give what the numbers of neighbouring lanes are made of; threads have vectors that begin at multiples."""
        state, f, m = self.state, self.state.f, self.state.math
        lanes, aligned = state.lanes, self._is_aligned(op, served)
        counter, within = m.lshr(start, served.bit_length() - 1), start & (served - 1)
        made: list[Value] = []
        with state.vector(1):
            for n in range(lanes // served + (not aligned)):
                w = philox(state, key, counter + n)
                if served == 4:
                    made += [f.cast("trunc", word, I32) for word in w]
                else:
                    made += [(w[0] << 21) | m.lshr(w[1], 11), (w[2] << 21) | m.lshr(w[3], 11)]
            step = served // 2
            while step and not aligned:
                far = f.compare("ne", within & step, 0)
                made = [f.select(far, later, now) for now, later in zip(made, made[step:], strict=False)]
                step //= 2
        result = f.poison((I32 if served == 4 else I64).with_lanes(lanes))
        for lane in range(lanes):
            result = f.insert(result, made[lane], lane)
        return result

    def _is_aligned(self, op: k.RngOp, served: int) -> bool:
        """Whether every vector of a thread begins with the first number of a counter."""
        plan = self.state.plan
        source = cast(k.IndexOp, cast(Operation, ir.operands_of(op)[1].owner))
        (expr,) = source.map.data
        assert plan.vector is not None
        rest = without_vector(expr, plan.vector)
        return all(exact_quotient(c, served) is not None for c in (rest.constant, *(c for _, c in rest.terms)))
