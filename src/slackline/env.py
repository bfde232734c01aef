"""The only reader of the environment: all SLACKLINE_* variables, checked, in one frozen object."""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Self

from slackline._lazy import record
from slackline.errors import UsageError
from slackline.units import parse_bytes, parse_duration_ns

__all__ = [
    "DELEGATIONS",
    "LISTEN",
    "LOG_LEVELS",
    "LOG_SUBSYSTEMS",
    "NICS",
    "ORDERS",
    "RAILS",
    "SHARES",
    "TLS",
    "SERVED",
    "Environment",
    "cache_folder",
    "circuit_trace",
    "container_variables",
    "kernel_variables",
    "parse_circuit",
    "runtime_folders",
    "serves",
]

_PREFIX = "SLACKLINE_"

ORDERS = ("auto", "rank", "any")
"""The orders of reduction: chosen by the engine, always by rank, or the fastest."""

SHARES = ("auto", "measured", "equal")
"""The division of long all_reduces among ranks: by measured rates between hosts ("auto"), by
measured rates always, or into equal shares."""

RAILS = ("shm", "tcp", "udp")
"""The kinds of rails (paths between two ranks): shared memory, TCP and UDP."""

NICS = ("software", "twin", "circuit")
"""The devices that add for a rank: the engine in software, or behind it a circuit.

"twin" is the circuit's bit-exact model in Python, "circuit" is the circuit itself, simulated.
"""

LISTEN = ("all", "loopback")
"""The addresses that an engine listens at: those of all its interfaces, or of loopback alone."""

LOG_LEVELS = ("info", "debug", "trace")
"""The levels of SLACKLINE_LOG: each one shows more than the one before."""

LOG_SUBSYSTEMS = ("group", "setting", "plan", "rail", "link", "step", "operation")
"""The subsystems of SLACKLINE_LOG."""

TLS = ("off", "require")
"""The choices for encrypting TCP rails."""

DELEGATIONS = ("always", "never", "auto")
"""The choices of the sender of a pipeline's messages: always the engine, never the engine, or for
each link the cheaper one of engine and computing thread."""

Activations = int | Fraction
"""A number of activations that a pipeline's stage may hold."""

SERVED = ("gloo",)
"""The backends of torch whose groups slackline can serve under their own name."""


_SIZES = ("lanes", "slots", "payload", "operations")


def parse_circuit(text: str) -> dict[str, int]:
    """Parse the sizes of a circuit, "lanes=1,payload=128"; the result is empty for "".

    Names are lanes, slots, payload (bytes) and operations, each at most once. RingOptions and
    NodeOptions of slackline.circuit define their meaning. Raises UsageError for an invalid text.
    """
    found: dict[str, int] = {}
    for each in text.split(",") if text else ():
        name, _, value = each.partition("=")
        if name not in _SIZES or name in found:
            known = ", ".join(_SIZES)
            raise UsageError(f"a circuit's sizes are {known}, each named once, not {text!r}")
        if not (value.isascii() and value.isdigit() and len(value) < 10):
            raise UsageError(f"a circuit's {name} must be a whole number, not {value!r}")
        found[name] = int(value)
    return found


