"""Options of a NIC engine."""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Self

from slackline._lazy import record
from slackline.env import LISTEN, NICS, ORDERS, RAILS, SHARES, TLS, Environment, parse_circuit
from slackline.errors import UsageError
from slackline.plan.collective import Collective, generate, names
from slackline.units import format_bytes, format_duration_ns

__all__ = ["LIMITS", "NicOptions", "variable_of"]

CHECKSUMS = ("wire", "all", "none")
_SEVERAL_RANKS = 4  # Two ranks have one order of additions.
_DEVICES_PLANS = ("reduce-broadcast", "ring")
_SMALLEST_SEGMENT = 4096
_LARGEST_SEGMENT = 16 << 20
_SMALLEST_ARENA = 16 << 20

_VARIABLES = {
    "order": "order",
    "plan": "plan",
    "shares": "shares",
    "nic": "nic",
    "nic_check": "nic_check",
    "circuit": "circuit",
    "aggregator": "aggregator",
    "rails": "rails",
    "timeout": "timeout",
    "wire_segment_bytes": "segment",
    "memory_segment_bytes": "segment",
    "arena_bytes": "arena",
    "interfaces": "interface",
    "listen": "listen",
    "congestion": "congestion",
    "tls": "tls",
    "key": "key",
    "faults": "faults",
}
"""The field of Environment that an option's default is read from."""
LIMITS = ("arena_bytes", "timeout")
"""The options in which ranks may differ, with a warning."""


