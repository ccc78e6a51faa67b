"""Where the time of a first training step goes: milliseconds per stage for GPTs of several depths, and per layer more.

    python benchmarks/compile_time.py [--layers 4 12] [--capture dynamo|trace] [--contractions auto|large|own|library]

Each depth is compiled in a process of its own, on one thread, without cached objects; wall
time, so on a quiet machine. `capture` is what comes before
the first stage (Dynamo, recording, import), `load and run` what follows the last: linking, the step itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

Stages = dict[str, float]


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
    return {**stages, "load and run": max(0.0, whole - sum(stages.values())), "whole": whole}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 12])
    parser.add_argument("--capture", choices=("dynamo", "trace"), default="dynamo")
    parser.add_argument("--contractions", choices=("auto", "large", "own", "library"), default="auto")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measured(options.one, options.capture, options.contractions)))
        return
    depths = sorted(options.layers)
    columns = [in_a_process(n, options.capture, options.contractions) for n in depths]
    print(f"{'stage, ms':24}" + "".join(f"{f'{n} layers':>12}" for n in depths) + f"{'a layer':>12}")
    for stage in columns[-1]:
        values = [c.get(stage, 0.0) for c in columns]
        more = (values[-1] - values[0]) / max(1, depths[-1] - depths[0])
        print(f"{stage:24}" + "".join(f"{v:12.1f}" for v in values) + f"{more:12.1f}")


if __name__ == "__main__":
    main()
