"""Tests of the shapes of functions and constructors: each one fits a reader's view."""

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "slackline"
LONGEST = 80
"""The most lines of a function's body: signature and docstring do not count, as the signatures of
commands have the help of their options."""
MOST = 8
"""The most parameters of a constructor, besides `self`."""
LONG = {
    # The parts of circuits that Amaranth elaborates read as one table of signals.
    "circuit/ring/_transmitter.py:_send": 110,
    # The loop that the search runs for each candidate makes no calls, as calls cost it most.
    "plan/pipeline/orders/_list.py:list_schedule": 90,
}
WRAPPERS = {
    # Users pass the keyword-only options of these by name.
    "overlap/_data_parallel.py:DataParallel",
    "pipeline/_schedule.py:Schedule",
}
WIDE = {
    # A parameter for each collaborator, all but a few keyword-only, given in one place each.
    "nic/_group.py:NativeGroup": 11,
    "nic/connect/_peer.py:Peer": 13,
    "overlap/_recorder.py:Recorder": 10,
    "pipeline/replan/_replanner.py:Replanner": 10,
    "sim/_pipeline.py:PipelineExecution": 10,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    return tuple(
        (path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text()))
        for path in sorted(SOURCE.rglob("*.py"))
    )


def body_lines(function: Function) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_is_longer_than_a_screen() -> None:
    found = {
        f"{path}:{node.name}": body_lines(node)
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, Function) and node.name != "elaborate"
    }
    assert {name: n for name, n in found.items() if n > LONG.get(name, LONGEST)} == {}
    assert [name for name in LONG if found[name] <= LONGEST] == []


def test_no_constructor_has_more_parameters_than_a_reader_can_hold() -> None:
    found = {}
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                    name = f"{path}:{node.name}"
                    given = each.args.posonlyargs + each.args.args
                    options = [] if name in WRAPPERS else each.args.kwonlyargs
                    found[name] = len(given) - 1 + len(options)
    assert {name: n for name, n in found.items() if n > WIDE.get(name, MOST)} == {}
    assert [name for name in WIDE if found[name] <= MOST] == []
