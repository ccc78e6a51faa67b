"""`pytest --rows` prints which behaviours of the specification hold, by the tests that name them."""

import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

LIT = Path(__file__).parent / "lit"

os.environ["ISTHMUS_PRICES"] = "default"  # what was measured on the machine at hand is nobody else's


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rows", action="store_true", help="print each specification row with its tests' outcomes")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--rows"):
        config.pluginmanager.register(_Rows(), "isthmus-rows")


class _Rows:
    def __init__(self) -> None:
        self.rows: dict[str, list[str]] = {}
        self.outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            named = [str(row) for mark in item.iter_markers("row") for row in mark.args]
            if named:
                self.rows[item.nodeid] = named

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        by_row: dict[str, list[str]] = defaultdict(list)
        for test, rows in self.rows.items():
            for row in rows:
                by_row[row].append(f"{self.outcomes.get(test, 'not run')}: {test}")
        for path in sorted(LIT.rglob("*.mlir")):
            for row in re.findall(r"// ROW: *(.*)", path.read_text()):
                for name in re.split(r"[ ,]+", row.strip()):
                    by_row[name].append(f"lit: {path.relative_to(LIT.parent)}")
        terminalreporter.section("rows")
        for row in sorted(by_row, key=_order):
            failed = [t for t in by_row[row] if not t.startswith(("passed", "lit"))]
            terminalreporter.line(f"{row:4} {'FAILS' if failed else 'holds'}  {(failed or by_row[row])[0]}")


def _order(row: str) -> tuple[str, int]:
    match = re.match(r"([A-Z]+)(\d*)", row)
    return (match.group(1), int(match.group(2) or 0)) if match else (row, 0)
