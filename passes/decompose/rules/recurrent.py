"""Recurrent networks: cells along time, unrolled where they are few steps, else a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import Literal
from isthmus.passes.decompose.promotion import wide
from isthmus.passes.decompose.rules.random import dropped, keep_mask
from isthmus.passes.decompose.table import Call, Scalar, decomposition

UNROLLED = 64
"""Up to so many steps are written out; more, or a symbolic number, become a prim.scan."""

Values = tuple[SSAValue, ...]
Step = Callable[[Emitter, SSAValue, Values, Values], Values]
"""`step(e, x, state, weights)` gives the next state; what a step shows outside is its first value."""


# ---- cells: x is W_ih·x + b_ih already, for all gates side by side


def _gates(e: Emitter, x: SSAValue, count: int) -> list[SSAValue]:
    last = len(ir.shape_of(x)) - 1
    size = ir.shape_of(x)[last] // count
    return [e.slice(x, last, k * size, (k + 1) * size) for k in range(count)]


def _linear(e: Emitter, x: SSAValue, weights: Values) -> SSAValue:
    """x Wᵀ + b"""
    rank = len(ir.shape_of(x))
    y = e.dot(x, weights[0], ((rank - 1,), (1,)))
    return y if len(weights) == 1 else e.add(y, e.broadcast_to(weights[1], ir.shape_of(y)))


@dataclass(frozen=True)
class Cell:
    """A kind of cell: its step, and how many states it carries."""

    step: Step
    states: int


def _lstm(e: Emitter, x: SSAValue, state: Values, weights: Values) -> Values:
    """c' = σ(f)·c + σ(i)·tanh g, h' = σ(o)·tanh c' (projected)"""
    h, c = state
    biased = 2 if len(weights) > 1 and len(ir.shape_of(weights[1])) == 1 else 1
    total = e.add(wide(e, x), wide(e, _linear(e, h, weights[:biased])))
    i, f, g, o = _gates(e, total, 4)
    cell = e.add(e.mul(e.logistic(f), wide(e, c)), e.mul(e.logistic(i), e.tanh(g)))
    hidden = e.convert(e.mul(e.logistic(o), e.tanh(cell)), ir.dtype_of(h))
    if len(weights) > biased:
        hidden = _linear(e, hidden, weights[biased:])
    return hidden, e.convert(cell, ir.dtype_of(c))


def _gru(e: Emitter, x: SSAValue, state: Values, weights: Values) -> Values:
    """r = σ, z = σ, n = tanh(xₙ + r·hₙ), h' = (h - n)·z + n"""
    (h,) = state
    xr, xz, xn = _gates(e, wide(e, x), 3)
    hr, hz, hn = _gates(e, wide(e, _linear(e, h, weights)), 3)
    r, z = e.logistic(e.add(xr, hr)), e.logistic(e.add(xz, hz))
    n = e.tanh(e.add(xn, e.mul(r, hn)))
    return (e.convert(e.add(e.mul(e.sub(wide(e, h), n), z), n), ir.dtype_of(h)),)


def _simple(function: Callable[[Emitter, SSAValue], SSAValue]) -> Step:
    def step(e: Emitter, x: SSAValue, state: Values, weights: Values) -> Values:
        """h' = f(x + W·h + b)"""
        (h,) = state
        return (e.convert(function(e, e.add(wide(e, x), wide(e, _linear(e, h, weights)))), ir.dtype_of(h)),)

    return step


LSTM = Cell(_lstm, 2)
GRU = Cell(_gru, 1)
RNN_TANH = Cell(_simple(lambda e, x: e.tanh(x)), 1)
RNN_RELU = Cell(_simple(lambda e, x: e.relu(x)), 1)


# ---- along time


def _run(
    e: Emitter, cell: Cell, xs: SSAValue, state: Values, weights: Values, reverse: bool
) -> tuple[SSAValue, Values]:
    """All hidden states along dimension 0, and the last state."""
    steps = ir.shape_of(xs)[0]
    if not isinstance(steps, int) or steps > UNROLLED:
        return _scan(e, cell, xs, state, weights, reverse)
    shown: dict[int, SSAValue] = {}
    for t in reversed(range(steps)) if reverse else range(steps):
        x = e.reshape(e.slice(xs, 0, t, t + 1), ir.shape_of(xs)[1:])
        state = cell.step(e, x, state, weights)
        shown[t] = e.expand_dims(state[0], (0,))
    return e.concat([shown[t] for t in range(steps)], 0), state


