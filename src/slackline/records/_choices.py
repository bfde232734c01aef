"""The records of choices, of the values of settings, and of predicted step times."""

from dataclasses import dataclass

__all__ = ["Decision", "Promise", "Setting"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A choice that the library made, with its reason."""

    rank: int
    """The rank in the job."""
    time_ns: int
    """Unix time of the choice."""
    subject: str
    """The thing that was chosen: "plan", "shares", "groups", "schedule" or "forecast"."""
    choice: str
    """The choice, such as the name of a plan."""
    reason: str
    """The reason as a sentence or phrase."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The value of a setting on one rank, and its origin."""

    rank: int
    """The rank in the job."""
    time_ns: int
    """Unix time at which the setting took effect."""
    name: str
    """The setting's name: that of its variable, in lower case and without SLACKLINE_."""
    value: str
    """The value as text that the variable accepts; empty for no value, "?" for a value that no text
    can express, such as a whole plan."""
    origin: str
    """"argument", a value that the script passed; "environment", the value of the variable;
    "default"; or "trial", a value that the library has found by measurement."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A predicted duration of the steps that follow, to be compared with their measured duration.

    The prediction is about all steps of the rank from `time_ns` until the next prediction of the
    same source.
    """

    rank: int
    """The rank in the job that has written the record."""
    time_ns: int
    """Unix time from which the prediction holds."""
    source: str
    """The part that has predicted: "schedule", the replay of a pipeline's plan with measured times
    and delays; or "groups", the trial of sizes of groups of gradients."""
    choice: str
    """The choice with this step time: the name of a plan, or a size of groups."""
    wall_ns: int
    """The predicted duration of a step."""
