"""Tests of the sentences of `slackline why` about slow steps."""

import json
from pathlib import Path

import pytest
from recorded_jobs import unpack

from slackline.cli import main


def test_a_job_that_did_not_fail_is_told_what_made_it_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack("cable", tmp_path)
    assert main(["why", str(tmp_path)]) == 0
    *_, cause, advice = capsys.readouterr().out.splitlines()
    assert cause.startswith("Slow steps, since 0.0 s (named at ")
    assert ": NIC 0 of host 2: it loses 1.1 % of its packets, since the start; " in cause
    assert advice == (
        "Look at the NIC, its cable and its switch port (ethtool, ethtool -S, ip -s link)."
    )
    assert main(["why", "--json", str(tmp_path)]) == 0
    (told,) = json.loads(capsys.readouterr().out)["causes"]
    assert f": {told}." in cause


def test_a_healthy_job_has_no_slow_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack("even", tmp_path)
    assert main(["why", str(tmp_path)]) == 0
    assert "Slow" not in capsys.readouterr().out
