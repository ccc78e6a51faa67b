"""Torch's functions that were called before on tensors that look the same: written down again, not run again.

A program repeats itself (layers, unrolled steps), and torch's dispatcher takes most of the time of a capture.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from xdsl.ir import Attribute, Operation, SSAValue

from isthmus import ir
from isthmus.dialects import aten
from isthmus.frontend.memo import FakeLooks, Key, KeyReader, fills_its_storage, is_plain
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.torch_private import (
    below_modes,
    dispatch_keys,
    has_stacked_modes,
    is_entered,
    is_tensor_method,
    paused,
    storage_of,
)

Target = Callable[..., object] | str


@dataclass(frozen=True)
class _Made:
    """A result: value `value` of op `op`, which looks so; `shares`: the argument whose memory it is, or -1."""

    op: int
    value: int
    looks: FakeLooks
    offset: int | torch.SymInt
    requires_grad: bool
    shares: int
    reaches: tuple[int, ...]
    """The arguments that gradients by it go on to."""


@dataclass(frozen=True)
class _Known:
    """What a call wrote: its ops, their operands as (-1, argument) or (op, result), and what it gave."""

    ops: tuple[Operation, ...]
    operands: tuple[tuple[tuple[int, int], ...], ...]
    results: tuple[_Made, ...]
    container: type | None


class HistoryIsRead(BaseException):
    """Tensors were made again, and now it matters what their history is; no user's code catches it."""


class KnownNodes:
    """The calls of one capture. Tensors that are made again are leaves of the tape, whose sources `Recorder.history`
    knows: that is enough where nothing is written into what has a history and no body of a structured call is recorded
    (`Recorder.reads_history`). From there on every call runs; HistoryIsRead where that is too late."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.used = False
        """Whether any call was written down without running it."""
        self._known: dict[Key, _Known] = {}
        self._recorded: set[Target] = set()
        """Functions whose calls wrote something down, so that what they are given is part of the program."""

    def run(
        self, target: Target, args: Sequence[object], kwargs: Mapping[str, object], run: Callable[[], object]
    ) -> object:
        """Give what `run` gives, the call itself."""
        if self.recorder.reads_history and self.used:
            raise HistoryIsRead
        if not is_torchs(target) or _takes_apart(target, args) or self._is_bound():
            return run()
        block = self.recorder.scope.block
        last = block.last_op
        reader = _NodeReader(self.recorder, target in self._recorded)
        parts = [*map(reader.part, args), *((name, reader.part(value)) for name, value in kwargs.items())]
        values = self.recorder.scope.values
        before = [v for t in reader.tensors if (v := values.get(t)) is not None]
        if not reader.known or not before or len(before) < len(reader.tensors):  # made on the side: only looked at
            result = run()
            if block.last_op is not last:
                self._recorded.add(target)
            return result
        storages = [storage_of(t) for t in reader.tensors]
        ids = [id(t) for t in reader.tensors]
        alike = tuple(map(storages.index, storages)), tuple(map(ids.index, ids))
        key = target, _modes(), alike, *parts
        known = self._known.get(key)
        if known is not None:
            return self._again(known, reader.tensors, before)
        result = run()
        ops: list[Operation] = []
        op = block.last_op
        while op is not last and op is not None:
            ops.append(op)
            op = op.prev_op
        if ops:
            self._recorded.add(target)
        learnt = self._learn(tuple(reversed(ops)), result, reader, before, storages)
        if learnt is not None:
            self._known[key] = learnt
        return result

    def _is_bound(self) -> bool:
        """Whether a call now means something else than elsewhere in the program, or is no part of it."""
        recorder = self.recorder
        if not is_entered(recorder):
            return True
        marked = recorder.policy is not None or recorder.tag is not None or recorder.grad_override is not None
        return marked or recorder.reads_history or torch.is_inference_mode_enabled() or has_stacked_modes()

    def _learn(
        self,
        ops: tuple[Operation, ...],
        result: object,
        reader: KeyReader,
        before: Sequence[SSAValue],
        storages: Sequence[int],
    ) -> _Known | None:
        """Give what to remember of a call; None where it did anything but read its arguments and make tensors."""
        recorder = self.recorder
        container = type(result) if isinstance(result, list | tuple) else None
        flat = [result] if container is None else list(cast(Sequence[object], result))
        if container not in (None, list, tuple) or not ops or recorder.scope is not recorder.root:
            return None
        if [recorder.value_of(t) for t in reader.tensors] != before:
            return None
        places: dict[SSAValue, tuple[int, int]] = {}
        for index, value in enumerate(before):
            places.setdefault(value, (-1, index))
        operands: list[tuple[tuple[int, int], ...]] = []
        for number, op in enumerate(ops):
            read = [places.get(v) for v in ir.operands_of(op)]
            if not isinstance(op, aten.CallOp) or op.mutates or op.attributes or "::" in op.overload or None in read:
                return None
            operands.append(tuple(cast("list[tuple[int, int]]", read)))
            places.update({r: (number, k) for k, r in enumerate(op.results)})
        made = [self._made(r, places, reader, storages) for r in flat]
        fresh = [storage_of(cast(Tensor, r)) for r, m in zip(flat, made, strict=True) if m is not None and m.shares < 0]
        if None in made or len(set(fresh)) != len(fresh):
            return None
        return _Known(ops, tuple(operands), tuple(cast("list[_Made]", made)), container)

    def _made(
        self, result: object, places: Mapping[SSAValue, tuple[int, int]], reader: KeyReader, storages: Sequence[int]
    ) -> _Made | None:
        recorder = self.recorder
        if not is_plain(result, recorder.fake_mode):
            return None
        number, value = places.get(recorder.value_of(result), (-1, 0))
        if number < 0:  # an argument itself
            return None
        storage = storage_of(result)
        shares = storages.index(storage) if storage in storages else -1
        if shares >= 0 and reader.tensors[shares].dtype is not result.dtype:
            return None
        looks = FakeLooks(tuple(result.shape), result.stride(), result.dtype, result.fake_device)
        try:
            reached = recorder.history.reached([result], until=reader.tensors)
            reaches = tuple(i for i, t in enumerate(reader.tensors) if t.requires_grad and reached.holds(t))
        except RuntimeError:  # torch forbids to ask for the history of a view whose base was written to meanwhile
            return None
        made = _Made(number, value, looks, result.storage_offset(), result.requires_grad, shares, reaches)
        if shares < 0 and not reader.symbolic and not fills_its_storage(result):
            return None
        again = self._tensors((made,), reader.tensors)[0]
        same = dispatch_keys(again) == dispatch_keys(result) and again.requires_grad == result.requires_grad
        return made if same else None

    def _again(self, known: _Known, tensors: Sequence[FakeTensor], before: Sequence[SSAValue]) -> object:
        self.used = True
        recorder = self.recorder
        recorder.locate()
        location = ir.location_attr(recorder.location)
        written: list[Sequence[SSAValue]] = []
        for op, read in zip(known.ops, known.operands, strict=True):
            operands = [before[k] if number < 0 else written[number][k] for number, k in read]
            types: list[Attribute] = [r.type for r in op.results]
            made = ir.create_op(aten.CallOp, operands, types, op.properties, location=location)
            for old, new in zip(op.results, made.results, strict=True):
                new.name_hint = old.name_hint
            recorder.emit(made)
            written.append(made.results)
        results = self._tensors(known.results, tensors)
        for tensor, which in zip(results, known.results, strict=True):
            recorder.define(tensor, written[which.op][which.value])
            recorder.history.note(tensor, [tensors[i] for i in which.reaches])
        return results[0] if known.container is None else known.container(results)

    def _tensors(self, results: Sequence[_Made], tensors: Sequence[FakeTensor]) -> list[FakeTensor]:
        mode = self.recorder.fake_mode
        with paused(self.recorder), below_modes(mode):
            found = [_data(made, tensors) for made in results]
        return [FakeTensor(mode, data, made.looks.device) for data, made in zip(found, results, strict=True)]


def _data(made: _Made, tensors: Sequence[FakeTensor]) -> Tensor:
    """Give a meta tensor that looks so, in memory of its own or an argument's."""
    looks = made.looks
    if made.shares < 0:
        data = torch.empty_strided(looks.shape, looks.strides, dtype=looks.dtype, device="meta")
    else:
        data = tensors[made.shares].as_strided(looks.shape, looks.strides, made.offset)
    return data.requires_grad_(made.requires_grad)


