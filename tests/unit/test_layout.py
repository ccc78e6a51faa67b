"""The parts are links into the package, and nobody imports them under their bare names."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("dialects", "passes", "frontend", "codegen", "runtime")


def imported_by_the_tool(*modules: str) -> str:
    code = f"import sys, isthmus.cli; print([m for m in {modules} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_linked(part: str):
    link = ROOT / "src" / "isthmus" / part
    cure = f"ln -sfn ../../{part} src/isthmus/{part}"
    assert link.is_symlink() and (link / "__init__.py").exists(), f"restore the link: {cure}"


def test_every_folder_of_a_part_is_a_package():
    missing = [
        folder
        for part in PARTS
        for folder in (ROOT / part).rglob("*")
        if folder.is_dir() and folder.name != "__pycache__" and not (folder / "__init__.py").exists()
    ]
    assert not missing, "without __init__.py they are silently absent from the wheel"


def test_the_text_tool_imports_neither_torch_nor_llvm():
    assert imported_by_the_tool("torch", "llvmlite", "sympy") == "[]"


def test_no_part_is_imported_under_its_bare_name():
    assert imported_by_the_tool(*PARTS) == "[]"
