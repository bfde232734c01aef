"""The import of a benchmark's modules, whose names other benchmarks use for their modules too."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

_BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@contextmanager
def modules_of(name: str, *modules: str) -> Iterator[ModuleType]:
    """Import `modules` of the benchmark `name`, and yield one object that has them as attributes.

    At the end, all modules of the benchmark's folder are removed from `sys.modules`, because
    another benchmark's modules may have the same names.
    """
    folder = _BENCHMARKS / name
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        found = ModuleType("benchmark")
        for module in modules:
            setattr(found, module, importlib.import_module(module))
        yield found
    for module in set(sys.modules) - before:
        if Path(getattr(sys.modules[module], "__file__", None) or "/").parent == folder:
            del sys.modules[module]
