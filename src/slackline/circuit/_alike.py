"""Parts of a circuit that are alike, made one: what takes time is then done for one of them."""

import re
from collections import defaultdict

from slackline.circuit._verilog import Verilog

__all__ = ["alike_once"]

_MODULE = re.compile(r"^module (\S+?) *\(.*?^endmodule$", re.MULTILINE | re.DOTALL)
_INSTANCE = re.compile(r"(?<=^  )\S+(?=  ?\S+ \($)", re.MULTILINE)
"""The name of its module, in the line where an instance begins."""
_NUMBERED = re.compile(r"dump_module\$\d+")
"""Yosys counts on from module to module."""


def alike_once(verilog: Verilog, least: int = 4) -> tuple[Verilog, dict[str, int]]:
    """The same circuit with one module for all that are alike, if there are `least` or more.

    Also how many instances of each of these there are, by the name of the module. Amaranth gives
    every instance a module of its own; two are alike if their text is, but for the name.
    """
    groups: dict[str, list[re.Match[str]]] = defaultdict(list)
    for found in _MODULE.finditer(verilog.text):
        body = found[0].replace(found[1], "", 1)
        groups[_NUMBERED.sub("dump_module", body)].append(found)
    first_of: dict[str, str] = {}
    counts: dict[str, int] = {}
    for alike in (each for each in groups.values() if len(each) >= least):
        counts[alike[0][1]] = len(alike)
        first_of.update((other[1], alike[0][1]) for other in alike[1:])
    text = _MODULE.sub(lambda found: "" if found[1] in first_of else found[0], verilog.text)
    text = _INSTANCE.sub(lambda found: first_of.get(found[0], found[0]), text)
    return Verilog(name=verilog.name, text=text, ports=verilog.ports), counts
