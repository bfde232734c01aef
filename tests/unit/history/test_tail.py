"""Tests of reading a rank's file while it grows."""

import tracemalloc
from pathlib import Path

from made_records import header

from slackline.history import RecordTail
from slackline.records import Counters, encode, file_of

_HEADER = header(0)


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    path = file_of(tmp_path, 0)
    large = Counters(rank=0, time_ns=1, values={"x" * 100_000: 1})
    with path.open("w") as file:
        file.write(f"{encode(_HEADER)}\n")
        for _ in range(80):
            file.write(f"{encode(large)}\n")
    assert path.stat().st_size > 8_000_000
    reported: list[str] = []
    tail = RecordTail(path, reported.append)
    tracemalloc.start()
    try:
        count = sum(1 for _ in tail.read())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (count, reported, tail.cut) == (81, [], False)
    assert most < 3_000_000


def test_a_line_that_is_cut_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path = file_of(tmp_path, 0)
    text = f"{encode(_HEADER)}\n"
    path.write_text(text[:20])
    tail = RecordTail(path, lambda sentence: None)
    assert list(tail.read()) == []
    assert tail.cut
    with path.open("a") as file:
        file.write(text[20:])
    assert list(tail.read()) == [_HEADER]
    assert not tail.cut
