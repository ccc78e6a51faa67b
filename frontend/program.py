"""The program being captured: blocks, which value each fake tensor is in them, constants, places."""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils.weak import WeakTensorKeyDictionary
from xdsl.ir import Attribute, Block, Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import CompileError, SourceLocation, UnsupportedError
from isthmus.dialects import aten
from isthmus.frontend.encode import dtype_name
from isthmus.frontend.fakes import fake_of_real, fresh
from isthmus.frontend.history import History
from isthmus.frontend.operators import facts_of
from isthmus.frontend.symbolic import FIXED_SIZE, SizeReader
from isthmus.frontend.torch_private import is_wrapped_by_functorch
from isthmus.ir import LiteralValue


@dataclass
class Scope:
    """One block being written, and which value each fake tensor is in it."""

    block: Block
    parent: Scope | None = None
    values: MutableMapping[Tensor, SSAValue] = field(default_factory=WeakTensorKeyDictionary)
    """Keys are weak: a second owner of a fresh tensor would make torch's bindings copy it."""
    captured: list[Tensor] = field(default_factory=list[Tensor])
    """Tensors of the enclosing scope that became extra arguments of the block."""
    sees_history: bool = False
    """Whether gradients asked for in the block may go through what the enclosing one computed before it."""

    def sees_history_of(self, tensor: Tensor) -> bool:
        """Tell whether a gradient by the tensor may be asked for here: it is made here, or where history is seen."""
        scope = self
        while scope.parent is not None and (tensor not in scope.values or any(tensor is c for c in scope.captured)):
            if not scope.sees_history:
                return False
            scope = scope.parent
        return True

    def begins_at(self, tensor: Tensor) -> bool:
        """Tell whether what the block computed of outer tensors has no history outside of it: they are all leaves."""
        scope = self
        while scope.parent is not None:
            if not all(t.is_leaf or not t.requires_grad for t in scope.captured):
                return False
            scope = scope.parent
        return tensor.is_leaf


