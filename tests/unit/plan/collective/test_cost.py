import math
from dataclasses import replace

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import Collective, CostParameters, estimate, generate

NETWORK = CostParameters(
    latency_ns=30_000,
    bytes_per_second=1e9,
    reduce_bytes_per_second=4e9,
    per_message_overhead_ns=1_000,
)
HOST = CostParameters(
    latency_ns=1_000, bytes_per_second=1e10, reduce_bytes_per_second=5e9, shared_memory=True
)
S = 1 << 20


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 16])
def test_terms_of_all_reduce_are_those_of_the_textbook(n: int) -> None:
    s = n * 64 * 100
    p = 1 << (n.bit_length() - 1)
    extra = n > p
    rows = next(each for each in range(math.isqrt(n), 0, -1) if n % each == 0)
    torus_steps = 2 * (rows - 1) + 2 * (n // rows - 1)
    expected = {
        "direct": (1, (n - 1) * s, (n - 1) * s),
        "mesh": (2, 2 * (n - 1) * s // n, (n - 1) * s // n),
        "ring": (2 * (n - 1), 2 * (n - 1) * s // n, (n - 1) * s // n),
        "torus": (torus_steps, 2 * (n - 1) * s // n, (n - 1) * s // n),
        "reduce-broadcast": (2 * (n - 1), 2 * s if n > 2 else s, s),
        "flat-tree": (2, (n - 1) * s, (n - 1) * s),
    }
    for name, terms in expected.items():
        cost = estimate(generate(Collective.ALL_REDUCE, name, n), s, NETWORK)
        assert (cost.steps, cost.port_bytes, cost.reduced_bytes) == terms, name
    s = p * 64 * 100
    cost = estimate(generate(Collective.ALL_REDUCE, "halving-doubling", n), s, NETWORK)
    assert cost.steps == 2 * (p.bit_length() - 1) + 2 * extra
    assert cost.port_bytes == 2 * (p - 1) * s // p + extra * s
    assert cost.reduced_bytes == (p - 1) * s // p + extra * s


def test_the_time_is_the_sum_of_its_terms() -> None:
    cost = estimate(generate(Collective.ALL_REDUCE, "mesh", 4), S, NETWORK)
    port, reduced = 2 * 3 * S // 4, 3 * S // 4
    assert cost.messages == 12
    assert cost.time_ns == round(2 * 30_000 + 12 * 1_000 + port + reduced / 4)


@pytest.mark.parametrize(
    ("name", "alone_us", "crowded_us"),
    [
        ("direct", 30 + 14, 4 * 14),  # each of eight ranks handles 14 messages of 1 us
        ("flat-tree", 2 * 30 + 14, 2 * 30 + 14),  # 28 messages at both ends, 3.5 a rank
        ("reduce-broadcast", 14 * 30 + 4, 14 * 30 + 4),
    ],
)
def test_ranks_that_share_a_processor_handle_messages_one_after_another(
    name: str, alone_us: int, crowded_us: int
) -> None:
    plan = generate(Collective.ALL_REDUCE, name, 8)
    assert estimate(plan, 0, NETWORK).time_ns == 1000 * alone_us
    crowded = replace(NETWORK, ranks_per_processor=4)
    assert estimate(plan, 0, crowded).time_ns == 1000 * crowded_us


def test_shared_memory_moves_only_what_is_copied() -> None:
    cost = estimate(generate(Collective.ALL_REDUCE, "mesh", 4), S, HOST)
    staged, stored = 3 * S // 4, 3 * S // 4
    assert (cost.port_bytes, cost.reduced_bytes) == (staged + stored, 3 * S // 4)
    cost = estimate(generate(Collective.ALL_REDUCE, "direct", 4), S, HOST)
    assert (cost.port_bytes, cost.reduced_bytes) == (S, 3 * S), "one copy serves all peers"


def test_wider_partials_count_where_they_are_added_and_nowhere_else() -> None:
    chain = generate(Collective.ALL_REDUCE, "reduce-broadcast", 4)
    assert estimate(chain, S, NETWORK, accumulate_ratio=2).port_bytes == 3 * S
    mesh = generate(Collective.ALL_REDUCE, "mesh", 4)
    assert estimate(mesh, S, NETWORK, accumulate_ratio=2) == estimate(mesh, S, NETWORK)


def test_sizes_mean_the_whole_buffer() -> None:
    gather = estimate(generate(Collective.GATHER, "direct", 4, 1), S, NETWORK)
    assert gather.port_bytes == 3 * S // 4
    exchange = estimate(generate(Collective.ALL_TO_ALL, "direct", 4), S, NETWORK)
    assert exchange.port_bytes == 3 * S // 4
    broadcast = estimate(generate(Collective.BROADCAST, "direct", 4, 1), S, NETWORK)
    assert broadcast.port_bytes == 3 * S


def test_a_single_rank_costs_nothing() -> None:
    assert estimate(generate(Collective.ALL_REDUCE, "ring", 1), S, NETWORK).time_ns == 0


def test_a_wrong_value_is_named() -> None:
    with pytest.raises(UsageError, match=r"^latency_ns must be at least 0, not -1$"):
        CostParameters(latency_ns=-1, bytes_per_second=1, reduce_bytes_per_second=1)
    with pytest.raises(UsageError, match=r"^bytes_per_second must be positive, not 0$"):
        CostParameters(latency_ns=0, bytes_per_second=0, reduce_bytes_per_second=1)
    with pytest.raises(UsageError, match=r"^ranks_per_processor must be at least 1, not 0\.5$"):
        replace(NETWORK, ranks_per_processor=0.5)
    with pytest.raises(UsageError, match=r"^nbytes must be at least 0, not -5$"):
        estimate(generate(Collective.ALL_REDUCE, "ring", 2), -5, NETWORK)
