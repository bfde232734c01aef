"""Tests of the table "What a stage may hold": each row names how the backward of a stage runs."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pipeline_kinds as kinds
import pytest

PAGE = Path(__file__).parents[3] / "docs/how-to/pipeline.md"
ROWS = [
    pytest.param(name, marks=pytest.mark.slow if kind.slow else ())
    for name, kind in kinds.KINDS.items()
]


def table():
    """Return the second cell of each row of the page's table by the first one."""
    text = PAGE.read_text().partition("\n## What a stage may hold\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {row[0].strip().replace("`", ""): row[1].strip() for row in rows[2:]}


@pytest.fixture(scope="module")
def quick(job):
    return job(2, kinds.quick)


@pytest.fixture(scope="module")
def slow(job):
    # On a busy machine, torch may compile for minutes while the other rank waits.
    return job(2, kinds.slow, timeout=timedelta(minutes=9), seconds=580)


def test_the_page_has_a_row_for_each_kind_of_stage_and_says_how_its_backward_runs():
    assert table() == {name: kind.backward for name, kind in kinds.KINDS.items()}


@pytest.mark.parametrize("name", ROWS)
def test_a_stage_gives_the_gradients_of_one_process_in_the_way_that_the_page_names(request, name):
    found = request.getfixturevalue("slow" if kinds.KINDS[name].slow else "quick")
    backward = kinds.KINDS[name].backward
    if backward == kinds.REFUSED:
        for rank in range(2):
            message, _ = found[rank][name]
            assert message.startswith(f"UsageError: stage {rank}: its module is a ")
            assert "slackline.overlap.DataParallel(module, optimizer, process_group=...)" in message
        return
    assert [each[name][1] for each in found] == [[], []]
    assert found[0][name][0] == kinds.IN_W  # no stage waits for the gradients of the first one
    assert found[1][name][0] == backward


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_says_which_of_torchs_schedules_are_wrong():
    text = PAGE.read_text().partition("\n## Torch's schedules on the same models\n")[2]
    page = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    script = Path(__file__).with_name("torch_schedules.py")
    printed = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    version, *table = printed.stdout.splitlines()
    if not version.startswith("torch 2.13."):
        pytest.skip(f"the page has the results of torch 2.13, not {version}")
    assert table == page
