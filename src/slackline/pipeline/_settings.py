"""The settings of a schedule: the arguments of the script, or else the environment's values."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from slackline.env import Environment
from slackline.pipeline._config import ScheduleConfig
from slackline.pipeline._plans import Memory
from slackline.plan.pipeline import PipelinePlan
from slackline.records import Setting

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The schedule, the memory and the sender of messages of a pipeline, with their origins."""

    schedule: str | PipelinePlan
    memory: Memory
    delegation: str
    origins: Mapping[str, str]
    """The origin of each setting by its name, as in `Setting.origin`."""

    @classmethod
    def choose(
        cls,
        schedule: str | PipelinePlan | None,
        memory: Memory,
        config: ScheduleConfig,
        environment: Environment,
    ) -> Self:
        """Return the script's arguments; a value of `environment`, or a default, replaces None."""
        given = {
            "schedule": (schedule, environment.schedule),
            "schedule_memory": (memory, environment.schedule_memory),
            "delegation": (config.delegation, environment.delegation),
        }
        return cls(
            schedule=schedule or environment.schedule or "auto",
            memory=environment.schedule_memory if memory is None else memory,
            delegation=config.delegation or environment.delegation or "auto",
            origins={name: _origin(*pair) for name, pair in given.items()},
        )

    def records(self, rank: int) -> list[Setting]:
        """Return a telemetry record of each setting; `rank` is the rank in the job."""
        values = {
            "schedule": self.schedule if isinstance(self.schedule, str) else "?",
            "schedule_memory": _text(self.memory),
            "delegation": self.delegation,
        }
        now_ns = time.time_ns()
        return [
            Setting(rank=rank, time_ns=now_ns, name=name, value=value, origin=self.origins[name])
            for name, value in values.items()
        ]


def _origin(argument: object, variable: object) -> str:
    if argument is not None:
        return "argument"
    return "default" if variable is None else "environment"


def _text(memory: Memory) -> str:
    """Return `memory` as SLACKLINE_SCHEDULE_MEMORY accepts it; empty for no limit."""
    if memory is None:
        return ""
    if isinstance(memory, list | tuple):
        return ",".join("none" if each is None else str(each) for each in memory)
    return str(memory)
