"""Options of passes that are one of several words are checked when the pass is named, also where it does nothing."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.passes import ModulePass

from isthmus.diagnostics import IRError, nearest


def check_words(p: ModulePass, **known: Iterable[str]) -> None:
    """Hold options to the words that have a meaning; IRError names them."""
    for option, words in known.items():
        given, allowed = getattr(p, option), tuple(words)
        if given not in allowed:
            raise IRError(
                f"{p.name}{{{option}={given}}} has no meaning",
                cure=f"one of {', '.join(allowed)}{nearest(given, allowed)}",
            )
