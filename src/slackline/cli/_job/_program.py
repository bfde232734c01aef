"""The program that each rank of a job runs: a script, or a module as in `python -m`."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from slackline.errors import UsageError

__all__ = ["Program"]

_FIND = """
import importlib.util, sys
try:
    spec = importlib.util.find_spec(sys.argv[1])
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(sys.argv[1] + ".__main__")
except ModuleNotFoundError:
    spec = None
sys.exit(3 if spec is None else 0)
"""
"""The search for a module by Python itself, which imports the packages that hold the module."""
_NOT_FOUND = 3


@dataclass(frozen=True, slots=True)
class Program:
    """A script or a module, with its arguments."""

    name: str
    """The script's path, or the module's full name, such as "job.train"."""
    arguments: tuple[str, ...] = ()
    module: bool = False
    """Whether `name` is the name of a module."""
    python: bool = True
    """Whether the program is one of Python; else `name` is a command."""

    @classmethod
    def of_words(
        cls, script: Path, arguments: Sequence[str] | None, *, module: bool, python: bool = True
    ) -> "Program":
        """Return the program that the words of a command line name."""
        return cls(str(script), tuple(arguments or ()), module, python)

    def __str__(self) -> str:
        """Return the words that name the program in a command line: "train.py", "-m job.train"."""
        return " ".join(self.target)

    @property
    def target(self) -> list[str]:
        """The arguments of Python, of torchrun or of `slackline run` that name the program."""
        return ["-m", self.name] if self.module else [self.name]

    @property
    def words(self) -> list[str]:
        """The arguments of Python or of torchrun that start the program."""
        return [*self.target, *self.arguments]

    def check(self, environment: Mapping[str, str]) -> None:
        """Raise UsageError if there is no such script or module; `environment` is the ranks'."""
        if not self.python:
            if self.module:
                raise UsageError(f"-m {self.name}: a module needs Python: leave out --no-python")
            if shutil.which(self.name, path=environment.get("PATH")) is None:
                raise UsageError(f"there is no command {self.name!r}")
            return
        if self.module:
            self._check_module(environment)
            return
        path = Path(self.name)
        if not path.exists():
            is_module = all(part.isidentifier() for part in self.name.split("."))
            hint = ""
            if is_module and not _problem(self.name):
                hint = f"; to run the module of this name, add -m: -m {self.name}"
            raise UsageError(f"there is no script {self.name!r}{hint}")
        if not path.is_file():
            raise UsageError(f"{self.name!r} is not a script")

    def _check_module(self, environment: Mapping[str, str]) -> None:
        name = self.name
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{name!r} is not the name of a module, such as job.train")
        if (problem := _problem(name)) and not _python_finds(name, environment):
            raise UsageError(problem)


def _problem(name: str) -> str:
    """Return a sentence if a module cannot be found or executed; "" if it can.

    Nothing is imported, so that a package which changes its own path may be misjudged.
    """
    top, *rest = name.split(".")
    # `python -m` looks in the current directory first, unlike a command.
    spec = PathFinder.find_spec(top, [os.getcwd()]) or _spec(top)
    full = top
    for part in rest:
        if spec is not None and spec.submodule_search_locations is None:
            file = f"; to run the file, leave out -m: {name}" if Path(name).is_file() else ""
            return f"there is no module {name!r}: {full} is not a package{file}"
        full += f".{part}"
        spec = _within(spec, full)
    if spec is None:
        return f"there is no module {name!r} in {os.getcwd()!r} or among the installed packages"
    if spec.submodule_search_locations is None or _within(spec, f"{name}.__main__") is not None:
        return ""
    return f"{name!r} is a package without a module __main__: name one of its modules"


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # the module is loaded and has no specification, such as __main__
        return None


def _within(package: ModuleSpec | None, full: str) -> ModuleSpec | None:
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(full, list(package.submodule_search_locations))


def _python_finds(name: str, environment: Mapping[str, str]) -> bool:
    """Return whether the Python that torchrun starts finds a module, and can execute it.

    The result is True too if a package that holds the module fails: the ranks show the error.
    """
    python = environment.get("PYTHON_EXEC", sys.executable)  # torchrun's own rule
    ended = subprocess.run(
        [python, "-c", _FIND, name],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return ended.returncode != _NOT_FOUND
