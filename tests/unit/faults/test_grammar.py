"""Tests of the grammar of faults: the meaning of each form, and the errors for wrong ones."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.errors import UsageError
from slackline.faults import (
    GRAMMAR,
    NOTHING,
    Effects,
    Fault,
    LinkFault,
    NicFault,
    Plan,
    RankFault,
    parse,
    parse_all,
)

MS = 10**6
S = 10**9

TIMES = {
    "start_ns": st.integers(0, 10**15),
    "length_ns": st.none() | st.integers(1, 10**15),
}
PARTS = st.floats(0.0, 1.0)
EFFECTS = st.builds(
    Effects,
    delay_ns=st.integers(0, 10**12),
    jitter_ns=st.integers(0, 10**12),
    rate_bps=st.none() | st.integers(1, 10**12),
    loss=PARTS,
    duplicate=PARTS,
    reorder=PARTS,
    corrupt=PARTS,
    down=st.booleans(),
    seed=st.integers(0, 10**18 - 1),
).filter(lambda effects: effects != Effects(seed=effects.seed))
NUMBERS = st.integers(0, 999_999)
LINKS = (
    st.tuples(NUMBERS, NUMBERS)
    .filter(lambda ends: ends[0] != ends[1])
    .flatmap(
        lambda ends: st.builds(
            LinkFault,
            source=st.just(ends[0]),
            target=st.just(ends[1]),
            both=st.booleans(),
            effects=EFFECTS,
            **TIMES,
        )
    )
)
NICS = st.builds(NicFault, host=NUMBERS, nic=NUMBERS, effects=EFFECTS, **TIMES) | st.builds(
    NicFault,
    host=NUMBERS,
    nic=NUMBERS,
    effects=(EFFECTS | st.just(NOTHING)).filter(lambda effects: not effects.down),
    flap_ns=st.integers(1, 10**12),
    **TIMES,
)
RANKS = (
    st.builds(RankFault, rank=NUMBERS, action=st.just("kill"), start_ns=TIMES["start_ns"])
    | st.builds(RankFault, rank=NUMBERS, action=st.just("stop"), **TIMES)
    | st.builds(
        RankFault,
        rank=NUMBERS,
        action=st.just("slow"),
        factor=st.floats(1.0, 1000.0, exclude_min=True),
        **TIMES,
    )
)
FAULTS: st.SearchStrategy[Fault] = LINKS | NICS | RANKS


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "link 2-3 delay 30ms from 10s for 5s",
            LinkFault(
                source=2,
                target=3,
                effects=Effects(delay_ns=30 * MS),
                start_ns=10 * S,
                length_ns=5 * S,
            ),
        ),
        (
            "link 2>3 loss 1%",
            LinkFault(source=2, target=3, both=False, effects=Effects(loss=0.01)),
        ),
        (
            "link 2-3 delay 30ms jitter 5ms loss 1% seed 7",
            LinkFault(
                source=2,
                target=3,
                effects=Effects(delay_ns=30 * MS, jitter_ns=5 * MS, loss=0.01, seed=7),
            ),
        ),
        (
            "nic 2.1 down from 3s for 2s",
            NicFault(host=2, nic=1, effects=Effects(down=True), start_ns=3 * S, length_ns=2 * S),
        ),
        ("nic 2.1 flap 500ms", NicFault(host=2, nic=1, flap_ns=500 * MS)),
        ("nic 2.1 rate 100Mbit", NicFault(host=2, nic=1, effects=Effects(rate_bps=10**8))),
        ("rank 2 kill from 5s", RankFault(rank=2, action="kill", start_ns=5 * S)),
        (
            "rank 2 stop from 5s for 1s",
            RankFault(rank=2, action="stop", start_ns=5 * S, length_ns=S),
        ),
        (
            "rank 2 slow 2x from 5s",
            RankFault(rank=2, action="slow", factor=2.0, start_ns=5 * S),
        ),
        (
            "link 0-1 duplicate 2% reorder 25% corrupt 0.1%",
            LinkFault(
                source=0,
                target=1,
                effects=Effects(duplicate=0.02, reorder=0.25, corrupt=0.001),
            ),
        ),
    ],
)
def test_a_fault_says_what_it_is_and_is_written_as_it_was_read(text: str, fault: Fault) -> None:
    assert parse(text) == fault
    assert str(fault) == text


@given(FAULTS)
def test_every_fault_reads_back_from_its_text(fault: Fault) -> None:
    assert parse(str(fault)) == fault


WORDS = st.sampled_from(
    (
        *("link", "nic", "rank", "0-1", "1>0", "2-2", "0.1", "1", "-1", "99999999", "kill", "stop"),
        *("slow", "2x", "1x", "nanx", "delay", "jitter", "rate", "loss", "duplicate", "reorder"),
        *("corrupt", "down", "flap", "seed", "from", "for", "5ms", "0s", "9" * 40 + "h", "1Gbit"),
        *("3%", "101%", "7", "9" * 30, ";", "", "\u0663ms", "\x00"),
    )
)


@given(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=60))
def test_any_words_are_faults_or_a_usage_error(text: str) -> None:
    try:
        plan = parse_all(text)
    except UsageError:
        return
    assert parse_all(str(plan)) == plan


@given(st.lists(FAULTS, max_size=4))
def test_every_plan_reads_back_from_its_text(faults: list[Fault]) -> None:
    plan = Plan(tuple(faults))
    assert parse_all(str(plan)) == plan


def test_faults_stand_in_one_text_or_in_several() -> None:
    plan = parse_all(["link 0-1 down; rank 1 kill;", "nic 0.0 down"])
    assert str(plan) == "link 0-1 down; rank 1 kill; nic 0.0 down"
    assert parse_all("") == parse_all([]) == Plan()
    assert not Plan()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it is empty"),
        ("lnk 2-3 down", "it must start with one of link, nic, rank, not 'lnk'"),
        ("link 2_3 down", "a link must be like 2-3 or 2>3, not '2_3'"),
        ("link", "a link must be like 2-3 or 2>3, not ''"),
        ("link 2-2 down", "a link joins different hosts, not 2 and 2"),
        ("link 2-3", "a fault needs at least one effect that is not zero"),
        ("link 2-3 seed 3", "a fault needs at least one effect that is not zero"),
        (
            "link 2-3 dely 30ms",
            "'dely' is none of delay, jitter, rate, loss, duplicate, reorder, corrupt, down, "
            "seed, from, for",
        ),
        ("link 2-3 delay", "'delay' needs a value"),
        (
            "link 2-3 delay 30",
            "a duration must be a number and one of ns, us, ms, s, min, h, not '30'",
        ),
        ("link 2-3 delay 0ms", "delay must be positive, not '0ms'"),
        ("link 2-3 loss 0%", "loss must be positive, not '0%'"),
        (
            "link 2-3 loss 0.01",
            "a percentage must be a number from 0 to 100 followed by %, not '0.01'",
        ),
        ("link 2-3 down down", "'down' occurs twice"),
        ("link 2-3 down for 0s", "for must be positive, not '0s'"),
        ("link 2-3 down seed x", "'x' is not a number"),
        ("nic 2 down", "a NIC must be HOST.NIC, such as 2.1, not '2'"),
        ("nic 2.1 down flap 1s", "a NIC that is down cannot flap"),
        ("rank two kill", "'two' is not a number"),
        ("rank 2 die", "'die' is none of kill, stop, slow"),
        ("rank 2 slow", "a factor must be a number followed by x, not ''"),
        ("rank 2 slow 1x", "a rank can be 1 to 1000 times slower, not 1 times"),
        ("rank 2 kill for 1s", "a killed rank stays dead: kill takes no duration (for)"),
        ("rank 2 kill 3", "'3' is none of from, for"),
    ],
)
def test_a_wrong_word_is_named_and_the_grammar_shown(text: str, complaint: str) -> None:
    message = f"cannot read the fault {text!r}: {complaint}; {GRAMMAR}"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        parse(text)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"delay_ns": -1}, "delay_ns must be at least 0, not -1"),
        ({"rate_bps": 0}, "a rate must be positive, not 0: use down instead"),
        ({"loss": 1.5}, "loss must be between 0 and 1, not 1.5"),
    ],
)
def test_effects_that_cannot_be_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        Effects(**values)  # type: ignore[arg-type]
