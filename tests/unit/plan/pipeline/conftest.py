"""The import path of the benchmark that draws random scenarios and solves them exactly."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[4] / "benchmarks" / "pipeline-planning"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))
