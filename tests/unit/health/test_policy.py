"""What to do with a rail, in words."""

import pytest

from slackline.health import (
    Action,
    PolicyOptions,
    RailFacts,
    Shift,
    WayState,
    silent,
    spare,
    take_back,
)

MS = 1_000_000
S = 1_000_000_000
OPTIONS = PolicyOptions()


def _facts(**facts: object) -> RailFacts:
    return RailFacts(name="tcp a>b", **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "action", "reason"),
    [
        ({}, Action.USE, "tcp a>b owes no answer"),
        (
            {"in_flight": True, "quiet_since_ns": 9950 * MS},
            Action.USE,
            "tcp a>b has been silent for 50 ms, of 100 ms that it may",
        ),
        (
            {"in_flight": True, "quiet_since_ns": 9700 * MS, "round_trip_ns": 40 * MS},
            Action.USE,
            "tcp a>b has been silent for 300 ms, of 320 ms that it may",
        ),
        (
            {"in_flight": True, "quiet_since_ns": 9700 * MS, "others": 1},
            Action.SUSPECT,
            "tcp a>b has been silent for 300 ms: its frames go over the other rails",
        ),
        (
            {"in_flight": True, "quiet_since_ns": 9700 * MS},
            Action.USE,
            "tcp a>b has been silent for 300 ms, and the link has no other rail",
        ),
        (
            {"in_flight": True, "quiet_since_ns": 8000 * MS, "others": 1},
            Action.DROP,
            "tcp a>b has been silent for 2000 ms: it is dialled again",
        ),
    ],
)
def test_silence(facts: dict[str, object], action: Action, reason: str) -> None:
    assert silent(10 * S, _facts(**facts), OPTIONS) == (action, reason)


def test_a_slow_rail_is_spared_where_another_is_well() -> None:
    slow = WayState(
        source=2,
        target=3,
        rail=1,
        name="tcp a>b",
        usual_ns=200_000,
        latency=Shift(since_ns=12 * S, usual=200_000, now=31_200_000),
    )
    well = WayState(source=2, target=3, rail=0, name="tcp c>d", usual_ns=200_000)
    choice = spare(20 * S, slow, [well])
    assert choice == (
        Action.SPARE,
        "link 2>3 on rail 1 (tcp a>b) is slow since 12.0 s: 31 ms over its usual 0.2 ms; "
        "rail 0 of the link is well",
    )
    assert spare(20 * S, slow, [slow]).action is Action.USE
    assert spare(20 * S, well, [slow]) == (
        Action.USE,
        "link 2>3 on rail 0 (tcp c>d) is well: 0.2 ms one way as usual",
    )


@pytest.mark.parametrize(
    ("facts", "action", "reason"),
    [
        ({}, Action.WAIT, "tcp a>b has answered 0 of 1 times in a row"),
        (
            {"answers": 1, "suspected_ns": (99 * S,)},
            Action.USE,
            "tcp a>b answers again: it is taken back",
        ),
        (
            {"answers": 1, "suspected_ns": (70 * S, 80 * S, 99 * S)},
            Action.WAIT,
            "tcp a>b answers, and was suspected 3 times lately: it is taken back in 1000 ms",
        ),
        (
            {"answers": 1, "suspected_ns": (1 * S, 99 * S)},
            Action.USE,
            "tcp a>b answers again: it is taken back",
        ),
    ],
)
def test_a_rail_that_answers_is_taken_back_later_each_time(
    facts: dict[str, object], action: Action, reason: str
) -> None:
    assert take_back(100 * S, _facts(**facts), OPTIONS) == (action, reason)
