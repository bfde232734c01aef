"""Tests of reading a file that grows."""

from pathlib import Path

from slackline._file_tail import FileTail


def test_a_tail_reads_each_byte_once(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    tail = FileTail(path)
    assert tail.read() == b""
    path.write_bytes(b"one\ntw")
    assert tail.read() == b"one\ntw"
    assert tail.read() == b""
    with path.open("ab") as file:
        file.write(b"o\n")
    assert tail.read() == b"o\n"
