"""An experiment as a TOML file: hosts, wires, ranks, faults, and one thing to simulate on them.

faults = ["link 2-3 delay 1ms from 10ms for 5ms"]    slackline.faults has the grammar

[hosts]                    all hosts; [[host]] with a number changes one of them
count = 4
rate = "1Gbit"             of each NIC, each way
latency = "5us"            of each cable between NIC and switch

[collective]               or [training]
plan = ["ring", "mesh"]    each plan is simulated
size = "16MiB"

[[network]]                in place of faults: every case on each of several networks
name = "slow host 3"
faults = "nic 3.0 rate 100Mbit"
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from typing import Any

from slackline._toml import Table, duration_ps, integer, listed, one_of, rate, size, text
from slackline.errors import UsageError
from slackline.faults import Plan, parse_all
from slackline.sim._calibration import Costs
from slackline.sim._fabric import Fabric, Framing, Host
from slackline.sim.experiment._case import Case, Setting
from slackline.sim.experiment._kinds import ALONE, KINDS

__all__ = ["Experiment", "read_experiment"]

_WIRE = {"header_bytes": 64, "packet_bytes": 1448, "packet_overhead_bytes": 90}
"""TCP over Ethernet with time stamps: 66 bytes of headers, and 24 of preamble, checksum and gap."""
_SWITCHES = {"cut-through": 0, "ethernet": 1538, "store-and-forward": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The contents of an experiment's file, ready to be simulated."""

    fabric: Fabric | None
    """The hosts and the network; None where the experiment has links or ports of its own."""
    faults: Plan
    """The faults of all cases; the faults of a [[network]] apply to its own cases alone."""
    kind: str
    """The name of the table to simulate, such as "collective" or "iteration"."""
    cases: tuple[Case, ...]


def read_experiment(
    content: str,
    name: str,
    draw: Callable[[], Costs] | None = None,
    *,
    run: int = 0,
    folder: Traversable | None = None,
) -> Experiment:
    """Parse an experiment from TOML text; errors name the file by `name`.

    Each call of `draw` returns the costs of the next host; values in the file replace them. All
    ranks compute as slowly as the slowest of these hosts. Without `draw`, hosts have the
    simulator's default costs. `run` is the number of the run: each has other random numbers than
    the run before it, and run 0 has those of the file's seeds. `folder` has the files that the
    experiment names.

    Raises UsageError that names the file, the table and the key of a wrong or missing value.
    """
    top = Table.parse(content, name)
    kinds = [kind for kind in (*KINDS, *ALONE) if kind in top]
    alone = len(kinds) == 1 and kinds[0] in ALONE
    faults = Plan() if alone else top.take("faults", _faults, Plan())
    networks = [] if alone else _networks(top, faults)
    if alone and draw is not None:
        raise UsageError(f"{name}: [{kinds[0]}] has no hosts that a calibration could describe")
    fabric, computing = (None, 1.0) if alone else _fabric(top, draw, run)
    if len(kinds) != 1:
        given = " and ".join(f"[{kind}]" for kind in kinds) or "none"
        wanted = ", ".join(f"[{kind}]" for kind in (*KINDS, *ALONE))
        raise UsageError(f"{name}: one of {wanted} is needed, not {given}")
    table = top.table(kinds[0])
    top.end()
    if fabric is None:
        cases = ALONE[kinds[0]](table, Setting(run=run, folder=folder))
        table.end()
    else:
        cases = []
        for network, its_faults in networks or [("", faults)]:
            again = table.copy()
            for case in KINDS[kinds[0]](again, fabric, its_faults, computing):
                label = f"{case.name}, {network}" if networks else case.name
                cases.append(Case(label, case.simulate))
            again.end()
            try:
                its_faults.of_network.check(len(fabric.hosts), fabric.nics)
            except UsageError as error:
                where = f'network "{network}": faults' if networks else "faults"
                raise UsageError(f"{name}: {where}: {error}") from None
    return Experiment(fabric=fabric, faults=faults, kind=kinds[0], cases=tuple(cases))


def _faults(value: Any) -> Plan:
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in texts):
        raise UsageError(f"must be texts, not {value!r}")
    return parse_all(texts)


