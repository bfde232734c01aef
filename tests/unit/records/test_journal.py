"""Tests of the writer of a file: versions, cut lines, limits, and a disk that is full or slow."""

import json
import logging
import os
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import made_records
import pytest

from slackline.errors import UsageError
from slackline.history import decode, read_directory, read_file
from slackline.records import (
    SCHEMA_VERSION,
    FileHeader,
    Gap,
    OperationsText,
    Record,
    StepSummary,
    Writer,
    encode,
    file_of,
)

NO_SPACE = "No space left on device"


def step(number: int) -> StepSummary:
    return made_records.step(0, number)


def test_a_file_begins_with_its_version_and_both_clocks(tmp_path: Path) -> None:
    before = time.time_ns(), time.monotonic_ns()
    Writer(tmp_path, 3).close()
    after = time.time_ns(), time.monotonic_ns()
    (line,) = file_of(tmp_path, 3).read_text().splitlines()
    header = decode(line)
    assert isinstance(header, FileHeader)
    assert (header.version, header.rank, header.process) == (SCHEMA_VERSION, 3, os.getpid())
    assert before[0] <= header.time_ns <= after[0]
    assert before[1] <= header.monotonic_ns <= after[1]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert header.clock.startswith(boot)
    assert list(read_directory(tmp_path)) == []


def test_handles_of_one_file_share_one_thread(tmp_path: Path) -> None:
    def threads() -> int:
        return sum(thread.name == "slackline-telemetry" for thread in threading.enumerate())

    others = threads()
    with Writer(tmp_path, 0) as first:
        with Writer(tmp_path, 0) as second:
            second.write(step(0))
            assert threads() == others + 1
        first.write(step(1))
    assert threads() == others
    assert list(read_directory(tmp_path)) == [step(0), step(1)]
    assert file_of(tmp_path, 0).read_text().count('"record":"file"') == 1


def test_a_source_that_is_forgotten_is_released_while_the_file_stays_open(tmp_path: Path) -> None:
    called, released = threading.Event(), threading.Event()

    class Engine:
        def records(self) -> list[Record]:
            called.set()
            return []

    engine = Engine()
    reference = weakref.ref(engine, lambda _: released.set())
    with Writer(tmp_path, 0):
        with Writer(tmp_path, 0) as polled:
            polled.poll(engine.records)
            assert called.wait(60)
        del engine, polled
        assert released.wait(10)
    assert reference() is None


@pytest.mark.parametrize(
    ("version", "words"), [(SCHEMA_VERSION + 1, "version 3"), (None, "no version")]
)
def test_another_version_is_named_with_file_and_line(
    tmp_path: Path, version: int | None, words: str
) -> None:
    with Writer(tmp_path, 0) as writer:
        writer.write(step(0))
    path = file_of(tmp_path, 0)
    head, *rest = path.read_text().splitlines(keepends=True)
    told = json.loads(head)
    lines = rest if version is None else [json.dumps({**told, "version": version}) + "\n", *rest]
    path.write_text("".join(lines))
    sentence = (
        f"{path}:1: the records have {words} of the schema, and this slackline reads version "
        f"{SCHEMA_VERSION}; the rest of the file is left out"
    )
    with pytest.raises(UsageError) as caught:
        list(read_file(path))
    assert str(caught.value) == sentence
    reported: list[str] = []
    assert list(read_file(path, reported.append)) == []
    assert reported == [sentence]


def test_a_cut_line_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    with Writer(tmp_path, 0) as writer:
        writer.write(step(0))
    path = file_of(tmp_path, 0)
    cut = '{"record":"step","ra'
    with path.open("a") as file:
        file.write(f"{cut}\n{encode(step(1))}\n{cut}")
    reported: list[str] = []
    assert list(read_file(path, reported.append)) == [step(0), step(1)]
    assert reported == [
        f'{path}:3: the line is cut or damaged: the record "step" is not JSON, Unterminated '
        f"string starting at: line 1 column 18 (char 17): {cut!r}",
        f"{path}:5: the last line is cut; it may still be written",
    ]
    with pytest.raises(UsageError, match=r"rank-00000\.jsonl:3: the line is cut or damaged"):
        list(read_file(path))


def test_a_process_that_follows_a_killed_one_begins_a_line_of_its_own(tmp_path: Path) -> None:
    with Writer(tmp_path, 0) as writer:
        writer.write(step(0))
    with file_of(tmp_path, 0).open("a") as file:
        file.write('{"record":"st')
    with Writer(tmp_path, 0) as writer:
        writer.write(step(1))
    reported: list[str] = []
    assert list(read_directory(tmp_path, reported.append)) == [step(0), step(1)]
    assert len(reported) == 1


def test_a_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(UsageError) as caught:
        Writer(path, 0)
    assert str(caught.value) == f"telemetry must be a directory, and {path} is a file"


def test_operations_leave_a_quarter_of_the_file_to_other_records(tmp_path: Path) -> None:
    limit = 100_000
    row = json.dumps([1] * 16, separators=(",", ":"))
    with Writer(tmp_path, 0, limit_bytes=limit) as writer:
        for _ in range(300):
            writer.write(OperationsText(rank=0, lost=0, rows=row))
        writer.write(step(0))
    *operations, gap, last = read_directory(tmp_path)
    assert last == step(0)
    assert isinstance(gap, Gap)
    assert gap.reason == "the file has reached its limit of 97.7 KiB"
    assert len(operations) + gap.lost == 300
    size = len(encode(operations[0])) + 1
    assert limit * 3 // 4 - 500 < len(operations) * size < limit * 3 // 4


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tiny", str(where)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    yield where
    subprocess.run(["umount", str(where)], check=True)


def test_a_full_disk_costs_records_and_nothing_else(
    tiny_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "slackline.records")
    (tiny_disk / "ballast").write_bytes(bytes(8192))
    with Writer(tiny_disk, 0) as writer:
        for number in range(100):
            writer.write(step(number))
        assert writer.flush()
        (tiny_disk / "ballast").unlink()
        writer.write(step(100))
        assert writer.flush()
    path = file_of(tiny_disk, 0)
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: {NO_SPACE}; records are left out, and training goes on"
    ]
    *before, gap, last = read_file(path, pytest.fail)  # no part of a line is left
    assert before == [step(number) for number in range(len(before))]
    assert 0 < len(before) < 100
    assert isinstance(gap, Gap)
    assert (gap.lost, gap.reason) == (100 - len(before), NO_SPACE)
    assert last == step(100)


def test_a_disk_that_stands_still_does_not_block_the_one_who_writes(tmp_path: Path) -> None:
    path = file_of(tmp_path, 0)
    os.mkfifo(path)  # Opening a pipe blocks until another process reads it.
    writer = Writer(tmp_path, 0)
    for number in range(40_000):
        writer.write(step(number))
    reader = os.open(path, os.O_RDONLY)
    got = bytearray()
    while not got.count(b"\n") or b'"gap"' not in got:
        got += os.read(reader, 1 << 16)
    os.close(reader)
    writer.close()
