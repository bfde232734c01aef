"""Packages that import each of their modules at the first use of a name from the module.

A rank that opens a group needs few of slackline's modules; a package that imported all of its own
would make each rank of a job pay for the tools too.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["collection_paused", "lazily"]


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
        with collection_paused():
            module = importlib.import_module(f"{package}.{home}")
        value = module if name == home else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return find


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause Python's garbage collection within the context, and only where it was on.

    The functions and classes of a module stay until the end of the process, so that a collection
    during an import frees nothing. It takes long, though: it visits all objects of torch, which
    takes 0.08 s, more than the imports themselves. What the context has allocated is collected with
    later garbage as always.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
