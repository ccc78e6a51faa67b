"""Errors that name the user's line, the operation and the cure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceLocation:
    """A place in the user's program; `line` and `column` count from 1, 0 where unknown.

    As text the file is written from the current folder on where it lies in there.
    """

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        parts = [_from_here(self.file), *(str(n) for n in (self.line, self.column) if n)]
        return ":".join(parts)


def _from_here(file: str) -> str:
    try:
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    except OSError:  # the current folder is gone
        return file


class CompileError(Exception):
    """A program that Isthmus cannot compile: where, which operation, what is wrong, the cure.

    `location` is None where the program has no source (hand-written IR).
    """

    def __init__(
        self,
        what: str,
        *,
        location: SourceLocation | None = None,
        op: str | None = None,
        cure: str | None = None,
    ) -> None:
        self.what = what
        self.location = location
        self.op = op
        self.cure = cure
        super().__init__(self.render())

    def render(self) -> str:
        """Give the message as the user sees it."""
        head = f"{self.location}: " if self.location else ""
        subject = f"'{self.op}': " if self.op else ""
        tail = f"\n    {self.cure}" if self.cure else ""
        return f"{head}{subject}{self.what}{tail}"


class UnsupportedError(CompileError):
    """A construct that has no compiled form yet; under `fullgraph=True` it is raised."""


class RefusedError(CompileError, RuntimeError):
    """A program that eager refuses too, with a RuntimeError."""


class IRError(CompileError):
    """IR that breaks a rule of its dialect; raised by verifiers and stage checks."""


def nearest(name: object, known: Iterable[object]) -> str:
    """Give "; did you mean X?" for the known name that a misspelt one is closest to, nothing where none is close."""
    import difflib  # only a mistake needs it

    found = difflib.get_close_matches(str(name), [str(k) for k in known], n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
