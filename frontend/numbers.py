"""Python floats that vary: torch passes them as 0-d float64 tensors and computes with their symbols."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import sympy
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._sympy import functions as torch_functions
from xdsl.ir import SSAValue

from isthmus.dialects import aten
from isthmus.frontend.encode import DTYPE_NAMES
from isthmus.frontend.program import Program
from isthmus.frontend.symbolic import UntranslatableError, to_dim
from isthmus.ir import LiteralValue, Operand

_NUMBER = aten.ref((), "f64")


def remember(known: dict[str, Tensor], number: torch.SymFloat, tensor: Tensor) -> None:
    """Note which 0-d tensor a symbol was read from."""
    expression = number.node.expr
    if isinstance(expression, sympy.Symbol) and tensor.dtype == torch.float64:
        known[expression.name] = tensor


def holds_number(tensor: Tensor) -> bool:
    """Whether this is a 0-d tensor through which torch passes a number, known by its symbol."""
    memo = getattr(tensor, "item_memo", None) if tensor.dim() == 0 else None
    return isinstance(memo, torch.SymFloat)


def tensor_form(func: OpOverload, args: Sequence[object]) -> OpOverload:
    """Give the overload of a comparison that takes a tensor, where its number varies."""
    form = _TENSOR_FORMS.get(func)
    return form if form is not None and any(isinstance(a, torch.SymFloat) for a in args) else func


def value_of(
    program: Program, known: Mapping[str, Tensor], number: torch.SymFloat, beside: Sequence[Tensor]
) -> SSAValue | None:
    """Give the 0-d tensor that holds a float expression, in the precision that a Python float has beside these tensors.

    None where it cannot be written: the caller then fixes the number.
    """
    try:
        value = _compute(program, known, number.node.expr)
    except UntranslatableError:
        return None
    dtypes = [torch.result_type(t, 1.0) for t in beside] or [torch.get_default_dtype()]
    dtype = functools.reduce(torch.promote_types, dtypes)
    name = DTYPE_NAMES.get(dtype.to_real(), "f64")
    if name == "f64":
        return value
    return program.emit_call(torch.ops.aten._to_copy.default, [value], [Operand(0), name], aten.ref((), name))


def _compute(program: Program, known: Mapping[str, Tensor], expression: sympy.Basic) -> SSAValue:
    if isinstance(expression, sympy.Symbol) and expression.name in known:
        return program.value_of(known[expression.name])
    if isinstance(expression, sympy.Float | sympy.Rational):
        return _constant(program, float(expression))
    if isinstance(expression, torch_functions.ToFloat):
        return _constant(program, to_dim(expression.args[0]))
    for kinds, overload, extra in _BINARY:
        if isinstance(expression, kinds):
            first, *rest = [_compute(program, known, a) for a in expression.args]
            for other in rest:
                args = (Operand(0), Operand(1), *extra)
                first = program.emit_call(overload, [first, other], args, _NUMBER)
            return first
    name = str(getattr(expression, "_torch_handler_name", ""))
    if name in _UNARY:
        argument = _compute(program, known, expression.args[0])
        return program.emit_call(getattr(torch.ops.aten, name).default, [argument], [Operand(0)], _NUMBER)
    raise UntranslatableError(str(expression))


def _constant(program: Program, value: LiteralValue) -> SSAValue:
    return program.emit_call(torch.ops.aten.full.default, [], [(), value, "f64"], _NUMBER)


_UNARY = frozenset("sqrt cos cosh sin sinh tan tanh asin acos atan exp log log2".split())
"""Functions of Python's math module, as torch names them in its symbolic expressions."""

_COMPARED = (
    torch.ops.aten.lt,
    torch.ops.aten.le,
    torch.ops.aten.gt,
    torch.ops.aten.ge,
    torch.ops.aten.eq,
    torch.ops.aten.ne,
)
_TENSOR_FORMS: Mapping[OpOverload, OpOverload] = {op.Scalar: op.Tensor for op in _COMPARED}

_BINARY: list[tuple[tuple[type, ...], OpOverload, tuple[LiteralValue, ...]]] = [
    ((sympy.Add,), torch.ops.aten.add.Tensor, (1,)),
    ((sympy.Mul,), torch.ops.aten.mul.Tensor, ()),
    ((torch_functions.FloatTrueDiv, torch_functions.IntTrueDiv), torch.ops.aten.div.Tensor, ()),
    ((sympy.Pow, torch_functions.FloatPow), torch.ops.aten.pow.Tensor_Tensor, ()),
]
