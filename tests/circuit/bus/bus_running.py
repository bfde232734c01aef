"""Runs of cocotb checks within Icarus: the tools that they need, their start, their results."""

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

MODULES = ("amaranth", "cocotb", "cocotbext.axi", "find_libpython")


def missing() -> str | None:
    """Return the reason why the checks cannot run here, or None."""
    for name in MODULES:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"{name} is not installed: install slackline-torch[test,circuit]"
    from find_libpython import find_libpython

    if find_libpython() is None:
        return (
            "Python has no shared library for cocotb to load (Debian: apt install libpython3-dev)"
        )
    if shutil.which("iverilog") is None:
        return "Icarus is not installed (Debian: apt install iverilog)"
    return None


def checked(
    verilog: str, folder: Path, *, top: str, checks: str, only: Sequence[str] = ()
) -> dict[str, str]:
    """Run the checks of a module, or `only` some; return each one's error, empty if it passed."""
    from cocotb_tools.runner import get_runner

    (folder / "circuit.v").write_text(verilog)
    runner = get_runner("icarus")
    runner.build(
        sources=[folder / "circuit.v"],
        hdl_toplevel=top,
        build_dir=folder,
        timescale=("1ns", "1ps"),
        log_file=folder / "build.log",
    )
    results = folder / "results.xml"
    try:
        runner.test(
            test_module=checks,
            hdl_toplevel=top,
            build_dir=folder,
            testcase=only or None,
            results_xml=str(results),
            log_file=folder / "run.log",
        )
    except SystemExit:
        # The runner exits when a check fails; the results then tell which one.
        if not results.exists():
            raise AssertionError((folder / "run.log").read_text()[-3000:]) from None
    found = {}
    for case in ElementTree.parse(results).iter("testcase"):
        if only and case.get("name") not in only:
            continue
        failure = case.find("failure")
        said = "" if failure is None else f"{failure.get('error_msg')}\n{failure.text or ''}"
        found[str(case.get("name"))] = said
    return found
