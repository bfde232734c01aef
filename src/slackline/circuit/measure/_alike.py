"""Merging of identical modules in a circuit's Verilog, so that a slow tool reads each only once."""

import re
from collections import defaultdict

from slackline.circuit.simulate import Verilog

__all__ = ["alike_once"]

_MODULE = re.compile(r"^module (\S+?) *\(.*?^endmodule$", re.MULTILINE | re.DOTALL)
_INSTANCE = re.compile(r"(?<=^  )\S+(?=  ?\S+ \($)", re.MULTILINE)
"""The module's name in the line where an instance begins."""
_NUMBERED = re.compile(r"dump_module\$\d+")
"""A name that Yosys numbers from module to module, so that identical modules differ in it."""


def alike_once(verilog: Verilog, least: int = 4) -> tuple[Verilog, dict[str, int]]:
    """Return the circuit with identical modules merged, where `least` or more are identical.

    The second result maps the name of each merged module to its number of instances. Amaranth gives
    every instance a module of its own. Two modules are identical if their texts are equal, apart
    from the module's name and Yosys's running numbers.
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
