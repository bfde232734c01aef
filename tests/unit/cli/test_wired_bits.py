"""Tests of the comparison of a job through a node with the same job in software."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from slackline.cli._job._wired_bits import same_bits
from slackline.records import StateHash, Writer

_A, _B = "0" * 31 + "a", "0" * 31 + "b"


def folder(path: Path, hashes: Mapping[int, list[str]]) -> Path:
    """Write the telemetry of ranks with these hashes of their state."""
    for rank, texts in hashes.items():
        writer = Writer(path, rank)
        for step, text in enumerate(texts):
            writer.write(StateHash(rank=rank, time_ns=step, step=step, part=0, parts=1, hash=text))
        writer.close()
    return path


@pytest.mark.parametrize(
    ("through", "alone", "same", "said"),
    [
        (
            {0: [_B, _A], 1: [_B, _A]},
            {0: [_B, _A], 1: [_B, _A]},
            True,
            [f"hash of the state at the end: {_A} through the node, {_A} in software"],
        ),
        (
            {0: [_A], 1: [_A], 2: [_A]},
            {0: [_A], 1: [_B], 2: [_B]},
            False,
            [
                f"hash of the state at the end: {_A} through the node, {_A} in software",
                "the states differ on ranks 1, 2",
            ],
        ),
        (
            {0: [_A]},
            {},
            False,
            [
                f"hash of the state at the end: {_A} through the node, none in software",
                "the states differ on ranks 0",
            ],
        ),
        (
            {},
            {},
            True,
            [
                "the states at the end were not compared: no rank has trained by "
                "slackline.overlap.DataParallel"
            ],
        ),
    ],
)
def test_states_are_compared_rank_by_rank(tmp_path: Path, through, alone, same, said) -> None:
    told: list[str] = []
    folders = folder(tmp_path / "node", through), folder(tmp_path / "software", alone)
    assert same_bits(*folders, told.append) is same
    assert told == said
