"""Code that a command line names: a file or a module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_code(where: str) -> ModuleType:
    """Run `path/to/file.py`, or import a module by its name.

    What a file imports is looked for in its folder first, as Python does for scripts, a module in the current one. Both
    stay on `sys.path`, since a program may import while it runs. OSError when there is no such file, ImportError when
    there is no such module, and whatever the code raises.
    """
    if not where.endswith(".py"):
        sys.path.insert(0, "")
        return importlib.import_module(where)
    path = Path(where)
    if not path.exists():
        raise OSError(f"there is no file {where}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
