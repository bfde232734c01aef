import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.errors import UsageError
from slackline.plan.pipeline import Instruction, Kind


@given(st.integers(0, 99), st.sampled_from(Kind), st.integers(0, 9999))
def test_a_token_reads_back_as_its_instruction(stage: int, kind: Kind, microbatch: int) -> None:
    instruction = Instruction(stage, kind, microbatch)
    assert Instruction.parse(str(instruction)) == instruction


def test_tokens_are_stage_kind_microbatch() -> None:
    assert str(Instruction(2, Kind.F, 0)) == "2F0"
    assert str(Instruction(0, Kind.BW, 11)) == "0BW11"
    assert Instruction(2, Kind.W, 3).in_stage == "W3"


@pytest.mark.parametrize("token", ["", "F0", "2F", "2X0", "02F0", "2F01", "2f0", "2F0 ", "2I0"])
def test_what_is_no_token_is_shown(token: str) -> None:
    with pytest.raises(UsageError) as error:
        Instruction.parse(token)
    assert str(error.value) == f'"{token}" is no instruction like "2F0"; kinds are F, B, W, BW'


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^stage must be at least 0, not -1$"):
        Instruction(-1, Kind.F, 0)
    with pytest.raises(UsageError, match=r"^microbatch must be at least 0, not -2$"):
        Instruction(0, Kind.F, -2)
