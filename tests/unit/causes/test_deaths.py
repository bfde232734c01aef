"""Tests of dead ranks, and of the diagnosis of a whole directory."""

from dataclasses import replace
from pathlib import Path

from invented_records import counters, failed, header, opened, step, verdict
from made_records import MS_NS as MS
from made_records import SECOND_NS as S
from made_records import START_NS, link, write

from slackline.causes import Diagnosis, Kind, Watch
from slackline.history import Job
from slackline.records import RailChange, Record
from slackline.records.failures import dump_file_of

Timed = tuple[int, Record]


def _replayed(tmp_path: Path, records: list[Timed], until_ns: int) -> list[tuple[int, Kind, str]]:
    for _, record in sorted(records, key=lambda timed: timed[0]):
        write(tmp_path, record.rank, record)
    watch = Watch(Job(tmp_path))
    watch.update(START_NS + until_ns)
    return [
        (each.named_ns - START_NS, each.cause.kind, each.cause.sentence) for each in watch.spells
    ]


def _until(second: int, ranks: int = 4) -> list[Timed]:
    """Return the records of ranks that report about their links once a second."""
    found: list[Timed] = []
    for rank in range(ranks):
        found += [(0, header(rank)), (0, opened(rank, ranks))]
        for peer in set(range(ranks)) - {rank}:
            found += [(at * S, link(rank, peer, at * S)) for at in range(1, second + 1)]
    return found


def test_a_killed_rank_is_named_although_the_others_have_ended(tmp_path: Path) -> None:
    records = _until(10)
    for rank in (0, 2, 3):
        records += [
            (10_200 * MS, failed(rank, 10_200 * MS)),
            (10_300 * MS, counters(rank, 10_300 * MS)),
        ]
    assert _replayed(tmp_path, records, 16 * S) == [
        (
            13 * S,
            Kind.DEAD,
            "rank 1: it is dead or stands still: operations of ranks 0, 2, 3 failed, and it has "
            "written nothing for 3 s",
        )
    ]


def _found(rank: int, peer: int, at_ns: int) -> Timed:
    """Return the record of a rank whose engine has found that a peer's process had ended."""
    change = RailChange(
        rank=rank,
        time_ns=START_NS + at_ns,
        peer=peer,
        rail=-1,
        change="down",
        reason="its process has ended (tcp a>b: connection refused)",
    )
    return at_ns, change


def test_a_rank_whose_end_an_engine_has_found_is_named_at_once(tmp_path: Path) -> None:
    records = [*_until(10), _found(0, 1, 10_050 * MS), _found(2, 1, 10_060 * MS)]
    assert _replayed(tmp_path, records, 11 * S) == [
        (
            10_150 * MS,
            Kind.DEAD,
            "rank 1: it is dead: rank 0 has found that its process has ended",
        )
    ]


def test_the_end_of_a_rank_with_its_last_record_is_no_death(tmp_path: Path) -> None:
    records = [*_until(10), (10_020 * MS, counters(1, 10_020 * MS)), _found(0, 1, 10_050 * MS)]
    assert _replayed(tmp_path, records, 11 * S) == []


def test_a_rank_that_closes_its_engine_is_not_dead_before_its_last_record(tmp_path: Path) -> None:
    leaving = RailChange(
        rank=1,
        time_ns=START_NS + 10_020 * MS,
        peer=1,
        rail=-1,
        change="leaving",
        reason="the rank closes its engine",
    )
    records = [*_until(10), (10_020 * MS, leaving), _found(0, 1, 10_050 * MS)]
    records.append((11 * S, counters(1, 11 * S)))
    assert _replayed(tmp_path, records, 12 * S) == []
    # Its last record may also be read a little later than the others' word.
    late = [*_until(10), _found(0, 1, 10_050 * MS), (10_120 * MS, counters(1, 10_120 * MS))]
    folder = tmp_path / "late"
    folder.mkdir()
    assert _replayed(folder, late, 12 * S) == []


def test_a_rank_that_has_begun_again_is_dead_no_more(tmp_path: Path) -> None:
    begun = replace(header(1), time_ns=START_NS + 11 * S, monotonic_ns=11 * S, process=4)
    records = [*_until(10), _found(0, 1, 10_050 * MS), (11 * S, begun)]
    records += [(at * S, link(1, 0, at * S)) for at in range(12, 18)]
    watch = Watch(Job(tmp_path))
    for _, record in sorted(records, key=lambda timed: timed[0]):
        write(tmp_path, record.rank, record)
    watch.update(START_NS + 18 * S)
    (spell,) = watch.spells
    assert spell.ending == "rank 1 writes again after 900 ms"


