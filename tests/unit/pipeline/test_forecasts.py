"""Tests of the option `forecast`: its conditions, and its decisions as telemetry."""

import sys

import pytest

from slackline.errors import UsageError
from slackline.pipeline._forecasts import forecaster_for
from slackline.pipeline._policy import POLICIES
from slackline.pipeline.replan._decision import StepMetrics
from slackline.records import Decision

MS = 1_000_000


def test_forecasts_need_a_policy_that_makes_new_plans():
    with pytest.raises(UsageError) as raised:
        forecaster_for(POLICIES["ready"], 3, 0, lambda record: None)
    assert str(raised.value) == 'forecast=True needs the policy "adaptra" or "auto", not "ready"'


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    for name in list(sys.modules):
        if name.startswith(("slackline.pipeline.forecast", "slackline.pipeline.replan.foresight")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy.ndimage", None)
    with pytest.raises(UsageError) as raised:
        forecaster_for(POLICIES["auto"], 3, 0, lambda record: None)
    assert str(raised.value) == (
        "forecast=True needs the package scipy: pip install 'slackline-torch[forecast]'"
    )


def test_a_model_that_is_taken_and_given_up_is_recorded_with_its_reason():
    records: list[Decision] = []
    found = forecaster_for(POLICIES["auto"], 2, 5, records.append)
    # Link 1-2 is slow for 6 of every 20 steps, up to step 140; steps take 400 ms.
    for step in range(145):
        delay = 40 * MS if step < 140 and step % 20 < 6 else 0
        found.step_ended(step, 400 * step * MS, 400 * (step + 1) * MS)
        metrics = StepMetrics(
            step=step,
            forward=(MS,) * 3,
            backward=(MS,) * 3,
            weights=(MS,) * 3,
            down=(0, delay),
            up=(0, delay),
        )
        expected = found.expected(metrics, 400 * (step + 1) * MS)
        assert set(expected) <= {1}
    assert [(each.rank, each.subject, each.choice) for each in records] == [
        (5, "forecast", "link 1-2: periodic"),
        (5, "forecast", "link 1-2: no forecast"),
    ]
    assert records[1].reason == (
        "Nothing can be foretold: the latest forecasts of the model periodic were wrong."
    )
