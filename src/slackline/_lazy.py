"""Packages that import each of their modules at the first use of a name from the module.

A rank that opens a group needs few of slackline's modules; a package that imported all of its own
would make each rank of a job pay for the tools too.
"""

import importlib
import sys
from collections.abc import Callable, Mapping

__all__ = ["lazily"]


def lazily(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package (PEP 562) whose names come from its modules.

    `names` maps each module of the package to the names that it provides, with spaces between them;
    a name may be the module's own. The function keeps each value that it has found in the package,
    so that it is called once for each name. It raises AttributeError for any other name.
    """
    homes = {name: module for module, provided in names.items() for name in provided.split()}

    def find(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{home}")
        value = module if name == home else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return find
