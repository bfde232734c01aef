"""The extension releases Python's global lock (GIL) before it waits for the engine's lock.

A thread of the engine may hold the engine's lock for long. A call that waits for this lock with the
GIL held stops every thread of the process, and a thread that needs the GIL while it holds the
engine's lock stops for ever. Nothing runs here: the test reads the bindings and the engine.
"""

import re
from functools import cache
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
BINDINGS = [
    each
    for each in sorted(NATIVE.glob("bindings/*.cc"))
    if re.search(r"\b[Ee]ngine\b", each.read_text())
]

_CLASSES = "Engine|Connections|Roles"
_FUNCTION = re.compile(
    rf"^\S[^\n;]*\b(?:{_CLASSES})::(\w+)\([^;{{}}]*\) (?:const )?\{{\n(.*?)^\}}", re.M | re.S
)
_LOCKS = re.compile(r"\bLock lock\b|\bunique_lock\b|\block_guard\b|\bscoped_lock\b")
_BINDING = re.compile(r"\.def(?:_prop_ro|_ro)?\(\s*\"(\w+)\"")
_CALL = re.compile(rf"(?:->|\be\.|\bself\.|\(\)\.|&(?:{_CLASSES})::)(\w+)")
_RELEASES = "nb::gil_scoped_release"


@cache
def locking_functions() -> set[str]:
    """Return the names of the engine's functions that take its lock, also through another one."""
    bodies: dict[str, str] = {}
    for path in sorted(NATIVE.glob("src/engine/*.cc")):
        for name, body in _FUNCTION.findall(path.read_text()):
            bodies[name] = bodies.get(name, "") + body  # A name may have several overloads.
    found = {name for name, body in bodies.items() if _LOCKS.search(body)}
    while more := {
        name
        for name, body in bodies.items()
        if name not in found and any(re.search(rf"(?<![\w>.:]){each}\(", body) for each in found)
    }:
        found |= more
    return found


def functions_of(path: Path) -> dict[str, str]:
    """Return the C++ functions of a file that bindings may name, by name."""
    text = path.read_text()
    return dict(re.findall(r"^\S[^\n;]*?\b(\w+)\([^;{}]*\) \{\n(.*?)^\}", text, re.M | re.S))


def bound(path: Path) -> list[tuple[str, str]]:
    """Return the name and the C++ text of each bound method, with functions that it names."""
    text = path.read_text()
    starts = list(_BINDING.finditer(text))
    ends = [each.start() for each in starts[1:]] + [len(text)]
    helpers = functions_of(path)
    found = []
    for start, end in zip(starts, ends, strict=True):
        own = text[start.start() : end]
        named = [helpers[each] for each in re.findall(r"&(\w+),", own) if each in helpers]
        named += [helpers[each] for each in re.findall(r"\breturn (\w+)\(", own) if each in helpers]
        found.append((start[1], own + "".join(named)))
    return found


def holding_the_gil(methods: list[tuple[str, str]]) -> list[str]:
    """Return the methods that call a function of the engine that locks, and hold the GIL."""
    locking = locking_functions()
    return [
        name
        for name, text in methods
        if locking & set(_CALL.findall(text)) and _RELEASES not in text
    ]


def test_the_engine_s_functions_are_found_in_its_source() -> None:
    locking = locking_functions()
    assert locking >= {"add_rail", "drop_rail", "unreachable", "set_fault", "link_alive", "serve"}
    assert locking >= {"open_group", "close_group", "abort_group", "counters", "rails", "close"}
    assert locking >= {"attach", "device_work", "device_answer", "device_failed", "device_closed"}


@pytest.mark.parametrize("path", BINDINGS, ids=lambda path: path.name)
def test_no_bound_method_waits_for_the_engine_with_the_gil_held(path: Path) -> None:
    assert holding_the_gil(bound(path)) == []


@pytest.mark.parametrize(
    "name", ["add_rail", "drop_rail", "unreachable", "set_fault", "link_alive", "open_group"]
)
def test_a_method_that_no_longer_releases_the_gil_is_found(name: str) -> None:
    methods = dict(bound(NATIVE / "bindings" / "module.cc"))
    changed = methods[name].replace(_RELEASES, "").replace("nb::call_guard<>(),", "")
    assert holding_the_gil([(name, methods[name])]) == []
    assert holding_the_gil([(name, changed)]) == [name]