def seems_to_write(node: fx.Node) -> bool:
    """Tell by its name whether a call writes into an argument; what is not seen here is found while it is imported."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if getattr(node.target, "__module__", None) == operator.add.__module__:
        return name == "setitem" or (name.startswith("i") and name[1:].strip("_") in _OPERATORS)
    written = name.endswith("_") and not name.endswith("__")
    return written or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


_OPERATORS = frozenset(n for name in dir(operator) for n in (name, name.strip("_")))
"""The operators of Python: `and_` writes nothing, `iand` does."""


class _NodeReader(KeyReader):
    """Tells apart what is equal and means something else: 0.0 and -0.0, the indices of x[[0, 1]] and x[0, 1].

    A real tensor that the program meets is its fake; one that it has not met only if it `meets` those of this call.
    """

    def __init__(self, recorder: Recorder, meets: bool) -> None:
        super().__init__(recorder.fake_mode)
        self._recorder, self._meets = recorder, meets

    def part(self, value: object) -> object:
        if type(value) in _REAL and (self._meets or self._recorder.has_met(cast(Tensor, value))):
            value = self._recorder.fake_of(cast(Tensor, value))
        if isinstance(value, float | complex):
            return type(value), repr(value)
        if isinstance(value, list | tuple):
            items = cast(Sequence[object], value)
            return list if isinstance(value, list) else tuple, *map(self.part, items)
        if isinstance(value, slice):
            return slice, *map(self.part, (value.start, value.stop, value.step))
        return (type(value),) if value is Ellipsis else super().part(value)


_REAL = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def is_torchs(target: Target) -> bool:
    """Tell whether a target is a function of torch's, of which it is known what it depends on."""
    if isinstance(target, str) or is_tensor_method(target):
        return True
    if isinstance(target, OpOverload | OpOverloadPacket):
        return str(target).startswith("aten.")
    return (getattr(target, "__module__", None) or "").split(".")[0] in ("torch", "_operator", "builtins", "math")


def _takes_apart(target: Target, args: Sequence[object]) -> bool:
    """Whether a call only picks an entry of a tuple."""
    return target is operator.getitem and not isinstance(args[0], Tensor)


def _modes() -> Hashable:
    """What calls depend on beside their arguments."""
    casts = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    deterministic = torch.are_deterministic_algorithms_enabled()
    return torch.get_default_dtype(), torch.is_grad_enabled(), deterministic, *casts
