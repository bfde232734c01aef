"""Tests of the full text of verdicts, which are sentences that report a fault."""

import pytest

from slackline.detect import Condition, DirectionState, HealthOptions, Shift, judge
from slackline.errors import UsageError

MS = 1_000_000
S = 1_000_000_000
START = 1000 * S
NOW = START + 15 * S

LATENCY = Shift(since_ns=START + 12_400 * MS, baseline=200_000, now=31_200_000)
BANDWIDTH = Shift(since_ns=START + 12_600 * MS, baseline=117.5e6, now=26.25e6)
LOSS = Shift(since_ns=START + 11_000 * MS, baseline=0.0, now=0.012)


@pytest.mark.parametrize(
    ("facts", "condition", "sentence"),
    [
        ({}, Condition.WELL, "link 2>3 is well: 200 us one way as usual"),
        ({"known": False}, Condition.LEARNING, "link 2>3 is being measured"),
        (
            {"latency": LATENCY, "queueing": True},
            Condition.SLOW,
            "link 2>3 is slow since 12.4 s: 31 ms over its usual 200 us; "
            "queueing at the sender's NIC",
        ),
        (
            {"latency": LATENCY},
            Condition.SLOW,
            "link 2>3 is slow since 12.4 s: 31 ms over its usual 200 us",
        ),
        (
            {"bandwidth": BANDWIDTH, "queueing": False},
            Condition.SLOW,
            "link 2>3 is slow since 12.6 s: carries 210 Mbit/s of its usual 940 Mbit/s; "
            "nothing more than usual waits at the sender",
        ),
        (
            {"loss": LOSS, "queueing": False},
            Condition.LOSING,
            "link 2>3 loses 1.2% of packets since 11.0 s",
        ),
        (
            {"latency": LATENCY, "bandwidth": BANDWIDTH, "loss": LOSS, "queueing": True},
            Condition.SLOW,
            "link 2>3 is slow since 11.0 s: 31 ms over its usual 200 us, "
            "carries 210 Mbit/s of its usual 940 Mbit/s, loses 1.2% of packets; "
            "queueing at the sender's NIC",
        ),
        (
            {"silent_since_ns": START + 12_400 * MS, "latency": LATENCY},
            Condition.SILENT,
            "link 2-3 is silent since 12.4 s: no answer for 2.6 s",
        ),
        (
            {"cut_since_ns": START + 12_400 * MS, "silent_since_ns": START + 12_400 * MS},
            Condition.CUT,
            "link 2-3 is cut since 12.4 s",
        ),
    ],
)
def test_a_state_is_a_word_and_a_sentence(
    facts: dict[str, object], condition: Condition, sentence: str
) -> None:
    state = DirectionState(source=2, target=3, baseline_ns=200_000, **facts)  # type: ignore[arg-type]
    assert judge(NOW, state, start_ns=START) == (condition, sentence)


def test_a_rail_is_named_where_the_link_has_several() -> None:
    state = DirectionState(source=2, target=3, rail=1, name="udp 10.77.1.3>10.77.1.4")
    assert judge(NOW, state, alone=False).reason == (
        "link 2>3 on rail 1 (udp 10.77.1.3>10.77.1.4) is well: 0 s one way as usual"
    )


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("evidence", 0.0, "evidence must be positive, not 0.0"),
        ("least_delay_ns", -1, "least_delay_ns must be positive, not -1"),
        ("least_change", 1.5, "least_change must be below 1, not 1.5"),
    ],
)
def test_a_wrong_option_is_named(option: str, value: float, message: str) -> None:
    with pytest.raises(UsageError) as error:
        HealthOptions(**{option: value})  # type: ignore[arg-type]
    assert str(error.value) == message


def test_a_silent_link_has_one_name_whichever_end_notices_first() -> None:
    ends = [
        DirectionState(source=source, target=5 - source, silent_since_ns=START) for source in (2, 3)
    ]
    sentences = {judge(NOW, end, start_ns=START).reason for end in ends}
    assert sentences == {"link 2-3 is silent since 0.0 s: no answer for 15 s"}
