"""Which operators of torch's database run as machine code, forward, backward and twice differentiated.

    python benchmarks/operators.py                 # every operator: writes docs/data/operators.json, 10 minutes
    python benchmarks/operators.py '^(add|mul)$'   # some: prints their rows, and puts them into the file

Each operator runs on sample inputs of the database in a process of its own. What a column says is the worst of them:

    native    one native call: machine code and library calls of the allow-list, no Python
    library   compiled, with a library call outside the list or one that Python makes; the row says which and why
    eager     no compiled form: runs as torch's own, between two graphs
    error     a failure; the row says which
    none      nothing to differentiate
"""

from __future__ import annotations

import json
import multiprocessing
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import isthmus
from isthmus import ir
from isthmus.diagnostics import CompileError, UnsupportedError
from isthmus.dialects import kernel, prim
from isthmus.driver.api import compile_in
from isthmus.driver.options import Options
from isthmus.driver.session import Session
from isthmus.passes.decompose.table import REASON
from isthmus.runtime.library import NATIVE

FILE = Path(__file__).parents[1] / "docs" / "data" / "operators.json"
SAMPLES, SECONDS = 2, 300
WORST_LAST = ("none", "native", "library", "eager", "error")
ORDERS = ("forward", "backward", "second")


@dataclass
class Row:
    """What is known of one operator."""

    forward: str = "none"
    backward: str = "none"
    second: str = "none"
    kernels: set[str] = field(default_factory=set)
    reasons: set[str] = field(default_factory=set)

    def note(self, order: str, outcome: str) -> None:
        setattr(self, order, max(getattr(self, order), outcome, key=WORST_LAST.index))

    def as_data(self) -> dict[str, Any]:
        return {k: sorted(v) if isinstance(v, set) else v for k, v in asdict(self).items()}


# ---- the database


def operators() -> dict[str, Any]:
    """Name, with the variant after a slash -> OpInfo; without those that need another device."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, Any] = {}
    for op in op_db:
        name = op.name + (f"/{op.variant_test_name}" if op.variant_test_name else "")
        if op.supported_dtypes("cpu") and not re.search(r"jiterator|triton|without_cudnn", name):
            found.setdefault(name, op)
    return found


def dtype_of(op: Any) -> torch.dtype:
    known = op.supported_dtypes("cpu")
    return next(d for d in (torch.float32, torch.int64, torch.bool, *sorted(known, key=str)) if d in known)


def samples(op: Any, differentiable: bool) -> Iterator[Any]:
    """A sample of each set of keyword arguments, then others, at most SAMPLES; large ones first."""
    torch.manual_seed(0)
    given = sorted(op.sample_inputs("cpu", dtype_of(op), requires_grad=differentiable), key=size_of, reverse=True)
    kinds: dict[tuple[object, ...], Any] = {}
    for sample in given:
        kinds.setdefault((len(sample.args), *sorted(sample.kwargs)), sample)
    first = list(kinds.values())
    rest = [s for s in given if all(s is not f for f in first)]
    yield from [*first, *rest][:SAMPLES]


def size_of(sample: Any) -> int:
    """Elements of the smallest tensor, up to where more of them show nothing new."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return min(64, *(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor)), 64)


# ---- one operator


def measure(name: str, op: Any) -> Row:
    row = Row()
    dtype = dtype_of(op)
    differentiable = dtype.is_floating_point and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    twice = differentiable and op.supports_gradgrad
    for sample in samples(op, differentiable):
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def call(*tensors: Tensor, leaves: list[Any] = leaves, spec: Any = spec, places: list[int] = places) -> Any:
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            first, args, kwargs = pytree.tree_unflatten(given, spec)
            return op.op(first, *args, **kwargs)

        measure_call(row, call, [leaves[k] for k in places], differentiable, twice)
    return row


