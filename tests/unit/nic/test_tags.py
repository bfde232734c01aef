"""Tests of the reservation of a group's tags."""

import pytest

from slackline.errors import UsageError
from slackline.nic import TagAllocator


def test_reservations_never_overlap_and_leave_the_low_message_tags_to_user_programs():
    tags = TagAllocator()
    assert [tags.reserve_reductions(count) for count in (3, 0, 5)] == [0, 3, 3]
    top = 1 << 24
    assert [tags.reserve_messages(count) for count in (1, 10, 4)] == [top - 1, top - 11, top - 15]


def test_a_reservation_of_more_tags_than_are_left_is_refused_and_takes_none():
    tags = TagAllocator()
    tags.reserve_reductions((1 << 24) - 2)
    with pytest.raises(UsageError) as caught:
        tags.reserve_reductions(3)
    assert str(caught.value) == (
        "a group has 16777216 tags for reductions, of which 16777214 are reserved: "
        "no room for 3 more"
    )
    assert tags.reserve_reductions(2) == (1 << 24) - 2
    tags.reserve_messages(5)
    with pytest.raises(UsageError) as caught:
        tags.reserve_messages(15 << 20)
    assert str(caught.value) == (
        "a group has 15728640 tags to reserve for messages, of which 5 are reserved: "
        "no room for 15728640 more"
    )
    assert tags.reserve_messages((15 << 20) - 5) == 1 << 20
