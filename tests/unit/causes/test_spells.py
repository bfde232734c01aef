"""Tests of the ends of causes, and of causes that come several times."""

from itertools import permutations
from pathlib import Path

from invented_records import header, opened, verdict
from made_records import SECOND_NS as S
from made_records import START_NS, link

from slackline.causes import Cause, Diagnosis, Kind, Spell, recurrences
from slackline.history import Job

MESH = list(permutations(range(4), 2))
AROUND_2 = [pair for pair in MESH if 2 in pair]


def _diagnosed(
    tmp_path: Path, changes: dict[int, tuple[str, list[tuple[int, int]]]], until: int
) -> tuple[Diagnosis, list[tuple[float, str]]]:
    """Diagnose four hosts; `changes` has conditions of directions by the quarter of a second.

    Returns the sentences about ends with the seconds at which they came.
    """
    job = Job(tmp_path)
    for rank in range(4):
        job.take(header(rank))
        job.take(opened(rank, 4))
    diagnosis = Diagnosis(job)
    told = []
    for quarter in range(40, until):
        now_ns = START_NS + quarter * S // 4
        if quarter % 4 == 0:
            for source, target in MESH:
                job.take(link(source, target, quarter * S // 4))
        condition, directions = changes.get(quarter, ("", []))
        for source, target in directions:
            job.take(verdict(source, target, quarter * S // 4, condition))
        job.settle(now_ns)
        diagnosis.update(now_ns)
        told += [(quarter / 4, spell.ending) for spell in diagnosis.take_ended()]
    return diagnosis, told


def test_the_end_of_a_cause_is_reported_once_with_the_time_that_it_lasted(tmp_path: Path) -> None:
    changes = {44: ("slow", AROUND_2), 64: ("back", AROUND_2)}
    diagnosis, told = _diagnosed(tmp_path, changes, 100)
    # The verdicts are older than their records by 0.3 s; the end is certain after 3 s.
    assert told == [(19.0, "NIC 0 of host node2 is as usual again after 5.05 s")]
    (spell,) = diagnosis.spells
    assert spell.cause.since_ns == START_NS + 11 * S - 300_000_000
    assert spell.named_ns == START_NS + 12 * S
    assert spell.until_ns == START_NS + 16 * S - S // 4
    assert diagnosis.causes == []


def test_a_cause_that_lasts_has_no_end(tmp_path: Path) -> None:
    diagnosis, told = _diagnosed(tmp_path, {44: ("slow", AROUND_2)}, 100)
    assert told == []
    (found,) = recurrences(diagnosis.spells)
    assert (found.times, found.until_ns, found.total) == (1, None, "to the end")


def test_a_cause_that_comes_again_is_merged(tmp_path: Path) -> None:
    changes = {}
    for start in (44, 80, 116):
        changes |= {start: ("slow", AROUND_2), start + 10: ("back", AROUND_2)}
    diagnosis, told = _diagnosed(tmp_path, changes, 150)
    assert len(diagnosis.spells) == 3
    assert [sentence for _, sentence in told] == [
        "NIC 0 of host node2 is as usual again after 2.55 s"
    ] * 3
    (found,) = recurrences(diagnosis.spells)
    assert (found.times, found.lasted_ns, found.total) == (3, 3 * 2_550_000_000, "7.65 s")
    assert found.first_ns == START_NS + 11 * S - 300_000_000
    lasting = recurrences([*diagnosis.spells, _spell("NIC 0 of host node2", None)])
    assert [each.total for each in lasting] == ["7.65 s, then to the end"]


def test_a_link_that_proves_to_be_a_nic_is_no_cause_of_its_own(tmp_path: Path) -> None:
    changes = {44: ("slow", [(2, 3)]), 52: ("slow", AROUND_2)}
    diagnosis, told = _diagnosed(tmp_path, changes, 80)
    assert told == [(16.0, "link 2>3 is no cause of its own: NIC 0 of host node2 explains it")]
    assert [each.cause.name for each in recurrences(diagnosis.spells)] == ["NIC 0 of host node2"]


def test_a_dead_rank_that_lives_writes_again() -> None:
    spell = _spell("rank 3", START_NS + 5 * S, Kind.DEAD)
    assert spell.ending == "rank 3 writes again after 5 s"


def _spell(name: str, until_ns: int | None, kind: Kind = Kind.NIC) -> Spell:
    cause = Cause(kind=kind, name=name, ranks=(2,), since_ns=START_NS, sentence=f"{name}: slow")
    return Spell(cause=cause, named_ns=START_NS + S, until_ns=until_ns)
