"""Tests of the checks of a run's files: each fault gives one sentence with file and line."""

from pathlib import Path

import pytest
from made_records import operations, write
from trace_runs import clock_offset, header, opened, row

from slackline.errors import UsageError
from slackline.history import Flaws, Recording
from slackline.records import FileHeader, GroupOpened, Operations, encode, file_of


def refusal(directory: Path) -> str:
    """Return the message of the error with which a run is refused."""
    with pytest.raises(UsageError) as caught:
        list(Recording(directory, pytest.fail).records())
    return str(caught.value)


def test_a_directory_without_records_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"there is no telemetry in {tmp_path}: it has no rank-*.jsonl; "
        "slackline run --keep DIR and SLACKLINE_TELEMETRY=DIR write telemetry"
    )
    nowhere = tmp_path / "nowhere"
    assert refusal(nowhere) == f"there is no directory '{nowhere}'"
    file_of(tmp_path, 0).touch()
    assert refusal(tmp_path) == (
        f'{file_of(tmp_path, 0)}:1: there is no "file" record, with which telemetry begins'
    )


def test_the_folder_of_a_kept_job_is_found(tmp_path: Path) -> None:
    (tmp_path / "telemetry").mkdir()
    write(tmp_path / "telemetry", 0, header(0))
    assert [found.rank for found in Recording(tmp_path, pytest.fail).records()] == [0]


def test_a_rank_without_a_file_is_named(tmp_path: Path) -> None:
    for rank in (0, 2):
        write(tmp_path, rank, header(rank), opened(rank, ranks=3))
    assert refusal(tmp_path) == (
        f"{file_of(tmp_path, 0)}:2: the group of 3 ranks has rank 1, and {tmp_path} has no file of "
        "that rank"
    )


def test_another_version_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0, version=3))
    assert refusal(tmp_path).startswith(f"{file_of(tmp_path, 0)}:1: the records have version 3 of")


@pytest.mark.parametrize("cut", ['{"record":"operations",', '{"record":"opened",', "\xff"])
def test_a_damaged_line_is_reported_once_and_left_out(tmp_path: Path, cut: str) -> None:
    write(tmp_path, 0, header(0), opened(0, ranks=1), operations(0, row(1, 2)))
    with file_of(tmp_path, 0).open("a", encoding="latin-1") as file:
        file.write(f"{cut}\n{encode(operations(0, row(3, 4)))}\n")
    flaws = Flaws()
    found = Recording(tmp_path, flaws).records()
    assert [type(each.record) for each in found] == [FileHeader, GroupOpened, *2 * [Operations]]
    assert flaws.count == 1
    assert str(flaws).startswith(f"a line is left out: {file_of(tmp_path, 0)}:4: the line is ")


def test_a_last_line_that_is_cut_is_reported_once_and_left_out(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), opened(0, ranks=1))
    with file_of(tmp_path, 0).open("a") as file:
        file.write('{"record":"oper')
    told: list[str] = []
    assert len(list(Recording(tmp_path, told.append).records())) == 2
    assert told == [f"{file_of(tmp_path, 0)}:3: the last line is cut; it may still be written"]


def test_clocks_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, header(rank, clock=f"clock {rank}"))
    write(tmp_path, 0, clock_offset(0, 1, offset_ms=3, error_ms=1))
    assert refusal(tmp_path) == (
        f"{file_of(tmp_path, 2)}:1: the clock of rank 2 on host host2 cannot be compared with that "
        "of rank 0: no probe of a link joins their hosts"
    )


def test_a_second_process_with_another_clock_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), header(0), header(0, clock="after the restart"))
    assert refusal(tmp_path) == (
        f"{file_of(tmp_path, 0)}:3: a second process of rank 0 has another clock than the first "
        "one: give the telemetry of one run"
    )


def test_records_of_another_rank_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), opened(1, ranks=1))
    assert refusal(tmp_path) == f"{file_of(tmp_path, 0)}:2: the record is of rank 1, not of 0"
    file_of(tmp_path, 0).unlink()
    write(tmp_path, 0, header(0))
    write(tmp_path, 1, header(0))
    assert refusal(tmp_path) == (
        f"{file_of(tmp_path, 1)}:1: the records are of rank 0, as are those of "
        f"{file_of(tmp_path, 0)}"
    )


def test_records_of_all_ranks_come_in_the_order_of_time(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path, rank, header(rank), opened(rank))
    write(tmp_path, 0, operations(0, row(1, 9)), operations(0, row(10, 30, sequence=1)))
    write(tmp_path, 1, operations(1, row(1, 8)), operations(1, row(10, 31, sequence=1)))
    found = [
        (each.rank, each.record.rows[0].sequence)
        for each in Recording(tmp_path, pytest.fail).records()
        if isinstance(each.record, Operations)
    ]
    assert found == [(1, 0), (0, 0), (0, 1), (1, 1)]
