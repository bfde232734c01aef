"""The import path of the benchmark that draws mixed clusters and tries every cut."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[4] / "benchmarks" / "pipeline-partition"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))
