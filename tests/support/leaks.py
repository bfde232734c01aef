"""The check that no process of a test leaves native objects behind at its end.

nanobind writes such objects to standard error when the interpreter has ended. Forked ranks leave
without the end of an interpreter, so the check holds for the processes that tests start.
"""

import subprocess
from typing import Any

import pytest

__all__ = ["fail_if_leaked", "fail_on_leaks"]

_LEAKED = "nanobind: leaked"
"""The beginning of nanobind's report."""

_communicate = subprocess.Popen.communicate


def fail_on_leaks() -> None:
    """Have every test fail that reads a report of leaks from a process it has started."""
    subprocess.Popen.communicate = _checked  # type: ignore[method-assign]


def fail_if_leaked(report: pytest.TestReport) -> None:
    """Turn the report of a test into a failure if its standard error has a report of leaks."""
    if report.passed and _LEAKED in report.capstderr:
        report.outcome = "failed"
        report.longrepr = f"a process has left native objects behind:\n{report.capstderr}"


def _checked(process: Any, *args: Any, **kwargs: Any) -> Any:
    outputs = _communicate(process, *args, **kwargs)
    for said in outputs:
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        if text and _LEAKED in text:
            pytest.fail(f"{process.args} has left native objects behind:\n{text}", pytrace=False)
    return outputs
