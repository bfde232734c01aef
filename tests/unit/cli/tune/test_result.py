"""Tests of the file that a search writes, and of its result as JSON."""

import json
from datetime import date
from pathlib import Path

import pytest

from slackline.cli._job._config import read_config
from slackline.cli._tune._candidates import DEFAULTS, Candidate
from slackline.cli._tune._result import described, result_json, result_text
from slackline.cli._tune._search import Attempt, Verdict
from slackline.cli._tune._steps import Measure

RING = Candidate(settings={"plan": "ring", "schedule_memory": "4,none"})
GROUPS = Candidate(settings={"group_bytes": "1048576B"})
MEASURE = Measure(kind="overlap")


def verdict(best: Candidate) -> Verdict:
    return Verdict(
        best=best, tried=RING, gain=1.25, lowest=1.2, highest=1.5, reason="the reason of the test"
    )


def written(best: Candidate, base: Candidate = DEFAULTS) -> str:
    return result_text(
        verdict(best),
        base,
        command=["slackline", "tune", "train.py", "a b"],
        ranks=4,
        steps=30,
        measure=MEASURE,
        environment={"SLACKLINE_RAILS": "tcp", "SLACKLINE_TELEMETRY": "here", "HOME": "/home"},
        today=date(2026, 11, 23),
    )


def test_a_confirmed_gain_is_written_with_its_spread_and_is_read_back(tmp_path: Path) -> None:
    text = written(RING, GROUPS)
    assert text == (
        "# Written by: slackline tune train.py 'a b'\n"
        f"# Date and machine: 2026-11-23, {described()}\n"
        "# A trial: 10 steps of warm-up, then the median of 30; steps of slackline.overlap. Every "
        "trial, with the defaults too, had group_bytes 1048576B.\n"
        "# Fixed by the environment: SLACKLINE_RAILS=tcp\n"
        "# Gain: the step is shorter by 20% (16.7% to 33.3% in 3 pairs of fresh trials).\n"
        "# Verdict: the reason of the test.\n"
        "ranks = 4\n"
        'group_bytes = "1048576B"\n'
        'plan = "ring"\n'
        'schedule_memory = "4,none"\n'
    )
    (tmp_path / "tuned.toml").write_text(text)
    config = read_config(tmp_path / "tuned.toml")
    assert config.ranks == 4
    assert config.variables == {
        "SLACKLINE_GROUP_BYTES": "1048576B",
        "SLACKLINE_PLAN": "ring",
        "SLACKLINE_SCHEDULE_MEMORY": "4,none",
    }


def test_without_a_confirmed_gain_the_file_sets_the_ranks_alone() -> None:
    assert written(DEFAULTS, GROUPS).splitlines()[4:] == [
        "# No confirmed gain: the defaults stay, and this file sets the number of ranks alone.",
        "# Verdict: the reason of the test.",
        "ranks = 4",
    ]


@pytest.mark.parametrize(("best", "confirmed"), [(RING, True), (DEFAULTS, False)])
def test_the_json_has_the_verdict_and_every_trial(best: Candidate, confirmed: bool) -> None:
    attempts = [
        Attempt(stage="round 1", candidate=DEFAULTS, step_ns=10.5),
        Attempt(stage="fresh", candidate=RING, step_ns=None, reason="it failed"),
    ]
    result = json.loads(
        json.dumps(
            result_json(
                verdict(best),
                attempts,
                GROUPS,
                path=Path("tuned.toml"),
                ranks=4,
                steps=30,
                measure=MEASURE,
            )
        )
    )
    assert (result["confirmed"], result["settings"]) == (confirmed, best.settings)
    assert (result["tried"], result["fixed"]) == (RING.settings, GROUPS.settings)
    assert (result["gain"], result["lowest"], result["highest"]) == (1.25, 1.2, 1.5)
    assert (result["file"], result["ranks"], result["steps"]) == ("tuned.toml", 4, 30)
    assert result["trials"] == [
        {"stage": "round 1", "settings": {}, "step_ns": 10.5, "reason": ""},
        {"stage": "fresh", "settings": RING.settings, "step_ns": None, "reason": "it failed"},
    ]
