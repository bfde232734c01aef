"""The vectors are a module beside the tests, and circuits are driven by one of theirs."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "circuit"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
