"""What passes ask of xDSL's objects most often, answered without calls in between: who is who and what, operands, the
next op.

The answers are xDSL's own. A pass over a program of some thousand ops hashes values and steps from op to op several
hundred thousand times (together a twentieth of what compiling an unrolled recurrent network takes), and asks as often
whether an op is of a class.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterator
from typing import Any, Protocol

from xdsl.ir import Attribute, BlockOps, Operation, SSAValue
from xdsl.irdl.operations import BeforeVariadicSingleAccessor, IRDLOperation, VarIRConstruct

_element = tuple.__getitem__  # without the question whether the index is a slice


def _steps(ops: BlockOps) -> Iterator[Operation]:
    """Walk a block; the op at hand may be taken out meanwhile."""
    op = ops.first
    while op is not None:
        following = op._next_op  # pyright: ignore[reportPrivateUsage]
        yield op
        op = following


def _field(accessor: BeforeVariadicSingleAccessor, op: Operation, owner: object = None) -> Any:
    """Give a named operand, result, region or successor before which nothing is variadic."""
    construct = accessor.construct
    if construct is VarIRConstruct.OPERAND:
        return _element(op._operands, accessor.idx)  # pyright: ignore[reportPrivateUsage]
    if construct is VarIRConstruct.RESULT:
        return _element(op.results, accessor.idx)
    return (op.regions if construct is VarIRConstruct.REGION else op.successors)[accessor.idx]


class _Declared(type(Protocol)):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
    """The class of classes that have those subclasses which name them as a base: no other is ever registered.

    It is one of protocols' class, so that a class of xDSL's and a protocol may be bases of one class.
    """

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


def _declare(cls: type) -> None:
    """Have `isinstance` look at the bases of an object's class, not into the registers of an abstract one."""
    if type(cls) is ABCMeta:
        cls.__class__ = _Declared  # pyright: ignore[reportAttributeAccessIssue]
    for derived in cls.__subclasses__():
        _declare(derived)


def quicken() -> None:
    """Give xDSL's classes these methods; values and ops hash and compare by identity as they do anyway."""
    for cls in (Operation, SSAValue, Attribute):
        _declare(cls)
    for cls in (SSAValue, IRDLOperation):
        setattr(cls, "__hash__", object.__hash__)  # noqa: B010
        setattr(cls, "__eq__", object.__eq__)  # noqa: B010
    setattr(BlockOps, "__iter__", _steps)  # noqa: B010
    setattr(BeforeVariadicSingleAccessor, "__get__", _field)  # noqa: B010
