"""Drawn scenarios and the exact solver are those of the benchmark: its folder joins the path."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[4] / "benchmarks" / "pipeline-planning"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))
