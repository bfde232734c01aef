"""The settings that may shorten a script's steps: a pure function of the facts about the script.

A candidate changes one setting that the script uses and that neither the script nor the user has
chosen. No candidate changes the order of sums: where the job sums in rank order, only plans that
sum in rank order are candidates.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from slackline.cli._tune._facts import Facts
from slackline.env import DELEGATIONS
from slackline.nic import NicOptions
from slackline.plan.collective import TREE, Collective, generate, names
from slackline.plan.pipeline import SCHEDULES
from slackline.units import format_bytes, parse_bytes, show_bytes

__all__ = ["DEFAULTS", "Candidate", "candidates", "combined"]

_SEGMENTS = tuple(1 << exponent for exponent in range(16, 21))
"""The segment sizes in bytes that are tried: 64 KiB to 1 MiB."""
_MEMORY_SEGMENT = NicOptions().memory_segment_bytes
_GROUP_FACTORS = (4, 16)
"""The ratios between the size of groups that the library has found and the sizes that are tried.
The library itself has tried the sizes 0, 256 KiB, 1 MiB, 4 MiB and the whole model."""
_SMALLEST_GROUP, _LARGEST_GROUP = 16 << 10, 64 << 20


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings, by name, that differ from the defaults; a candidate without any is the defaults."""

    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self._text(_shown)

    def exact(self) -> str:
        """Return the text of the settings with their exact values, for files."""
        return self._text(str)

    def _text(self, shown: Callable[[str], str]) -> str:
        said = (f"{name} {shown(value)}" for name, value in self.settings.items())
        return ", ".join(said) or "defaults"


def _shown(value: str) -> str:
    """Return a setting's value for people: of a number of bytes, three digits."""
    number = value.removesuffix("B")
    return show_bytes(int(number)) if number.isdecimal() and number != value else value


DEFAULTS = Candidate()


def combined(one: Candidate, other: Candidate) -> Candidate | None:
    """Return both candidates' settings as one candidate; None if both change the same setting."""
    if one.settings.keys() & other.settings.keys():
        return None
    return Candidate(settings={**one.settings, **other.settings})


def candidates(facts: Facts) -> list[Candidate]:
    """Return the candidates for a script, one of each setting in turn."""
    kinds = {
        "schedule": _schedules(facts),
        "plan": _plans(facts),
        "segment": _segments(facts),
        "rails": _rails(facts),
        "group_bytes": _groups(facts),
        "delegation": _delegations(facts),
    }
    columns = [
        [Candidate(settings={name: value}) for value in values]
        for name, values in kinds.items()
        if facts.is_open(name)
    ]
    return [each for row in zip_longest(*columns) for each in row if each is not None]


def _schedules(facts: Facts) -> Iterator[str]:
    used = facts.value("schedule")
    for name, row in SCHEDULES.items():
        fits = facts.one_stage_a_rank if row.one_stage_a_rank else not facts.one_stage_a_rank
        if name != used and (fits or name in ("auto", "ready")):
            yield name


def _plans(facts: Facts) -> Iterator[str]:
    if not facts.plans:
        return
    order = facts.value("order", "auto")
    in_rank_order = order == "rank" or (order == "auto" and not facts.wires)
    most = max(facts.plans, key=lambda name: facts.plans[name])
    if most == TREE:
        return  # No other plan adds the nodes of virtual ranks.
    helpers = 1 if facts.value("aggregator") else 0
    for name in names(Collective.ALL_REDUCE, helpers=helpers):
        # Two ranks have only one order of additions.
        ordered = (
            facts.ranks == 2 or generate(Collective.ALL_REDUCE, name, facts.ranks).rank_ordered
        )
        if name != most and (ordered or not in_rank_order):
            yield name


def _segments(facts: Facts) -> Iterator[str]:
    used = parse_bytes(facts.value("segment")) if facts.wires else _MEMORY_SEGMENT
    # A segment is a part of a rank's chunk: a longer segment than the chunk changes nothing.
    chunk = facts.largest_bytes // facts.ranks
    for size in _SEGMENTS:
        if size != used and min(size, used) < chunk:
            yield format_bytes(size)


def _rails(facts: Facts) -> Iterator[str]:
    if facts.wires:
        used = facts.value("rails").split(",")
        other = {"tcp": "udp", "udp": "tcp"}
        changed = [other.get(rail, rail) for rail in used]
        if len(set(changed)) == len(changed):
            yield ",".join(changed)


def _groups(facts: Facts) -> Iterator[str]:
    found = facts.value("group_bytes")
    if not found:
        return  # The library's own trial has not ended, so its choice is unknown.
    for factor in _GROUP_FACTORS:
        for size in (parse_bytes(found) // factor, parse_bytes(found) * factor):
            if _SMALLEST_GROUP <= size <= _LARGEST_GROUP:
                yield format_bytes(size)


def _delegations(facts: Facts) -> Iterator[str]:
    yield from (name for name in DELEGATIONS if name != facts.value("delegation"))
