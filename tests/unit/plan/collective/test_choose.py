import pytest

from slackline.errors import UsageError
from slackline.plan.collective import (
    PLANS,
    Collective,
    CostParameters,
    Order,
    choose,
    generate,
)

NETWORK = CostParameters(
    latency_ns=30_000,
    bytes_per_second=1e9,
    reduce_bytes_per_second=4e9,
    per_message_overhead_ns=1_000,
)
WIRE = CostParameters(latency_ns=0, bytes_per_second=1e9, reduce_bytes_per_second=1e12)


def test_the_reason_is_a_sentence_with_every_candidate() -> None:
    assert choose(Collective.ALL_REDUCE, 4, 16 << 20, "any", NETWORK).reason == (
        "mesh: 28.4 ms for 16 MiB over 4 ranks; halving-doubling 28.4 ms, torus 28.4 ms, "
        "ring 28.5 ms, reduce-broadcast 37.9 ms, direct 63 ms, flat-tree 63 ms"
    )


def test_small_messages_go_straight_and_large_ones_spare_the_port() -> None:
    assert choose(Collective.ALL_REDUCE, 4, 256, "any", NETWORK).name == "direct"
    assert choose(Collective.ALL_REDUCE, 4, 1 << 20, "any", NETWORK).name == "mesh"
    assert choose(Collective.BROADCAST, 4, 256, "any", NETWORK, root=1).name == "direct"
    assert choose(Collective.BROADCAST, 4, 1 << 20, "any", NETWORK, root=1).name == "chain"


@pytest.mark.parametrize("nbytes", [0, 64, 4096, 1 << 20, 1 << 28])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_rank_order_is_never_given_away(ranks: int, nbytes: int) -> None:
    for collective in {collective for collective, _ in PLANS} - {Collective.POINT_TO_POINT}:
        root = 0 if collective.rooted else None
        choice = choose(collective, ranks, nbytes, "rank", NETWORK, root=root)
        assert generate(collective, choice.name, ranks, root).rank_ordered


def test_only_plans_in_rank_order_are_compared_where_rank_order_binds() -> None:
    assert choose(Collective.ALL_REDUCE, 4, 1 << 20, "rank", NETWORK).reason == (
        "mesh: 1.84 ms for 1 MiB over 4 ranks in rank order; reduce-broadcast 2.54 ms, direct "
        "3.97 ms, flat-tree 4 ms"
    )


def test_what_is_the_same_in_every_order_may_take_every_plan() -> None:
    choice = choose(Collective.ALL_REDUCE, 4, 1 << 20, "rank", NETWORK, order_free=True)
    assert choice == choose(Collective.ALL_REDUCE, 4, 1 << 20, "any", NETWORK)


def test_wide_partials_count_only_where_rank_order_binds() -> None:
    def reason(order: Order) -> str:
        return choose(Collective.REDUCE, 4, 1 << 30, order, WIRE, root=3, accumulate_ratio=2).reason

    assert reason("rank") == "chain: 2.15 s for 1 GiB over 4 ranks in rank order; direct 3.22 s"
    assert reason("any") == "chain: 1.07 s for 1 GiB over 4 ranks; direct 3.22 s"


def test_the_first_of_equals_is_taken() -> None:
    assert choose(Collective.ALL_REDUCE, 1, 1 << 20, "any", NETWORK).name == "direct"


def test_a_wrong_order_is_named() -> None:
    with pytest.raises(UsageError, match=r'^order must be "rank" or "any", not "auto"$'):
        choose(Collective.ALL_REDUCE, 4, 64, "auto", NETWORK)  # type: ignore[arg-type]
