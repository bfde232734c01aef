"""Changes of members with faults at their steps, drawn from seeds.

Each change ends in time, on all processes alike. The processes that live then make another change.
"""

import os

import pytest
from change_cases import draw_case
from change_conductor import conduct
from change_ranks import Member
from severed_sockets import may_silence
from torch import distributed as dist

QUICK = (*range(10), 171)
"""The last one found links that a failed group left at one of their ends alone."""
ALL = 310
TORCHS = pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"), reason="torch 2.14 has groups that it changes in place"
)


def play(rank, size, path):
    case = draw_case(int(os.environ["CHANGE_SEED"]))
    if rank == case.count:
        return conduct(case, path)
    return Member(case, rank, path, torchs_group=bool(os.environ["TORCHS_GROUP"])).play()


def run(job, seed, *, torchs_group=False):
    """Run the case of a seed; if it fails, the text begins with its story."""
    case = draw_case(seed)
    if any(each.kind in ("silent", "muffled") for each in case.faults) and not may_silence():
        pytest.skip("this system lets only root attach filters to sockets")
    environment = {
        "SLACKLINE_RAILS": case.rails,
        "CHANGE_SEED": str(seed),
        "TORCHS_GROUP": "1" * torchs_group,
        # torch's store asks for the name of each address that connects, which may take seconds.
        "RES_OPTIONS": "attempts:0",
    }
    dying = tuple(each.process for each in case.faults if each.kind == "dies")
    try:
        job(case.count + 1, play, bare=True, environment=environment, dying=dying)
    except pytest.fail.Exception as failure:
        pytest.fail(f"{case.story()}\n{failure}", pytrace=False)


@pytest.mark.parametrize("seed", QUICK)
def test_a_change_with_faults_is_made_by_all_or_by_none(job, seed):
    run(job, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [each for each in range(ALL) if each not in QUICK])
def test_many_changes_with_faults_are_made_by_all_or_by_none(job, seed):
    run(job, seed)


@TORCHS
@pytest.mark.parametrize("seed", QUICK[:3])
def test_torchs_group_is_changed_by_all_or_by_none(job, seed):
    run(job, seed, torchs_group=True)


@TORCHS
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1050))
def test_torchs_group_is_changed_by_all_or_by_none_many_times(job, seed):
    run(job, seed, torchs_group=True)