def _networks(top: Table, faults: Plan) -> list[tuple[str, Plan]]:
    """Return the name and the faults of each [[network]]."""
    found: dict[str, Plan] = {}
    for one in top.tables("network"):
        if faults:
            raise one.wrong(UsageError("the file has networks: move its faults into each network"))
        name = one.take("name", text)
        if name in found:
            raise one.wrong(UsageError(f'there are two networks of the name "{name}"'))
        found[name] = one.take("faults", _faults, Plan())
        one.end()
    return list(found.items())


def _fabric(top: Table, draw: Callable[[], Costs] | None, run: int) -> tuple[Fabric, float]:
    """Return the fabric, and the factor by which computations take longer than the file states."""
    hosts, shared_cores, computing = _hosts(top, draw)
    wire = top.table("wire")
    values = {key: wire.take(key, integer, default) for key, default in _WIRE.items()}
    switch = wire.take("switch", one_of(*_SWITCHES), "ethernet")
    resend_ps = wire.take("resend", duration_ps, Fabric(hosts=hosts).resend_ps)
    seed = wire.take("seed", integer, 0)
    try:
        found = Fabric(
            hosts=hosts,
            framing=Framing(**values),
            forwards_after_bytes=_SWITCHES[switch],
            resend_ps=resend_ps,
            shared_cores=shared_cores,
            seed=seed + run,
        )
    except UsageError as error:
        raise wire.wrong(error) from None
    wire.end()
    return found, computing


def _hosts(
    top: Table, draw: Callable[[], Costs] | None
) -> tuple[tuple[Host, ...], int | None, float]:
    """Return the hosts, the cores that they share, and the factor of their computations' time."""
    table = top.table("hosts")
    count = table.take("count", integer)
    nics = table.take("nics", integer, 1)
    rates_bps = (table.take("rate", rate),) * nics
    if not nics or not count:
        raise table.wrong(UsageError(f"count and nics must be positive, not {count} and {nics}"))
    drawn = [Costs(host=Host(rates_bps=(1,)), computing=1.0)] * count
    if draw is not None:
        drawn = [draw() for _ in range(count)]
    shared_cores = table.take_if_there("shared_cores", integer)
    hosts = _changed([costs.host for costs in drawn], rates_bps, table)
    table.end()
    for one in top.tables("host"):
        number = one.take("number", integer)
        if number >= count:
            raise one.wrong(UsageError(f"there is no host {number}: there are {count}"))
        rates = one.take("rate", listed(rate), list(hosts[number].rates_bps))
        if len(rates) not in (1, nics):
            message = f"rate must have one value or {nics}, not {len(rates)}"
            raise one.wrong(UsageError(message))
        hosts[number : number + 1] = _changed(
            [hosts[number]], tuple(rates) * (nics // len(rates)), one
        )
        one.end()
    return tuple(hosts), shared_cores, max(costs.computing for costs in drawn)


_VALUES = {
    "latency": ("latency_ps", duration_ps),
    "cores": ("cores", integer),
    "frame": ("frame_ps", duration_ps),
    "reduce_bytes_per_second": ("reduce_bytes_per_second", size),
    "memory_bytes_per_second": ("memory_bytes_per_second", size),
    "memory_latency": ("memory_latency_ps", duration_ps),
    "burst": ("burst_bytes", size),
    "ahead": ("ahead_bytes", size),
}
"""The keys of a host: the field of `Host`, and the function that reads the value."""


def _changed(hosts: Sequence[Host], rates_bps: tuple[int, ...], table: Table) -> list[Host]:
    """Return the hosts with the rates `rates_bps`, and with the values in `table` for each."""
    given: dict[str, Any] = {"rates_bps": rates_bps}
    for key, (name, read) in _VALUES.items():
        if (value := table.take_if_there(key, read)) is not None:
            given[name] = value
    known: dict[Host, Host] = {}
    try:
        for host in hosts:
            if host not in known:
                known[host] = replace(host, **given)
    except UsageError as error:
        raise table.wrong(error) from None
    return [known[host] for host in hosts]
