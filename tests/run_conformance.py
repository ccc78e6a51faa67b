"""Run the operator and model harnesses against `isthmus.compile`, where they are present.

    python tests/run_conformance.py PATH [--full]

PATH is the folder with opinfo.py, models.py and regressions_test.py. Without --full a sample of each is run.
Exit status 1 when something is wrong; 0 with a message when the folder is not there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EDGES = (
    "as_strided_scatter|fill|native_layer_norm|_native_batch_norm_legit|topk|gather|prod|scatter_reduce/prod"
    "|nn.functional.(normalize|scaled_dot_product_attention|multi_head_attention_forward)"
)
"""Operators whose histories, ties, random numbers and rounding only torch decides."""

SAMPLE = (
    ("opinfo.py", "--tier", "1", "--max-samples", "2", "-j2"),
    ("opinfo.py", "--ops", f"^({EDGES})$", "--dtype", "bfloat16", "-j2"),
    ("opinfo.py", "--ops", f"^({EDGES})$", "--second-order=only", "--max-samples", "3", "-j2"),
    ("models.py", "--models", "mixer|rnn_loop|vae", "--opt", "sgd", "-j2"),
)
_TIERS = ("opinfo.py", "--tier", "1", "--tier", "2", "-j2")
FULL = (
    _TIERS,
    *((*_TIERS, "--dtype", dtype) for dtype in ("float64", "bfloat16", "int64", "bool")),
    ("opinfo.py", "--tier", "1", "--dtype", "complex64", "-j2"),
    (*_TIERS, "--second-order=only"),
    ("models.py", "-j2"),
)


def main(arguments: list[str]) -> int:
    """Run what the arguments name; see the module's text."""
    folder = Path(arguments[0]).resolve()
    if not (folder / "opinfo.py").exists():
        print("conformance: the harness is not here, nothing was run")
        return 0
    failed: list[str] = []
    for script, *options in FULL if "--full" in arguments else SAMPLE:
        print(f"conformance: {script} {' '.join(options)}", flush=True)
        run = subprocess.run([sys.executable, str(folder / script), *options], stdout=subprocess.PIPE, text=True)
        print("\n".join(run.stdout.splitlines()[-12:]), flush=True)
        if run.returncode:
            failed.append(" ".join((script, *options)))
    if failed:
        print(f"conformance: {', '.join(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
