"""The command `slackline lab`: a virtual network on this machine, which stays until removed.

slackline lab up --hosts 4 --nics 2 --rate 1Gbit --switch user     create it
slackline lab exec 2 -- ip -brief address                          run a program on host 2
slackline lab fault "link 2-3 delay 30ms for 5s"                   inject faults, and wait
slackline lab status                                               list labs and their faults
slackline lab down                                                 remove it
"""

import os
import sys
from typing import Annotated

import typer

from slackline.errors import UsageError
from slackline.faults import parse_all
from slackline.units import count, parse_bytes, parse_rate, show_rate

__all__ = ["HELP", "app"]

HELP = "Run a network on this machine: hosts as network namespaces, with rates, delays and faults."

app = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False)

_Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="Choose the lab by name. Default: the only one of `slackline lab up`, else the only "
        "one of a running program.",
    ),
]


@app.command()
def up(
    hosts: Annotated[int, typer.Option(help="Create this many hosts.")] = 4,
    nics: Annotated[int, typer.Option(help="Give each host this many NICs.")] = 1,
    rate: Annotated[
        str | None,
        typer.Option(
            help="Limit each NIC in each direction to this rate: 1Gbit. Default: unlimited."
        ),
    ] = None,
    burst: Annotated[
        str | None,
        typer.Option(
            help="Let a NIC send this much ahead of its rate: 32KiB. Default: by the rate."
        ),
    ] = None,
    mtu: Annotated[int, typer.Option(help="Set the MTU of each NIC, in bytes.")] = 1500,
    switch: Annotated[
        str,
        typer.Option(
            help="Join the hosts by kernel (its bridge) or user (can delay and drop packets); auto "
            "is kernel."
        ),
    ] = "auto",
    name: Annotated[str, typer.Option(help="Name the lab.")] = "lab",
) -> None:
    """Create a lab, a virtual network on this machine. The lab stays until `slackline lab down`."""
    from slackline import lab

    options = lab.LabOptions(
        hosts=hosts,
        nics=nics,
        rate=None if rate is None else parse_rate(rate),
        burst=None if burst is None else parse_bytes(burst),
        mtu=mtu,
        switch=switch,
    )
    taken = lab.stand_up(name, options)
    print(f"lab {name!r}: {_shape(hosts, nics, options.rate)}, {taken} switch")
    for host in range(hosts):
        addresses = ", ".join(f"eth{nic} 10.77.{nic}.{host + 1}" for nic in range(nics))
        print(f"  host {host}: {addresses}")


@app.command()
def status(
    name: Annotated[str | None, typer.Option(help="Show this lab. Default: every lab.")] = None,
) -> None:
    """Show the labs of this machine, with the faults and packet counts of each."""
    from slackline import lab

    found = [lab.find(name)] if name is not None else list(lab.records())
    if not found:
        print("no labs")
    for record in found:
        owner = f"process {record.pid}" if record.alive else "a dead process"
        whose = "persistent" if record.persistent and record.alive else f"of {owner}"
        shape = _shape(record.hosts, record.nics, record.rate)
        print(f"lab {record.name!r}: {shape}, {record.switch} switch, {whose}")
        if not record.alive:
            continue
        said = lab.status(record)
        for fault in said["faults"]:
            print(f"  fault: {fault}")
        for sentence in said["left_out"]:
            print(f"  {sentence}")
        for row in said["paths"]:
            counted = ", ".join(
                f"{value} {what}" for what, value in row.items() if value and what not in _ENDS
            )
            print(f"  {row['source']}>{row['target']} eth{row['nic']}: {counted}")


_ENDS = ("source", "target", "nic")


@app.command(
    name="exec",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
)
def exec_(
    host: Annotated[int, typer.Argument(metavar="HOST", help="Choose the host by number, from 0.")],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Run this command on the host.")
    ],
    name: _Name = None,
) -> None:
    """Run a program on a host of a lab, in place of this process.

    The program receives signals directly, and its exit code is the command's exit code.
    """
    from slackline import lab

    program = command[1:] if command[0] == "--" else command
    argv = lab.command(lab.find(name), host, program)
    lab.require()
    sys.stdout.flush()
    os.execvp(argv[0], argv)


@app.command()
def fault(
    faults: Annotated[
        list[str],
        typer.Argument(
            metavar="FAULT...", help='Inject faults such as "link 2-3 delay 30ms for 5s".'
        ),
    ],
    name: _Name = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Return at once; a fault without an end stays with the lab."),
    ] = False,
) -> int:
    """Inject faults into a lab and return when they end. Ctrl-C removes the faults."""
    from slackline import lab

    plan = parse_all(faults)
    if not plan:
        raise UsageError('no fault is given; a fault is written as "link 2-3 delay 30ms for 5s"')
    try:
        lab.inject(lab.find(name), str(plan), detach=detach)
    except KeyboardInterrupt:
        print("slackline lab: the faults are taken back", file=sys.stderr)
        return 130
    return 0


@app.command()
def down(
    name: _Name = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Remove all labs, and remains of labs whose program has died."),
    ] = False,
) -> None:
    """Remove a lab, and end the processes that run in it."""
    from slackline import lab

    if not everything:
        record = lab.Record.read(lab.check_name(name)) if name is not None else lab.find()
        if record is None:
            raise UsageError(f"there is no lab {name!r}")
        lab.take_down(record)
        print(f"lab {record.name!r} is down")
        return
    if name is not None:
        raise UsageError("--all takes down every lab: leave out --name")
    for record in lab.records():
        if record.alive and not record.persistent:
            print(f"lab {record.name!r} stays: it belongs to process {record.pid}")
            continue
        lab.take_down(record)
        print(f"lab {record.name!r} is down")


def _shape(hosts: int, nics: int, rate: int | None) -> str:
    speed = "unlimited" if rate is None else show_rate(rate)
    return f"{count(hosts, 'host')} with {count(nics, 'NIC')} of {speed}"
