"""Links of experiments join ranks, whatever the schedule; memory in bytes; recomputation."""

import pytest

from slackline.errors import UsageError
from slackline.plan.pipeline import Options as Given
from slackline.plan.pipeline import (
    Scenario,
    delayed_links,
    generate,
    link_count,
    placement_of,
)
from slackline.sim import Figures, Network, read_experiment, simulate

MS = 10**9


def shape(stages: int, microbatches: int = 1) -> str:
    return f"""
[iteration]
stages = {stages}
microbatches = {microbatches}
forward = "10ms"
backward_input = "10ms"
backward_weight = "10ms"
"""


def network(links: list[int], delay: str) -> str:
    return f'[[iteration.network]]\nname = "a"\nlinks = {links}\ndelay = "{delay}"\n'


def runtime(schedule: str, further: str = "") -> str:
    name = f'[[iteration.runtime]]\nname = "{schedule}"\nschedule = "{schedule}"\n'
    return f"{name}{further}\n"


def time_ms(text: str) -> float:
    return figures(text)["time_ps"] / MS


def figures(text: str) -> Figures:
    (case,) = read_experiment(text, "a.toml").cases
    return case.simulate()


FULL = "full_backward = true"


def test_a_slow_link_of_an_interleaved_pipeline_delays_every_pass_of_its_two_ranks() -> None:
    # 8 stages on 4 ranks: one microbatch crosses link 2 as 2 -> 3 and as 6 -> 7, and back.
    text = shape(8, 4) + runtime("interleaved", FULL)
    healthy = time_ms(text + network([2], "0ms"))
    slow = time_ms(text + network([2], "100ms"))
    assert slow >= healthy + 4 * 100


@pytest.mark.parametrize(("sends", "begins_ms"), [("blocking", 80), ("one-queue", 110)])
def test_messages_of_all_stages_on_two_ranks_wait_in_their_one_queue(
    sends: str, begins_ms: int
) -> None:
    base = Scenario.uniform(4, 2, (10 * MS,) * 3)
    plan = generate("interleaved", base, Given(full_backward=True))
    slow = delayed_links(base, plan.placement, {0: (30 * MS, 30 * MS)})
    run = simulate(plan, slow, Network.of(slow).sending(sends))
    # Stage 1 ends F0 at 50 ms and sends it back to rank 0, which sends F1 of stage 0 from 50 ms on.
    starts = {str(span.instruction): span.start_ps // MS for span in run.spans[0]}
    assert starts["2F0"] == begins_ms


def test_in_a_v_messages_go_down_a_link_and_up_again() -> None:
    text = shape(4, 4) + runtime("zb-v")
    # Ranks 0 and 1 have stages 0, 3 and 1, 2. Down is 0 -> 1 and up 2 -> 3 for activations.
    base = Scenario.uniform(4, 4, (10 * MS, 10 * MS, 10 * MS))
    placement = placement_of("zb-v", 4)
    assert (placement, link_count(placement)) == ((0, 1, 1, 0), 1)
    found = delayed_links(base, placement, {0: (7, 3)})
    assert found.forward_delay_ps == (7, 0, 3)
    assert found.backward_delay_ps == (3, 0, 7)
    assert time_ms(text + network([0], "30ms")) > time_ms(text + network([0], "0ms"))


def test_a_ring_of_ranks_has_a_link_from_the_last_to_the_first() -> None:
    placement = placement_of("interleaved", 8, Given(stages_per_rank=2))
    assert (placement, link_count(placement)) == ((0, 1, 2, 3, 0, 1, 2, 3), 4)
    base = Scenario.uniform(8, 4)
    found = delayed_links(base, placement, {2: (5, 1), 3: (9, 2)})
    assert found.forward_delay_ps == (0, 0, 5, 9, 0, 0, 5)
    assert found.backward_delay_ps == (0, 0, 1, 2, 0, 0, 1)
    with pytest.raises(UsageError) as raised:
        delayed_links(base, placement, {4: (1, 1)})
    assert str(raised.value) == "there is no link 4: 4 ranks have 4 links"
    assert link_count(placement_of("interleaved", 4)) == 1


def test_a_link_that_a_runtime_does_not_have_is_named_with_the_runtime() -> None:
    text = shape(8, 4) + runtime("1f1b") + runtime("interleaved") + network([6], "30ms")
    with pytest.raises(UsageError) as raised:
        read_experiment(text, "a.toml")
    assert str(raised.value) == (
        'a.toml: [iteration.network 0]: links of "interleaved": there is no link 6: 4 ranks have '
        "4 links"
    )


def test_stages_per_rank_sets_the_ranks_of_an_interleaved_pipeline() -> None:
    text = shape(8, 2) + runtime("interleaved", f"{FULL}\nstages_per_rank = 4")
    found = figures(text + network([0], "0ms"))
    assert len(found["blocked_ps"]) == 2


def test_a_delay_may_differ_by_direction() -> None:
    text = shape(2) + runtime("1f1b")
    assert time_ms(text + network([0], "30ms/10ms")) == 50 + 30 + 10
    assert time_ms(text + network([0], "30ms/0ms")) == 50 + 30
    (case,) = read_experiment(text + network([0], "30ms/10ms"), "a.toml").cases
    assert case.name == "1f1b, a 30ms/10ms"


def test_a_cap_may_be_in_bytes_and_backwards_may_free_a_part() -> None:
    text = shape(2, 8) + runtime("ready", "cap = 4\n") + network([0], "20ms")
    sized = text.replace("[[iteration.runtime]]", 'activation_bytes = "2GB"\n[[iteration.runtime]]')
    in_bytes = sized.replace("cap = 4", 'memory_bytes = "8GB"')
    assert figures(in_bytes)["activations"] == figures(text)["activations"] == [4, 4]
    assert time_ms(in_bytes) == time_ms(text) == 280
    freed = in_bytes.replace("activation_bytes", "freed_at_backward = 0.5\nactivation_bytes")
    assert time_ms(freed) == 270


def test_recomputation_lengthens_the_backward_by_a_share_of_the_forward() -> None:
    text = shape(2) + runtime("1f1b", "recompute = 0.5") + network([0], "0ms")
    # Two backwards for the input are on the critical path.
    assert time_ms(text) == 50 + 2 * 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            runtime("ready", 'cap = 3\nmemory_bytes = "6GB"'),
            "[iteration.runtime 0]: cap and memory_bytes exclude each other: give one of them",
        ),
        (
            runtime("ready", 'memory_bytes = "6GB"'),
            "[iteration.runtime 0]: memory_bytes needs activation_bytes, the size of an activation",
        ),
        (
            runtime("1f1b", "recompute = 2"),
            "[iteration.runtime 0] recompute: must be a number from 0 to 1, not 2",
        ),
    ],
)
def test_a_mistake_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_experiment(shape(2) + text + network([0], "0ms"), "a.toml")
    assert str(raised.value).startswith(f"a.toml: {said}")
