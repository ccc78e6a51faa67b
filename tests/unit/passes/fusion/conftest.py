"""Lets the tests beside import the random programs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
