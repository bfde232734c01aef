"""Tests of the order in which candidates are tried."""

from pathlib import Path

from slackline.cli._tune._candidates import Candidate
from slackline.cli._tune._ranking import by_ratio, ranked

A, B, C, D, E = (Candidate(settings={"segment": f"{size}KiB"}) for size in (1, 2, 3, 4, 5))


def test_simulated_gains_come_first_and_simulated_losses_last() -> None:
    assert by_ratio([A, B, C, D, E], [1.2, None, 0.9, None, 0.8]) == [E, C, B, D, A]


def test_a_difference_within_the_simulators_error_is_no_gain() -> None:
    assert by_ratio([A, B, C, D], [0.985, None, 0.98, 1.0]) == [C, B, A, D]


def test_candidates_keep_their_order_where_nothing_can_be_simulated(tmp_path: Path) -> None:
    said: list[str] = []
    assert ranked([B, A], tmp_path, said.append) == [B, A]
    assert said[0].startswith(f"no candidate is simulated: there is no run in {tmp_path}")