def _scan(
    e: Emitter, cell: Cell, xs: SSAValue, state: Values, weights: Values, reverse: bool
) -> tuple[SSAValue, Values]:
    x = ir.tensor(ir.shape_of(xs)[1:], ir.dtype_of(xs))
    n = len(state)
    region, inner, arguments = e.region([*(s.type for s in state), x, *(w.type for w in weights)])
    inner.location = e.location
    following = cell.step(inner, arguments[n], tuple(arguments[:n]), tuple(arguments[n + 1 :]))
    inner.yield_([*following, following[0]])
    stacked = ir.tensor((ir.shape_of(xs)[0], *ir.shape_of(state[0])), ir.dtype_of(state[0]))
    op = ir.create_op(
        prim.ScanOp,
        [*state, xs, *weights],
        [*(s.type for s in state), stacked],
        {"carried": Literal.of(n), "scanned": Literal.of(1), "reverse": Literal.of(reverse)},
        location=e.location,
        regions=[region],
    )
    e.block.add_op(op)
    return op.results[n], tuple(op.results[:n])


@dataclass(frozen=True)
class Network:
    """How torch's rnn operators describe a stack of layers."""

    biases: bool
    layers: int
    dropout: Scalar
    train: bool
    bidirectional: bool
    batch_first: bool


def _network(
    e: Emitter, call: Call, cell: Cell, x: SSAValue, states: Sequence[SSAValue], params: Sequence[SSAValue], n: Network
) -> list[SSAValue]:
    """Output, then the last states of all layers and directions."""
    directions = 2 if n.bidirectional else 1
    each = len(params) // (n.layers * directions)
    y = e.transpose(x, (1, 0, 2)) if n.batch_first else x
    finals: list[Values] = []
    for layer in range(n.layers):
        if layer and n.train and n.dropout != 0:
            y = dropped(e, call, y, n.dropout, keep_mask(e, call, n.dropout, y))
        shown: list[SSAValue] = []
        for direction in range(directions):
            k = layer * directions + direction
            weights = params[k * each : (k + 1) * each]
            state = tuple(e.reshape(e.slice(s, 0, k, k + 1), ir.shape_of(s)[1:]) for s in states)
            hidden, last = _layer(e, cell, y, state, weights, n.biases, reverse=direction == 1)
            shown.append(hidden)
            finals.append(last)
        y = e.concat(shown, 2)
    output = e.transpose(y, (1, 0, 2)) if n.batch_first else y
    stacked = [e.concat([e.expand_dims(f[s], (0,)) for f in finals], 0) for s in range(cell.states)]
    return [output, *stacked]


def _layer(
    e: Emitter, cell: Cell, x: SSAValue, state: Values, params: Sequence[SSAValue], biases: bool, reverse: bool
) -> tuple[SSAValue, Values]:
    """One direction of one layer: the input's part of all steps is one product."""
    if biases:
        inputs, recurrent = (params[0], params[2]), (params[1], params[3], *params[4:])
    else:
        inputs, recurrent = (params[0],), (params[1], *params[2:])
    return _run(e, cell, _linear(e, x, inputs), state, recurrent, reverse)


@decomposition("lstm.input")
def lstm(
    e: Emitter,
    call: Call,
    x: SSAValue,
    states: Sequence[SSAValue],
    params: Sequence[SSAValue],
    biases: bool,
    layers: int,
    dropout: Scalar,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[SSAValue]:
    """Output, last hidden states, last cell states"""
    network = Network(biases, layers, dropout, train, bidirectional, batch_first)
    return _network(e, call, LSTM, x, states, params, network)


def _enter(name: str, cell: Cell) -> None:
    @decomposition(f"{name}.input")
    def rule(
        e: Emitter,
        call: Call,
        x: SSAValue,
        state: SSAValue,
        params: Sequence[SSAValue],
        biases: bool,
        layers: int,
        dropout: Scalar,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> list[SSAValue]:
        network = Network(biases, layers, dropout, train, bidirectional, batch_first)
        return _network(e, call, cell, x, (state,), params, network)

    del rule


_enter("gru", GRU)
_enter("rnn_tanh", RNN_TANH)
_enter("rnn_relu", RNN_RELU)


# ---- one step


def _enter_cell(name: str, cell: Cell) -> None:
    @decomposition(f"{name}.default")
    def rule(
        e: Emitter,
        call: Call,
        x: SSAValue,
        state: SSAValue | Sequence[SSAValue],
        w_ih: SSAValue,
        w_hh: SSAValue,
        b_ih: SSAValue | None = None,
        b_hh: SSAValue | None = None,
    ) -> list[SSAValue]:
        states = (state,) if isinstance(state, SSAValue) else tuple(state)
        given = _linear(e, x, (w_ih,) if b_ih is None else (w_ih, b_ih))
        return list(cell.step(e, given, states, (w_hh,) if b_hh is None else (w_hh, b_hh)))

    del rule


_enter_cell("lstm_cell", LSTM)
_enter_cell("gru_cell", GRU)
_enter_cell("rnn_tanh_cell", RNN_TANH)
_enter_cell("rnn_relu_cell", RNN_RELU)
