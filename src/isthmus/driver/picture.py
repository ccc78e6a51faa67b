"""A program as a picture: forward runs down on the left, backward up on the right, what is kept for it crosses.

Between the two columns lies the isthmus of the program's name: one band for each value that backward reads, as wide as
its bytes. A box is one kernel or one library call; its whole text appears when the mouse rests on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from html import escape
from typing import cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.dialects.signature import Signature

ROW, BOX, GAP, TOP = 30, 300, 260, 56
"""Pixels: a step with the space below it, a box's width, between the columns, above the first row."""
WIDEST = 14.0
COLORS = {kernel.FusedOp: "#d9ead3", kernel.ContractOp: "#cfe2f3", kernel.StreamOp: "#cfe2f3"}
LIBRARY, OTHER = "#fce5cd", "#eeeeee"
KEPT, FREE = "#e06666", "#bbbbbb"
"""Of what is kept for backward alone, and of arguments, which are alive anyway."""
_DIRECTIONS = {"forward", "backward"}


def draw(modules: Mapping[str, ModuleOp], title: str) -> str:
    """Give the SVG of a program's functions at the level of kernels, by name: forward and backward, or one alone."""
    columns = {name: _steps(_only(module)) for name, module in modules.items()}
    rows = 1 + max([len(steps) for steps in columns.values()], default=0)  # the first one is that of arguments
    parts = [f'<text x="10" y="20" font-weight="bold">{escape(title)}</text>']
    if _DIRECTIONS <= modules.keys():
        parts += _bands(_only(modules["forward"]), _only(modules["backward"]), columns, rows)
    for number, (name, steps) in enumerate(columns.items()):
        left, up = 10 + number * (BOX + GAP), name == "backward"
        parts.append(f'<text x="{left}" y="44">{escape(name)} {"&#8593;" if up else "&#8595;"}</text>')
        parts += [_box(op, left, _y(name, k, columns, rows)) for k, op in enumerate(steps)]
        if not up:
            parts.append(_labelled(left, _y(name, -1, columns, rows), OTHER, "arguments", ""))
    width, height = 20 + len(columns) * BOX + max(0, len(columns) - 1) * GAP, TOP + rows * ROW + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="monospace" '
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([f'{head}font-size="12">', ground, *parts, "</svg>\n"])


def _only(module: ModuleOp) -> FuncOp:
    (func,) = ir.functions(module).values()
    return func


def _steps(func: FuncOp) -> list[Operation]:
    return [op for op in func.body.block.ops if isinstance(op, kernel.LaunchOp) or op.regions]


def _y(column: str, step: int, columns: Mapping[str, list[Operation]], rows: int) -> int:
    """Where a step begins: all end at the bottom but backward, which starts there, beside the end of forward."""
    return TOP + ROW * (rows - 1 - step if column == "backward" else rows - len(columns[column]) + step)


def _bands(forward: FuncOp, backward: FuncOp, columns: Mapping[str, list[Operation]], rows: int) -> list[str]:
    """One band for the saved values that one step makes (or that are arguments) and one step is the first to read."""
    made, read = columns["forward"], columns["backward"]
    roles, returned = Signature.of(forward).results, ir.operands_of(cast(Operation, forward.body.block.last_op))
    saved = {role.saved: value for role, value in zip(roles, returned, strict=True) if role.saved is not None}
    bands: defaultdict[tuple[int, int], list[SSAValue]] = defaultdict(list)
    for role, argument in zip(Signature.of(backward).arguments, backward.body.block.args, strict=True):
        if role.saved is not None:
            start = _number(made, saved[role.saved])
            bands[start, min([_position(read, use.operation) for use in argument.uses], default=0)].append(argument)
    sizes = {ends: sum(n for v in values if isinstance(n := ir.nbytes(v), int)) for ends, values in bands.items()}
    largest = max([*sizes.values(), 1])
    found: list[str] = []
    below = 0  # where the next text is free
    places = [
        (_y("forward", start, columns, rows), _y("backward", end, columns, rows), start, end) for start, end in bands
    ]
    for top, bottom, start, end in sorted(places, key=lambda p: (p[0] + p[1], p)):
        size, names = sizes[start, end], ", ".join(v.name_hint or "value" for v in bands[start, end])
        below = max(below + 11, (top + bottom + ROW - 6) // 2)
        width = 1 + (WIDEST - 1) * size / largest
        found.append(_band(top, bottom, width, FREE if start < 0 else KEPT, f"{names}: {size} bytes", below))
    return found


def _band(start: int, end: int, width: float, color: str, text: str, text_at: int) -> str:
    left, right, middle, half = 10 + BOX, 10 + BOX + GAP, 10 + BOX + GAP // 2, (ROW - 6) // 2
    path = f"M{left} {start + half} C{middle} {start + half} {middle} {end + half} {right} {end + half}"
    shown = escape(text if len(text) <= 40 else f"{text[:18]}...{text[-18:]}")
    label = f'<text x="{middle}" y="{text_at}" text-anchor="middle" font-size="10">{shown}</text>'
    stroke = f'stroke="{color}" stroke-opacity="0.6" stroke-width="{width:.1f}"'
    return f'<g><title>{escape(text)}</title><path d="{path}" fill="none" {stroke}/>{label}</g>'


def _number(steps: list[Operation], value: SSAValue) -> int:
    """The step that makes a value, -1 for an argument."""
    return _position(steps, value.owner) if isinstance(value.owner, Operation) else -1


def _position(steps: list[Operation], op: Operation) -> int:
    """The number of a step; what is none (a reshape) counts as the step before it."""
    found: Operation | None = op
    while found is not None and found not in steps:
        found = found.prev_op
    return 0 if found is None else steps.index(found)


def _box(op: Operation, left: int, top: int) -> str:
    color = next((c for cls, c in COLORS.items() if isinstance(op, cls)), LIBRARY if _symbol(op) else OTHER)
    place = ir.source_location(op)
    where = f" {place.file.rpartition('/')[2]}:{place.line}" if place else ""
    return _labelled(left, top, color, _summary(op)[: 40 - len(where)] + where, str(op)[:4000])


def _labelled(left: int, top: int, color: str, text: str, tip: str) -> str:
    box = f'<rect x="{left}" y="{top}" width="{BOX}" height="{ROW - 6}" rx="4" fill="{color}" stroke="#666666"/>'
    return f'<g><title>{escape(tip)}</title>{box}<text x="{left + 6}" y="{top + 16}">{escape(text)}</text></g>'


def _symbol(op: Operation) -> str:
    return str(ir.literal(op, "symbol") or "")


def _summary(op: Operation) -> str:
    """What a step does: the library call, or the operations of a kernel in their order."""
    if not isinstance(op, kernel.LoopNest):
        return _symbol(op) or op.name
    inside = [
        o.name.partition(".")[2] for o in op.block.ops if isinstance(o, prim.PrimOp | kernel.ReduceOp | kernel.DotOp)
    ]
    return " ".join(dict.fromkeys(n for n in inside if n != "const")) or "copy"
