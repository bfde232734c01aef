"""Tests of the plan that a group selects, also with devices."""

import time

import pytest

from slackline.errors import UsageError
from slackline.nic import NicOptions
from slackline.nic.collectives._plans import PlanBook, first_peers
from slackline.nic.collectives._programs import ranks_per_host, starts
from slackline.nic.offload._circuit_nic import Devices
from slackline.plan.collective import Collective, CostParameters, estimate, generate, names, part
from slackline.wire import DType, ReduceOp

FP32, BF16, SUM = DType.FLOAT32, DType.BFLOAT16, ReduceOp.SUM


def book(plan: str, device_bytes: int = 8192, order: str = "auto") -> PlanBook:
    options = NicOptions(plan=plan, order=order)
    return PlanBook(0, 4, options, all_shared=True, hosts="aaaa", device_bytes=device_bytes)


@pytest.mark.parametrize(
    ("ranks", "name"), [(1, "direct"), (8, "direct"), (9, "dissemination"), (1000, "dissemination")]
)
def test_a_barrier_of_many_ranks_is_a_dissemination(ranks: int, name: str) -> None:
    many = PlanBook(0, ranks, NicOptions(), all_shared=False, hosts=range(ranks))
    chosen = many.select(Collective.BARRIER, 0, DType.UINT8)
    assert (chosen.name, chosen.reason) == (name, f"{ranks} ranks; direct is for at most 8")


@pytest.mark.parametrize(
    ("plan", "all_shared", "hosts", "order"),
    [
        ("auto", True, "aaaa", "rank"),
        ("auto", False, "abcd", "rank"),
        ("auto", False, "aaaa", "any"),
        ("auto", False, "aabb", "any"),
        ("mesh", False, "abcd", "rank"),
        ("ring", True, "aaaa", "any"),
        ("ring", False, "abcd", "any"),
    ],
)
def test_sums_are_in_rank_order_by_default_where_that_costs_little(
    plan: str, all_shared: bool, hosts: str, order: str
) -> None:
    """Check four ranks: in shared memory, and on a host each, unless a plan in another order is
    asked for."""
    options = NicOptions(plan=plan)
    assert PlanBook(0, 4, options, all_shared=all_shared, hosts=hosts).order == order


@pytest.mark.parametrize(("all_shared", "expected"), [(True, "mesh"), (False, "ring")])
def test_a_ring_is_preferred_to_a_mesh_over_a_wire_and_over_tcp_on_one_host(
    all_shared: bool, expected: str
) -> None:
    """Check 1 MiB, with trials in which the mesh is faster by a fifth."""
    several = PlanBook(0, 4, NicOptions(order="any"), all_shared=all_shared, hosts="aaaa")
    figures = {"mesh": (100_000, 800_000)}
    times = [figures.get(name, (100_000, 1_000_000)) for name in several.candidates()]
    several.learn([ns for time in times for ns in time])
    assert several.all_reduce(1 << 20, FP32, SUM).name == expected


@pytest.mark.parametrize("ranks", range(2, 9))
def test_up_to_eight_ranks_the_direct_barrier_is_never_the_slower_one(ranks: int) -> None:
    """Check with the cost model; measurements gave its cost of a message as a part of the
    latency."""
    cost = CostParameters(
        latency_ns=100_000,
        per_message_overhead_ns=25_000,
        bytes_per_second=1e9,
        reduce_bytes_per_second=1e9,
    )
    direct, dissemination = (
        estimate(generate(Collective.BARRIER, name, ranks), 0, cost).time_ns
        for name in ("direct", "dissemination")
    )
    assert direct <= dissemination


