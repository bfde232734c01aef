"""Every plan, executed on drawn fabrics: no bound is undercut and every sum keeps its order."""

from random import Random

import pytest
from drawn_fabrics import drawn_fabric, made
from hypothesis import given, settings
from hypothesis import strategies as st

from slackline.errors import UsageError
from slackline.plan.collective import (
    PLANS,
    Collective,
    CollectivePlan,
    Instruction,
    Kind,
    generate,
    trace,
)
from slackline.sim import (
    CollectiveRun,
    Fabric,
    Framing,
    Host,
    Operation,
    Symbols,
    lower_bound,
    simulate_collective,
)

EVERY_PLAN = [(collective, name) for collective, name in PLANS]
PLAN_IDS = [f"{collective.label}-{name}" for collective, name in PLANS]


def run_drawn(seed: int, collective: Collective, name: str) -> tuple[CollectiveRun, int]:
    """Return a run on a drawn fabric, with its values and frames, and its lower bound."""
    random = Random(seed)
    plan = made(collective, name, random.randint(2, 7))
    operation = Operation(
        plan=plan,
        count=random.randint(0, 4000),
        segment_bytes=random.choice((64, 256, 4096)),
        onset=random.randint(0, 3),
    )
    fabric = drawn_fabric(random, random.randint(1, plan.members))
    placement = tuple(random.randrange(len(fabric.hosts)) for _ in range(plan.members))
    run = simulate_collective(
        operation, fabric, placement=placement, arithmetic=Symbols(), record=True
    )
    return run, lower_bound(operation, fabric, placement).time_ps


def values_of_the_plan(plan: CollectivePlan) -> dict[tuple[int, int], str]:
    """Return the value of each (rank, chunk) after the plan's own trace, as symbols."""
    symbols = Symbols()
    mine = {
        (rank, chunk): symbols.contribution(rank, chunk, 0)
        for rank in range(plan.ranks)
        for chunk in range(plan.chunks)
        if plan.collective.has(rank, chunk, plan.ranks, plan.root)
    }
    held: dict[tuple[int, int], dict[int, str]] = {}
    sent: dict[tuple[int, int], str] = {}
    for event in trace(plan).events:
        place, instruction = (event.cell[0], event.instruction.chunk), event.instruction
        match instruction.kind:
            case Kind.SEND:
                sent[event.cell] = mine[place]
            case Kind.BUFFER:
                assert event.sent_by is not None
                held.setdefault(place, {})[instruction.peer] = sent[event.sent_by]
            case Kind.REDUCE_ALL:
                own = {place[0]: mine[place]} if place in mine else {}
                everyone = held.pop(place) | own
                mine[place] = symbols.reduce([everyone[rank] for rank in sorted(everyone)])
            case Kind.ADD:
                assert event.sent_by is not None
                mine[place] = symbols.add(sent[event.sent_by], mine[place], last=instruction.last)
            case Kind.COPY:
                assert event.sent_by is not None
                mine[place] = sent[event.sent_by]
    return mine


@pytest.mark.parametrize(("collective", "name"), EVERY_PLAN, ids=PLAN_IDS)
@settings(max_examples=12)
@given(seed=st.integers(0, 10**6))
def test_no_execution_undercuts_its_lower_bound(
    seed: int, collective: Collective, name: str
) -> None:
    run, bound_ps = run_drawn(seed, collective, name)
    assert run.duration_ps >= bound_ps
    assert bound_ps > 0 or not any(frame.payload_bytes for frame in run.frames)


@pytest.mark.parametrize(("collective", "name"), EVERY_PLAN, ids=PLAN_IDS)
def test_equal_arguments_give_the_same_trace(collective: Collective, name: str) -> None:
    assert run_drawn(5, collective, name) == run_drawn(5, collective, name)


@pytest.mark.parametrize(("collective", "name"), EVERY_PLAN, ids=PLAN_IDS)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_every_sum_has_the_order_that_the_plan_says(
    ranks: int, collective: Collective, name: str
) -> None:
    plan = made(collective, name, ranks)
    wanted = values_of_the_plan(plan)
    for seed in range(4):
        fabric = drawn_fabric(Random(seed), plan.members)
        operation = Operation(plan=plan, count=1000, segment_bytes=256)
        run = simulate_collective(operation, fabric, arithmetic=Symbols())
        for rank in range(plan.ranks):
            for chunk in range(plan.chunks):
                due = plan.collective.due(rank, chunk, plan.ranks, plan.root)
                segments = len(operation.segment_counts(chunk))
                expected = (wanted[rank, chunk],) * segments if due else None
                assert run.values[rank].get(chunk) == expected


