"""Where in the user's program an operation comes from: read from stack traces and from frames."""

from __future__ import annotations

import linecache
import re
import sys
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

import torch

from isthmus.diagnostics import SourceLocation

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in .*$')
_OURS = Path(__file__).parent  # reached through a link in a source checkout
_STANDARD = Path(sys.base_prefix) / "lib" / "python"
_LIBRARIES = tuple(map(str, (Path(torch.__file__).parent, _OURS.parent, _OURS.resolve(), _STANDARD)))


def from_stack_trace(text: str | None) -> SourceLocation | None:
    """Give the innermost line of the user's own code in a formatted stack trace; a library's line where there is none.

    The column is known where the trace marks the expression with carets.
    """
    if not text:
        return None
    lines = text.splitlines()
    fallback: SourceLocation | None = None
    for index in range(len(lines) - 1, -1, -1):
        match = _FRAME.match(lines[index])
        if match is None:
            continue
        place = SourceLocation(match["file"], int(match["line"]))
        if not is_library(place.file):
            code, marks = [*lines[index + 1 : index + 3], "", ""][:2]
            return SourceLocation(place.file, place.line, _column(place, code, marks))
        fallback = fallback or place
    return fallback


def from_frames(frame: FrameType | None) -> SourceLocation | None:
    """Give the place that the innermost frame of the user's own code stands at."""
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return _place(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


def of_function(function: object) -> SourceLocation | None:
    """Give where a Python function begins, None for other callables."""
    code = getattr(function, "__code__", None)
    return None if code is None else SourceLocation(code.co_filename, code.co_firstlineno)


@lru_cache(maxsize=4096)
def _place(code: CodeType, instruction: int) -> SourceLocation:
    line, _, column, _ = next(islice(code.co_positions(), instruction // 2, None))
    return SourceLocation(code.co_filename, line or code.co_firstlineno, 0 if column is None else column + 1)


def is_raised_by_us(error: BaseException) -> bool:
    """Tell whether the frame that raised an error is ours, and not one of the user's or of a library."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(str(_OURS.parent))


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Tell whether a file is torch's, ours or the standard library's, so that no user wrote it."""
    return file.startswith(_LIBRARIES) or file.startswith("<")


def _column(place: SourceLocation, code: str, marks: str) -> int:
    start = marks.find("^")
    if start < 0 or marks.strip("^ ~"):
        return 0
    source = linecache.getline(place.file, place.line)
    indent = len(source) - len(source.lstrip()) if source else 0
    return indent + start - (len(code) - len(code.lstrip())) + 1
