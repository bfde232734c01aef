import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slackline._native as _native
from slackline.errors import UsageError
from slackline.plan.collective import LINE_BYTES, split

COUNTS = st.integers(0, 1 << 40)
PARTS = st.integers(1, 70)
ITEM_SIZES = st.sampled_from([1, 2, 4, 8])
WEIGHTS = st.lists(st.integers(0, 1 << 26), min_size=1, max_size=40).filter(any)


@settings(deadline=None)
@given(COUNTS, PARTS, ITEM_SIZES)
def test_parts_cover_the_buffer_without_gap_or_overlap(
    count: int, parts: int, itemsize: int
) -> None:
    cut = split(count, parts, itemsize)
    assert len(cut) == parts
    position = 0
    for offset, size in cut:
        assert offset == position
        assert size >= 0
        position += size
    assert position == count


@settings(deadline=None)
@given(COUNTS, PARTS, ITEM_SIZES)
def test_every_part_that_has_elements_begins_on_a_line(
    count: int, parts: int, itemsize: int
) -> None:
    for offset, size in split(count, parts, itemsize):
        assert size == 0 or offset * itemsize % LINE_BYTES == 0


@settings(deadline=None)
@given(COUNTS, PARTS, ITEM_SIZES)
def test_part_i_has_its_share_of_the_lines_and_the_first_parts_one_more(
    count: int, parts: int, itemsize: int
) -> None:
    lines = -(-count * itemsize // LINE_BYTES)
    for i, (_, size) in enumerate(split(count, parts, itemsize)):
        expected = lines // parts + (1 if i < lines % parts else 0)
        assert -(-size * itemsize // LINE_BYTES) == expected


@settings(deadline=None)
@given(COUNTS, WEIGHTS, ITEM_SIZES)
def test_weighted_parts_cover_the_buffer_and_are_within_a_line_of_their_weight(
    count: int, weights: list[int], itemsize: int
) -> None:
    lines, whole = -(-count * itemsize // LINE_BYTES), sum(weights)
    position = 0
    for (offset, size), weight in zip(
        split(count, len(weights), itemsize, weights), weights, strict=True
    ):
        assert offset == position
        assert size == 0 or offset * itemsize % LINE_BYTES == 0
        exact = lines * weight / whole
        assert exact - 1 <= -(-size * itemsize // LINE_BYTES) <= exact + 1
        assert weight > 0 or size == 0
        position += size
    assert position == count


@settings(deadline=None)
@given(COUNTS, WEIGHTS, ITEM_SIZES)
def test_the_engine_cuts_by_the_same_weights(count: int, weights: list[int], itemsize: int) -> None:
    parts = len(weights)
    assert tuple(_native.split(count, parts, itemsize, weights)) == split(
        count, parts, itemsize, weights
    )
    assert tuple(_native.split(count, parts, itemsize)) == split(count, parts, itemsize)


def test_the_engine_cuts_the_longest_buffers_by_the_largest_weights() -> None:
    count, weights = 1 << 56, [(1 << 31) - 1, 0, 1 << 31]
    assert tuple(_native.split(count, 3, 1, weights)) == split(count, 3, 1, weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1, 2), "3 parts need 3 weights, not 2"),
        ((1, -2, 3), "every weight must be at least 0, not -2"),
        ((0, 0, 0), "the sum of weights must be 1 to 4294967295, not 0"),
        ((1, 1 << 32, 0), "the sum of weights must be 1 to 4294967295, not 4294967297"),
    ],
)
def test_wrong_weights_are_named(weights: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError) as error:
        split(64, 3, 4, weights)
    assert str(error.value) == message


def test_the_examples_of_the_docstring_hold() -> None:
    assert split(40, 3, 4) == ((0, 16), (16, 16), (32, 8))
    assert split(20, 3, 4) == ((0, 16), (16, 4), (20, 0))
    assert split(128, 3, 4, (1, 0, 3)) == ((0, 32), (32, 0), (32, 96))
    assert split(0, 2, 4) == ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((-1, 1, 4), "count must be at least 0, not -1"),
        ((1, 0, 4), "parts must be a positive integer, not 0"),
        ((1, 1, 3), "itemsize must divide 64, not be 3"),
        ((1, 1, 0), "itemsize must divide 64, not be 0"),
    ],
)
def test_a_wrong_value_is_named(values: tuple[int, int, int], message: str) -> None:
    with pytest.raises(UsageError) as error:
        split(*values)
    assert str(error.value) == message
