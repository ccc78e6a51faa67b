"""What a captured module says beside its ops: hints, schemas, data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects.schema import Schema, parse_schema
from isthmus.ir import Literal

HINTS = "isthmus.hints"
"""Module attribute: `[["s0", 8], ...]`, an example value for each symbol; for prices, never for correctness."""


def hints_of(op: Operation | None) -> dict[str, int]:
    """Give the example values of size symbols that the module of an op has; none outside of one that has any."""
    while op is not None and HINTS not in op.attributes:
        op = op.parent_op()
    found = None if op is None else ir.literal(op, HINTS)
    return dict(cast("tuple[tuple[str, int], ...]", found or ()))


EQUAL_SIZES = "isthmus.equal_sizes"
"""Module attribute: `[[<"s0*s1">, <"s2">], ...]`, sizes that the guards make equal; types already use one form."""


REBOUND = "isthmus.rebound"
"""Result attribute of a captured function: this reference is what argument i is after the call (x.t_())."""


TORCHS_NOISE = "aten.torchs_noise"
"""Attribute of a call: what it draws comes from torch's generator, whatever other calls do."""


DATA = "isthmus.data"
"""Attribute of a call of `detach` that stands for `x.data`: writes through its result are not counted as versions."""


PUTS_BACK = "aten.puts_back"
"""Attribute of a call that puts a written view back into its base: its derivative is that of the write, whatever
formula torch has for the overload."""


SCHEMAS = "aten.schemas"
"""Module attribute: the schema strings in use, as torch prints them without `aten::`."""


def attach_schemas(module: ModuleOp, schemas: Sequence[str]) -> None:
    """Write the schema strings that the module's calls use."""
    module.attributes[SCHEMAS] = Literal.of(tuple(sorted(set(schemas))))


def schemas_of(module: ModuleOp) -> Mapping[str, Schema] | None:
    """Give the schemas by overload name; None where the module carries none (hand-written IR)."""
    attr = module.attributes.get(SCHEMAS)
    if not isinstance(attr, Literal):
        return None
    found = _SCHEMAS.get(attr)
    if found is None:
        parsed = map(parse_schema, cast(tuple[str, ...], attr.data))
        found = _SCHEMAS.setdefault(attr, {schema.name: schema for schema in parsed})
    return found


_SCHEMAS: dict[Literal, dict[str, Schema]] = {}
