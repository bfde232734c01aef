"""The helpers are modules beside the tests, the references are those of the conformance tests:
their folders join the path here."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[2] / "conformance"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
