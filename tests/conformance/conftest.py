"""The import path of the conformance tests: the shared vectors, and the driver of circuits from
another test folder."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "circuit"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
