"""From a captured program to a tape node: what of it is kept on disk is loaded, the rest compiled when it is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from xdsl.dialects.builtin import ModuleOp

from isthmus.driver.executables import Lazily, Plain, compiling
from isthmus.driver.halves import Halves, gradient_function, without_gradients
from isthmus.driver.kept import Kept, Outline, require_same
from isthmus.driver.lowering import Keep, Lowering
from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.convention import Executable


class Nodes:
    """Makes the tape nodes of one captured program: its own, and those of its derivatives."""

    def __init__(self, lowering: Lowering, source: ModuleOp, *, with_gradients: bool, kept: Kept | None) -> None:
        self._lowering, self._kept = lowering, kept
        self._source, self._with_gradients = source, with_gradients

    def program(self) -> TapeNode:
        """Give the node of the program itself."""
        return self._known() or self._lowered(self._prim())

    def _prim(self) -> ModuleOp:
        prim = self._lowering.to_prim(self._source)
        if not self._with_gradients:
            without_gradients(prim)
        return prim

    # ---- by the passes

    def _lowered(self, prim: ModuleOp) -> TapeNode:
        halves = self._lowering.halves(prim)
        if halves is None:
            return self._inference_node(prim, self._kept)
        return self._node(halves, 0)

    def _node(self, halves: Halves, level: int) -> TapeNode:
        """Make the node of a program that is trained, or (from level 1 on) of a derivative of one."""
        kept = self._kept if level == 0 else None
        outline = Outline(halves.convention, trains=True, draws=bool(halves.drawn))
        directions = ("forward", "backward") if level == 0 else ("backward", "backward")
        forward, backward = self._pair(halves, directions, kept, outline)
        return self._trained(outline, forward, backward, lambda: halves, level, kept)

    def _pair(
        self, halves: Halves, directions: tuple[str, str], kept: Kept | None, outline: Outline
    ) -> tuple[Executable, Callable[[], Executable]]:
        """Make a forward callable, and what makes its backward callable; made by one built-in they share memory."""
        lowering = self._lowering
        first, second = (lowering.options.compiler(d) for d in directions)
        forward = lowering.executable(halves.forward, "forward", first, _keeping(kept, "forward", outline))
        if first == second and isinstance(first, str):
            keep = _keeping(kept, "backward")
            return forward, lambda: self._backward(halves, forward, keep, first)
        return Plain(forward), lambda: Plain(lowering.executable(halves.backward, "backward", second))

    def _backward(
        self, halves: Halves, forward: Executable, keep: Keep | None, backend: str | None = None
    ) -> Executable:
        """Make a backward that reads what its forward leaves in an arena, and may write over it on some devices."""
        lowering = self._lowering
        module = halves.backward_with_own() if lowering.writes_over_saved else halves.backward
        return lowering.built_in(module, "backward", forward, backend=backend, keep=keep)

    def _trained(
        self,
        outline: Outline,
        forward: Executable,
        backward: Callable[[], Executable],
        halves: Callable[[], Halves],
        level: int,
        kept: Kept | None,
    ) -> TapeNode:
        lowering = self._lowering

        def inference() -> Executable:
            found = None if kept is None else kept.load("inference")
            return found[0] if found else lowering.inference(halves().prim, _keeping(kept, "inference"))

        return TapeNode(
            outline.convention,
            forward,
            backward,
            make_derivative=lambda: self._derivative(halves(), level + 1),
            inference=Lazily(inference),
            higher_order=lowering.options.higher_order,
            draws=outline.draws,
            name=f"Compiled{lowering.record.name.title().replace('_', '')}",
        )

    def _derivative(self, halves: Halves, level: int) -> TapeNode:
        with compiling():
            prim = gradient_function(halves.joint)
            found = self._lowering.halves(prim, level, halves.drawn)
            return self._inference_node(prim, None) if found is None else self._node(found, level)

    def _inference_node(self, prim: ModuleOp, kept: Kept | None) -> TapeNode:
        convention = self._lowering.boundary(prim)
        keep = _keeping(kept, "forward", Outline(convention, trains=False))
        return TapeNode(convention, self._lowering.inference(prim, keep))

    # ---- from disk

    def _known(self) -> TapeNode | None:
        """Make the node of a kept program; the passes run for what is asked for and was not kept."""
        kept = self._kept
        found = None if kept is None else kept.load("forward")
        outline = None if found is None else found[1]
        if kept is None or found is None or outline is None:
            return None
        forward = found[0]
        self._lowering.record.stage("load", None, None)
        if not outline.trains:
            return TapeNode(outline.convention, forward)

        @cache
        def halves() -> Halves:
            with compiling():
                made = self._lowering.halves(self._prim())
            return require_same(outline, made)

        def backward() -> Executable:
            there = kept.load("backward")
            if there is not None:
                return there[0]
            keep = _keeping(kept, "backward")
            return self._backward(halves(), forward, keep)

        return self._trained(outline, forward, backward, halves, 0, kept)


def _keeping(kept: Kept | None, direction: str, outline: Outline | None = None) -> Keep | None:
    """Give what leaves the code of a direction on disk."""
    if kept is None:
        return None
    return lambda program, text: kept.keep(direction, program, text, outline)
