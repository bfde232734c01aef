"""The stages: what each measures, with how many ranks, under which limit and environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["STAGES", "Stage"]

_MOST_DELAY_ON_CPU_MS = 5


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the benchmark that runs in processes of its own, under a limit of its own."""

    name: str
    module: str
    """The module whose function `run` gets each `Rank`."""
    ranks: int
    limit_s: float
    shown: str
    """What a run on the CPU shows; empty if it shows nothing but that the code runs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    delay_ms: int = 0
    """The delay of the link between ranks 0 and 1, in each direction; on the CPU at most 5 ms."""
    also_on_cpu: bool = True
    """Whether a run on the CPU has the stage; it leaves out what another stage shows too."""

    def variables(self, *, cpu: bool) -> dict[str, str]:
        """Return the environment variables of the stage's ranks."""
        if not self.delay_ms:
            return dict(self.environment)
        delay_ms = min(self.delay_ms, _MOST_DELAY_ON_CPU_MS) if cpu else self.delay_ms
        faults = f"link 0-1 delay {delay_ms}ms"
        return {**self.environment, "SLACKLINE_RAILS": "tcp", "SLACKLINE_FAULTS": faults}


STAGES = (
    Stage(name="facts", module="facts", ranks=1, limit_s=30, shown="the versions"),
    Stage(name="gates", module="gates", ranks=1, limit_s=40, shown="the order of copies"),
    Stage(
        name="gates, one connection",
        module="gates",
        ranks=1,
        limit_s=25,
        shown="",
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        also_on_cpu=False,
    ),
    Stage(name="copies", module="copies", ranks=1, limit_s=30, shown=""),
    Stage(
        name="correctness",
        module="correctness",
        ranks=2,
        limit_s=50,
        shown="the order of copies and operations",
    ),
    Stage(name="death", module="death", ranks=2, limit_s=30, shown="the error on the CPU"),
    Stage(name="steps, 2 ranks", module="steps", ranks=2, limit_s=100, shown="equal losses"),
    Stage(
        name="blocked link",
        module="blocked",
        ranks=2,
        limit_s=40,
        shown="",
        delay_ms=200,
    ),
    Stage(
        name="pipeline",
        module="pipelines",
        ranks=2,
        limit_s=60,
        shown="the plans on the CPU",
        delay_ms=20,
    ),
    Stage(name="tests", module="suite", ranks=1, limit_s=130, shown=""),
    Stage(
        name="steps, 4 ranks",
        module="steps",
        ranks=4,
        limit_s=80,
        shown="equal losses",
        also_on_cpu=False,
    ),
)
"""The stages in the order in which they run: the last ones are left out first if time runs out."""
