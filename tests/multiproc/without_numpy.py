"""Run a script as if numpy were not installed.

    python without_numpy.py SCRIPT ARGUMENT ...

Without numpy, torch imports some modules later than with it: while the process group is open, so
that functions of these modules have the group as a default argument.
"""

import runpy
import sys
from typing import Any


class WithoutNumpy:
    """A finder of modules that finds all that another one finds, but numpy."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, *where: Any) -> Any:
        return None if name.partition(".")[0] == "numpy" else self._finder.find_spec(name, *where)


if __name__ == "__main__":
    sys.meta_path[:] = map(WithoutNumpy, sys.meta_path)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
