"""What can be set about a NIC engine."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

from slackline.env import NICS, ORDERS, RAILS, TLS, Environment, parse_circuit
from slackline.errors import UsageError
from slackline.faults import parse_all
from slackline.nic._paths import parse_address
from slackline.plan.collective import Collective, generate, names

__all__ = ["NicOptions"]

CHECKSUMS = ("wire", "all", "none")
_SEVERAL_RANKS = 4  # two ranks have one order, up to the sign of a minimum's zero
_DEVICES_PLANS = ("reduce-broadcast", "ring")
_SMALLEST_SEGMENT = 4096
_LARGEST_SEGMENT = 16 << 20
_SMALLEST_ARENA = 16 << 20


@dataclass(frozen=True, kw_only=True)
class NicOptions:
    """How an engine works.

    Every rank of a job must be given the same, but for `nic`, `nic_check`, `circuit`,
    `interfaces`, `congestion` and where its `key` lies.
    """

    order: str = "auto"
    """"rank": every element is summed in rank order, so its bits depend on nothing else;
    "any": the fastest; "auto": "rank" where all ranks share memory, which costs nothing there,
    unless `plan` names one that sums otherwise."""
    plan: str = "auto"
    """The plan of every all_reduce, or "auto": chosen by measured cost."""
    nic: str = "software"
    """What adds: "software", the engine; "circuit", a ring NIC simulated by Verilator; "twin", the
    same in Python. The last two need slackline[circuit]. If any rank has one of them, all take the
    plan "reduce-broadcast" for what circuits add, and sum in rank order."""
    nic_check: int | None = None
    """With the nic "twin": of so many operations one is also done by a simulated circuit, behind
    the twin, and must have the same bits; 0: none. None: one of a thousand, if a ring NIC has been
    compiled on this machine. Otherwise it means nothing."""
    circuit: str = ""
    """Sizes of the "circuit", or of its "twin": "lanes=1,slots=2,payload=128,operations=8"; those
    that are not named are lanes=4 and slots=4 for a circuit, and as RingOptions has them. A group
    takes the shortest payload (bytes) of its ranks. Otherwise it means nothing."""
    aggregator: str = ""
    """Where a `slackline aggregate` listens, "10.0.0.9:7000": the plan "star" reduces there.
    Without it, or where a rank cannot reach it, the other plans are used."""
    rails: tuple[str, ...] = ("shm", "tcp")
    """Kinds of rails to use: "shm" for ranks of one host, "tcp" and "udp" for the others, and for
    all where "shm" is not among them."""
    timeout: timedelta | None = None
    """Of an operation; None: what the group is opened with."""
    wire_segment_bytes: int = 128 << 10
    """Longest payload of a frame on a wire."""
    memory_segment_bytes: int = 256 << 10
    """Longest piece that is reduced at once between processes of one host."""
    eager_bytes: int = 256 << 10
    """How much of an operation is sent to a peer that has not posted it yet."""
    arena_bytes: int = 64 << 30
    """Limit of registered memory; pages are taken from the system when first touched."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces to use, by name, or by address where one has several ("10.0.0.1/24");
    empty: all that are up. Two ranks get a rail for each subnet that both have an interface in,
    and its sockets send from that interface's address. Ranks of one host use the loopback
    interface, unless named ones are given."""
    connections: int = 1
    """Rails of each kind over each path."""
    congestion: str = ""
    """The kernel's TCP congestion control for TCP rails, "reno" or "cubic" for instance; empty: the
    system's own."""
    tls: str = "off"
    """"require": TCP rails are encrypted by TLS 1.3, with certificates made for the engine's life;
    needs slackline[tls]. Shared memory stays as it is, it leaves no host."""
    key: Path | None = None
    """A file that all ranks have and nobody else, of 16 bytes or more. Mixed into the job's secret,
    so that to know the store is not enough to join the job."""
    faults: str = ""
    """What the engine does to what it sends, to try a job on a bad network: "link 0-1 loss 1%; nic
    0.1 down from 10s for 2s" (slackline.faults has the grammar). Time begins when the first group
    has its links; hosts are its ranks. Faults of ranks are left to others."""
    checksums: str = "wire"
    """Which payloads carry a checksum: "wire", those that leave the host; "all", those of TCP
    within it as well, though they never leave memory; "none". Headers always carry one."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UsageError(f"order must be one of {', '.join(ORDERS)}, not {self.order!r}")
        if self.aggregator:
            parse_address(self.aggregator)
        if self.plan == "star" and not self.aggregator:
            raise UsageError("the plan 'star' needs an aggregator: give its address")
        plans = names(Collective.ALL_REDUCE, helpers=1)
        if self.plan != "auto" and self.plan not in plans:
            raise UsageError(f"plan must be auto or one of {', '.join(plans)}, not {self.plan!r}")
        if self.nic not in NICS:
            raise UsageError(f"nic must be one of {', '.join(NICS)}, not {self.nic!r}")
        if self.nic_check is not None and self.nic_check < 0:
            raise UsageError(f"nic_check must not be negative, not {self.nic_check}")
        parse_circuit(self.circuit)
        if self.nic != "software" and self.plan not in ("auto", *_DEVICES_PLANS):
            runs = " or ".join(map(repr, _DEVICES_PLANS))
            raise UsageError(f"the nic {self.nic!r} runs the plan {runs}, not {self.plan!r}")
        if self.nic != "software" and self.aggregator:
            raise UsageError(
                f"an aggregator adds for all ranks, and the nic {self.nic!r} for its own: "
                "give one of the two"
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
            raise UsageError(f"eager_bytes must not be negative, not {self.eager_bytes}")
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
        if self.tls not in TLS:
            raise UsageError(f"tls must be one of {', '.join(TLS)}, not {self.tls!r}")
        if self.tls == "require" and "udp" in self.rails:
            raise UsageError(
                "tls encrypts TCP rails only: leave udp out of rails, or use tls='off'"
            )
        parse_all(self.faults)
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise UsageError(f"timeout must be positive, not {self.timeout}")

    @classmethod
    def from_env(cls, environment: Environment) -> Self:
        """The defaults, changed by what the environment asks for."""
        given: dict[str, object] = {
            "order": environment.order,
            "plan": environment.plan,
            "nic": environment.nic,
            "nic_check": environment.nic_check,
            "circuit": environment.circuit,
            "aggregator": environment.aggregator,
            "rails": environment.rails,
            "timeout": environment.timeout,
            "wire_segment_bytes": environment.segment,
            "memory_segment_bytes": environment.segment,
            "arena_bytes": environment.arena,
            "interfaces": environment.interface,
            "congestion": environment.congestion,
            "tls": environment.tls,
            "key": environment.key,
            "faults": environment.faults,
        }
        return cls(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]

    def keeps_rank_order(self) -> bool:
        """Whether the plan asked for sums in rank order whatever the number of ranks."""
        if self.plan == "auto":
            return True
        return generate(Collective.ALL_REDUCE, self.plan, _SEVERAL_RANKS).rank_ordered

    def agreed(self) -> dict[str, object]:
        """What all ranks must have in common."""
        return {
            "order": self.order,
            "plan": self.plan,
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
        }
