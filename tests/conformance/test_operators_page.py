"""The measured rows of docs/ops.md: every operator has one, and some are measured again."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MEASURED = json.loads((ROOT / "docs" / "data" / "operators.json").read_text())
TIERS = json.loads((ROOT / "docs" / "data" / "tiers.json").read_text())

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def operators() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measured_operators", ROOT / "benchmarks" / "operators.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_operator_has_a_row(operators: ModuleType) -> None:
    assert set(MEASURED["operators"]) == set(operators.operators())


def test_no_operator_fails() -> None:
    outcomes = {
        name: [row[o] for o in ("forward", "backward", "second")] for name, row in MEASURED["operators"].items()
    }
    assert [name for name, found in outcomes.items() if "error" in found] == []


def test_tiers_name_operators_that_exist() -> None:
    names = MEASURED["operators"]
    assert [n for n in TIERS["1"] if n not in names] == []
    assert [p for p in TIERS["3"] if not any(re.match(p, n) for n in names)] == []


@pytest.mark.parametrize("name", ["add", "amax", "erfc", "fft.rfft", "igamma", "mm", "nonzero", "sort", "transpose"])
def test_a_row_is_what_happens(name: str, operators: ModuleType) -> None:
    assert operators.measure(name, operators.operators()[name]).as_data() == MEASURED["operators"][name]
