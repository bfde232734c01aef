import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackline.errors import UsageError
from slackline.plan.collective import NOBODY, Instruction, Kind

NUMBERS = st.integers(0, 1 << 20)
INSTRUCTIONS = st.one_of(
    st.builds(Instruction, st.sampled_from([Kind.SEND, Kind.COPY, Kind.BUFFER]), NUMBERS, NUMBERS),
    st.builds(Instruction, st.just(Kind.ADD), NUMBERS, NUMBERS, st.booleans()),
    st.builds(Instruction, st.just(Kind.REDUCE_ALL), st.just(NOBODY), NUMBERS),
)


@settings(deadline=None)
@given(INSTRUCTIONS)
def test_the_text_of_an_instruction_reads_back_as_the_same_instruction(
    instruction: Instruction,
) -> None:
    assert Instruction.parse(str(instruction)) == instruction


@settings(deadline=None)
@given(INSTRUCTIONS)
def test_the_text_of_an_instruction_is_one_token(instruction: Instruction) -> None:
    assert re.fullmatch(r"[A-Z0-9_!]+", str(instruction))


@pytest.mark.parametrize(
    ("instruction", "token"),
    [
        (Instruction(Kind.SEND, 2, 0), "SEND_2C0"),
        (Instruction(Kind.ADD, 1, 3), "ADD_1C3"),
        (Instruction(Kind.ADD, 1, 3, last=True), "ADD_1C3!"),
        (Instruction(Kind.COPY, 1, 3), "COPY_1C3"),
        (Instruction(Kind.BUFFER, 2, 0), "BUFFER_2C0"),
        (Instruction(Kind.REDUCE_ALL, NOBODY, 0), "REDUCE_ALL_C0"),
    ],
)
def test_instructions_have_the_tokens_of_the_contract(instruction: Instruction, token: str) -> None:
    assert str(instruction) == token


@pytest.mark.parametrize(
    "token", ["", "SEND", "SEND_2", "send_2C0", "SEND_02C0", "SEND_2C0 ", "X_1C1"]
)
def test_what_is_no_token_is_shown_with_the_kinds_there_are(token: str) -> None:
    with pytest.raises(UsageError) as error:
        Instruction.parse(token)
    assert str(error.value) == (
        f'"{token}" is no instruction like "ADD_1C3!"; '
        "kinds are SEND, ADD, COPY, BUFFER, REDUCE_ALL"
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((Kind.REDUCE_ALL, 1, 0), "a REDUCE_ALL has no peer: peer must be -1, not 1"),
        ((Kind.SEND, NOBODY, 0), "peer must be a rank, not -1"),
        ((Kind.SEND, 1, -2), "chunk must be at least 0, not -2"),
        ((Kind.COPY, 1, 0, True), "only an ADD can be marked last, not a COPY"),
    ],
)
def test_an_impossible_instruction_is_refused_with_its_value(
    values: tuple[Kind, int, int], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        Instruction(*values)
    assert str(error.value) == message
