"""What README and the pages under docs/ show is run: Python blocks in order in one process, commands with their output.

Links and paths that a page names lead somewhere.

```mlir name.mlir     a file of that name for the commands and the Python
```console            lines with `$ ` are commands, what follows is their output; a line `...` stands for any lines
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs" / "howto").glob("*.md"), ROOT / "docs" / "tour.md", ROOT / "README.md"])
FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Fenced:
    language: str
    file: str | None
    text: str


def blocks(page: Path) -> list[Fenced]:
    return [Fenced(*match.groups()) for match in FENCE.finditer(page.read_text())]


def with_files(page: Path, folder: Path) -> list[Fenced]:
    """Give the blocks of a page whose files lie in a folder."""
    found = blocks(page)
    for block in found:
        if block.file:
            (folder / block.file).write_text(block.text)
    return found


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    code = "\n".join(b.text for b in with_files(page, tmp_path) if b.language == "python" and not b.file)
    if not code:
        pytest.skip("the page shows no Python")
    script = tmp_path / "page.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_commands_of_a_page_print_what_it_says(page: Path, tmp_path: Path) -> None:
    for block in (b for b in with_files(page, tmp_path) if b.language == "console"):
        for command, expected in commands(block.text):
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
            )
            assert matches(expected, done.stdout + done.stderr), f"$ {command}\n{done.stdout}{done.stderr}"


def commands(text: str) -> list[tuple[str, str]]:
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def matches(expected: str, output: str) -> bool:
    pieces = re.split(r"^\s*\.\.\.\n", expected.rstrip("\n") + "\n", flags=re.MULTILINE)
    pattern = r"(?:.*\n)*?".join(re.escape(piece) for piece in pieces)
    return re.fullmatch(pattern + r"\s*", output.rstrip("\n") + "\n") is not None


LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)]*)?\)")
ALL_PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    links = LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    assert not [link for link in links if not (page.parent / link).exists()]


def test_an_ellipsis_stands_for_any_lines_and_nothing_else_does() -> None:
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n") and matches("a\n  ...\nd", "a\nd\n")
    assert not matches("a\nd\n", "a\nb\nd\n") and not matches("a.c\n", "abc\n")


def test_the_generated_pages_are_fresh():
    command = [sys.executable, "-m", "docs.generate", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
