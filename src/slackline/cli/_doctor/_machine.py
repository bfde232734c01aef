"""All checks of this machine."""

from slackline.cli._doctor._finding import Finding
from slackline.cli._doctor._lab import lab_findings
from slackline.cli._doctor._network import network_findings
from slackline.cli._doctor._system import system_findings

__all__ = ["machine"]


def machine(ranks: int, *, lab: bool = True) -> list[Finding]:
    """What a job of so many ranks on this machine meets; opens no connection."""
    return [*system_findings(ranks), *network_findings(), *(lab_findings() if lab else [])]
