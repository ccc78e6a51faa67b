"""The dispatch mode that writes aten ops: every call on fake tensors, before autograd, becomes one `aten.call`.

What a call mutates comes from its schema (with corrections), what its results alias from the storages of the fake
results, sizes from their symbolic expressions, the place in the user's program from whoever drives the recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary
from xdsl.ir import Attribute, Block, Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import CompileError, SourceLocation, UnsupportedError
from isthmus.dialects import aten
from isthmus.dialects.autodiff import RECOMPUTE
from isthmus.frontend import autocast, checkpoint, numbers
from isthmus.frontend.encode import DTYPE_NAMES, dtype_name, encode_plain
from isthmus.frontend.operators import OperatorFacts, facts_of, identity_of, written_arguments
from isthmus.frontend.symbolic import FIXED_SIZE, SizeReader
from isthmus.ir import Literal, LiteralValue, Operand


@dataclass
class Scope:
    """One block being written, and which value each fake tensor is in it."""

    block: Block
    parent: Scope | None = None
    values: MutableMapping[Tensor, SSAValue] = field(default_factory=WeakTensorKeyDictionary)
    """Keys are weak: a second owner of a fresh tensor would make torch's bindings copy it."""
    captured: list[Tensor] = field(default_factory=list[Tensor])
    """Tensors of the enclosing scope that became extra arguments of the block."""


