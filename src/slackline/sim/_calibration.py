"""The measured costs of a host, and costs of simulated hosts drawn from them.

    slackline doctor --save host.json                            writes the costs
    slackline simulate experiment.toml --calibration host.json   draws from them

Each cost has a median and a 95th percentile. Costs of hosts are drawn from the log-normal
distribution with these two percentiles: costs are positive, and large costs are not rare.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Any

from slackline.errors import UsageError
from slackline.sim._fabric import Host

__all__ = ["CALIBRATION_VERSION", "Costs", "HostCalibration", "Spread"]

CALIBRATION_VERSION = 1
"""The version of the file's format; a file of another version is refused."""

_KIND = "host calibration"
_P95 = 1.6448536269514722
"""The 95th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median and the 95th percentile of a cost."""

    p50: float
    p95: float

    def draw(self, chance: Random) -> float:
        """Return a value of the log-normal distribution with these two percentiles."""
        sigma = math.log(self.p95 / self.p50) / _P95
        return self.p50 * math.exp(sigma * chance.gauss(0.0, 1.0))

    @classmethod
    def of(cls, samples: list[float]) -> "Spread":
        """Return the percentiles of one or more samples; a sample below 1 counts as 1.

        Costs are at least one unit, so that a ratio of two costs exists.
        """
        ordered = sorted(max(1.0, sample) for sample in samples)
        last = len(ordered) - 1
        return cls(p50=ordered[round(last * 0.5)], p95=ordered[round(last * 0.95)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of one simulated host."""

    host: Host
    """A host with these costs in place of the simulator's defaults; its NICs are not calibrated."""
    computing: float
    """The duration of computations, relative to those that an experiment states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCalibration:
    """The measured costs of a host."""

    message_shm_ns: Spread
    """The time of a message of 8 bytes through shared memory, from send to receive."""
    message_tcp_ns: Spread
    """The time of a message of 8 bytes over TCP on the loopback interface, from send to receive."""
    byte_ps: Spread
    """Picoseconds for each byte of a message of 1 MiB through shared memory."""
    wakeup_ns: Spread
    """The time by which a message to a sleeping rank is later than a message to a polling rank."""
    reduce_byte_ps: Spread
    """Picoseconds for each byte that is read by an addition of float32 numbers on one core."""
    compute_ns: Spread
    """The mean time, over 16 products, to multiply two 256 x 256 matrices of float32 on one
    core."""

    def draw(self, chance: Random) -> Costs:
        """Return the costs of one host, drawn from the measured spread.

        Each end of a message over TCP costs half of the message's time, as `Host.frame_ps`. The
        time of a wake-up is added to the latency of messages between ranks of one host; half of
        that time is added to the latency of each cable, since a message crosses two.
        """
        wakeup_ns = self.wakeup_ns.draw(chance)
        host = Host(
            rates_bps=(1,),
            latency_ps=round(500 * wakeup_ns),
            frame_ps=round(500 * self.message_tcp_ns.draw(chance)),
            reduce_bytes_per_second=max(1, round(1e12 / self.reduce_byte_ps.draw(chance))),
            memory_bytes_per_second=max(1, round(1e12 / self.byte_ps.draw(chance))),
            memory_latency_ps=round(1000 * (self.message_shm_ns.draw(chance) + wakeup_ns)),
        )
        return Costs(host=host, computing=self.compute_ns.draw(chance) / self.compute_ns.p50)

    def spreads(self) -> dict[str, Spread]:
        """Return each cost by its name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def to_json(self) -> str:
        """Return the calibration as the text of a file."""
        head = {"kind": _KIND, "version": CALIBRATION_VERSION}
        return json.dumps({**head, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def parse(cls, text: str, name: str) -> "HostCalibration":
        """Parse the text of a calibration file; errors name the file by `name`.

        Raises UsageError that names the file and the key of a wrong or missing value.
        """
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise UsageError(f"{name} is not JSON") from None
        if not isinstance(given, dict) or given.get("kind") != _KIND:
            raise UsageError(f'{name} is not of the kind "{_KIND}": doctor --save writes it')
        if (version := given.get("version")) != CALIBRATION_VERSION:
            raise UsageError(f"{name}: version must be {CALIBRATION_VERSION}, not {version!r}")
        known = [item.name for item in fields(cls)]
        for key in given:
            if key not in ("kind", "version", *known):
                raise UsageError(f"{name}: there is no {key!r}; known are {', '.join(known)}")
        return cls(**{key: _spread(given, key, name) for key in known})


def _spread(given: Mapping[str, Any], key: str, name: str) -> Spread:
    if key not in given:
        raise UsageError(f"{name} lacks {key!r}")
    spread = given[key]
    if not isinstance(spread, dict) or set(spread) != {"p50", "p95"}:
        raise UsageError(f'{name}: {key} must have "p50" and "p95", not {spread!r}')
    for which, value in spread.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < 1e15:
            raise UsageError(f"{name}: {key}.{which} must be a positive number, not {value!r}")
    if spread["p95"] < spread["p50"]:
        raise UsageError(
            f"{name}: {key}.p95 must be at least p50, {spread['p50']}, not {spread['p95']}"
        )
    return Spread(**spread)
