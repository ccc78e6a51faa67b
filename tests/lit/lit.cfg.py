import sys
from pathlib import Path

import lit.formats

root = Path(__file__).parents[2]
config.name = "isthmus"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = str(root / "tests" / "lit")
config.test_exec_root = str(root / "build" / "lit")
config.environment["PYTHONPATH"] = str(root / "src")
config.substitutions += [
    ("isthmus-opt", str(Path(sys.executable).with_name("isthmus-opt"))),
    ("filecheck", f"{sys.executable} -m filecheck"),
]
