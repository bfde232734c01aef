"""Tests of the check that no process of a test leaves native objects behind."""

import subprocess
import sys

import pytest
from leaks import fail_if_leaked

SCRIPT = "import sys; print('nanobind: leaked 1 instances!', file=sys.stderr)"


@pytest.mark.parametrize("options", [{"text": True}, {}])
def test_a_process_that_reports_leaks_fails_the_test(options: dict[str, bool]) -> None:
    with pytest.raises(pytest.fail.Exception, match="left native objects behind"):
        subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=False, **options)


@pytest.mark.parametrize("said", ["nanobind: leaked 1 instances!\n", "a warning\n"])
def test_a_process_that_inherits_standard_error_fails_the_test_too(said: str) -> None:
    place = ("file", 1, "test")
    sections = [("Captured stderr call", said)]
    report = pytest.TestReport("id", place, {}, "passed", None, "call", sections=sections)
    fail_if_leaked(report)
    assert report.failed == ("leaked" in said)
    assert ("left native objects behind" in str(report.longrepr)) == report.failed
