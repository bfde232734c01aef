import multiprocessing

import pytest
from _harness.ranks import RankFailedError, Ranks
from benchmark_performers import Obliging


def test_every_rank_answers_in_rank_order() -> None:
    with Ranks(Obliging, 3, environment={}) as ranks:
        assert ranks.ask("who") == [(0, 3), (1, 3), (2, 3)]
        assert ranks.ask("add", 2, 3) == [5, 5, 5]


def test_the_environment_is_set_in_the_ranks() -> None:
    with Ranks(Obliging, 1, environment={"OMP_NUM_THREADS": "1"}) as ranks:
        assert ranks.ask("variable", "OMP_NUM_THREADS") == ["1"]


def test_the_error_of_a_rank_comes_without_waiting_for_the_others() -> None:
    with (
        pytest.raises(RankFailedError, match=r"rank 1 failed:\n(?s:.*)rank 1 has had enough"),
        Ranks(Obliging, 3, environment={}) as ranks,
    ):
        ranks.ask("fail_at", 1)


def test_the_death_of_a_rank_is_reported_with_its_exit_code() -> None:
    with (
        pytest.raises(RankFailedError, match="rank 0 died with exit code 7"),
        Ranks(Obliging, 2, environment={}) as ranks,
    ):
        ranks.ask("die_at", 0)


def test_no_rank_process_outlives_a_failure() -> None:
    with pytest.raises(RankFailedError), Ranks(Obliging, 2, environment={}) as ranks:
        ranks.ask("fail_at", 0)
    assert multiprocessing.active_children() == []
