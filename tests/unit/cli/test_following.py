"""Tests of the time that ranks have to end after SIGTERM."""

import re
from datetime import timedelta

import pytest
from torch.distributed.launcher.api import LaunchConfig

from slackline.cli._job._following import format_time, shutdown_time
from slackline.errors import UsageError


@pytest.mark.parametrize(
    ("given", "variable", "seconds"),
    [
        ("2min", None, 120),
        ("1500ms", "7", 1.5),
        ("300", None, 300),
        ("0s", None, 0),
        (None, "600", 600),
        (None, "", 30),
        (None, None, 30),
    ],
)
def test_the_option_wins_over_torchrun_s_variable(
    given: str | None, variable: str | None, seconds: float
) -> None:
    environment = {} if variable is None else {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": variable}
    assert shutdown_time(given, environment) == timedelta(seconds=seconds)


def test_the_default_is_torchrun_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    torchrun_s = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1).shutdown_timeout
    assert torchrun_s is not None
    assert shutdown_time(None, {}) == timedelta(seconds=torchrun_s)


@pytest.mark.parametrize(
    ("given", "variable", "message"),
    [
        ("soon", None, "--shutdown-timeout soon: a duration must be "),
        ("-1", None, "--shutdown-timeout -1: a duration must be "),
        (None, "never", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT never: a duration must be "),
    ],
)
def test_a_wrong_time_is_named(given: str | None, variable: str | None, message: str) -> None:
    environment = {} if variable is None else {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": variable}
    with pytest.raises(UsageError, match=re.escape(message)):
        shutdown_time(given, environment)


def test_a_time_is_shown_in_its_largest_unit() -> None:
    assert [format_time(timedelta(seconds=each)) for each in (300, 90, 0.5)] == [
        "5min",
        "90s",
        "500ms",
    ]
