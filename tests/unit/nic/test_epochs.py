"""Tests that two groups of an engine never have the same epoch at the same time."""

from slackline.nic._group import Epochs


class Engine:
    """An engine that uses the epoch 7."""

    def uses_epoch(self, epoch: int) -> bool:
        return epoch == 7


def test_a_candidate_of_the_engine_or_of_another_opening_is_taken() -> None:
    epochs = Epochs()
    epochs.engine = Engine()
    with epochs.opening() as reserve:
        assert reserve([5, 6]) == 0
        with epochs.opening() as other:
            assert other([4, 5, 7]) == 0b110
        assert reserve([8]) == 0


def test_candidates_are_free_again_after_the_opening() -> None:
    epochs = Epochs()
    for _ in range(2):
        with epochs.opening() as reserve:
            assert reserve([5, 5]) == 0


def test_a_candidate_of_two_openings_stays_reserved_until_both_have_ended() -> None:
    epochs = Epochs()
    with epochs.opening() as first:
        first([5])
        with epochs.opening() as second:
            assert second([5]) == 1
        with epochs.opening() as third:
            assert third([5]) == 1
