import json
from fractions import Fraction

import pytest

from slackline.errors import UsageError
from slackline.plan.pipeline import Scenario, StageMemory, parse_scenario

FILE = {
    "stages": 3,
    "microbatches": 5,
    "forward_ms": [10, 10.5, 9],
    "backward_input_ms": 11,
    "backward_weight_ms": [8, 8, 0.001],
    "link_forward_delay_ms": [0, 60],
    "activation_cap": [3, 4.5, 3],
    "freed_at_backward": 0.5,
}


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in FILE.items() if name != key}


def test_a_file_is_read_to_the_picosecond() -> None:
    scenario = parse_scenario(json.dumps(FILE))
    assert scenario.forward_ps == (10_000_000_000, 10_500_000_000, 9_000_000_000)
    assert scenario.backward_input_ps == (11_000_000_000,) * 3
    assert scenario.backward_weight_ps == (8_000_000_000, 8_000_000_000, 1_000_000)
    assert scenario.forward_delay_ps == (0, 60_000_000_000)
    assert scenario.backward_delay_ps == (0, 0)
    assert scenario.memory[1] == StageMemory(activation=2, freed_at_backward=1, cap=9)


def test_caps_may_be_bytes() -> None:
    given = without("activation_cap") | {"memory_bytes": 1000, "activation_bytes": [300, 200, 100]}
    memory = parse_scenario(json.dumps(given)).memory
    assert memory[0] == StageMemory(activation=300, freed_at_backward=150, cap=1000)
    assert memory[2] == StageMemory(activation=100, freed_at_backward=50, cap=1000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forward_ms": [1, 2]}, "forward_ms must have one value for each of the 3 stages, not 2"),
        (
            {"link_forward_delay_ms": [1, 2, 3]},
            "link_forward_delay_ms must have one value for each of the 2 links, not 3",
        ),
        ({"forward_ms": [1, "a", 3]}, "forward_ms[1] must be a number, not 'a'"),
        ({"forward_ms": [1, 0, 3]}, "forward_ps[1] must be at least 1, not 0"),
        ({"backward_input_ms": -1}, "backward_input_ms must be at least 0, not -1"),
        ({"stages": 2.5}, "stages must be an integer, not 2.5"),
        ({"stages": True}, "stages must be a number, not True"),
        ({"stages": 0}, "stages must be a positive integer, not 0"),
        ({"microbatches": 0}, "microbatches must be a positive integer, not 0"),
        ({"freed_at_backward": 1.5}, "freed_at_backward must be between 0 and 1, not 1.5"),
        ({"activation_cap": [3, 0.5, 3]}, "stage 1, F0: needs 1 activation, but the cap is 0.5"),
        (
            {"memory_bytes": 5},
            'a cap on memory is given either by "activation_cap", or by "memory_bytes" and '
            '"activation_bytes" together',
        ),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_scenario(json.dumps(FILE | change))
    assert str(error.value) == message


def test_a_missing_and_an_unknown_key_are_named() -> None:
    with pytest.raises(UsageError, match=r'^the scenario lacks "forward_ms"$'):
        parse_scenario(json.dumps(without("forward_ms")))
    with pytest.raises(UsageError, match=r'^a scenario has no "colour"; it has stages, '):
        parse_scenario(json.dumps(FILE | {"colour": 1}))
    with pytest.raises(UsageError, match=r"^the scenario is not JSON: "):
        parse_scenario("{")
    with pytest.raises(UsageError, match=r"^the scenario must be a JSON object, not '\[\]'$"):
        parse_scenario("[]")


def test_caps_are_counted_in_activations_whatever_their_unit() -> None:
    scenario = Scenario.uniform(2, 3, freed=Fraction(1, 3)).capped([Fraction(5, 2), None])
    first, second = scenario.memory
    assert (first.activation, first.freed_at_backward, first.cap) == (6, 2, 15)
    assert (second.activation, second.freed_at_backward, second.cap) == (3, 1, None)


def test_a_delay_is_put_on_one_link() -> None:
    scenario = Scenario.uniform(3, 1).delayed(1, 7, 9)
    assert (scenario.forward_delay_ps, scenario.backward_delay_ps) == ((0, 7), (0, 9))
    assert scenario.delayed(0, 4).backward_delay_ps == (4, 9)
    with pytest.raises(UsageError, match=r"^link must be from 0 to 1, not 2$"):
        scenario.delayed(2, 1)


def test_stages_of_one_rank_have_no_delay_between_them() -> None:
    scenario = Scenario.uniform(4, 2)
    for link in range(3):
        scenario = scenario.delayed(link, 10 + link, 20 + link)
    placed = scenario.placed((0, 1, 1, 0))
    assert (placed.forward_delay_ps, placed.backward_delay_ps) == ((10, 0, 12), (20, 0, 22))
    assert placed.delayed(1, 11, 21) == scenario