class Program:
    """What has been captured so far. Sizes are read by `sizes`; fake tensors belong to `fake_mode`."""

    def __init__(self, fake_mode: FakeTensorMode, sizes: SizeReader) -> None:
        self.fake_mode = fake_mode
        self.sizes = sizes
        self.root = self.scope = Scope(Block())
        self.schemas: set[str] = set()
        self.constants: list[Tensor] = []
        self.given: set[int] = set()
        """The arguments of the function, by the ids of their fakes."""
        self.met: list[Tensor] = []
        """Arguments that were also reached in another way."""
        self.devices: dict[torch.device, bool] = {}
        """Devices of the program's tensors -> whether one there is more than a number (0-d)."""
        self.location: SourceLocation | None = None
        self.find_location: Callable[[], SourceLocation | None] | None = None
        """Finds the user's line where no one else sets `location`."""
        self.history = History()
        self.reads_history = False
        """Whether anything so far asks how tensors came about: a write into what has a history, a structured call."""
        self._fake_constants: dict[int, Tensor] = {}

    # ---- Values

    def type_of(self, tensor: Tensor) -> aten.RefType:
        """Give the reference type of a fake tensor; UnsupportedError for sparse, quantized and the like."""
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise UnsupportedError(f"{tensor.layout} tensors have no compiled form")
        self.devices[tensor.device] = self.devices.get(tensor.device, False) or tensor.dim() > 0
        return aten.ref(
            self.sizes.dims(tensor.shape),
            dtype_name(tensor.dtype),
            self.sizes.dims(tensor.stride()),
            self.sizes.dim(tensor.storage_offset()),
        )

    def define(self, tensor: Tensor, value: SSAValue) -> None:
        """Say which value a fake tensor is in the current scope."""
        self.scope.values[tensor] = value

    def value_of(self, tensor: Tensor) -> SSAValue:
        """Give the value that a tensor is; one of an enclosing block becomes an argument of this one."""
        return self._value_in(self.scope, self.fake_of(tensor))

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

    def has_met(self, tensor: Tensor) -> bool:
        """Tell whether a real tensor has a fake already."""
        return id(tensor) in self._fake_constants

    def fake_of(self, tensor: Tensor) -> Tensor:
        """Give the fake of a real tensor: met on the way, it is a constant, a further argument of the function."""
        if isinstance(tensor, FakeTensor) or is_wrapped_by_functorch(tensor):
            return tensor
        fake = self._fake_constants.get(id(tensor))
        if fake is None:
            if type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
                raise UnsupportedError(f"a tensor subclass ({type(tensor).__name__}) has no compiled form")
            with self.unrecorded():
                fake = fake_of_real(self.fake_mode, tensor)
            self._fake_constants[id(tensor)] = fake
            if fake in self.root.values:  # it is an argument too
                self.met.append(tensor)
                return fake
            block = self.root.block
            self.root.values[fake] = block.insert_arg(self.type_of(fake), len(block.args))
            self.constants.append(tensor)
        return fake

    @contextmanager
    def unrecorded(self) -> Generator[None]:
        """Run on fake tensors without writing anything down."""
        raise NotImplementedError
        yield

    def like(self, tensor: Tensor, *, requires_grad: bool, derived_from: Sequence[Tensor] = ()) -> Tensor:
        """Give a new fake tensor of the same shape, strides and dtype, unknown to any scope; no leaf.

        Its history leads to `derived_from`, so that a later request for gradients finds them.
        """
        made = fresh(self.fake_mode, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if not requires_grad or not (made.is_floating_point() or made.is_complex()):
            return made
        with self.unrecorded(), torch.no_grad():
            history = torch.zeros((), dtype=made.dtype, device=made.device, requires_grad=True)
            with torch.enable_grad():
                for source in derived_from:
                    if source.requires_grad:
                        real = torch.view_as_real(source) if source.is_complex() else source
                        history = history + real.sum().to(made.device, made.dtype)
                return made.add_(history)

    # ---- Blocks

    def add_input(self, tensor: Tensor) -> SSAValue:
        """Make a fake tensor an argument of the current block."""
        block = self.scope.block
        value = block.insert_arg(self.type_of(tensor), len(block.args))
        value.location = ir.location_attr(self.location)
        self.scope.values.setdefault(tensor, value)
        if self.scope is self.root:
            self.given.add(id(tensor))
        return value

    def add_size(self) -> SSAValue:
        """Make an integer an argument of the current block."""
        block = self.scope.block
        return block.insert_arg(ir.INDEX, len(block.args))

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
    def region(self, tensors: Sequence[Tensor], *, sees_history: bool = False) -> Generator[Scope]:
        """Write into a new block whose arguments are these tensors; other outer tensors that it meets join them."""
        outer = self.scope
        self.reads_history = True
        self.scope = Scope(Block(), outer, sees_history=sees_history)
        try:
            for tensor in tensors:
                self.add_input(tensor)
            yield self.scope
        finally:
            self.scope = outer

    # ---- Places

    def locate(self) -> None:
        """Find the user's line."""
        if self.find_location is not None:
            self.location = self.find_location() or self.location

    @contextmanager
    def errors_at(self, name: str) -> Generator[None]:
        """Give errors the op's name and the user's line; what needs data becomes UnsupportedError."""
        try:
            yield
        except CompileError as error:
            if error.location is not None:
                raise
            op = error.op or name
            raise type(error)(error.what, location=self.location, op=op, cure=error.cure) from error.__cause__
        except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
            raise UnsupportedError(
                "the program reads a tensor's value while it is compiled (.item(), bool(), a branch on data, print)",
                location=self.location,
                op=name,
                cure="use torch.where or torch.cond, or keep this line outside of the compiled function",
            ) from error
        except DynamicOutputShapeException as error:
            what = "the size of the result depends on data"
            raise UnsupportedError(what, location=self.location, op=name, cure=FIXED_SIZE) from error