def container_variables(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables by which container engines and Kubernetes mark their processes."""
    given = os.environ if source is None else source
    marks = ("container", "KUBERNETES_SERVICE_HOST")
    return {name: given[name] for name in marks if name in given}


def kernel_variables(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables by which torch's libraries choose their instruction set."""
    given = os.environ if source is None else source
    chosen = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
    return {name: given[name] for name in chosen if name in given}


def cache_folder(source: Mapping[str, str] | None = None) -> Path:
    """Return slackline's folder in the user's cache, for files that can be generated again."""
    given = os.environ if source is None else source
    base = given.get("XDG_CACHE_HOME", "")
    # The XDG specification requires that relative paths are ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "slackline"


def runtime_folders(source: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Return slackline's folders for the files of this user's running programs, the best one first.

    The first one is in XDG_RUNTIME_DIR, if the variable names a directory. The last one is in the
    directory for temporary files, since programs of one user may have different environments.
    """
    given = os.environ if source is None else source
    base = given.get("XDG_RUNTIME_DIR", "")
    own = Path(base) if base.startswith("/") and Path(base).is_dir() else None
    shared = Path(tempfile.gettempdir()) / f"slackline-{os.getuid()}"
    return (shared,) if own is None else (own / "slackline", shared)


@record(frozen=True, kw_only=True)
class Environment:
    """The settings from the environment; None for a setting whose default is defined elsewhere.

    The variable of each field is SLACKLINE_ and the field's name in capitals, without underscores
    at its end.
    """

    order: str | None = None
    """The order of reduction: one of ORDERS."""
    plan: str | None = None
    """The name of a collective plan, or "auto"."""
    shares: str | None = None
    """The division of long all_reduces among the ranks: one of SHARES."""
    nic: str | None = None
    """The device that adds: one of NICS. Ranks may differ."""
    nic_check: int | None = None
    """The check interval N: one in N operations of a twin (a circuit's Python model) is checked.

    The simulated circuit repeats that operation and must give the same bits: "100"; "0" disables
    the check.
    """
    circuit: str | None = None
    """The sizes of the simulated circuit or of its twin (Python model):
    "lanes=1,slots=2,payload=128".
    """
    circuit_trace: tuple[Path, range] | None = None
    """The file that the wires of each simulated circuit are written to, with the cycles to write:
    "nic.vcd", or "nic.vcd@1000-2000", where the last cycle counts."""
    aggregator: str | None = None
    """The address at which an aggregation node (`slackline aggregate`) listens: "10.0.0.9:7000"."""
    rails: tuple[str, ...] | None = None
    """The rails to use, best first: members of RAILS, separated by commas."""
    timeout: timedelta | None = None
    """The time that an operation may take: "30s"."""
    segment: int | None = None
    """The number of bytes of a chunk that travel as one frame: "256KiB"."""
    arena: int | None = None
    """The number of bytes of registered memory that each process reserves: "1GiB"."""
    interface: tuple[str, ...] | None = None
    """The network interfaces to use, separated by commas: "eth0,eth1"."""
    listen: str | None = None
    """The addresses to listen at if no interface is named: one of LISTEN."""
    congestion: str | None = None
    """The TCP congestion control of TCP rails: "auto", "system", or a name such as "reno"."""
    tls: str | None = None
    """The encryption of TCP rails: one of TLS."""
    key: Path | None = None
    """A file that all ranks of the job have, whose content is mixed into the job's secret."""
    faults: str | None = None
    """Faults that the engine applies to its own sends: "link 0-1 delay 30ms".

    Semicolons separate several faults.
    """
    log: Mapping[str, str] | None = None
    """The events that each rank writes to stderr: "info" for one of LOG_LEVELS, or
    "rail=debug,plan=info" for some of LOG_SUBSYSTEMS; the key "" stands for all subsystems."""
    telemetry: Path | None = None
    """The directory that traces and counters are written to."""
    reports: Path | None = None
    """The directory for reports of failures and hangs; without it, the directory of the
    telemetry."""
    launcher: str | None = None
    """The program that shows the findings about links, "run" for `slackline run`: ranks print none
    to stderr then, unless they configure logging."""
    hang: timedelta | None = None
    """The time after which an operation that waits counts as hanging and is reported: "30s"; "0s"
    reports no hangs."""
    telemetry_limit: int | None = None
    """The number of bytes of a rank's telemetry file beyond which records are left out: "1GiB"."""
    flight_recorder: Path | None = None
    """The directory to which each rank writes its latest operations when one has failed."""
    flight_recorder_entries: int | None = None
    """The number of operations that the flight recorder of each rank keeps: "2000"."""
    group_bytes: int | None = None
    """The most bytes of gradients in one reduction of slackline.overlap: "1MiB"; "0B" reduces each
    gradient alone."""
    tensor_hashes: range | None = None
    """The steps of a training with virtual ranks whose gradients, sums and states are recorded as
    hashes: "all", "40" or "40-60", where the last step counts."""
    state_hash: str | None = None
    """The time at which the state of a training is hashed: "end", at the wrapper's end."""
    schedule: str | None = None
    """The name of the schedule of slackline.pipeline: "1f1b"."""
    schedule_memory: Activations | tuple[Activations | None, ...] | None = None
    """The most activations that a stage of a pipeline may hold: "4" for all stages, or one value
    for each stage, "4,7/2,none", where "none" is no limit."""
    delegation: str | None = None
    """The sender of a pipeline's messages: one of DELEGATIONS."""
    as_: str | None = None
    """The backend of torch, one of SERVED, whose groups on CPUs slackline provides instead."""

    @classmethod
    def variables(cls) -> dict[str, str]:
        """Return a dict from the name of each variable to the field that the variable sets."""
        return dict(_VARIABLES)

    @property
    def records_flight(self) -> bool:
        """Whether a variable asks for the flight recorder."""
        return self.flight_recorder is not None or self.flight_recorder_entries is not None

    @classmethod
    def read(cls, source: Mapping[str, str] | None = None) -> Self:
        """Read `source`, or the process's environment; raise UsageError that names the variable.

        An empty variable counts as absent. An unknown name with the prefix is an error, since such
        a name is most often a typing mistake.
        """
        given = os.environ if source is None else source
        known = _VARIABLES
        values: dict[str, object] = {}
        for variable in sorted(name for name in given if name.startswith(_PREFIX)):
            if variable not in known:
                names = ", ".join(known)
                raise UsageError(
                    f"{variable} is not a variable of slackline; the variables are {names}"
                )
            if text := given[variable]:
                values[known[variable]] = _parse(variable, text)
        return cls(**values)  # type: ignore[arg-type]  # _PARSERS gives each field its type


_VARIABLES = {_PREFIX + each.name.rstrip("_").upper(): each.name for each in fields(Environment)}


def serves(source: Mapping[str, str] | None = None) -> str | None:
    """Return the backend, named by SLACKLINE_AS, whose groups slackline serves; None without one.

    The function reads no other variable, so that a mistake in another variable is reported only
    when the first group is opened. Raises UsageError for a backend that is not one of SERVED.
    """
    given = os.environ if source is None else source
    variable = _PREFIX + "AS"
    return Environment.read({variable: given.get(variable, "")}).as_


def circuit_trace(source: Mapping[str, str] | None = None) -> tuple[Path, range] | None:
    """Return the file and the cycles of SLACKLINE_CIRCUIT_TRACE; None without the variable.

    The function reads no other variable, so that a simulation outside of a job needs none of them.
    """
    given = os.environ if source is None else source
    variable = _PREFIX + "CIRCUIT_TRACE"
    return Environment.read({variable: given.get(variable, "")}).circuit_trace


def _parse(variable: str, text: str) -> object:
    try:
        return _PARSERS[variable.removeprefix(_PREFIX).lower()](text)
    except UsageError as error:
        raise UsageError(f"{variable}: {error}") from None


def _one_of(what: str, names: Sequence[str]) -> Callable[[str], str]:
    """Return a parser that accepts one of `names`; `what` begins the error for another text."""

    def parse(text: str) -> str:
        if text not in names:
            raise UsageError(f"{what} must be one of {', '.join(names)}, not {text!r}")
        return text

    return parse


def _nic_check(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"a number of operations must be an integer of at least 0, not {text!r}")
    return int(text)


def _circuit(text: str) -> str:
    parse_circuit(text)
    return text


def _rails(text: str) -> tuple[str, ...]:
    rails = tuple(text.split(","))
    for rail in rails:
        if rail not in RAILS:
            raise UsageError(f"a rail must be one of {', '.join(RAILS)}, not {rail!r}")
    if len(set(rails)) < len(rails):
        raise UsageError(f"each rail may be named once, not {text!r}")
    return rails


def _interfaces(text: str) -> tuple[str, ...]:
    interfaces = tuple(text.split(","))
    if "" in interfaces:
        raise UsageError(f"an interface must have a name, not {text!r}")
    if len(set(interfaces)) < len(interfaces):
        raise UsageError(f"each interface may be named once, not {text!r}")
    return interfaces


def _served(text: str) -> str:
    if text not in SERVED:
        raise UsageError(f"slackline serves groups of {', '.join(SERVED)}, not of {text!r}")
    return text


def _timeout(text: str) -> timedelta:
    nanoseconds = parse_duration_ns(text)
    if nanoseconds < 1000:
        raise UsageError(f"a timeout must be at least 1us, not {text!r}")
    return timedelta(microseconds=nanoseconds // 1000)


def _hang(text: str) -> timedelta:
    return timedelta(microseconds=parse_duration_ns(text) // 1000)


def _log(text: str) -> dict[str, str]:
    """Parse "info" to {"": "info"} and "rail=debug,plan=info" to a level for each subsystem."""
    found: dict[str, str] = {}
    for each in text.split(","):
        subsystem, equals, level = each.rpartition("=")
        if level not in LOG_LEVELS or (equals and subsystem not in LOG_SUBSYSTEMS):
            raise UsageError(
                f"a log is one of {', '.join(LOG_LEVELS)}, or SUBSYSTEM=LEVEL for some of "
                f"{', '.join(LOG_SUBSYSTEMS)}, not {each!r}"
            )
        if subsystem in found:
            raise UsageError(f"a subsystem may be named once, not {text!r}")
        found[subsystem] = level
    return found


def _positive_bytes(text: str) -> int:
    size = parse_bytes(text)
    if size == 0:
        raise UsageError(f"a size must be positive, not {text!r}")
    return size


def _entries(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text)):
        raise UsageError(f"a number of recorded operations must be 1 to 99999999, not {text!r}")
    return int(text)


def _steps(text: str) -> range:
    """Parse "all", "40", and "40-60", where the last step counts."""
    found = range(sys.maxsize) if text == "all" else _numbers(text)
    if found is None:
        raise UsageError(f'recorded steps must be "all", a step or FIRST-LAST, not {text!r}')
    return found


def _numbers(text: str) -> range | None:
    """Parse "40" and "40-60", where the last number counts; return None for any other text."""
    first, _, last = text.partition("-")
    last = last or first
    digits = all(each.isascii() and each.isdigit() and len(each) < 16 for each in (first, last))
    if not digits or int(first) > int(last):
        return None
    return range(int(first), int(last) + 1)


def _traced(text: str) -> tuple[Path, range]:
    """Parse "nic.vcd" and "nic.vcd@1000-2000", where the last cycle counts."""
    name, at, asked = text.rpartition("@")
    cycles = _numbers(asked) if at else range(sys.maxsize)
    file = name if at else text
    if cycles is None or not file.endswith(".vcd"):
        raise UsageError(f"a trace must be FILE.vcd or FILE.vcd@FIRST-LAST, not {text!r}")
    return Path(file), cycles


def _delegation(text: str) -> str:
    if text not in DELEGATIONS:
        raise UsageError(f"delegation must be one of {', '.join(DELEGATIONS)}, not {text!r}")
    return text


def _memory(text: str) -> Activations | tuple[Activations | None, ...]:
    """Parse "4" to 4 and "4,7/2,none" to (4, Fraction(7, 2), None)."""
    parts = text.split(",")
    found = tuple(None if len(parts) > 1 and part == "none" else _cap(part) for part in parts)
    return found if len(parts) > 1 else _cap(text)


def _cap(text: str) -> Activations:
    above, _, below = text.partition("/")
    numbers = (above, below) if "/" in text else (above, "1")
    if not all(n.isascii() and n.isdigit() and len(n) < 10 and int(n) for n in numbers):
        raise UsageError(
            "a number of activations must be a positive integer or fraction such as 7/2, "
            f"not {text!r}"
        )
    value = Fraction(int(numbers[0]), int(numbers[1]))
    return int(value) if value.denominator == 1 else value


_PARSERS: Mapping[str, Callable[[str], object]] = {
    "order": _one_of("an order", ORDERS),
    "plan": str,
    "shares": _one_of("shares", SHARES),
    "nic": _one_of("a nic", NICS),
    "nic_check": _nic_check,
    "circuit": _circuit,
    "circuit_trace": _traced,
    "aggregator": str,
    "rails": _rails,
    "timeout": _timeout,
    "segment": _positive_bytes,
    "arena": _positive_bytes,
    "interface": _interfaces,
    "listen": _one_of("listen", LISTEN),
    "congestion": str,
    "tls": _one_of("tls", TLS),
    "key": Path,
    "faults": str,
    "log": _log,
    "telemetry": Path,
    "reports": Path,
    "launcher": _one_of("a launcher", ("run",)),
    "hang": _hang,
    "telemetry_limit": _positive_bytes,
    "flight_recorder": Path,
    "flight_recorder_entries": _entries,
    "group_bytes": parse_bytes,
    "tensor_hashes": _steps,
    "state_hash": _one_of("a state hash", ("end",)),
    "schedule": str,
    "schedule_memory": _memory,
    "delegation": _delegation,
    "as": _served,
}
