"""Tests of the selection of a plan by measurements and cost model together."""

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import Timing, fastest


def timing(name: str, short_ns: int, large_ns: int) -> Timing:
    return Timing(name=name, short_bytes=64, short_ns=short_ns, large_bytes=1088, large_ns=large_ns)


def test_times_between_and_beyond_the_two_sizes_lie_on_their_line() -> None:
    tried = timing("mesh", 1000, 3048)
    assert [tried.at(n) for n in (0, 64, 576, 1088, 2112)] == [1000, 1000, 2024, 3048, 5096]


def test_a_line_that_falls_is_taken_for_level() -> None:
    assert timing("mesh", 2000, 1000).at(1 << 20) == 2000


def test_where_the_model_sees_no_difference_the_trial_decides() -> None:
    tried = [timing("direct", 1000, 9000), timing("mesh", 2000, 3000)]
    alike = {"direct": 1.0, "mesh": 1.0}
    assert fastest(tried, 64, alike).name == "direct"
    assert fastest(tried, 1088, alike).name == "mesh"


def test_where_the_model_was_not_asked_the_trial_decides_alone() -> None:
    tried = [timing("direct", 1000, 9000), timing("mesh", 2000, 3000)]
    assert fastest(tried, 64, None).name == "direct"
    assert fastest(tried, 1088, None).name == "mesh"


def test_where_the_trial_sees_no_difference_the_model_decides() -> None:
    tried = [timing("direct", 1000, 2000), timing("mesh", 1010, 1990)]
    assert fastest(tried, 1088, {"direct": 2000.0, "mesh": 1000.0}).name == "mesh"
    assert fastest(tried, 64, {"direct": 10.0, "mesh": 20.0}).name == "direct"


def test_of_near_equals_the_mesh_is_taken() -> None:
    alike = {"ring": 1.0, "mesh": 1.0}
    near = [timing("ring", 1000, 3000), timing("mesh", 1000, 3590)]
    assert fastest(near, 1088, alike).name == "mesh"
    far = [timing("ring", 1000, 3000), timing("mesh", 1000, 3610)]
    assert fastest(far, 1088, alike).name == "ring"


def test_of_near_equals_the_ring_is_taken_where_it_is_preferred() -> None:
    alike = {"ring": 1.0, "mesh": 1.0}
    near = [timing("ring", 1000, 4490), timing("mesh", 1000, 3000)]
    assert fastest(near, 1088, alike, preferred="ring").name == "ring"
    far = [timing("ring", 1000, 4510), timing("mesh", 1000, 3000)]
    assert fastest(far, 1088, alike, preferred="ring").name == "mesh"


def test_the_reason_tells_what_each_took() -> None:
    tried = [timing("direct", 1000, 9000), timing("mesh", 2000, 3024)]
    choice = fastest(tried, 1088, {"direct": 1.0, "mesh": 1.0})
    assert choice.reason == "mesh 3.02 us for 1.06 KiB, as tried; direct 9 us"


def test_nothing_tried_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"^a choice needs at least one timing, not 0$"):
        fastest([], 64, {})


def test_the_reason_says_why_the_plan_is_not_the_fastest_one() -> None:
    near = [timing("ring", 1000, 3000), timing("mesh", 1000, 3590)]
    assert fastest(near, 1088, {"ring": 1.0, "mesh": 1.0}).reason == (
        "mesh 3.59 us for 1.06 KiB, as tried, within the noise of the best plan and preferred "
        "here; ring 3 us"
    )
    tried = [timing("direct", 1000, 2000), timing("mesh", 1010, 2100)]
    assert fastest(tried, 1088, {"direct": 2000.0, "mesh": 1000.0}).reason == (
        "mesh 2.1 us for 1.06 KiB, as tried, chosen by trial and cost model together (direct won "
        "the trial alone); direct 2 us"
    )
