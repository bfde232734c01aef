"""Circuits that several tests simulate; without the tools for it these tests are skipped."""

import sys
from pathlib import Path

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))
