"""The order of the rules: errors of a rank's own come before their consequences on other ranks."""

from slackline.causes.ending._endings import (
    clean,
    consequence,
    interrupted,
    running,
    terminated,
    unfinished,
    unreadable,
)
from slackline.causes.ending._evidence import Evidence
from slackline.causes.ending._failures import (
    crash,
    disagreement,
    exception,
    exit_code,
    link,
    lost_rank,
    thread,
)
from slackline.causes.ending._waits import waited
from slackline.causes.ending._words import Explanation

__all__ = ["explain"]

_RULES = (
    unreadable,
    crash,
    exception,
    disagreement,
    exit_code,
    lost_rank,
    link,
    interrupted,
    waited,
    thread,
    consequence,
    terminated,
    running,
    unfinished,
)
"""The rules, the most certain cause first. The order does not depend on the clocks of the hosts."""


def explain(evidence: Evidence) -> Explanation:
    """Return the explanation of the first rule that applies to the evidence."""
    for rule in _RULES:
        if (found := rule(evidence)) is not None:
            return found
    return clean(evidence)
