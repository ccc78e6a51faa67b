"""What compiling costs: a first training step by stage, for GPTs of several depths or for single operators.

    python benchmarks/compile_time.py [--layers 4 12] [--capture dynamo|trace] [--contractions large|own|library]
    python benchmarks/compile_time.py --operators '^(sin|softmax)$'     # of torch's database; '' are all of them

GPTs: wall milliseconds per stage and per layer more; each depth in a process of its own, on one thread, from empty
caches, so on a quiet machine. `capture` is what comes before the first stage (Dynamo, recording), `run` the rest.

Operators: CPU milliseconds of a first step, forward and backward, beyond Dynamo's own (its backend "eager"), the best
of three in turns: with empty caches (cold), with objects on disk (objects), with whole programs on disk (programs);
then the cold one by stage, in wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

Stages = dict[str, float]

STAGES = {"emit": "emit", "llvm": "compile", "link": "link"}
"""Columns of an operator's row -> stages; the others are passes, and what is in none is capture and the run."""

# ---- GPTs


def measured(layers: int, capture: str, contractions: str) -> Stages:
    """Compile and run one step in this process; milliseconds per stage, and `whole`."""
    import torch
    from fusion_bytes import gpt

    from isthmus.driver.api import compile_in
    from isthmus.driver.options import Options
    from isthmus.driver.session import Session

    torch.manual_seed(0)
    session = Session(Options(contractions=contractions))
    model, inputs = gpt(layers)
    warm = torch.compile(lambda x: x + 1, backend="eager")
    warm(torch.ones(1))  # Dynamo's own imports
    begin = time.perf_counter()
    compiled, _ = compile_in(session, model, capture)
    compiled(*inputs).backward()
    whole = 1e3 * (time.perf_counter() - begin)
    (program,) = session.programs
    stages = dict(program.lowering.record.milliseconds)
    return {**stages, "run": max(0.0, whole - sum(stages.values())), "whole": whole}


def in_a_process(layers: int, capture: str, contractions: str) -> Stages:
    """The same in a new process with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", __file__, "--one", str(layers), "--capture", capture]
        run = subprocess.run(
            [*command, "--contractions", contractions],
            env={**os.environ, "ISTHMUS_CACHE_DIR": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(run.stdout.splitlines()[-1])


def depths_table(layers: Sequence[int], capture: str, contractions: str) -> None:
    """Print the stages of GPTs, a column for each depth."""
    depths = sorted(layers)
    columns = [in_a_process(n, capture, contractions) for n in depths]
    print(f"{'stage, ms':24}" + "".join(f"{f'{n} layers':>12}" for n in depths) + f"{'a layer':>12}")
    for stage in columns[-1]:
        values = [c.get(stage, 0.0) for c in columns]
        more = (values[-1] - values[0]) / max(1, depths[-1] - depths[0])
        print(f"{stage:24}" + "".join(f"{v:12.1f}" for v in values) + f"{more:12.1f}")


# ---- operators

KINDS = ("dynamo", "cold", "objects", "programs")


def operator_calls(pattern: str) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """Name, function and tensors of a call of each differentiable operator of torch's database whose name matches."""
    from operators import dtype_of, operators, samples

    for name, op in operators().items():
        if not re.search(pattern, name) or not op.supports_autograd or not dtype_of(op).is_floating_point:
            continue
        sample = next(samples(op, True), None)
        if sample is None:
            continue
        yield name, *written(op.op, sample)


