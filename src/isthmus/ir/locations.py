"""Source locations: the user's line that an op comes from."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, FileLineColLoc, FusedLoc, IntAttr, LocationAttr, StringAttr, UnknownLoc
from xdsl.ir import Attribute, Operation

from isthmus.diagnostics import SourceLocation


@lru_cache(maxsize=4096)
def location_attr(location: SourceLocation | None) -> LocationAttr:
    """Give the IR's form of a source location."""
    if location is None:
        return UNKNOWN
    return FileLineColLoc(StringAttr(location.file), IntAttr(location.line), IntAttr(location.column))


def source_location(op: Operation) -> SourceLocation | None:
    """Give the user's line that an op comes from, or None."""
    return source_location_of(op.location)


def source_location_of(location: Attribute) -> SourceLocation | None:
    """Give the user's line of a location, or None."""
    if isinstance(location, FileLineColLoc):
        return SourceLocation(location.filename.data, location.line.data, location.column.data)
    if isinstance(location, FusedLoc):
        parts = cast(ArrayAttr[Attribute], location.locations)
        return next((s for s in map(source_location_of, parts) if s), None)
    return None


UNKNOWN: LocationAttr = UnknownLoc()
