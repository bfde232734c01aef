"""Tests of the copies of the ranks' output: to files, and past a disk that takes no more."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import until

from slackline.cli._job._output import Output, writing_to
from slackline.errors import UsageError

LINE = b"x" * 1023 + b"\n"


@contextmanager
def output_of(directory: Path) -> Iterator[tuple[Output, dict[tuple[int, str], int]]]:
    """Yield the output of two ranks, with a descriptor to write to for each stream."""
    output = Output(directory / "output", range(2))
    ends = [each.split(":") for each in output.targets.split(",")]
    targets = {
        (rank, name): os.dup(int(end))
        for rank, pair in enumerate(ends)
        for name, end in zip(("stdout", "stderr"), pair, strict=True)
    }
    output.start()
    try:
        yield output, targets
    finally:
        output.finish()
        for target in targets.values():
            os.close(target)


def test_each_stream_is_kept_in_its_file_and_rank_0_is_shown(tmp_path: Path) -> None:
    with output_of(tmp_path) as (output, targets):
        os.write(targets[0, "stdout"], b"one\n")
        os.write(targets[1, "stderr"], b"two\n")
        until(lambda: output.spoken_ns(1, "stderr") > 0, "the pipe is read")
        os.write(targets[0, "stdout"], b"three\n")
        output.finish()
        assert output.take(0, "stdout") == b"one\nthree\n"
        assert output.take(0, "stdout") == b""
        assert output.end_of(1, "stderr") == b"two\n"
        assert output.end_of(0, "stdout", 6) == b"three\n"
        assert (output.end_of(2, "stdout"), output.take(2, "stdout")) == (b"", b"")
        assert output.spoken_ns(0, "stderr") == 0
        assert output.error == ""
    assert (tmp_path / "output" / "0" / "stdout.log").read_bytes() == b"one\nthree\n"
    assert (tmp_path / "output" / "1" / "stderr.log").read_bytes() == b"two\n"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small disk needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_loses_no_output_of_rank_0(tiny_disk: Path) -> None:
    with output_of(tiny_disk) as (output, targets):
        shown = b""
        for _ in range(100):
            os.write(targets[0, "stdout"], LINE)
            os.write(targets[1, "stdout"], LINE)
            shown += output.take(0, "stdout")
        output.finish()
        shown += output.take(0, "stdout")
        assert shown == 100 * LINE
        assert output.end_of(1, "stdout", 2048) == 2 * LINE
        assert output.error == "No space left on device"


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught, writing_to(tmp_path / "file"):
        Output(tmp_path / "file" / "output", range(1))
    assert str(caught.value) == (
        f"the job's directory {tmp_path / 'file'} cannot be written: Not a directory"
    )
