"""The end of a capture: the recorded block becomes `@main` with roles on its arguments and results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Region, SSAValue

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import aten
from isthmus.dialects.signature import Argument, Result, Signature
from isthmus.frontend.captured import Captured, Input
from isthmus.frontend.encode import encode_plain
from isthmus.frontend.overlap import relation
from isthmus.frontend.recorder import Recorder
from isthmus.ir import Literal, LiteralValue


def finish(
    recorder: Recorder,
    inputs: Sequence[Input],
    fakes: Sequence[object],
    examples: Sequence[object],
    outputs: Sequence[object],
    name: str,
    known: Mapping[int, Input] | None = None,
) -> Captured:
    """Make the module; `examples` are the inputs whose storages say which arguments share memory.

    `known` describes tensors that the program reached by itself, by their ids.
    """
    returned, user_outputs = _returned(recorder, fakes, outputs)
    arguments = list(recorder.root.block.args)
    constants = [
        (known or {}).get(id(t), Input(f"constant {i}", "constant", t.requires_grad))
        for i, t in enumerate(recorder.constants)
    ]
    for argument, described in zip(arguments, (*inputs, *constants), strict=True):
        argument.name_hint = re.sub(r"\W+", "_", described.name).strip("_0123456789") or None
    rebound = [
        (index, value)
        for index, fake in enumerate(fakes)
        if isinstance(fake, Tensor)
        and (value := recorder.root.values[fake]) is not arguments[index]
        and (value.type is not arguments[index].type or id(fake) in recorder.turned)
    ]
    values = [*returned, *(v for _, v in rebound)]
    recorder.emit(ReturnOp(*values))
    func_type = FunctionType.from_lists([a.type for a in arguments], [v.type for v in values])
    func = FuncOp("main", func_type, Region(recorder.root.block))
    func.location = ir.location_attr(recorder.location)
    everything = (*inputs, *constants)
    wanted = recorder.saw_grad_mode
    everything = tuple(Input(i.name, i.kind, i.requires_grad and wanted) for i in everything)
    symbols = [*(_symbol(recorder, f) for f in fakes), *(None for _ in constants)]
    shares = _shares([*examples, *recorder.constants])
    Signature(
        tuple(_argument(i, y, s) for i, y, s in zip(everything, symbols, shares, strict=True)),
        (*(Result(output=True) for _ in returned), *(_rebound(index) for index, _ in rebound)),
        tuple(user_outputs),
    ).attach(func)
    module = ModuleOp([func])
    aten.attach_schemas(module, tuple(recorder.schemas))
    _attach_sizes(module, recorder, [s for s in symbols if s])
    notes = tuple(dict.fromkeys(recorder.sizes.fixed))
    left = torch.is_grad_enabled()
    left_mode = left if left != recorder.grad_mode_before else None
    device = _device(recorder, outputs)
    return Captured(module, everything, tuple(recorder.constants), name, recorder.location, notes, left_mode, device)


def _device(recorder: Recorder, outputs: Sequence[object]) -> torch.device:
    """Give the one device of a program; 0-d tensors of the CPU may join it, as in eager, if none is a result.

    UnsupportedError where there are several.
    """
    host = torch.device("cpu")
    others = [d for d in recorder.devices if d != host]
    if not others:
        return host
    given = {t.device for t in outputs if isinstance(t, Tensor)}
    if len(others) > 1 or recorder.devices.get(host, False) or host in given or others[0].type != "cuda":
        raise UnsupportedError(
            f"the program uses several devices: {', '.join(sorted(map(str, recorder.devices)))}",
            location=recorder.location,
            cure="compile the part on each device by itself",
        )
    return others[0]


def _returned(
    recorder: Recorder, fakes: Sequence[object], outputs: Sequence[object]
) -> tuple[list[SSAValue], list[tuple[LiteralValue, ...]]]:
    """Give the values to return, each once, and the user's output list in terms of them."""
    arguments = {id(f): a for f, a in zip(fakes, recorder.root.block.args, strict=False)}
    returned: list[SSAValue] = []
    listed: list[tuple[LiteralValue, ...]] = []
    for output in outputs:
        if isinstance(output, Tensor):
            value = recorder.value_of(output)
            argument = arguments.get(id(output))
            if argument is not None and argument.type is value.type and id(output) not in recorder.turned:
                value = argument  # written in place perhaps, still the caller's own tensor
            if value not in returned:
                returned.append(value)
            listed.append(("value", returned.index(value)))
        elif isinstance(output, torch.SymInt):
            listed.append(("constant", recorder.sizes.dim(output)))
        elif isinstance(output, torch.SymFloat | torch.SymBool):
            listed.append(("constant", float(output) if isinstance(output, torch.SymFloat) else bool(output)))
        else:
            with recorder.errors_at("return"):
                listed.append(("constant", encode_plain(output)))
    return returned, listed


def _argument(input_: Input, symbol: str | None, shares: tuple[int, ...]) -> Argument:
    if input_.kind == "size":
        return Argument(
            symbol=symbol or f"known_{input_.name}", source=input_.name
        )  # known: by a guard, read by nobody
    return Argument(
        primal=True,
        wants_gradient=input_.requires_grad,
        static=input_.kind in ("parameter", "buffer", "constant"),
        source=input_.name,
        shares=shares,
    )


def _rebound(index: int) -> Result:
    """This reference is what argument `index` is after the call: other shape or strides on the same storage."""
    return Result(extra={aten.REBOUND: Literal.of(index)})


def _shares(examples: Sequence[object]) -> list[tuple[int, ...]]:
    pairs = relation([(i, x) for i, x in enumerate(examples) if isinstance(x, Tensor)])
    return [tuple(a for a, b in pairs if b == i) for i in range(len(examples))]


def _symbol(recorder: Recorder, fake: object) -> str | None:
    """Give the symbol that an integer input is, where it is one and no guard made it another."""
    if not isinstance(fake, torch.SymInt):
        return None
    size = recorder.sizes.dim(fake)
    return str(size) if isinstance(size, ir.Size) and size is ir.Size.symbol(str(size)) else None


def _attach_sizes(module: ModuleOp, recorder: Recorder, symbols: Sequence[str]) -> None:
    named = set(symbols)
    for argument in recorder.root.block.args:
        if isinstance(argument.type, aten.RefType):
            named |= {s for d in argument.type.data.shape if isinstance(d, ir.Size) for s in d.symbols()}
    if hints := recorder.sizes.hints(sorted(named)):
        module.attributes[aten.HINTS] = Literal.of(tuple(hints.items()))
    if pairs := recorder.sizes.equalities.pairs:
        module.attributes[aten.EQUAL_SIZES] = Literal.of(pairs)
