"""Tests of a schedule's settings: arguments win over the environment, which wins over defaults."""

from fractions import Fraction

import pytest

from slackline.env import Environment
from slackline.pipeline import ScheduleConfig
from slackline.pipeline._settings import Settings
from slackline.plan.pipeline import gpipe

ENVIRONMENT = Environment(schedule="1f1b", schedule_memory=(4, None), delegation="never")


def told(settings):
    return [(each.name, each.value, each.origin) for each in settings.records(3)]


def test_without_arguments_and_variables_there_are_defaults():
    settings = Settings.choose(None, None, ScheduleConfig(), Environment())
    assert (settings.schedule, settings.memory, settings.delegation) == ("auto", None, "auto")
    assert told(settings) == [
        ("schedule", "auto", "default"),
        ("schedule_memory", "", "default"),
        ("delegation", "auto", "default"),
    ]
    assert {each.rank for each in settings.records(3)} == {3}


def test_variables_replace_the_defaults():
    settings = Settings.choose(None, None, ScheduleConfig(), ENVIRONMENT)
    assert (settings.schedule, settings.memory, settings.delegation) == ("1f1b", (4, None), "never")
    assert told(settings) == [
        ("schedule", "1f1b", "environment"),
        ("schedule_memory", "4,none", "environment"),
        ("delegation", "never", "environment"),
    ]


@pytest.mark.parametrize(
    ("schedule", "name"), [("zb-h1", "zb-h1"), (gpipe(2, 4, full_backward=False), "?")]
)
def test_arguments_win_over_variables(schedule, name):
    config = ScheduleConfig(delegation="always")
    settings = Settings.choose(schedule, [Fraction(7, 2), 2], config, ENVIRONMENT)
    assert settings.schedule == schedule
    assert (settings.memory, settings.delegation) == ([Fraction(7, 2), 2], "always")
    assert told(settings) == [
        ("schedule", name, "argument"),
        ("schedule_memory", "7/2,2", "argument"),
        ("delegation", "always", "argument"),
    ]


def test_the_text_of_a_memory_is_read_back_by_the_variable():
    settings = Settings.choose(None, [Fraction(7, 2), None], ScheduleConfig(), Environment())
    text = {name: value for name, value, _ in told(settings)}["schedule_memory"]
    variable = {"SLACKLINE_SCHEDULE_MEMORY": text}
    assert Environment.read(variable).schedule_memory == (Fraction(7, 2), None)
