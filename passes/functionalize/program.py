"""The walk over a captured block: each op on references becomes ops on values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from xdsl.ir import Block, Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import CompileError, IRError
from isthmus.dialects import aten, autodiff
from isthmus.dialects.aten import RefType
from isthmus.dialects.autodiff import RECOMPUTE
from isthmus.passes.functionalize import storage
from isthmus.passes.functionalize.emission import Emission, is_differentiable
from isthmus.passes.functionalize.geometry import Same
from isthmus.passes.functionalize.storage import Reference, Root
from isthmus.passes.functionalize.views import Call, link

_CARRIED = (RECOMPUTE, aten.TORCHS_NOISE)
"""Attributes of an op that everything emitted for it gets."""


class Program:
    """One block: which reference each captured value is, and the block of values that grows from it.

    `asked` are the captured values by which the program itself differentiates; `recorded` tells whether anything can
    be differentiated at all.
    """

    def __init__(self, e: Emission, asked: frozenset[SSAValue] = frozenset(), *, recorded: bool = True) -> None:
        self.e = e
        self.references: dict[SSAValue, Reference] = {}
        self.values: dict[SSAValue, SSAValue] = {}
        """Captured values that are no references (sizes)."""
        self.recorded = recorded
        self.asked = asked

    def rewrite(self, op: Operation) -> None:
        """Emit what an op does; errors get its name and location."""
        self.e.location = op.location
        self.e.carried = {key: op.attributes[key] for key in _CARRIED if key in op.attributes}
        rewrite = REWRITES.get(type(op))
        if rewrite is None:
            raise IRError("has no functional form", op=op.name, location=ir.source_location(op))
        try:
            rewrite(self, op)
        except CompileError as error:
            if error.op is not None:
                raise
            where = ir.source_location(op)
            raise type(error)(error.what, op=name_of(op), location=where, cure=error.cure) from error

    def read(self, captured: SSAValue) -> SSAValue:
        """Give the value that a captured value has now."""
        reference = self.references.get(captured)
        return self.values[captured] if reference is None else storage.read(self.e, reference)

    def define(self, captured: SSAValue, reference: Reference) -> None:
        """Say which reference a captured value is."""
        self.references[captured] = reference
        if captured not in self.asked:
            return
        value = storage.read(self.e, reference)
        if not is_differentiable(value):
            return
        if reference.argument is None:  # what flows into it must not flow into an equal value, nor the other way round
            value = self.e.apart(self.e.leaf(value) if reference.stops else value)
            reference.value = value
            reference.history = value if reference.stops else None
        self.e.active.add(value)

    def define_fresh(self, captured: SSAValue, value: SSAValue) -> None:
        """Say that a captured value is a new storage with this value."""
        type_ = captured.type
        if isinstance(type_, RefType):
            self.define(captured, Reference(Root(), type_, value))
        else:
            self.values[captured] = value

    def define_shared(self, op: Operation, captured: SSAValue, operand: int, value: SSAValue) -> None:
        """Say that a result shares storage with an operand (or none, -1) in a way that only this one op knows."""
        if operand < 0:
            self.define_fresh(captured, value)
            return
        base = self.references[ir.operands_of(op)[operand]]
        type_ = captured.type
        assert isinstance(type_, RefType)
        frozen = f"a result of '{name_of(op)}' shares memory with its operand, and one of them is written afterwards"
        shared = Reference(base.root, type_, value, base.root.version, base, None, stops=True, frozen=frozen)
        self.define(captured, shared)


Rewrite = Callable[[Program, Operation], None]

REWRITES: dict[type[Operation], Rewrite] = {}
"""Op class -> how it is rewritten."""


def rewrites(*classes: type[Operation]) -> Callable[[Rewrite], Rewrite]:
    """Enter a rewrite for op classes."""

    def enter(rewrite: Rewrite) -> Rewrite:
        for cls in classes:
            REWRITES[cls] = rewrite
        return rewrite

    return enter


def name_of(op: Operation) -> str:
    """Give an op's name as errors show it."""
    return f"aten.{op.overload}" if isinstance(op, aten.CallOp) else op.name


# ---- Calls

_DETACHES = frozenset(("detach.default",))
_PLACED = frozenset(("as_strided.default",))
_COPIES = frozenset(("copy_.default",))
_UNIFORM = frozenset(("fill_.Scalar", "fill_.Tensor", "zero_.default"))
"""Writes of one number: allowed where elements share memory."""
_WARNED = frozenset(("masked_fill_", "index_fill_", "index_put_", "tril_", "triu_", "fill_diagonal_"))
"""Writes where elements share memory that torch warns of at most."""
_UNCHECKED = frozenset(
    f"{name}.default" for name in ("addmm_", "addmv_", "addbmm_", "baddbmm_", "addr_", "masked_scatter_")
)
"""Writes whose inputs torch does not check for a partial overlap."""
_UNSEEN = frozenset(
    f"{name}.default"
    for name in (
        "batch_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "_batch_norm_impl_index",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "instance_norm",
    )
)
"""Calls whose writes (running statistics) autograd does not see; nor does it see those of custom operators."""


@rewrites(aten.CallOp)
def _call(program: Program, op: Operation) -> None:
    """Views become references, writes new values, everything else the same call on values."""
    assert isinstance(op, aten.CallOp)
    if op.mutates:
        _mutating_call(program, op)
    elif op.results and all(i >= 0 for i in op.aliases):
        _views(program, op)
    else:
        _plain_call(program, op)


