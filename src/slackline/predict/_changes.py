"""The grammar of changes to a run: "nics 2", "rate 1Gbit", "link 2-3 delay 30ms".

Each change is a frozen dataclass; str() of a change gives a text that is parsed to an equal change.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slackline import faults
from slackline.errors import UsageError
from slackline.faults import Fault
from slackline.plan import pipeline
from slackline.plan.collective import Collective, names
from slackline.units import (
    format_bytes,
    format_duration_ns,
    format_rate,
    parse_bytes,
    parse_duration_ns,
    parse_rate,
)

__all__ = [
    "CHANGES",
    "Bucket",
    "Change",
    "Compute",
    "FaultChange",
    "Hosts",
    "Latency",
    "Nics",
    "PlanChange",
    "Ranks",
    "Rate",
    "Schedule",
    "parse_change",
    "parse_changes",
]

CHANGES = """\
nics N | rate RATE | latency TIME | hosts N | ranks N | plan NAME | bucket SIZE | compute xFACTOR \
| schedule NAME [memory N] | a fault, such as link 2-3 delay 30ms"""
"""The grammar of a change in one line, for error messages."""

_COUNT = re.compile(r"[1-9]\d{0,6}", re.ASCII)
_FACTOR = re.compile(r"(?:x(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)x)", re.ASCII)
_MOST_FACTOR = 1000.0


@dataclass(frozen=True, slots=True)
class Nics:
    """Another number of NICs on each host."""

    count: int

    def __str__(self) -> str:
        return f"nics {self.count}"


@dataclass(frozen=True, slots=True)
class Rate:
    """Another rate of each NIC."""

    rate_bps: int

    def __str__(self) -> str:
        return f"rate {format_rate(self.rate_bps)}"


@dataclass(frozen=True, slots=True)
class Latency:
    """Another time of a message without payload from one host to another."""

    one_way_ns: int

    def __str__(self) -> str:
        return f"latency {format_duration_ns(self.one_way_ns)}"


@dataclass(frozen=True, slots=True)
class Hosts:
    """Another number of hosts, with as many ranks on each host as before."""

    count: int

    def __str__(self) -> str:
        return f"hosts {self.count}"


@dataclass(frozen=True, slots=True)
class Ranks:
    """Another number of ranks, on as many hosts as before."""

    count: int

    def __str__(self) -> str:
        return f"ranks {self.count}"


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Another plan of the all_reduces."""

    name: str

    def __str__(self) -> str:
        return f"plan {self.name}"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Another limit of the bytes of gradients in one reduction."""

    nbytes: int

    def __str__(self) -> str:
        return f"bucket {format_bytes(self.nbytes)}"


@dataclass(frozen=True, slots=True)
class Compute:
    """Computation that takes `factor` times as long: 0.5 is a device that is twice as fast."""

    factor: float

    def __str__(self) -> str:
        return f"compute x{self.factor:g}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Another schedule of a pipeline."""

    name: str
    memory: int | None = None
    """The number of activations that a stage may hold; None keeps the run's own setting."""

    def __str__(self) -> str:
        return f"schedule {self.name}" + (f" memory {self.memory}" if self.memory else "")


@dataclass(frozen=True, slots=True)
class FaultChange:
    """A fault of a link, a NIC or a rank, from the beginning of the run."""

    fault: Fault

    def __str__(self) -> str:
        return str(self.fault)


Change = (
    Nics | Rate | Latency | Hosts | Ranks | PlanChange | Bucket | Compute | Schedule | FaultChange
)


def parse_change(text: str) -> Change:
    """Parse one change; str() of the result gives an equivalent text.

    Raises UsageError that names the wrong word and shows the grammar.
    """
    words = text.split()
    try:
        if not words:
            raise UsageError("it is empty")
        if words[0] in _FAULTS:
            return FaultChange(faults.parse(text))
        if words[0] == "schedule":
            return _schedule(words[1:])
        if words[0] not in _KINDS:
            known = ", ".join((*_KINDS, "schedule", *_FAULTS))
            raise UsageError(f"it must start with one of {known}, not {words[0]!r}")
        if len(words) != 2:
            raise UsageError(f"{words[0]!r} needs one value, not {' '.join(words[1:])!r}")
        return _KINDS[words[0]](words[1])
    except UsageError as error:
        sentence = str(error).removesuffix(f"; {faults.GRAMMAR}")
        raise UsageError(
            f"cannot read the change {text.strip()!r}: {sentence}; {CHANGES}"
        ) from None


def parse_changes(text: str) -> tuple[Change, ...]:
    """Parse changes that are made together; semicolons separate them.

    Raises UsageError as `parse_change` does, and for a text without a change.
    """
    found = tuple(parse_change(part) for part in text.split(";") if part.strip())
    return found or (parse_change(text.strip("; ")),)


def _nics(text: str) -> Change:
    return Nics(_count("nics", text))


def _rate(text: str) -> Change:
    rate_bps = parse_rate(text)
    if not rate_bps:
        raise UsageError(f"the rate must be positive, not {text!r}")
    return Rate(rate_bps)


def _latency(text: str) -> Change:
    return Latency(parse_duration_ns(text))


def _hosts(text: str) -> Change:
    return Hosts(_count("hosts", text))


def _ranks(text: str) -> Change:
    return Ranks(_count("ranks", text))


def _plan(text: str) -> Change:
    known = names(Collective.ALL_REDUCE, helpers=1, by_host=True)
    if text not in known:
        raise UsageError(
            f"the plan of an all_reduce must be one of {', '.join(known)}, not {text!r}"
        )
    return PlanChange(text)


def _bucket(text: str) -> Change:
    return Bucket(parse_bytes(text))


def _compute(text: str) -> Change:
    match = _FACTOR.fullmatch(text)
    factor = float(match[1] or match[2]) if match else 0.0
    if not 0.0 < factor <= _MOST_FACTOR:
        raise UsageError(f"a factor must be like x1.5, above 0 and at most x1000, not {text!r}")
    return Compute(factor)


def _schedule(words: list[str]) -> Change:
    name = words[0] if words else ""
    if name not in pipeline.names():
        known = ", ".join(pipeline.names())
        raise UsageError(f"the schedule must be one of {known}, not {name!r}")
    match words[1:]:
        case []:
            return Schedule(name)
        case ["memory", count]:
            return Schedule(name, _count("memory", count))
    raise UsageError(f"behind the schedule may stand memory N, not {' '.join(words[1:])!r}")


def _count(what: str, text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise UsageError(f"{what} must be a positive integer, not {text!r}")
    return int(text)


_FAULTS = ("link", "nic", "rank")
_KINDS: Mapping[str, Callable[[str], Change]] = {
    "nics": _nics,
    "rate": _rate,
    "latency": _latency,
    "hosts": _hosts,
    "ranks": _ranks,
    "plan": _plan,
    "bucket": _bucket,
    "compute": _compute,
}