def test_the_bytes_of_every_host_are_those_of_the_plan() -> None:
    """Count 2 (n - 1) / n S for each rank of a ring, and 64 bytes of header for each frame."""
    plan = generate(Collective.ALL_REDUCE, "ring", 4)
    operation = Operation(plan=plan, count=4 * 4 * 256, segment_bytes=1024)
    fabric = Fabric.uniform(4, rate_bps=10**9, framing=Framing(header_bytes=64))
    run = simulate_collective(operation, fabric)
    assert run.sent_bytes == run.received_bytes == (6 * 4 * (1024 + 64),) * 4
    assert run.messages == 4 * 6 * 4


def test_messages_about_one_chunk_are_matched_in_the_order_sent() -> None:
    """Rank 0's own value goes over the slow NIC, and the sum overtakes it over the fast one."""
    plan = CollectivePlan(
        name="two messages",
        collective=Collective.ALL_REDUCE,
        ranks=2,
        chunks=2,
        programs=(
            tuple(map(Instruction.parse, ("SEND_1C1", "SEND_1C0", "ADD_1C0!", "SEND_1C0"))),
            tuple(map(Instruction.parse, ("SEND_0C0", "COPY_0C1", "BUFFER_0C0", "COPY_0C0"))),
        ),
        rank_ordered=False,
    )
    fabric = Fabric(hosts=(Host(rates_bps=(10**6, 10**9)),) * 2)
    operation = Operation(plan=plan, count=1024, segment_bytes=4096)
    run = simulate_collective(operation, fabric, arithmetic=Symbols())
    assert run.values[1] == {0: ("(x1 + x0)",), 1: ("x0",)}
    assert run.ended_ps[1] == 2048 * 8 * 10**6, "the end of the message over the slow NIC"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": -1}, "count must be at least 0, not -1"),
        ({"itemsize": 3}, "itemsize must divide 64, not be 3"),
        ({"segment_bytes": 2}, "segment_bytes must be at least 4, not 2"),
        ({"onset": -1}, "onset must be at least 0, not -1"),
        ({"limit_bytes": 0}, "limit_bytes must be at least 4, not 0"),
    ],
)
def test_a_wrong_operation_is_refused(given: dict[str, int], said: str) -> None:
    plan = generate(Collective.ALL_REDUCE, "ring", 2)
    with pytest.raises(UsageError) as raised:
        Operation(**{"plan": plan, "count": 4, **given})
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rates_bps": ()}, "a host must have at least one NIC; rates_bps is empty"),
        ({"rates_bps": (0,)}, "the rate of a NIC must be positive, not 0"),
        ({"latency_ps": -1}, "latency_ps must be at least 0, not -1"),
        ({"cores": 0}, "cores must be positive, not 0"),
    ],
)
def test_a_wrong_host_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        Host(**{"rates_bps": (1,), **given})  # type: ignore[arg-type]
    assert str(raised.value) == said


def test_hosts_with_different_numbers_of_nics_are_refused() -> None:
    hosts = (Host(rates_bps=(1,)), Host(rates_bps=(1, 1)))
    with pytest.raises(UsageError) as raised:
        Fabric(hosts=hosts)
    assert str(raised.value) == "every host must have 1 NICs, like host 0; host 1 has 2"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"placement": (0,)}, "placement must have 2 members, not 1"),
        ({"placement": (0, 2)}, "rank 1 cannot be on host 2 of 2 hosts"),
        ({"starts_ps": (0, -1)}, "every time in starts_ps must be at least 0, not -1"),
    ],
)
def test_a_wrong_call_is_refused(given: dict[str, tuple[int, ...]], said: str) -> None:
    operation = Operation(plan=generate(Collective.ALL_REDUCE, "ring", 2), count=4)
    with pytest.raises(UsageError) as raised:
        simulate_collective(operation, Fabric.uniform(2, rate_bps=1), **given)
    assert str(raised.value) == said
