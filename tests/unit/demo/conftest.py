"""The demo is no part of the package: make its folder importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))
