"""Messages that delegates carry: copies, queues of delegates, and shares of a host's resources."""

from dataclasses import replace

import pytest

from slackline.errors import UsageError
from slackline.plan.pipeline import Options, Scenario, generate
from slackline.sim import Delegation, EventQueue, Network, simulate
from slackline.sim._sharing import SharedRates

MS = 10**9
MB = 10**6


def took_ms(
    delegation: Delegation,
    *,
    microbatches: int = 1,
    stages: int = 2,
    delay_ms: int = 0,
    schedule: str = "gpipe",
    nbytes: int = 10 * MB,
) -> float:
    """Return the time of a pipeline whose computations take 10 ms, a full backward 20."""
    scenario = Scenario.uniform(stages, microbatches, (10 * MS, 10 * MS, 10 * MS))
    for link in range(stages - 1):
        scenario = scenario.delayed(link, delay_ms * MS)
    plan = generate(schedule, scenario, Options(full_backward=True))
    network = replace(
        Network.of(scenario), message_bytes=(nbytes,) * (stages - 1), delegation=delegation
    )
    return simulate(plan, scenario, network).makespan_ps / MS


COPIES = Delegation(copy_bytes_per_second=10**10)
SENDS = Delegation(send_bytes_per_second=5 * 10**9)


def test_a_message_is_copied_sent_delayed_and_copied_back() -> None:
    # Two forwards of 10 ms and two backwards of 20 ms, and two messages.
    assert took_ms(Delegation()) == 60
    assert took_ms(COPIES) == 60 + 2 * (1 + 1)
    assert took_ms(replace(COPIES, copy_ps=MS // 2)) == 60 + 2 * (1.5 + 1.5)
    assert took_ms(SENDS) == 60 + 2 * 2
    assert took_ms(replace(SENDS, handling_ps=3 * MS), delay_ms=30) == 60 + 2 * (3 + 2 + 30)
    held = replace(SENDS, holds_delay=True)
    assert took_ms(held, delay_ms=30) == 60 + 2 * (2 + 30)


def test_a_rank_is_busy_while_its_input_is_copied() -> None:
    # Stage 1 computes its forwards until 10 + 1 + 3 * 11 ms: each waits for its copy. Its first
    # gradient is at stage 0 22 ms later, where three backwards follow with two copies between them.
    assert took_ms(COPIES, microbatches=3) == 44 + 22 + 3 * 20 + 2
    assert took_ms(Delegation(), microbatches=3) == 40 + 20 + 3 * 20


def test_a_delay_that_a_delegate_sleeps_holds_the_messages_behind_it() -> None:
    held = Delegation(holds_delay=True)
    # Stage 1 has its third forward at 10 + 3 * 30 ms. Its first gradient leaves 30 ms later, and
    # two more follow, each 30 ms after the one before.
    assert took_ms(held, microbatches=3, delay_ms=30) == 100 + 10 + 20 + 3 * 30 + 20
    enough = replace(held, delegates=3)
    assert took_ms(enough, microbatches=3, delay_ms=30) == 30 + 30 + 10 + 60 + 30 + 20
    assert took_ms(enough, microbatches=3, delay_ms=30) == took_ms(
        Delegation(), microbatches=3, delay_ms=30
    )


def test_ranks_alike_share_the_memory_the_cores_and_the_nic_of_their_host() -> None:
    nic = replace(SENDS, nic_bytes_per_second=5 * 10**9)
    assert took_ms(nic) == took_ms(SENDS)
    assert took_ms(replace(nic, ranks_alike=4)) == 60 + 2 * 8
    cores = replace(SENDS, cores=2)
    assert took_ms(replace(cores, ranks_alike=2)) == took_ms(SENDS)
    assert took_ms(replace(cores, ranks_alike=4)) == 60 + 2 * 4
    memory = Delegation(memory_bytes_per_second=2 * 10**10)
    # Each message uses the memory for two copies and for the send.
    assert took_ms(memory) == 60 + 2 * 3 * 0.5
    assert took_ms(replace(memory, ranks_alike=4)) == 60 + 2 * 3 * 2


def test_stages_on_one_host_share_its_memory_and_use_no_nic() -> None:
    slow_nic = replace(SENDS, nic_bytes_per_second=10**9)
    assert took_ms(slow_nic) == 60 + 2 * 10
    assert took_ms(replace(slow_nic, hosts=(0, 0))) == took_ms(SENDS)
    # Sender and receiver are on one host: the send uses its memory for each of the two.
    memory = Delegation(memory_bytes_per_second=5 * 10**9)
    assert took_ms(memory) == 60 + 2 * (2 + 2 + 2)
    assert took_ms(replace(memory, hosts=(0, 0))) == 60 + 2 * (2 + 4 + 2)


def test_both_directions_of_a_delegated_link_have_delegates_of_their_own() -> None:
    held = Delegation(holds_delay=True)
    both = took_ms(held, microbatches=4, delay_ms=5, schedule="1f1b")
    assert both == took_ms(Delegation(), microbatches=4, delay_ms=5, schedule="1f1b")


def test_transfers_share_a_resource_and_speed_up_when_another_ends() -> None:
    events = EventQueue()
    rates = SharedRates(events, {"memory": 10**9})
    ended: list[tuple[str, int]] = []

    def begin(name: str, nbytes: int, own: int | None) -> None:
        rates.start(nbytes, own, ("memory",), lambda: ended.append((name, events.now_ps)))

    events.at(0, begin, "long", 3 * MB, None)
    events.at(0, begin, "short", MB, None)
    events.at(0, begin, "unlimited", 0, None)
    events.run()
    # Both have half of the rate until the short one ends at 2 ms; 2 MB are left.
    assert ended == [("unlimited", 0), ("short", 2 * MS), ("long", 4 * MS)]


def test_a_share_that_a_transfer_cannot_use_is_given_to_nobody() -> None:
    events = EventQueue()
    rates = SharedRates(events, {"memory": 10**9})
    ended: list[int] = []
    rates.start(MB, 10**8, ("memory",), lambda: ended.append(events.now_ps))
    rates.start(MB, None, ("memory",), lambda: ended.append(events.now_ps))
    events.run()
    assert ended == [2 * MS, 10 * MS]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"delegates": 0}, "delegates must be a positive integer, not 0"),
        ({"ranks_alike": 0}, "ranks_alike must be a positive integer, not 0"),
        ({"copy_ps": -1}, "copy_ps must be at least 0, not -1"),
        ({"cores": 0}, "cores must be a positive integer, not 0"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        Delegation(**values)  # type: ignore[arg-type]
    assert str(raised.value) == said


def test_every_rank_needs_a_host() -> None:
    with pytest.raises(UsageError) as raised:
        took_ms(Delegation(hosts=(0,)))
    assert str(raised.value) == "hosts must have 2 hosts, not 1"
