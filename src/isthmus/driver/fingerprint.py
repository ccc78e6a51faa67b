"""A digest of a captured program: equal digests, equal programs to the last literal and source line."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from xdsl.dialects.builtin import FileLineColLoc, ModuleOp
from xdsl.ir import Attribute, Operation, Region, SSAValue

from isthmus import ir


def fingerprint(module: ModuleOp) -> str:
    """Give the digest of all that a module says: ops, operands, literals, types, attributes, where they come from.

    Names of values do not count. One walk, a third of what printing costs: types and literals are spelled once.
    """
    writer = _Writer()
    writer.op(module)
    return hashlib.sha256("\n".join(writer.lines).encode()).hexdigest()


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: dict[SSAValue, int] = {}
        self._texts: dict[Attribute, str] = {}

    def op(self, op: Operation) -> None:
        """Write an op, then its regions."""
        numbers = self._numbers
        operands = ",".join([str(numbers[v]) for v in ir.operands_of(op)])
        for result in op.results:
            numbers[result] = len(numbers)
        types = ",".join([self._text(r.type) for r in op.results])
        entries = self._entries(op.properties) + "|" + self._entries(op.attributes)
        self.lines.append(f"{op.name} {operands} {entries} {types} {self._place(op.location)}")
        for region in op.regions:
            self._region(region)

    def _region(self, region: Region) -> None:
        self.lines.append("{")
        for block in region.blocks:
            for argument in block.args:
                self._numbers[argument] = len(self._numbers)
            self.lines.append("^" + ",".join([self._text(a.type) for a in block.args]))
            for op in block.ops:
                self.op(op)
        self.lines.append("}")

    def _entries(self, table: Mapping[str, Attribute]) -> str:
        return ";".join([f"{key}={self._text(value)}" for key, value in table.items()])

    def _text(self, attribute: Attribute) -> str:
        found = self._texts.get(attribute)
        if found is None:
            found = self._texts[attribute] = str(attribute)
        return found

    def _place(self, location: Attribute) -> str:
        if isinstance(location, FileLineColLoc):
            return f"{location.filename.data}:{location.line.data}:{location.column.data}"
        return self._text(location)