@pytest.mark.parametrize("order", ["rank", "any"])
def test_a_thousand_ranks_choose_by_what_was_measured_without_making_whole_plans(
    order: str,
) -> None:
    """Check the selection's processor time: a whole mesh plan of 1000 ranks has 4 million
    instructions, a rank's own part of it 4000."""
    many = PlanBook(7, 1000, NicOptions(order=order), all_shared=False, hosts=range(1000))
    begin = time.process_time()
    every = many.candidates()
    assert set(every) <= set(names(Collective.ALL_REDUCE))
    assert "mesh" in every
    figures = {"reduce-broadcast": (900, 2000), "mesh": (2000, 9000), "ring": (5000, 5100)}
    many.learn([ns for name in every for ns in figures.get(name, (10_000, 10_000))])
    assert many.all_reduce(64, FP32, SUM).name == "reduce-broadcast"
    chosen = many.all_reduce(512 << 10, FP32, SUM)
    assert chosen.name == "reduce-broadcast"
    assert chosen.reason.startswith("reduce-broadcast 2 us for 512 KiB, as tried; ")
    for collective in (
        Collective.REDUCE_SCATTER,
        Collective.ALL_GATHER,
        Collective.ALL_TO_ALL,
        Collective.BARRIER,
    ):
        many.select(collective, 1 << 20, FP32)
    for collective in (Collective.BROADCAST, Collective.REDUCE):
        assert many.select(collective, 1 << 30, FP32, root=3).name == "chain"
    assert time.process_time() - begin < 5


