"""Tests of the links, NICs and switches that explain disturbed links."""

import pickle
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented_records import counters, header, opened, verdict
from made_records import MS_NS as MS
from made_records import SECOND_NS as S
from made_records import START_NS, link

from slackline.causes import Cause, Diagnosis, Kind
from slackline.history import Job

Direction = tuple[int, int]
Directions = Iterable[Direction]
RING = [(rank, (rank + 1) % 4) for rank in range(4)]
RING += [(target, source) for source, target in RING]
MESH = list(permutations(range(4), 2))


def _job(tmp_path: Path, links: Directions, hosts: int = 4, rails: int = 1) -> Job:
    """Return a job with one rank on each host, whose links carry traffic for ten seconds."""
    job = Job(tmp_path)
    for rank in range(hosts):
        job.take(header(rank))
        job.take(opened(rank, hosts))
    for second in range(1, 14):
        for source, target in links:
            for rail in range(rails):
                job.take(link(source, target, second * S, rail=rail))
    return job


def _named(
    job: Job,
    disturbed: Directions,
    condition: str = "slow",
    rails: Iterable[int] = (0,),
) -> list[Cause]:
    """Return the causes that are named when these directions are disturbed at 10 s."""
    diagnosis = Diagnosis(job)
    assert diagnosis.update(START_NS + 9 * S) == []
    for source, target in disturbed:
        for rail in rails:
            job.take(verdict(source, target, 10 * S, condition, rail=rail))
    named = []
    for quarter in range(40, 53):
        now_ns = START_NS + quarter * S // 4
        job.settle(now_ns)
        named += diagnosis.update(now_ns)
    assert diagnosis.causes == named
    return named


@pytest.mark.parametrize("links", [RING, MESH], ids=["ring", "mesh"])
def test_one_direction_of_a_link_is_named(tmp_path: Path, links: Directions) -> None:
    (cause,) = _named(_job(tmp_path, links), [(2, 3)])
    others = len(list(links)) // 2 - 1
    assert (cause.kind, cause.name, cause.ranks) == (Kind.LINK, "link 2>3", (2, 3))
    assert cause.sentence == f"link 2>3: it is slow, and the other {others} links in use are not"
    assert cause.since_ns == START_NS + 10 * S - 300_000_000


def test_both_directions_of_a_link_are_one_cause(tmp_path: Path) -> None:
    (cause,) = _named(_job(tmp_path, MESH), [(3, 2), (2, 3)])
    assert (cause.kind, cause.name) == (Kind.LINK, "link 2-3")


def test_all_rails_of_a_link_are_one_cause_and_one_of_them_is_named(tmp_path: Path) -> None:
    (cause,) = _named(_job(tmp_path, MESH, rails=2), [(0, 1)], rails=(0, 1))
    assert (cause.name, cause.rail) == ("link 0>1", None)
    (cause,) = _named(_job(tmp_path, MESH, rails=2), [(0, 1)], rails=(1,))
    assert (cause.name, cause.rail) == ("link 0>1 on rail 1", 1)


def test_all_links_over_a_nic_name_the_nic(tmp_path: Path) -> None:
    around = [pair for pair in MESH if 2 in pair]
    (cause,) = _named(_job(tmp_path, MESH, rails=2), around, "silent", rails=(1,))
    assert (cause.kind, cause.name, cause.rail) == (Kind.NIC, "NIC 1 of host node2", 1)
    assert cause.ranks == (2,)
    assert cause.links == {(source, target, 1) for source, target in around}
    assert pickle.loads(pickle.dumps(cause)) == cause
    assert cause.sentence == (
        "NIC 1 of host node2: all 3 links in use over it are silent, and links between other "
        "hosts are not"
    )


def test_a_nic_is_no_switch_when_traffic_leaves_its_rail(tmp_path: Path) -> None:
    around = [pair for pair in MESH if 2 in pair]
    (cause,) = _named(_job(tmp_path, around, rails=2), around, "cut", rails=(1,))
    assert (cause.kind, cause.name) == (Kind.NIC, "NIC 1 of host node2")


