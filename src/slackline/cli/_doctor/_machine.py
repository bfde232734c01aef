"""All checks of this machine."""

from slackline.cli._doctor._container import container
from slackline.cli._doctor._finding import Finding
from slackline.cli._doctor._lab import lab_findings
from slackline.cli._doctor._network import network_findings
from slackline.cli._doctor._paths import path_findings
from slackline.cli._doctor._system import system_findings
from slackline.env import container_variables

__all__ = ["machine"]


def machine(ranks: int, *, lab: bool = True) -> list[Finding]:
    """Check this machine for a job of `ranks` ranks on it; open no connection.

    `lab` adds the checks of what a lab (a virtual network on this machine) requires.
    """
    return [
        *system_findings(ranks),
        *network_findings(),
        *path_findings(),
        *(lab_findings(container(container_variables())) if lab else []),
    ]