def test_a_rank_that_has_outlived_its_links_is_not_dead(tmp_path: Path) -> None:
    records = _until(10)
    for peer in (0, 2, 3):
        records += [
            (10_100 * MS, verdict(peer, 1, 10_100 * MS, "cut")),
            (10_110 * MS, verdict(1, peer, 10_110 * MS, "cut")),
        ]
    for rank in (0, 2, 3):
        records += [(at * S, link(rank, (rank + 2) % 4, at * S)) for at in range(11, 16)]
    named = _replayed(tmp_path, records, 16 * S)
    assert [kind for _, kind, _ in named] == [Kind.NIC]


def _leave_stacks(folder: Path, rank: int, process: int = 0, signal: str = "") -> None:
    process = process or header(rank).process
    text = f"slackline stacks: rank {rank}, process {process}, main thread 0x1, opened at 0 ns\n"
    stack = 'Current thread 0x1 (most recent call first):\n  File "train.py", line 3 in main\n'
    dump_file_of(folder, rank).write_text(text + signal + stack)


def test_a_rank_that_the_launcher_ended_is_not_named_besides(tmp_path: Path) -> None:
    records = _until(10)
    records += [(10_200 * MS, failed(rank, 10_200 * MS)) for rank in (2, 3)]
    # Stacks of another process are from an earlier start of the rank.
    _leave_stacks(tmp_path, 0, process=12)
    assert [each[2][:7] for each in _replayed(tmp_path, records, 16 * S)] == ["rank 0:", "rank 1:"]
    _leave_stacks(tmp_path, 0)
    assert [each[2][:7] for each in _replayed(tmp_path, records, 16 * S)] == ["rank 1:"]


def test_ranks_that_all_were_ended_or_have_crashed_are_all_named(tmp_path: Path) -> None:
    _leave_stacks(tmp_path, 0)
    _leave_stacks(tmp_path, 1)
    records = _until(10)
    records += [(10_200 * MS, failed(rank, 10_200 * MS)) for rank in (2, 3)]
    assert [each[2][:7] for each in _replayed(tmp_path, records, 16 * S)] == ["rank 0:", "rank 1:"]
    _leave_stacks(tmp_path, 1, signal="Fatal Python error: Segmentation fault\n\n")
    assert [each[2][:7] for each in _replayed(tmp_path, records, 16 * S)] == ["rank 1:"]


def test_a_rank_whose_host_has_vanished_is_named_and_its_links_are_not(tmp_path: Path) -> None:
    records = _until(10)
    for peer in (0, 2, 3):
        for at in range(11, 18):
            records += [(at * S, link(peer, other, at * S)) for other in {0, 2, 3} - {peer}]
        records.append((10_600 * MS, verdict(peer, 1, 10_600 * MS, "silent")))
    ((_, kind, sentence),) = _replayed(tmp_path, records, 17 * S)
    assert kind is Kind.DEAD
    assert sentence.startswith("rank 1: it is dead or stands still: all of its links are silent")


def test_a_rank_that_has_ended_is_not_dead_and_neither_is_one_that_computes(tmp_path: Path) -> None:
    records = _until(10)
    records += [(10_100 * MS, counters(rank, 10_100 * MS)) for rank in (0, 1, 2)]
    assert _replayed(tmp_path, records, 30 * S) == []


def test_a_rank_whose_own_operation_failed_was_alive(tmp_path: Path) -> None:
    records = _until(10)
    records += [(10_200 * MS, failed(rank, 10_200 * MS)) for rank in range(4)]
    assert _replayed(tmp_path, records, 20 * S) == []


def test_the_same_records_give_the_same_causes(tmp_path: Path) -> None:
    records = _until(20)
    for number in range(100):
        slow = number >= 50
        records += [
            (number * 200 * MS, step(rank, number, number * 200 * MS, pause_ns=90 * MS))
            if rank == 3 and slow
            else (number * 200 * MS, step(rank, number, number * 200 * MS))
            for rank in range(4)
        ]
    found = _replayed(tmp_path, records, 20 * S)
    assert [kind for _, kind, _ in found] == [Kind.LOADER]
    assert found == _replayed(tmp_path, records, 20 * S)


def test_a_diagnosis_of_nothing_has_no_cause(tmp_path: Path) -> None:
    job = Job(tmp_path)
    diagnosis = Diagnosis(job)
    assert diagnosis.update(START_NS) == []
    assert diagnosis.causes == []
    assert _replayed(tmp_path, [], START_NS) == []
