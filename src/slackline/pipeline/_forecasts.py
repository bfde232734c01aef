"""The forecasts of a schedule: whether they are possible, and their decisions as telemetry."""

import logging
import time
from collections.abc import Callable

from slackline._distribution import install
from slackline.errors import UsageError
from slackline.pipeline._policy import POLICIES, Policy
from slackline.pipeline.replan import Forecaster
from slackline.records import Decision

__all__ = ["forecaster_for"]

_log = logging.getLogger("slackline.pipeline")


def forecaster_for(
    policy: Policy, links: int, rank: int, write: Callable[[Decision], None]
) -> Forecaster:
    """Return the forecasts of the delays of `links` links, for a schedule with the policy.

    The log, and a record that is given to `write`, tell when a link's delay can be foretold, and
    when it no longer can. `rank` is the rank in the job. Raises UsageError for a policy that makes
    no new plans, and where scipy is not installed.
    """
    if not policy.replans:
        able = " or ".join(f'"{each.name}"' for each in POLICIES.values() if each.replans)
        raise UsageError(f'forecast=True needs the policy {able}, not "{policy.name}"')
    try:
        from slackline.pipeline.replan.foresight import Foresight
    except ModuleNotFoundError as error:
        package = (error.name or "scipy").partition(".")[0]
        raise UsageError(
            f"forecast=True needs the package {package}: {install('forecast')}"
        ) from None

    def report(choice: str, reason: str) -> None:
        _log.info("forecast for %s: %s", choice, reason)
        write(
            Decision(
                rank=rank,
                time_ns=time.time_ns(),
                subject="forecast",
                choice=choice,
                reason=reason,
            )
        )

    return Foresight(links, report)