@record(frozen=True, kw_only=True)
class NicOptions:
    """Options of a NIC engine.

    All ranks of a job must have the same values, except for `nic`, `nic_check`, `circuit`,
    `interfaces`, `listen`, `congestion`, and the path of the `key` file. Other values of
    `arena_bytes` and `timeout` on some ranks lead to a warning.
    """

    order: str = "auto"
    """The order of additions. "rank": every element is summed in rank order, so that the same
    inputs always give the same bits. "any": the order of the fastest plan. "auto": "rank" where all
    ranks share memory, and where every rank is on a host of its own, since rank order costs little
    there, unless `plan` sums in another order; "any" in all other groups.
    """
    plan: str = "auto"
    """The plan (algorithm) of every all_reduce; "auto" chooses by measured cost."""
    nic: str = "software"
    """The adder. "software": the engine. "circuit": a ring NIC, simulated by Verilator. "twin": the
    bit-exact Python model of that circuit. The last two need the extra `circuit`. If a rank uses a
    circuit or twin, all ranks use the plan "reduce-broadcast" for the sums that circuits support,
    and sum in rank order.
    """
    nic_check: int | None = None
    """The check interval of the nic "twin" (the Python model): one in this many operations is
    repeated on the simulated circuit, in the background, and must give identical bits. 0 disables
    the check. None checks one in a thousand, if a ring NIC has been compiled on this machine. Other
    nics ignore the option.
    """
    circuit: str = ""
    """Sizes of the "circuit" or "twin", for example "lanes=1,slots=2,payload=128,operations=8". The
    defaults are the defaults of RingOptions, but lanes=4 and slots=4 for a circuit. A group uses
    the shortest payload (bytes) of its ranks. The nic "software" ignores the option.
    """
    shares: str = "auto"
    """The division of long all_reduces among the ranks: each rank reduces its share of the data.
    "auto": the shares follow the measured rates of the network ports, so that a rank with a slow
    port gets a smaller share. For this, each of at least three ranks needs a host of its own, and
    `plan` must be "auto" or "mesh". "measured": as "auto", also for ranks of one host that are
    connected by TCP or UDP. "equal": all shares are equal and never change."""
    aggregator: str = ""
    """The address of an aggregator (`slackline aggregate`), for example "10.0.0.9:7000", which
    reduces in the plan "star". Without an aggregator, or if a rank cannot reach it, the other plans
    are used."""
    rails: tuple[str, ...] = ("shm", "tcp")
    """The kinds of rails (connections) to use: "shm", shared memory, between ranks of one host;
    "tcp" and "udp" between other ranks, and between all ranks if "shm" is not listed."""
    timeout: timedelta | None = None
    """The default timeout of an operation; None takes the timeout that the group is opened with."""
    wire_segment_bytes: int = 128 << 10
    """The longest payload of a frame on a TCP or UDP rail, in bytes."""
    memory_segment_bytes: int = 256 << 10
    """The longest part of a tensor that is reduced at once through shared memory, in bytes."""
    eager_bytes: int = 256 << 10
    """The bytes of an operation that may be sent before the peer has posted the operation."""
    arena_bytes: int = 64 << 30
    """The limit of registered memory in bytes; a page is allocated when it is first touched."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces to use, by name, or by address ("10.0.0.1/24") where an interface has
    several; empty uses all interfaces that are up. Two ranks get a rail for each subnet that both
    have an interface in, and its sockets send from that interface's address. Ranks of one host use
    the loopback interface, unless this option names interfaces."""
    listen: str | None = None
    """The addresses of the listener. "all": those of all interfaces. "loopback": those of the
    loopback interface alone, which only ranks of this host can reach. None: "all", but
    `init_process_group` then takes the environment's value. Named `interfaces` and an `aggregator`
    need their addresses, so that the listener has these whatever this option says."""
    connections: int = 1
    """The number of rails of each kind over each path (pair of interfaces)."""
    congestion: str = "auto"
    """The kernel's TCP congestion control for TCP rails, for example "reno" or "cubic". "system"
    takes the system's default; "auto" takes it too, but replaces BBR by CUBIC where the round trip
    is at most 5 ms."""
    tls: str = "off"
    """"off" or "require". "require" encrypts TCP rails by TLS 1.3, with certificates that are made
    when the engine starts, and needs the extra `tls`. Shared memory is not encrypted, since its
    data never leave the host."""
    key: Path | None = None
    """A file with a secret key of at least 16 bytes that only the ranks have. The key is mixed into
    the job's secret, so that access to the rendezvous store is not enough to join the job."""
    faults: str = ""
    """Faults that the engine injects into its own frames, to try a job on a bad network: "link 0-1
    loss 1%; nic 0.1 down from 10s for 2s" (slackline.faults defines the grammar). Time 0 is when
    the first group has its links, and host numbers are ranks of that group. Faults of ranks (kill,
    stop, slow) are ignored here."""
    checksums: str = "wire"
    """The payloads that carry a checksum: "wire", payloads that leave the host; "all", also
    payloads over TCP within a host, which never leave memory; "none". Headers always carry a
    checksum.
    """

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UsageError(f"order must be one of {', '.join(ORDERS)}, not {self.order!r}")
        if self.shares not in SHARES:
            raise UsageError(f"shares must be one of {', '.join(SHARES)}, not {self.shares!r}")
        if self.aggregator:
            from slackline.nic._host_port import parse_address  # Most jobs have no aggregator.

            parse_address(self.aggregator)
        if self.plan == "star" and not self.aggregator:
            raise UsageError("the plan 'star' needs an aggregator: give its address")
        plans = names(Collective.ALL_REDUCE, helpers=1, by_host=True)
        if self.plan != "auto" and self.plan not in plans:
            raise UsageError(f"plan must be auto or one of {', '.join(plans)}, not {self.plan!r}")
        if self.nic not in NICS:
            raise UsageError(f"nic must be one of {', '.join(NICS)}, not {self.nic!r}")
        if self.nic_check is not None and self.nic_check < 0:
            raise UsageError(f"nic_check must be at least 0, not {self.nic_check}")
        parse_circuit(self.circuit)
        if self.nic != "software" and self.plan not in ("auto", *_DEVICES_PLANS):
            runs = " or ".join(map(repr, _DEVICES_PLANS))
            raise UsageError(f"the nic {self.nic!r} runs the plan {runs}, not {self.plan!r}")
        if self.nic != "software" and self.aggregator:
            raise UsageError(
                f"an aggregator adds for all ranks, and the nic {self.nic!r} adds for one rank: "
                "configure only one of them"
            )
        if self.order == "rank" and not self.keeps_rank_order():
            raise UsageError(f"the plan {self.plan!r} does not sum in rank order")
        if not self.rails or any(rail not in RAILS for rail in self.rails):
            raise UsageError(f"rails must be some of {', '.join(RAILS)}, not {self.rails!r}")
        for field in ("wire_segment_bytes", "memory_segment_bytes"):
            value = getattr(self, field)
            if not _SMALLEST_SEGMENT <= value <= _LARGEST_SEGMENT or value % 64:
                raise UsageError(
                    f"{field} must be a multiple of 64 from {_SMALLEST_SEGMENT} "
                    f"to {_LARGEST_SEGMENT}, not {value}"
                )
        if self.eager_bytes < 0:
            raise UsageError(f"eager_bytes must be at least 0, not {self.eager_bytes}")
        if self.arena_bytes < _SMALLEST_ARENA:
            raise UsageError(
                f"arena_bytes must be at least {_SMALLEST_ARENA}, not {self.arena_bytes}"
            )
        if self.checksums not in CHECKSUMS:
            raise UsageError(
                f"checksums must be one of {', '.join(CHECKSUMS)}, not {self.checksums!r}"
            )
        if not 1 <= self.connections <= 16:
            raise UsageError(f"connections must be 1 to 16, not {self.connections}")
        if len(set(self.interfaces)) < len(self.interfaces):
            raise UsageError(f"each interface may be named once, not {self.interfaces!r}")
        if self.listen not in (None, *LISTEN):
            raise UsageError(f"listen must be one of {', '.join(LISTEN)}, not {self.listen!r}")
        if self.tls not in TLS:
            raise UsageError(f"tls must be one of {', '.join(TLS)}, not {self.tls!r}")
        if self.tls == "require" and "udp" in self.rails:
            raise UsageError(
                "tls encrypts TCP rails only: leave udp out of rails, or use tls='off'"
            )
        if self.faults:
            from slackline.faults import parse_all  # Most jobs inject no faults.

            parse_all(self.faults)
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise UsageError(f"timeout must be positive, not {self.timeout}")

    @classmethod
    def from_env(cls, environment: Environment) -> Self:
        """Return the default options, changed by the environment variables that are set."""
        given = {name: getattr(environment, variable) for name, variable in _VARIABLES.items()}
        return cls(**{name: value for name, value in given.items() if value is not None})

    def origins(self, environment: Environment) -> dict[str, tuple[str, str]]:
        """Return the value and the origin of the settings that change how fast operations are.

        The keys are order, plan, shares, aggregator, rails and segment. A value is text as the
        variable accepts it; the origin is "environment" for the value in `environment`, "default"
        for the default without a value there, else "argument". Equal values count as one: an
        argument that repeats the environment's value has the origin "environment".
        """
        usual, asked = NicOptions(), asdict(self)
        variables = {
            "order": ("order", environment.order),
            "plan": ("plan", environment.plan),
            "shares": ("shares", environment.shares),
            "aggregator": ("aggregator", environment.aggregator),
            "rails": ("rails", environment.rails),
            "segment": ("wire_segment_bytes", environment.segment),
        }
        found = {}
        for name, (field, variable) in variables.items():
            value, default = asked[field], getattr(usual, field)
            if variable is not None and value == variable:
                origin = "environment"
            else:
                origin = "default" if variable is None and value == default else "argument"
            found[name] = _as_text(value), origin
        return found

    def keeps_rank_order(self) -> bool:
        """Return whether the configured plan sums in rank order for every number of ranks."""
        if self.plan == "auto":
            return True
        return generate(Collective.ALL_REDUCE, self.plan, _SEVERAL_RANKS).rank_ordered

    def agreed(self) -> dict[str, object]:
        """Return the options that must be equal on all ranks, or should be (`LIMITS`), by name."""
        return {
            "order": self.order,
            "plan": self.plan,
            "shares": self.shares,
            "aggregator": self.aggregator,
            "rails": list(self.rails),
            "wire_segment_bytes": self.wire_segment_bytes,
            "memory_segment_bytes": self.memory_segment_bytes,
            "eager_bytes": self.eager_bytes,
            "connections": self.connections,
            "checksums": self.checksums,
            "tls": self.tls,
            "faults": self.faults,
            "key": "none" if self.key is None else "given",
            "arena_bytes": format_bytes(self.arena_bytes),
            "timeout": "the group's" if self.timeout is None else _duration(self.timeout),
        }


def variable_of(option: str) -> str:
    """Return the environment variable of an option of NicOptions; "" if the option has none."""
    name = _VARIABLES.get(option)
    return "" if name is None else f"SLACKLINE_{name.upper()}"


def _duration(value: timedelta) -> str:
    return format_duration_ns(value // timedelta(microseconds=1) * 1000)


def _as_text(value: str | int | tuple[str, ...]) -> str:
    """Return the value of a setting as its environment variable accepts it."""
    if isinstance(value, int):
        return format_bytes(value)
    return value if isinstance(value, str) else ",".join(value)
