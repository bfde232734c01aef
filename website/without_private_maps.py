"""An extension of mkdocstrings: the reference leaves out the maps of private modules.

A package's docstring has a map of its modules, whose names begin with an underscore: it is for
readers of the code. A line of the map is indented, and its first word is a module, or it has a
module after a dash, as in

    _files      the files of a directory
    Schedule ─ _schedule
"""

import re
from typing import Any

import griffe

_LINE = re.compile(r"(?: {4,}.*|.* ─ _\w+.*)?\s*")
_MODULE = re.compile(r" {4}(_\w+|\w+/) |.* ─ _\w")


class WithoutPrivateMaps(griffe.Extension):
    """Removes the indented blocks that name private modules from the docstrings of packages."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Take the maps out of a package and of the packages within."""
        for module in (pkg, *_modules_of(pkg)):
            if module.docstring is not None:
                module.docstring.value = without_maps(module.docstring.value)


def without_maps(text: str) -> str:
    """Return a docstring without its indented blocks that name private modules."""
    kept: list[str] = []
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if _LINE.fullmatch(line) and (line.strip() or block):
            block.append(line)
            continue
        if not any(_MODULE.match(each) for each in block):
            kept += block
        block = []
        kept.append(line)
    return "\n".join(kept).strip()


def _modules_of(module: griffe.Module) -> list[griffe.Module]:
    found = [each for each in module.modules.values() if not each.is_alias]
    return [inner for each in found for inner in (each, *_modules_of(each))]