def _plain_call(program: Program, op: aten.CallOp) -> None:
    operands = [program.read(v) for v in ir.operands_of(op)]
    types = [aten.value_type(r.type) for r in op.results]
    silent = op.non_differentiable
    results = program.e.call(op.overload, operands, op.args, types, present=op.present, non_differentiable=silent)
    for captured, alias, value in zip(op.results, op.aliases, results, strict=True):
        program.define_shared(op, captured, alias, value if op.grad else program.e.stopped(value))


def _views(program: Program, op: aten.CallOp) -> None:
    types = tuple(aten.value_type(r.type) for r in op.results)
    operands = ir.operands_of(op)
    calls = {
        base: Call(op.overload, op.args, base, types, op.present, partial(_operands, program, operands, base))
        for base in set(op.aliases)
    }
    quiet = not op.grad or op.overload in _DETACHES
    placed = op.overload in _PLACED
    for index, (captured, base) in enumerate(zip(op.results, op.aliases, strict=True)):
        type_ = captured.type
        assert isinstance(type_, RefType)
        viewed = program.references[operands[base]]
        if placed:
            viewed = storage.base_of(viewed)
            storage.require_inside(viewed, type_.data)
            how = Same() if viewed.facts == type_.data else None
        else:
            how = link(op.overload, op.args, viewed.facts, type_.data)
        view = Reference(
            viewed.root,
            type_,
            parent=viewed,
            link=how,
            call=calls[base],
            result=index,
            placed=placed,
            quiet=quiet,
            stops=quiet and program.recorded,
            is_data=aten.DATA in op.attributes,
        )
        program.define(captured, view)


def _operands(program: Program, operands: Sequence[SSAValue], base: int) -> list[SSAValue]:
    """Give the operands' values now; whoever takes the view puts the base's in its place."""
    return [v if i == base else program.read(v) for i, v in enumerate(operands)]


def _mutating_call(program: Program, op: aten.CallOp) -> None:
    operands = ir.operands_of(op)
    written = [program.references[operands[i]] for i in op.mutates]
    if op.overload not in _UNCHECKED:
        read = [program.references[v] for v in operands if v in program.references]
        for reference in written:
            storage.require_no_partial_overlap(reference, [r for r in read if r is not reference])
    itself = [a in op.mutates and r.type is operands[a].type for r, a in zip(op.results, op.aliases, strict=True)]
    own = [k for k, returns_operand in enumerate(itself) if not returns_operand]
    kept: dict[int, SSAValue] = {}
    if not _is_idle_copy(program, op):
        seen = op.grad and op.overload not in _UNSEEN and "::" not in op.overload
        values, kept = _new_values(program, op, own, seen)
        for reference, value in zip(written, values, strict=True):
            uniform, warned = op.overload in _UNIFORM, op.overload.partition(".")[0] in _WARNED
            storage.write(program.e, reference, value, seen=seen, uniform=uniform, warned=warned)
    for k, (captured, alias) in enumerate(zip(op.results, op.aliases, strict=True)):
        if k in kept:
            program.define_shared(op, captured, alias, kept[k])
        else:
            program.define(captured, program.references[operands[alias]])


def _is_idle_copy(program: Program, op: aten.CallOp) -> bool:
    """x[3:5] += 1 ends with a copy of the slice onto itself."""
    references = [program.references.get(v) for v in ir.operands_of(op)]
    if op.overload not in _COPIES:
        return False
    target, source = references[0], references[-1]
    return target is not None and source is not None and storage.same_elements(target, source)


def _new_values(
    program: Program, op: aten.CallOp, own: Sequence[int], seen: bool
) -> tuple[Sequence[SSAValue], dict[int, SSAValue]]:
    """Give the new values of the written operands, and the results `own` that are no written operands."""
    operands = ir.operands_of(op)
    if op.overload in _COPIES and not program.asked:
        target, source = operands[0], operands[-1]
        if ir.shape_of(target) == ir.shape_of(source) and ir.dtype_of(target) == ir.dtype_of(source):
            value = program.read(source)
            if not op.grad or value in program.e.active or program.read(target) not in program.e.active:
                return [value], {}  # else the result goes on with the history of what it overwrites
    types = [aten.value_type(op.results[k].type) for k in own]
    results = program.e.call(
        op.overload,
        [program.read(v) for v in operands],
        op.args,
        [*types, *(aten.value_type(operands[i].type) for i in op.mutates)],
        updates=op.mutates,
        present=[op.present[k] for k in own],
        non_differentiable=_silent(op, own, seen),
    )
    kept = {k: v if op.grad else program.e.stopped(v) for k, v in zip(own, results, strict=False)}
    return results[len(own) :], kept


def _silent(op: aten.CallOp, own: Sequence[int], seen: bool) -> list[int]:
    """Give which of a writing call's results `own`, then of its new values, carry no history: none of what autograd
    does not see it write."""
    written = {op.aliases[k] for k in op.non_differentiable if k not in own}
    return [
        *(i for i, k in enumerate(own) if k in op.non_differentiable),
        *(len(own) + j for j, operand in enumerate(op.mutates) if operand in written or not seen),
    ]


def asked_for(block: Block) -> frozenset[SSAValue]:
    """Give the values by which a block differentiates, itself or where it maps a function over examples."""
    found: set[SSAValue] = set()
    for op in block.ops:
        if isinstance(op, autodiff.VjpOp):
            found.update(op.ins)
        elif isinstance(op, autodiff.BatchOp):
            inner = asked_for(op.body.block)
            found.update(v for v, a in zip(ir.operands_of(op), op.body.block.args, strict=True) if a in inner)
    return frozenset(found)