class Recorder(ProxyTorchDispatchMode):
    """Records what runs while it is entered, on fake tensors of `fake_mode`.

    Raises UnsupportedError for what has no compiled form, with the user's line.
    """

    def __init__(self, fake_mode: FakeTensorMode, sizes: SizeReader) -> None:
        super().__init__(None, "real", pre_dispatch=True)  # pyright: ignore[reportArgumentType]
        self.fake_mode = fake_mode
        self.sizes = sizes
        self.root = self.scope = Scope(Block())
        self.location: SourceLocation | None = None
        self.schemas: set[str] = set()
        self.constants: list[Tensor] = []
        self.grad_override: bool | None = None
        """What the ops are marked with, where it is not torch's own grad mode."""
        self.saw_grad_mode = False
        """Whether any op was recorded with gradients on."""
        self.numbers: dict[str, Tensor] = {}
        """Symbols of floats -> the 0-d f64 tensor that holds the number."""
        self.skipped_levels = 0
        """How many functorch levels (torch.func.grad) the program entered that are not entered here."""
        self.policy: checkpoint.Policy | None = None
        """Of the checkpoint region that is being recorded."""
        self.tag: str | None = None
        """What calls are tagged with where no policy is asked."""
        self.find_location: Callable[[], SourceLocation | None] | None = None
        """Finds the user's line where no one else sets `location`."""
        self._fake_constants: dict[int, Tensor] = {}

    # ---- Dispatch

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[object, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        facts = facts_of(func)
        self.locate()
        with self.errors_at(facts.name):
            if facts.name == "lift_fresh.default":
                return self._lift(func, cast(Tensor, args[0]))
            args, kwargs = pytree.tree_map_only(Tensor, self._to_fake, (args, dict(kwargs or {})))
            if any(is_functorch_wrapped_tensor(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)):
                with BelowAutograd(self):  # torch's batching rules run, what they call is recorded
                    return func(*args, **kwargs)
            if autocast.is_active(args, kwargs):
                plan = autocast.plan_of(func, args, kwargs)
                if plan.inside:
                    with self:
                        return func.decompose(*args, **kwargs)
                args, kwargs = plan.apply(self, args, kwargs)
                with autocast.disabled():
                    return self.record(func, facts, args, kwargs)
            return self.record(func, facts, args, kwargs)

    def __sym_dispatch__(
        self, func: OpOverload, types: tuple[object, ...], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        return func(*args, **kwargs)

    def record(
        self, func: OpOverload, facts: OperatorFacts, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """Run one call on fake tensors and write it down; gives what torch gives."""
        if facts.replaces_storage:
            raise UnsupportedError(
                "replaces a tensor's storage in place", op=facts.name, cure="make a new tensor instead"
            )
        bound = _bind(facts, args, kwargs)
        if (same := identity_of(facts, bound)) is not None:
            return same
        operands = _Operands(self)
        encoded = [
            default if value is _MISSING else self._encode(value, operands, takes_tensor)
            for value, default, takes_tensor in zip(bound, facts.defaults, facts.takes_tensor, strict=True)
        ]
        mutates = self._mutated(facts, bound, encoded)
        had_history = any(t.requires_grad for t in operands.tensors)
        watch = None if self.policy is None else checkpoint.AskPolicy(self.policy)
        with watch or nullcontext():
            result = func(*args, **kwargs)
        flat = pytree.tree_leaves(result)
        tensors = [r for r in flat if isinstance(r, Tensor)]
        if not tensors and not mutates:
            return self._plain_result(facts, result, operands)
        if not mutates and len(tensors) == 1 and operands.holds(tensors[0]):
            return result  # the very argument: contiguous() of a contiguous tensor, dropout() in eval
        if facts.view_of is not None:
            if facts.name == "detach_.default" and not had_history:
                return result
            facts, mutates = facts_of(facts.view_of), ()
        present = [i for i, r in enumerate(flat) if isinstance(r, Tensor)]
        op = aten.call(
            facts.name,
            operands.values,
            [_as_list(v) if is_list else v for v, is_list in zip(encoded, facts.takes_list, strict=True)],
            [self.type_of(t) for t in tensors],
            mutates=mutates,
            aliases=[operands.sharing(t) for t in tensors],
            grad=self.grad_mode(),
            present=present,
            location=ir.location_attr(self.location),
        )
        if (tag := self.tag if watch is None else watch.tag) is not None:
            op.attributes[RECOMPUTE] = Literal.of(tag)
        self.schemas.add(facts.schema)
        self.emit(op)
        for tensor, value in zip(tensors, op.results, strict=True):
            self.define(tensor, value)
        return result

    def _mutated(
        self, facts: OperatorFacts, bound: Sequence[object], encoded: Sequence[LiteralValue]
    ) -> tuple[int, ...]:
        values = [d if v is _MISSING else v for v, d in zip(bound, facts.defaults, strict=True)]
        written = (encoded[i] for i in written_arguments(facts, values))
        return tuple(aten.operand_indices(tuple(written)))

    def locate(self) -> None:
        """Find the user's line."""
        if self.find_location is not None:
            self.location = self.find_location() or self.location

    def grad_mode(self) -> bool:
        """Whether autograd records what runs now."""
        if self.grad_override is not None:
            return self.grad_override
        enabled = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        self.saw_grad_mode |= enabled
        return enabled

    def _plain_result(self, facts: OperatorFacts, result: object, operands: _Operands) -> object:
        """A number read from a tensor: floats stay symbols that name the tensor, integers become constants."""
        if isinstance(result, torch.SymFloat) and len(operands.tensors) == 1:
            numbers.remember(self.numbers, result, operands.tensors[0])
        elif isinstance(result, torch.SymInt) and facts.name in ("item.default", "_local_scalar_dense.default"):
            return int(result)
        return result

    # ---- Values

    def type_of(self, tensor: Tensor) -> aten.RefType:
        """Give the reference type of a fake tensor; UnsupportedError for sparse, quantized and the like."""
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise UnsupportedError(f"{tensor.layout} tensors have no compiled form")
        return aten.ref(
            self.sizes.dims(tensor.shape),
            dtype_name(tensor.dtype),
            self.sizes.dims(tensor.stride()),
            self.sizes.dim(tensor.storage_offset()),
        )

    def define(self, tensor: Tensor, value: SSAValue) -> None:
        """Say which value a fake tensor is in the current scope."""
        self.scope.values[tensor] = value

    def add_input(self, tensor: Tensor) -> SSAValue:
        """Make a fake tensor an argument of the current block."""
        block = self.scope.block
        value = block.insert_arg(self.type_of(tensor), len(block.args))
        value.location = ir.location_attr(self.location)
        self.scope.values.setdefault(tensor, value)
        return value

    def value_of(self, tensor: Tensor) -> SSAValue:
        """Give the value that a fake tensor is; one of an enclosing block becomes an argument of this one."""
        return self._value_in(self.scope, self._to_fake(tensor))

    def _value_in(self, scope: Scope, tensor: Tensor) -> SSAValue:
        value = scope.values.get(tensor)
        if value is not None:
            return value
        if scope.parent is None:
            raise UnsupportedError(
                "a tensor that no recorded operation made", cure="pass it to the compiled function as an argument"
            )
        self._value_in(scope.parent, tensor)
        value = scope.block.insert_arg(self.type_of(tensor), len(scope.block.args))
        scope.values[tensor] = value
        scope.captured.append(tensor)
        return value

    def emit(self, op: Operation) -> None:
        """Add an op to the current block."""
        self.scope.block.add_op(op)

    def emit_call(
        self, overload: OpOverload, operands: Sequence[SSAValue], args: Sequence[LiteralValue], type_: Attribute
    ) -> SSAValue:
        """Write a call that no fake tensor stands for; gives its one result."""
        facts = facts_of(overload)
        full = (*args, *facts.defaults[len(args) :])
        op = aten.call(facts.name, operands, full, [type_], location=ir.location_attr(self.location))
        self.schemas.add(facts.schema)
        self.emit(op)
        return op.results[0]

    @contextmanager
    def region(self, tensors: Sequence[Tensor]) -> Generator[Scope]:
        """Record into a new block whose arguments are these tensors; other outer tensors that it meets join them."""
        outer = self.scope
        self.scope = Scope(Block(), outer)
        try:
            for tensor in tensors:
                self.add_input(tensor)
            yield self.scope
        finally:
            self.scope = outer

    @contextmanager
    def unrecorded(self) -> Generator[None]:
        """Run on fake tensors without writing anything down (for use between dispatches)."""
        with _paused(self), self.fake_mode:
            yield

    def add_size(self) -> SSAValue:
        """Make an integer an argument of the current block."""
        block = self.scope.block
        return block.insert_arg(ir.INDEX, len(block.args))

    def like(self, tensor: Tensor, *, requires_grad: bool) -> Tensor:
        """Give a new fake tensor of the same shape, strides and dtype, unknown to any scope; no leaf."""
        with self.unrecorded(), torch.no_grad():
            made = torch.empty_strided(
                tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device=tensor.device
            )
            if not requires_grad or not (made.is_floating_point() or made.is_complex()):
                return made
            history = torch.zeros((), dtype=made.dtype, device=made.device, requires_grad=True)
            with torch.enable_grad():
                return made.add_(history)

    # ---- Arguments

    def _encode(self, value: object, operands: _Operands, takes_tensor: bool) -> LiteralValue:
        if isinstance(value, Tensor):
            return operands.add(value)
        if isinstance(value, list | tuple):
            return tuple([self._encode(v, operands, takes_tensor) for v in cast(Sequence[object], value)])
        if isinstance(value, torch.SymInt):
            return self.sizes.dim(value)
        if isinstance(value, torch.SymFloat):
            number = numbers.value_of(self, value, operands.tensors) if takes_tensor else None
            return float(value) if number is None else operands.add_value(number)
        if isinstance(value, torch.SymBool):
            return bool(value)
        return encode_plain(value)

    def _to_fake(self, tensor: Tensor) -> Tensor:
        """Real tensors met on the way are constants: further arguments of the function."""
        if isinstance(tensor, FakeTensor) or is_functorch_wrapped_tensor(tensor):
            return tensor
        fake = self._fake_constants.get(id(tensor))
        if fake is None:
            if type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
                raise UnsupportedError(f"a tensor subclass ({type(tensor).__name__}) has no compiled form")
            with _paused(self):
                fake = self.fake_mode.from_tensor(tensor, static_shapes=True)
            self._fake_constants[id(tensor)] = fake
            block = self.root.block
            self.root.values[fake] = block.insert_arg(self.type_of(fake), len(block.args))
            self.constants.append(tensor)
        return fake

    def _lift(self, func: OpOverload, tensor: Tensor) -> Tensor:
        """A literal tensor in the program, torch.tensor(...): a number where it is one, else a copy of a constant."""
        if isinstance(tensor, FakeTensor):
            return tensor
        with _paused(self):
            fake = cast(Tensor, func(tensor))
        if tensor.numel() == 1 and tensor.dtype in DTYPE_NAMES:
            with no_dispatch():
                number = cast(LiteralValue, tensor.item())
            args = (tuple(tensor.shape), number, dtype_name(tensor.dtype), None, str(tensor.device))
            value = self.emit_call(torch.ops.aten.full.default, [], args, self.type_of(fake))
        else:
            source = self._value_in(self.scope, self._to_fake(tensor))
            value = self.emit_call(torch.ops.aten.clone.default, [source], [Operand(0)], self.type_of(fake))
        self.define(fake, value)
        return fake

    # ---- Errors

    @contextmanager
    def errors_at(self, name: str) -> Generator[None]:
        """Give errors the op's name and the user's line; what needs data becomes UnsupportedError."""
        try:
            yield
        except CompileError as error:
            if error.location is not None:
                raise
            raise type(error)(
                error.what, location=self.location, op=error.op or name, cure=error.cure
            ) from error.__cause__
        except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
            raise UnsupportedError(
                "the program reads a tensor's value while it is compiled (.item(), bool(), a branch on data, print)",
                location=self.location,
                op=name,
                cure="use torch.where or torch.cond, or keep this line outside of the compiled function",
            ) from error
        except DynamicOutputShapeException as error:
            raise UnsupportedError(
                "the size of the result depends on data",
                location=self.location,
                op=name,
                cure=FIXED_SIZE,
            ) from error


class BelowAutograd(TorchDispatchMode):
    """Records at the level of kernels, below autograd and torch's transforms: what vmap makes of a call."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[object, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        facts = facts_of(func)
        with self.recorder.errors_at(facts.name):
            return self.recorder.record(func, facts, args, kwargs or {})


class _Operands:
    """The operands of one call: each tensor once, in order of appearance; then numbers."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.values: list[SSAValue] = []
        self.tensors: list[Tensor] = []
        """The fake tensors of the first operands."""
        self._index: dict[int, int] = {}

    def add(self, tensor: Tensor) -> Operand:
        """Give the operand that a tensor is."""
        index = self._index.get(id(tensor))
        if index is None:
            index = self._index[id(tensor)] = len(self.values)
            self.values.append(self.recorder.value_of(tensor))
            self.tensors.append(tensor)
        return Operand(index)

    def add_value(self, value: SSAValue) -> Operand:
        """Add an operand that no fake tensor stands for; after all tensors."""
        self.values.append(value)
        return Operand(len(self.values) - 1)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a result is one of the operands itself."""
        return id(tensor) in self._index

    def sharing(self, result: Tensor) -> int:
        """Give the operand whose storage a result shares, or -1; the result itself before others."""
        if (index := self._index.get(id(result))) is not None:
            return index
        storage = storage_of(result)
        for tensor in self.tensors:
            if storage_of(tensor) == storage:
                return self._index[id(tensor)]
        return -1


def storage_of(tensor: Tensor) -> int:
    """Give what identifies a tensor's storage."""
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


_MISSING = object()


def _bind(facts: OperatorFacts, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    rest = facts.arguments[len(args) :]
    return [*args, *(kwargs.get(name, _MISSING) for name in rest)]


def _as_list(value: LiteralValue) -> LiteralValue:
    """int[2] takes a single number for both."""
    return value if value is None or isinstance(value, tuple) else (value,)


@contextmanager
def _paused(recorder: Recorder) -> Generator[None]:
    """Take the recorder off the stack of modes, if it is on it."""
    from torch._ops import _get_dispatch_mode_pre_dispatch, unset_mode_pre_dispatch
    from torch._ops import _set_mode_pre_dispatch as set_mode

    key = torch._C._TorchDispatchModeKey.PROXY
    if _get_dispatch_mode_pre_dispatch(key) is not recorder:
        yield
        return
    unset_mode_pre_dispatch(key)
    try:
        yield
    finally:
        set_mode(recorder)
