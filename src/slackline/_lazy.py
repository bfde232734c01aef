"""Imports that cost little: modules at first use, a paused collector, dataclasses made fast.

A rank that opens a group needs few of slackline's modules; a package that imported all of its own
would make each rank of a job pay for the tools too.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING

__all__ = ["collection_paused", "lazily", "record"]


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


if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen, kw_only=False, slots=False):
        """Make a class a frozen dataclass, in a third of the time of `dataclasses.dataclass`.

        The class has the fields, constructor, comparison, hash and text that dataclasses gives it,
        and works with its functions. dataclasses compiles seven methods of each class at the
        import, which took half of the time of all imports of an opening. Here only the constructor
        is compiled; the other methods are the same functions for all classes. All fields must be
        arguments of the constructor, and a default must be a value.
        """
        assert frozen

        def make(kind):
            made = dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)(kind)
            made.__init__ = _constructor(made)
            for name, method in (_SHARED | _methods_of(made)).items():
                if name not in vars(made):
                    setattr(made, name, method)
            return made

        return make

    def _constructor(made):
        """Compile the constructor, which sets each field and then calls `__post_init__`."""
        known = fields(made)
        arguments = ["self", *(["*"] if known[0].kw_only else [])]
        space = {"set_field": object.__setattr__}
        lines = []
        for each in known:
            assert each.init
            assert each.default_factory is MISSING
            default = ""
            if each.default is not MISSING:
                default = f"=default_{each.name}"
                space[f"default_{each.name}"] = each.default
            arguments.append(each.name + default)
            lines.append(f"set_field(self, {each.name!r}, {each.name})")
        if hasattr(made, "__post_init__"):
            lines.append("self.__post_init__()")
        exec(f"def __init__({', '.join(arguments)}):\n " + "\n ".join(lines), space)
        constructor = space["__init__"]
        constructor.__module__ = made.__module__
        constructor.__qualname__ = f"{made.__qualname__}.__init__"
        constructor.__annotations__ = {**{each.name: each.type for each in known}, "return": None}
        return constructor

    def _methods_of(made):
        """Return the methods of a class that depend on its fields, by name."""
        names = tuple(each.name for each in fields(made))
        get = attrgetter(*names)  # One name gives a value, several names give a tuple.

        def equal(self, other):
            if other.__class__ is not self.__class__:
                return NotImplemented
            return get(self) == get(other)

        def hashed(self):
            return hash(get(self))

        def text(self):
            values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            return f"{self.__class__.__qualname__}({values})"

        return {"__eq__": equal, "__hash__": hashed, "__repr__": text}

    def _refuse_assignment(self, name, value):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def _refuse_deletion(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _state(self):
        """Return the values of the fields, for copies of the object."""
        return [getattr(self, each.name) for each in fields(self)]

    def _set_state(self, state):
        for each, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)

    _SHARED = {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
    _SHARED |= {"__getstate__": _state, "__setstate__": _set_state}
