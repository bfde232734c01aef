"""Tests that records of hosts with different clocks are merged in the order of one clock."""

import random
from dataclasses import dataclass
from pathlib import Path

import made_records
import pytest
from made_records import START_NS as UNIX

from slackline.errors import UsageError
from slackline.history import Recording, align
from slackline.nic._link_reports import offset_of
from slackline.records import ClockOffset, FileHeader, Operations, Record, encode, file_of

MS = 1_000_000
S = 1_000_000_000


@dataclass(frozen=True)
class Clock:
    """A host's clock: its reading at the true time 0, and its drift."""

    shift_ns: int
    drift: float = 0.0

    def at(self, true_ns: int) -> int:
        return round(true_ns * (1 + self.drift)) + self.shift_ns


def header(rank: int, clock: Clock, name: str) -> FileHeader:
    return made_records.header(rank, monotonic_ns=clock.at(0), clock=name)


def probe(rank: int, here: Clock, peer: int, there: Clock, true_ns: int, *ways: int) -> ClockOffset:
    """Return the clock offset from a probe that takes `ways[0]` to the peer and `ways[1]` back."""
    arrives = true_ns + ways[0]
    answered = arrives + 7_000
    times = here.at(true_ns), there.at(arrives), there.at(answered), here.at(answered + ways[1])
    return offset_of(rank, peer, times)


def ended(rank: int, clock: Clock, true_ns: int, tag: int) -> Operations:
    end = clock.at(true_ns)
    row = (1, 0, -1, 8, 1, 1, tag, 0, 0, 1, 1, end - 9, end - 8, end, 0, 0)
    return made_records.operations(rank, row)


def write(directory: Path, rank: int, records: list[Record]) -> None:
    lines = "".join(encode(record) + "\n" for record in records)
    file_of(directory, rank).write_text(lines)


def test_a_shifted_clock_is_brought_to_the_reference_within_the_stated_error(
    tmp_path: Path,
) -> None:
    here, there = Clock(3 * S), Clock(-47 * S, drift=80e-6)
    chance = random.Random(1)
    offsets = [
        probe(1, there, 0, here, second * S, *(chance.randrange(20_000, 90_000) for _ in "ab"))
        for second in range(11)
    ]
    truth = {tag: chance.randrange(10 * S) for tag in range(40)}
    write(
        tmp_path,
        0,
        [header(0, here, "a")] + [ended(0, here, truth[tag], tag) for tag in range(0, 40, 2)],
    )
    write(
        tmp_path,
        1,
        [header(1, there, "b"), *offsets]
        + [ended(1, there, truth[tag], tag) for tag in range(1, 40, 2)],
    )
    recording = Recording(tmp_path, pytest.fail)
    seen = {}
    for each in recording.records():
        if isinstance(each.record, Operations):
            (operation,) = each.record.rows
            ended_ns = each.rank, operation.ended_ns
            off = recording.alignment.unix_ns(*ended_ns) - UNIX - truth[operation.tag]
            error_ns = recording.alignment.error_ns(*ended_ns)
            assert abs(off) <= error_ns <= 90_000
            assert each.rank == 1 or (off, error_ns) == (0, 0)
            seen[operation.tag] = off
    assert sorted(seen) == sorted(truth)


def test_clocks_are_compared_along_the_links_with_the_smallest_error() -> None:
    clocks = [Clock(0), Clock(5 * S), Clock(-9 * S)]
    names = ["a", "b", "c"]
    records: list[Record] = [header(rank, clocks[rank], names[rank]) for rank in range(3)]
    records.append(probe(0, clocks[0], 2, clocks[2], S, 40 * MS, 1 * MS))
    records.append(probe(0, clocks[0], 1, clocks[1], S, MS, MS))
    records.append(probe(2, clocks[2], 1, clocks[1], S, MS, MS))
    aligned = align(records)
    middle = S + MS + 3_500
    at = clocks[2].at(middle)
    assert aligned.unix_ns(2, at) == UNIX + middle
    assert aligned.error_ns(2, at) == 2 * MS


def test_outside_of_the_estimates_the_error_grows_by_the_drift_of_crystals() -> None:
    here, there = Clock(0), Clock(4 * S)
    aligned = align(
        [
            header(0, here, "a"),
            header(1, there, "b"),
            ClockOffset(rank=0, peer=1, at_ns=S, offset_ns=4 * S, error_ns=1000),
        ]
    )
    assert aligned.error_ns(1, there.at(S)) == 1000
    assert aligned.error_ns(1, there.at(11 * S)) == 1000 + 2 * MS
    assert aligned.unix_ns(1, there.at(11 * S)) == UNIX + 11 * S


def test_ranks_that_share_a_clock_need_no_probe() -> None:
    clock = Clock(S)
    aligned = align([header(0, clock, "a"), header(1, clock, "a")])
    assert (aligned.unix_ns(1, S + 5), aligned.error_ns(1, S + 5)) == (UNIX + 5, 0)


@pytest.mark.parametrize("names", [("a", "b"), ("", "")])
def test_a_clock_that_no_probe_reaches_is_named(tmp_path: Path, names: tuple[str, str]) -> None:
    for rank in range(2):
        write(tmp_path, rank, [header(rank, Clock(0), names[rank]), ended(rank, Clock(0), S, 0)])
    with pytest.raises(UsageError) as caught:
        Recording(tmp_path, pytest.fail)
    assert str(caught.value) == (
        f"{file_of(tmp_path, 1)}:1: the clock of rank 1 on host host1 cannot be compared with that "
        "of rank 0: no probe of a link joins their hosts"
    )


def test_an_empty_directory_has_no_records(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='there is no "file" record'):
        align([])