def measure_call(row: Row, call: Callable[..., Any], tensors: list[Tensor], differentiable: bool, twice: bool) -> None:
    try:
        call(*copies(tensors))
    except Exception:
        return  # eager refuses it too
    session = Session(Options(higher_order=twice))
    compiled, _ = compile_in(session, call, "trace")
    order = "forward"
    try:
        inputs = copies(tensors)
        outputs = compiled(*inputs)
        row.note(order, outcome())
        for order in differentiated_orders(differentiable, twice):
            differentiate(row, order, inputs, outputs, keep=twice)
    except CompileError as error:
        row.note(order, "eager" if isinstance(error, UnsupportedError) else "error")
        row.reasons.add(f"{short(error.op or '')} {error.what}".strip())
    except Exception as error:
        row.note(order, "error")
        row.reasons.add(f"{type(error).__name__}: {one_line(error)}")
    describe(row, session)


def differentiated_orders(differentiable: bool, twice: bool) -> tuple[str, ...]:
    return ORDERS[1:] if twice else ORDERS[1:2] if differentiable else ()


def differentiate(row: Row, order: str, inputs: list[Tensor], outputs: Any, keep: bool) -> None:
    outs, ins = differentiable_in(pytree.tree_leaves(outputs)), [t for t in inputs if t.requires_grad]
    if order == "second" and outs and ins:
        given = [s.requires_grad_() for s in seeds(outs)]  # every gradient depends on the cotangents
        outs = differentiable_in(torch.autograd.grad(outs, ins, given, allow_unused=True, create_graph=True))
        ins = [*ins, *given]
    if outs and ins:
        torch.autograd.grad(outs, ins, seeds(outs), allow_unused=True, retain_graph=keep)
        row.note(order, outcome())


def differentiable_in(values: Iterable[object]) -> list[Tensor]:
    return [v for v in values if isinstance(v, Tensor) and v.requires_grad]


def seeds(outs: Sequence[Tensor]) -> list[Tensor]:
    return [torch.ones_like(o) for o in outs]


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]


def outcome() -> str:
    return "native" if isthmus.last_call_native() else "library"


# ---- what ran


def describe(row: Row, session: Session) -> None:
    for program in session.programs:
        for module in program.lowering.kernels.values():
            ops = list(module.walk())
            row.kernels.update("kernel" for op in ops if isinstance(op, kernel.FusedOp))
            row.kernels.update(short(str(ir.literal(op, "symbol"))) for op in ops if isinstance(op, kernel.ExternOp))
        stages = program.lowering.stages
        lowest = stages.get("joint") or stages.get("prim")
        for op in lowest.walk() if lowest is not None else ():
            if isinstance(op, prim.OpaqueOp) and (name := short(str(op.callee.data))) not in NATIVE:
                row.reasons.add(f"{name} {ir.literal(op, REASON) or 'has no decomposition'}")


def short(symbol: str) -> str:
    """The operator's name, without overload."""
    return symbol if symbol.startswith("prim.") else symbol.removeprefix("aten.").partition(".")[0]


def one_line(text: object) -> str:
    return (str(text).strip().splitlines() or [""])[0][:160]


# ---- all of them


def measured(name: str, op: Any) -> Row:
    """Measure in a process of its own: neither a crash nor a loop reaches this one."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, name, op))
    child.start()
    theirs.close()
    try:
        if ours.poll(SECONDS):
            return ours.recv()
        return Row("error", "error", "error", reasons={f"more than {SECONDS} s"})
    except EOFError:
        return Row("error", "error", "error", reasons={"the process ended"})
    finally:
        child.kill()
        child.join()


def _answer(connection: Connection, name: str, op: Any) -> None:
    warnings.filterwarnings("ignore")
    connection.send(measure(name, op))
    connection.close()


def main(arguments: Sequence[str]) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    known = operators()
    data: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    rows = {k: v for k, v in data.get("operators", {}).items() if k in known}
    measure("erfc", known["erfc"])  # so that every child starts with what the first compilation loads
    for name in known:
        if not arguments or re.search(arguments[0], name):
            rows[name] = measured(name, known[name]).as_data()
            print(name, *(rows[name][order] for order in ORDERS), *rows[name]["reasons"], sep="  ", flush=True)
            write(rows)


def write(rows: dict[str, Any]) -> None:
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows))
    FILE.write_text(f'{{"torch": {json.dumps(torch.__version__.partition("+")[0])}, "operators": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main(sys.argv[1:])
