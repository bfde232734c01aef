"""Tests that the parts of a nic are closed one after the other, whatever one of them raises."""

import pytest

from slackline.nic._limits import run_all


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_or_an_interruption_of_a_step_leaves_out_no_further_step(
    error: type[BaseException], failing: int
) -> None:
    ran = []

    def step(place: int) -> None:
        ran.append(place)
        if place == failing:
            raise error(f"step {place}")

    with pytest.raises(error, match=f"^step {failing}$"):
        run_all([lambda place=place: step(place) for place in range(3)])  # type: ignore[misc]
    assert ran == [0, 1, 2]


def test_errors_of_further_steps_are_notes_of_the_first() -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match=r"^first\n") as caught:
        run_all([lambda: fail("first"), lambda: fail("second")])
    assert caught.value.__notes__ == ["the clean-up failed too: ValueError: second"]