def test_64_ranks_choose_by_measurement_and_model_without_making_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that no whole plan is made, which would take each rank a second: making one raises."""

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"the plan {arguments} was made")

    many = PlanBook(7, 64, NicOptions(order="any"), all_shared=False, hosts=range(64))
    figures = {"mesh": (50_000, 4_000_000), "ring": (900_000, 900_000)}
    many.learn([ns for name in many.candidates() for ns in figures.get(name, (10**6, 10**7))])
    monkeypatch.setattr("slackline.nic.collectives._plans.generate", refuse)
    assert many.all_reduce(4096, FP32, SUM).name == "mesh"
    assert many.all_reduce(64 << 20, FP32, SUM).name == "ring"


@pytest.mark.parametrize("ranks", [5, 8, 9, 64, 1000])
def test_early_plans_need_only_the_links_that_a_group_is_opened_with(ranks: int) -> None:
    many = PlanBook(3, ranks, NicOptions(), all_shared=False, hosts=range(ranks))
    many.learn_few([10_000_000, 20_000_000])
    chosen = {
        (collective, many.select(collective, nbytes, FP32, root, early=True).name, root)
        for nbytes in (0, 64, 64 << 20)
        for collective, root in (
            (Collective.ALL_REDUCE, None),
            (Collective.ALL_GATHER, None),
            (Collective.BROADCAST, 0),
            (Collective.BROADCAST, 4),
            (Collective.BARRIER, None),
        )
    }
    seen = range(ranks) if ranks <= 64 else (*range(9), 511, 512, 513, ranks - 2, ranks - 1)
    for collective, name, root in chosen:
        for rank in seen:
            program = part(collective, name, ranks, rank, root).program
            assert {each.peer for each in program} <= first_peers(rank, ranks)


@pytest.mark.parametrize(
    ("order", "nbytes", "early", "later"),
    [
        ("rank", 64, "reduce-broadcast", "direct"),
        ("rank", 16 << 20, "reduce-broadcast", "mesh"),
        ("any", 64, "reduce-broadcast", "direct"),
        ("any", 64 << 20, "ring", "ring"),
    ],
)
def test_many_ranks_choose_by_the_cost_model_fitted_to_one_plan(
    order: str, nbytes: int, early: str, later: str
) -> None:
    """Check with a latency of 10 us and 1 GB/s."""
    many = PlanBook(3, 64, NicOptions(order=order), all_shared=order == "rank", hosts="a" * 64)
    assert many.timed() == ("reduce-broadcast",)
    short_ns = 127 * 10_000
    many.learn_few([short_ns, short_ns + 2 * (512 << 10) + 26_214])
    chosen = many.all_reduce(nbytes, FP32, SUM)
    assert chosen.name == later
    assert ", as the cost model expects" in chosen.reason
    assert many.all_reduce(nbytes, FP32, SUM, early=True).name == early


@pytest.mark.parametrize(
    ("crowd", "nbytes", "name"),
    [(1, 64, "direct"), (16, 64, "flat-tree"), (16, 4096, "flat-tree"), (16, 16 << 20, "mesh")],
)
def test_ranks_that_share_processors_send_few_messages(
    crowd: float, nbytes: int, name: str
) -> None:
    """Check with a latency of 10 us and 1 GB/s."""
    many = PlanBook(
        3,
        32,
        NicOptions(order="rank"),
        all_shared=False,
        hosts="a" * 32,
        ranks_per_processor=crowd,
    )
    short_ns = 63 * 10_000
    many.learn_few([short_ns, short_ns + 2 * (512 << 10) + 26_214])
    assert many.all_reduce(nbytes, FP32, SUM).name == name


def test_devices_add_in_rank_order_unless_the_rotating_ring_is_asked_for() -> None:
    for order in ("auto", "rank", "any"):
        default = book("auto", order=order)
        assert (default.order, default.all_reduce(4096, FP32, SUM).name) == (
            "rank",
            "reduce-broadcast",
        )
    rotating = book("ring")
    assert rotating.order == "any"
    chosen = rotating.all_reduce(4096, FP32, SUM)
    assert (chosen.name, chosen.reason) == ("ring", "ranks have devices that add")


def test_a_rotating_ring_leaves_half_types_to_the_engines() -> None:
    """Check that half types are left to software, which rounds them at every rank, while a device
    rounds at the end."""
    why = [book(plan).all_reduce(4096, BF16, SUM).reason for plan in ("auto", "ring")]
    assert why == ["ranks have devices that add", "asked for by name"]
    assert book("ring").all_reduce(4096, BF16, SUM).name == "ring"


def test_rank_order_and_a_rotating_ring_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="the plan 'ring' does not sum in rank order"):
        book("ring", order="rank")


def test_where_chunks_of_plans_that_go_round_open() -> None:
    assert starts(generate(Collective.ALL_REDUCE, "reduce-broadcast", 4)) == [0]
    assert starts(generate(Collective.ALL_REDUCE, "ring", 4)) == [1, 2, 3, 0]
    assert starts(generate(Collective.ALL_REDUCE, "ring", 2)) == [1, 0]


def test_a_ring_needs_room_for_what_begins_at_each_rank() -> None:
    twins = Devices("twin")
    twins.ring(3, 64, 1, 3, 64).close()
    with pytest.raises(UsageError) as raised:
        twins.ring(3, 65, 1, 3, 65)
    assert str(raised.value) == (
        "a ring NIC (twin) can take operations that start at 64 ranks, not 65: do not set the plan"
    )


def test_the_rate_of_a_port_does_not_grow_with_the_latency() -> None:
    """Check a busy machine, where short messages take as long as the transfer of long ones."""
    many = PlanBook(0, 4, NicOptions(order="rank"), all_shared=False, hosts="abcd")
    many.learn([ns for _ in many.candidates() for ns in (40_000_000, 50_000_000)])
    assert many.port_rate == (512 + 2 * 128) * 1024 / 0.05


@pytest.mark.parametrize(
    ("hosts", "found"),
    [("a", 1), ("aabb", 2), ("abcd", 1), ("aaaa", 4), ("aab", None), ("abab", None)],
)
def test_hosts_with_as_many_ranks_each_are_recognised(hosts: str, found: int | None) -> None:
    assert ranks_per_host(hosts) == found


def test_a_hierarchy_is_planned_by_the_ranks_of_each_host() -> None:
    options = NicOptions(plan="hierarchical")
    mine = PlanBook(1, 4, options, all_shared=False, hosts="aabb")
    assert mine.all_reduce(1 << 20, FP32, SUM).name == "hierarchical"
    with pytest.raises(UsageError) as raised:
        PlanBook(1, 4, options, all_shared=False, hosts="abab")
    assert str(raised.value) == (
        "the plan 'hierarchical' needs ranks that are numbered host by host, and as many on each "
        "host"
    )
