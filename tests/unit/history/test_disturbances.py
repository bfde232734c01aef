"""Tests of the disturbances of links: one for each rail and condition, with times and total."""

from slackline.detect import Condition, Episode
from slackline.history import disturbances

S = 1_000_000_000


def _episode(
    source: int,
    target: int,
    since_s: float,
    until_s: float | None,
    condition: Condition = Condition.SILENT,
    rail: int = 0,
) -> Episode:
    return Episode(
        source=source,
        target=target,
        rail=rail,
        condition=condition,
        reason=f"{source}>{target} since {since_s}",
        heard_ns=0,
        over_ns=0,
        since_ns=round(since_s * S),
        until_ns=None if until_s is None else round(until_s * S),
    )


def test_no_episode_gives_no_disturbance() -> None:
    assert disturbances([], [(0, 1, 0)]) == []


def test_overlapping_times_of_both_directions_count_once() -> None:
    (found,) = disturbances([_episode(1, 0, 10.0, 12.0), _episode(0, 1, 11.0, 13.0)])
    assert (found.name, found.condition, found.times) == ("0-1", "silent", 1)
    assert (found.first_ns, found.lasted_ns, found.lasts) == (10 * S, 3 * S, False)
    assert found.total == "3 s"
    assert found.reason == "0>1 since 11.0"


def test_a_link_that_flaps_is_counted_and_the_last_time_may_go_on() -> None:
    episodes = [_episode(2, 3, at_s, at_s + 0.5) for at_s in (1.0, 2.0, 3.0)]
    (found,) = disturbances([*episodes, _episode(2, 3, 4.0, None)])
    assert (found.name, found.times, found.total) == ("2>3", 4, "1.5 s, then to the end")
    (found,) = disturbances([_episode(2, 3, 4.0, None)])
    assert (found.times, found.total) == (1, "to the end")


def test_a_time_without_an_end_takes_in_all_later_times() -> None:
    (found,) = disturbances([_episode(0, 1, 1.0, None), _episode(1, 0, 2.0, 3.0)])
    assert (found.times, found.lasted_ns, found.lasts) == (1, 0, True)


def test_conditions_and_rails_are_apart_in_the_order_of_their_starts() -> None:
    found = disturbances(
        [
            _episode(0, 1, 5.0, 6.0, Condition.SLOW, rail=1),
            _episode(0, 1, 4.0, 6.0, rail=1),
            _episode(2, 3, 1.0, 2.0, Condition.LOSING),
        ],
        [(0, 1, 0), (1, 0, 1), (2, 3, 0)],
    )
    assert [(each.name, each.condition) for each in found] == [
        ("2>3", "losing"),
        ("0>1, rail 1", "silent"),
        ("0>1, rail 1", "slow"),
    ]
