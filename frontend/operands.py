"""The arguments of one recorded call: tensors as operands, everything else as literals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from xdsl.ir import SSAValue

from isthmus.dialects import aten
from isthmus.frontend import numbers
from isthmus.frontend.encode import encode_plain
from isthmus.frontend.operators import OperatorFacts, written_arguments
from isthmus.frontend.program import Program
from isthmus.frontend.torch_private import storage_of
from isthmus.ir import LiteralValue, Operand

_MISSING = object()


class CallArguments:
    """Bound to the schema: `values` and `tensors` are the operands, `literals` has one entry per schema argument."""

    def __init__(
        self,
        program: Program,
        known_numbers: Mapping[str, Tensor],
        facts: OperatorFacts,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> None:
        self._program = program
        self._numbers = known_numbers
        self._index: dict[int, int] = {}
        self.values: list[SSAValue] = []
        self.tensors: list[Tensor] = []
        """The fake tensors among the operands, each once, in order of appearance."""
        bound = [*args, *(kwargs.get(name, _MISSING) for name in facts.arguments[len(args) :])]
        self.bound = [d if v is _MISSING else v for v, d in zip(bound, facts.defaults, strict=True)]
        self.literals: list[LiteralValue] = []
        for value, default, tensor, is_list in zip(
            bound, facts.defaults, facts.takes_tensor, facts.takes_list, strict=True
        ):
            encoded = default if value is _MISSING else self._encode(value, tensor)
            # int[2] takes a single number for both
            single = is_list and encoded is not None and not isinstance(encoded, tuple)
            self.literals.append((encoded,) if single else encoded)
        written = tuple(self.literals[i] for i in written_arguments(facts, self.bound))
        self.mutates = tuple(aten.operand_indices(written))

    def _encode(self, value: object, takes_tensor: bool) -> LiteralValue:
        if isinstance(value, Tensor):
            return self._add(value)
        if isinstance(value, list | tuple):
            return tuple([self._encode(v, takes_tensor) for v in cast(Sequence[object], value)])
        if isinstance(value, torch.SymInt):
            return self._program.sizes.dim(value)
        if isinstance(value, torch.SymFloat):
            number = numbers.value_of(self._program, self._numbers, value, self.tensors) if takes_tensor else None
            if number is None:
                fixed = float(value)
                if value.node.expr.free_symbols:
                    self._program.sizes.fixed.append(f"the number {value.node.expr} is fixed to {fixed}")
                return fixed
            self.values.append(number)
            return Operand(len(self.values) - 1)
        if isinstance(value, torch.SymBool):
            return bool(value)
        return encode_plain(value)

    def _add(self, tensor: Tensor) -> Operand:
        index = self._index.get(id(tensor))
        if index is None:
            index = self._index[id(tensor)] = len(self.values)
            self.values.append(self._program.value_of(tensor))
            self.tensors.append(tensor)
        return Operand(index)

    def holds(self, tensor: Tensor) -> bool:
        """Tell whether a result is one of the operands itself."""
        return id(tensor) in self._index

    def sharing(self, result: Tensor) -> int:
        """Give the operand whose storage a result shares, or -1; the result itself before others."""
        if (index := self._index.get(id(result))) is not None:
            return index
        storage = storage_of(result)
        return next((self._index[id(t)] for t in self.tensors if storage_of(t) == storage), -1)
