"""The import path of the fault matrix: its helper modules and the references of the conformance
tests."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[2] / "conformance"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
