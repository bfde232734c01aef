"""Tests of the period of a sequence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.cli._tune._period import first_repeats, period


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ("", None),
        ("a", None),
        ("aa", None),
        ("aaa", 1),
        ("ababab", 2),
        ("abababa", 2),
        ("aabaabaab", 3),
        ("aabaab", None),
        ("xababab", None),
        ("abcabdabcabd", None),
    ],
)
def test_the_smallest_period_that_occurs_three_times(sequence: str, expected: int | None) -> None:
    assert period(sequence) == expected


@given(st.lists(st.integers(0, 2), max_size=40))
def test_the_period_is_that_of_its_definition(sequence: list[int]) -> None:
    length = len(sequence)
    found = [
        p
        for p in range(1, length // 3 + 1)
        if all(sequence[i] == sequence[i + p] for i in range(length - p))
    ]
    assert period(sequence) == (found[0] if found else None)


@pytest.mark.parametrize(
    ("sequence", "pattern", "expected"),
    [
        ("xabababab", "ab", 1),
        ("abxababab", "ab", 3),
        ("bababab", "ab", 1),
        ("ababxabab", "ab", None),
        ("aaxaaa", "a", 3),
        ("ab", "ab", None),
    ],
)
def test_the_place_where_a_pattern_first_repeats(
    sequence: str, pattern: str, expected: int | None
) -> None:
    assert first_repeats(sequence, pattern) == expected
