"""Tests of the window that holds records until those of the other ranks have come."""

from slackline.views.trace._window import Family, Window


def test_a_family_leaves_when_the_last_rank_s_record_has_come() -> None:
    window = Window[str](10)
    assert list(window.add("a", 0, "x", (0, 1))) == []
    assert list(window.add("b", 1, "z", (0, 1))) == []
    assert list(window.add("a", 1, "y", (0, 1))) == [Family({0: "x", 1: "y"}, complete=True)]
    assert list(window.finish()) == [Family({1: "z"}, complete=False)]
    assert list(window.finish()) == []


def test_the_oldest_family_leaves_a_full_window_incomplete() -> None:
    window = Window[int](2)
    assert list(window.add("a", 0, 1, (0, 1))) == []
    assert list(window.add("b", 0, 2, (0, 1))) == []
    assert list(window.add("c", 0, 3, (0, 1))) == [Family({0: 1}, complete=False)]
    assert list(window.add("c", 1, 4, (0, 1))) == [Family({0: 3, 1: 4}, complete=True)]
    assert list(window.finish()) == [Family({0: 2}, complete=False)]


def test_a_second_record_of_a_rank_begins_a_new_family() -> None:
    window = Window[int](10)
    assert list(window.add("a", 0, 1, (0, 1))) == []
    assert list(window.add("a", 0, 2, (0, 1))) == [Family({0: 1}, complete=False)]
    assert list(window.add("a", 1, 3, (0, 1))) == [Family({0: 2, 1: 3}, complete=True)]