def written(target: object, sample: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Give a function of the tensors of a sample that calls the operator as a user would write it, and the tensors."""
    import torch

    tensors: list[Any] = []
    known: dict[str, object] = {"target": target}

    def spelled(value: object) -> str:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return f"t{len(tensors) - 1}"
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            inner = "".join(f"{spelled(v)}, " for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        known[f"c{len(known)}"] = value
        return f"c{len(known) - 1}"

    arguments = [spelled(sample.input), *map(spelled, sample.args)]
    arguments += [f"{key}={spelled(value)}" for key, value in sample.kwargs.items()]
    names = ", ".join(f"t{k}" for k in range(len(tensors)))
    exec(f"def op({names}):\n    return target({', '.join(arguments)})", known)
    return known["op"], tensors  # pyright: ignore[reportReturnType]


def first_step(kind: str, call: Callable[..., Any], tensors: Sequence[Any]) -> tuple[float, Stages]:
    """CPU milliseconds of compiling and running a call and its backward, and those of the stages."""
    import torch
    from torch.utils import _pytree as pytree

    import isthmus
    from isthmus.driver.api import compile_in
    from isthmus.driver.options import Options
    from isthmus.driver.session import Session
    from isthmus.runtime import cache

    isthmus.reset()
    cache.clear() if kind == "cold" else cache.current().forget_memory()
    function = FunctionType(call.__code__.replace(co_name="op"), call.__globals__)  # new to Dynamo
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    session = Session(Options(), warm=kind == "programs")
    begin = time.process_time()
    if kind == "dynamo":
        compiled = torch.compile(function, backend="eager")
    else:
        compiled, _ = compile_in(session, function, "dynamo")
    outputs = [o for o in pytree.tree_leaves(compiled(*inputs)) if isinstance(o, torch.Tensor) and o.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs])
    spent = 1e3 * (time.process_time() - begin)
    stages: Stages = {}
    for program in session.programs:
        for stage, ms in program.lowering.record.milliseconds.items():
            stages[stage] = stages.get(stage, 0.0) + ms
    return spent, stages


def operator_row(call: Callable[..., Any], tensors: Sequence[Any]) -> tuple[Mapping[str, float], Stages]:
    """The best of three of each kind, in turns; and the stages of the best cold one."""
    best: dict[str, tuple[float, Stages]] = {}
    for _ in range(3):
        for kind in KINDS:
            spent = first_step(kind, call, tensors)
            if kind not in best or spent[0] < best[kind][0]:
                best[kind] = spent
            if kind == "objects":
                first_step("programs", call, tensors)  # leaves the program
    return {kind: ms for kind, (ms, _) in best.items()}, best["cold"][1]


def operators_table(pattern: str) -> None:
    """Print a row for each operator, then the medians."""
    os.environ["ISTHMUS_CACHE_DIR"] = tempfile.mkdtemp()
    import torch

    torch.set_num_threads(1)
    columns = ("dynamo", "cold", "objects", "programs", *STAGES, "passes")
    print(f"{'operator, CPU ms':36}" + "".join(f"{c:>10}" for c in columns))
    rows: list[list[float]] = []
    for name, call, tensors in operator_calls(pattern):
        try:
            times, stages = operator_row(call, tensors)
        except Exception as error:
            print(f"{name:36}{type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}")
            continue
        dynamo = times["dynamo"]
        parts = [stages.get(stage, 0.0) for stage in STAGES.values()]
        row = [dynamo, *(times[k] - dynamo for k in KINDS[1:]), *parts, sum(stages.values()) - sum(parts)]
        rows.append(row)
        print(f"{name:36}" + "".join(f"{v:10.1f}" for v in row), flush=True)
    if rows:
        print(
            f"{f'median of {len(rows)}':36}" + "".join(f"{statistics.median(c):10.1f}" for c in zip(*rows, strict=True))
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 12])
    parser.add_argument("--capture", choices=("dynamo", "trace"), default="dynamo")
    parser.add_argument("--contractions", choices=("large", "own", "library"), default="library")
    parser.add_argument("--operators", metavar="REGEX", help="single operators of torch's database instead")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measured(options.one, options.capture, options.contractions)))
    elif options.operators is not None:
        operators_table(options.operators)
    else:
        depths_table(options.layers, options.capture, options.contractions)


if __name__ == "__main__":
    main()