def test_a_nic_stays_the_cause_after_all_traffic_has_ended(tmp_path: Path) -> None:
    job = _job(tmp_path, MESH)
    diagnosis = Diagnosis(job)
    for source, target in MESH:
        if 2 in (source, target):
            job.take(verdict(source, target, 10 * S, "silent"))
    for rank in range(4):
        job.take(counters(rank, 13 * S))
    for quarter in range(40, 120):  # The latest report about a link is of the 13th second.
        job.settle(START_NS + quarter * S // 4)
        diagnosis.update(START_NS + quarter * S // 4)
    named = [(each.cause.name, each.until_ns) for each in diagnosis.spells]
    assert named == [("NIC 0 of host node2", None)]


def test_in_a_ring_two_links_that_carry_fewer_bytes_show_the_nic(tmp_path: Path) -> None:
    (cause,) = _named(_job(tmp_path, RING), [(1, 2), (2, 3)])
    assert (cause.kind, cause.name) == (Kind.NIC, "NIC 0 of host node2")


def test_a_silent_rail_that_one_end_reports_is_named_when_no_rank_proves_to_be_dead(
    tmp_path: Path,
) -> None:
    job = _job(tmp_path, MESH, hosts=4)
    diagnosis = Diagnosis(job)
    job.take(verdict(0, 2, 10 * S, "silent"))
    named = []
    for quarter in range(40, 64):
        for rank in range(4):
            job.take(link(rank, (rank + 1) % 4, quarter * S // 4))
        now_ns = START_NS + quarter * S // 4
        job.settle(now_ns)
        named += [(quarter / 4, cause.name) for cause in diagnosis.update(now_ns)]
    assert named == [(15.0, "link 0>2")]


def test_all_links_name_the_switch(tmp_path: Path) -> None:
    (cause,) = _named(_job(tmp_path, MESH), MESH)
    assert (cause.kind, cause.name, cause.ranks) == (Kind.SWITCH, "the switch", (0, 1, 2, 3))
    assert cause.sentence == "the switch: all 6 links in use between 4 hosts are slow"


def test_a_switch_of_one_rail_of_two_is_named_by_its_rail(tmp_path: Path) -> None:
    (cause,) = _named(_job(tmp_path, MESH, rails=2), MESH, rails=(1,))
    assert (cause.name, cause.rail) == ("the switch of rail 1", 1)
    (cause,) = _named(_job(tmp_path, MESH, rails=2), MESH, rails=(0, 1))
    assert (cause.name, cause.rail) == ("the switch", None)


def test_a_host_whose_links_are_late_in_one_direction_answers_late(tmp_path: Path) -> None:
    (cause,) = _named(_job(tmp_path, MESH), [(0, 2), (1, 2), (3, 2)])
    assert (cause.kind, cause.name, cause.ranks) == (Kind.HOST, "host node2", (2,))
    assert cause.sentence == (
        "host node2: it answers late, 30 ms more than usual on all 3 links in use into it and "
        "on no other link"
    )


def test_two_hosts_have_one_link_and_nothing_to_compare(tmp_path: Path) -> None:
    pair = [(0, 1), (1, 0)]
    (cause,) = _named(_job(tmp_path, pair, hosts=2), pair)
    assert (cause.kind, cause.name) == (Kind.LINK, "link 0-1")
    assert cause.sentence == "link 0-1: it is slow"


def test_links_that_are_found_one_after_the_other_are_named_once(tmp_path: Path) -> None:
    job = _job(tmp_path, MESH)
    diagnosis = Diagnosis(job)
    named = []
    around = [pair for pair in MESH if 2 in pair]
    for quarter in range(40, 56):
        now_ns = START_NS + quarter * S // 4
        if quarter < 43:
            for source, target in around[2 * (quarter - 40) : 2 * (quarter - 39)]:
                job.take(verdict(source, target, quarter * S // 4))
        job.settle(now_ns)
        named += diagnosis.update(now_ns)
    assert [(cause.kind, cause.name) for cause in named] == [(Kind.NIC, "NIC 0 of host node2")]


def test_the_times_of_a_nic_that_flaps_add_up(tmp_path: Path) -> None:
    job = _job(tmp_path, MESH)
    diagnosis = Diagnosis(job)
    around = [pair for pair in MESH if 2 in pair]
    named = []
    for quarter in range(40, 56):
        now_ns = START_NS + quarter * S // 4
        for source, target in around if quarter % 4 in (0, 3) else ():
            condition = "silent" if quarter % 4 == 0 else "back"
            job.take(verdict(source, target, quarter * S // 4, condition))
        job.settle(now_ns)
        named += [(quarter / 4, cause.name) for cause in diagnosis.update(now_ns)]
    assert named == [(11.5, "NIC 0 of host node2")]


def test_a_cause_is_over_three_seconds_after_its_evidence_has_gone(tmp_path: Path) -> None:
    job = _job(tmp_path, MESH)
    diagnosis = Diagnosis(job)
    present = []
    for second in range(10, 22):
        now_ns = START_NS + second * S
        if second in (10, 13):
            job.take(verdict(2, 3, second * S, "slow" if second == 10 else "back"))
        job.settle(now_ns)
        diagnosis.update(now_ns)
        present.append([cause.name for cause in diagnosis.causes])
    assert present == [[]] + [["link 2>3"]] * 5 + [[]] * 6


def _slow_with_reports(tmp_path: Path, round_trips_ms: dict[Direction, float]) -> list[Cause]:
    """Return the causes of a job in which rank 3's links are slow, by 15 ms, from 9.7 s.

    `round_trips_ms` has the round trips that the other links report after that; usual is 0.2 ms.
    """
    job = Job(tmp_path)
    for rank in range(4):
        job.take(header(rank))
        job.take(opened(rank, 4))
    diagnosis = Diagnosis(job)
    named: list[Cause] = []
    for quarter in range(1, 53):
        now_ns = START_NS + quarter * S // 4
        for source, target in MESH if quarter % 4 == 0 else ():
            late_ms = round_trips_ms.get((min(source, target), max(source, target)), 0.2)
            trip_ms = late_ms if quarter >= 40 else 0.2
            job.take(link(source, target, quarter * S // 4, round_trip_ns=round(trip_ms * MS)))
        if quarter == 40:
            for target in range(3):
                job.take(verdict(3, target, 10 * S, "slow", over_ns=15 * MS))
                job.take(verdict(target, 3, 10 * S, "slow", over_ns=15 * MS))
        job.settle(now_ns)
        named += diagnosis.update(now_ns)
    return named


def test_links_without_a_verdict_count_for_the_switch_if_their_round_trips_grow(
    tmp_path: Path,
) -> None:
    grown = dict.fromkeys([(0, 1), (0, 2), (1, 2)], 30.0)
    (cause,) = _slow_with_reports(tmp_path, grown)
    assert (cause.kind, cause.name) == (Kind.SWITCH, "the switch")
    assert cause.sentence == (
        "the switch: 3 links in use are slow, and the round trips of the other 3 have grown too"
    )


def test_one_link_whose_round_trips_stay_as_usual_rules_the_switch_out(tmp_path: Path) -> None:
    # 7.6 ms is less than the usual 0.2 ms and half of 15 ms.
    (cause,) = _slow_with_reports(tmp_path, {(0, 1): 30.0, (0, 2): 30.0, (1, 2): 7.6})
    assert (cause.kind, cause.name) == (Kind.NIC, "NIC 0 of host node3")


def test_a_longer_latency_is_not_named_before_the_other_links_have_reported(
    tmp_path: Path,
) -> None:
    job = _job(tmp_path, [ends for ends in MESH if 3 in ends])
    for second in range(1, 10):
        job.take(link(0, 1, second * S))
    assert _named(job, [(0, 3), (1, 3), (2, 3)]) == []
    for second in range(10, 14):
        job.take(link(0, 1, second * S))
    (cause,) = _named(job, [(0, 3), (1, 3), (2, 3)])
    assert cause.name == "host node3"


def test_the_rails_that_take_over_the_traffic_of_a_broken_nic_are_not_named(
    tmp_path: Path,
) -> None:
    broken = [ends for ends in MESH if 2 in ends]
    for slow_first in (False, True):
        job = _job(tmp_path, MESH, rails=2)
        if slow_first:
            job.take(verdict(1, 3, 9 * S, "slow", rail=0, over_ns=5 * MS))
        else:
            job.take(verdict(1, 3, 11 * S, "slow", rail=0, over_ns=5 * MS))
        names = [cause.name for cause in _named(job, broken, "cut", rails=[1])]
        expected = ["NIC 1 of host node2"]
        assert sorted(names) == sorted(expected + ["link 1>3 on rail 0"] * slow_first)


@given(st.data())
@settings(max_examples=30)
def test_a_dead_nic_and_a_slow_link_elsewhere_are_two_causes(data: st.DataObject) -> None:
    hosts = data.draw(st.integers(3, 6))
    broken = data.draw(st.sampled_from(["cut", "silent"]))
    nic = data.draw(st.integers(0, hosts - 1))
    others = [host for host in range(hosts) if host != nic]
    slow = tuple(data.draw(st.permutations(others))[:2])
    with TemporaryDirectory() as folder:
        job = _job(Path(folder), list(permutations(range(hosts), 2)), hosts)
        diagnosis = Diagnosis(job)
        assert diagnosis.update(START_NS + 9 * S) == []
        for other in others:
            for ends in ((nic, other), (other, nic)):
                job.take(verdict(*ends, 10 * S, broken))
        job.take(verdict(*slow, 10 * S, "slow"))
        named = []
        for quarter in range(40, 53):
            now_ns = START_NS + quarter * S // 4
            job.settle(now_ns)
            named += diagnosis.update(now_ns)
    source, target = slow
    assert {(cause.kind, cause.name) for cause in named} == {
        (Kind.NIC, f"NIC 0 of host node{nic}"),
        (Kind.LINK, f"link {source}>{target}"),
    }
