"""The sum of the contributions to one cotangent: pieces that tile a dimension are joined, all else is added in order.

The backward of q, k, v = split(x) is then one concatenation and not three padded copies and two additions.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter, PadOp
from isthmus.sizes import Dim


def accumulate(e: Emitter, contributions: Sequence[SSAValue]) -> SSAValue:
    """Emit the sum in the order given."""
    if len(contributions) == 1:
        return contributions[0]
    terms = _join_pieces(e, contributions)
    total = terms[0]
    for term in terms[1:]:
        total = e.add(total, term)
    return total


def _join_pieces(e: Emitter, contributions: Sequence[SSAValue]) -> list[SSAValue]:
    """Replace zero-padded pieces that together fill a dimension by their concatenation, where the first of them was.

    What lies outside a piece is an absent cotangent, so nothing is lost, not even the sign of a zero.
    """
    by_dim: dict[int, list[PadOp]] = {}
    for value in contributions:
        owner = value.owner
        if isinstance(owner, PadOp) and owner.value.data == 0 and owner.interior.data == 0:
            by_dim.setdefault(_int(owner.dim.data), []).append(owner)
    for dim, pads in by_dim.items():
        tiles = _tiling(pads, dim) if len(pads) > 1 else None
        if tiles is not None:
            whole = e.concat([p.x for p in tiles], dim)
            pieces = {p.y for p in tiles}
            first = next(i for i, value in enumerate(contributions) if value in pieces)
            return [whole if i == first else v for i, v in enumerate(contributions) if i == first or v not in pieces]
    return list(contributions)


def _tiling(pads: Sequence[PadOp], dim: int) -> list[PadOp] | None:
    """Give the pads in order of position where each begins where the one before ends and nothing is left out."""
    by_start: dict[Dim, PadOp] = {}
    for pad in pads:
        if by_start.setdefault(_size(pad.low.data), pad) is not pad:
            return None
    position: Dim = 0
    tiles: list[PadOp] = []
    size = ir.shape_of(pads[0].y)[dim]
    while position != size:
        pad = by_start.get(position)
        length = 0 if pad is None else ir.shape_of(pad.x)[dim]
        if pad is None or length == 0:
            return None
        tiles.append(pad)
        position = position + length
    return tiles if len(tiles) == len(pads) else None


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _size(value: object) -> Dim:
    assert isinstance(value, (int, ir.Size))
    return value
