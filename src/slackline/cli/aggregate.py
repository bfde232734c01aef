"""The command `slackline aggregate`: an aggregation node in software, until interrupted."""

import logging
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from slackline.units import count, parse_bytes, parse_duration_ns, show_bytes

__all__ = ["aggregate"]


def aggregate(
    listen: Annotated[
        str,
        typer.Option(
            help="Listen at this address and port: 10.0.0.9:7000, [fd00::9]:7000, or [::]:7000 for "
            "all."
        ),
    ],
    workers: Annotated[int, typer.Option(help="Accept up to this many workers in a group.")],
    groups: Annotated[int, typer.Option(help="Serve up to this many groups at a time.")] = 32,
    memory: Annotated[
        str,
        typer.Option(
            help="Reserve this many bytes for the pending results of each group; one operation "
            "gets at most half."
        ),
    ] = "1GiB",
    onset: Annotated[
        int,
        typer.Option(
            help="Start to reduce when this many segments of every worker are there; 0 waits for "
            "whole messages."
        ),
    ] = 1,
    nic: Annotated[
        str, typer.Option(help="Reduce by software, twin (circuit model) or circuit (simulated).")
    ] = "software",
    circuit: Annotated[
        str,
        typer.Option(
            metavar="SIZES",
            help="Size the twin or the circuit: lanes=4,slots=4,payload=4096 (payload in bytes).",
        ),
    ] = "",
    node: Annotated[
        str,
        typer.Option(help="Reduce by an aggregation node elsewhere: ethernet, behind --interface."),
    ] = "",
    interface: Annotated[
        str, typer.Option(help="Reach the node through this interface; needs root or CAP_NET_RAW.")
    ] = "",
    node_mac: Annotated[
        str, typer.Option(help="Send to the node's port 0 at this MAC address.")
    ] = "02:53:4c:00:00:00",
    node_patience: Annotated[
        str,
        typer.Option(help="Let the workers go on without a node that is silent for this long."),
    ] = "5s",
    node_hash: Annotated[
        bool,
        typer.Option(
            "--node-hash",
            help="Add by software beside the node, and print a hash of both sums for each group.",
        ),
    ] = False,
    congestion: Annotated[
        str,
        typer.Option(help="Use this TCP congestion control (reno), or system, or auto (no BBR)."),
    ] = "auto",
    key: Annotated[
        Path | None,
        typer.Option(
            help="Authenticate workers by this key file, as SLACKLINE_KEY does; needed at an "
            "address that other hosts reach."
        ),
    ] = None,
    without_key: Annotated[
        bool, typer.Option("--without-key", help="Serve every host that reaches the address.")
    ] = False,
    expect_sums: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="End with exit code 1 if this node has added less than this for all workers "
            "together: 40MB. Default: end with 0.",
        ),
    ] = None,
) -> int:
    """Reduce for the workers that name this address in SLACKLINE_AGGREGATOR, until Ctrl-C."""
    from slackline.nic.aggregator import Aggregator, AggregatorOptions
    from slackline.nic.host import parse_address, show_address

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # The node speaks of its groups, and its engine only of what is wrong.
    logging.getLogger("slackline.nic").setLevel(logging.WARNING)
    logging.getLogger("slackline.nic.aggregator").setLevel(logging.INFO)
    host, port = parse_address(listen)
    least_bytes = None if expect_sums is None else parse_bytes(expect_sums)
    server = Aggregator(
        AggregatorOptions(
            host=host,
            port=port,
            workers=workers,
            groups=groups,
            memory_bytes=parse_bytes(memory),
            onset=onset,
            nic=nic,
            circuit=circuit,
            node=node,
            interface=interface,
            node_mac=node_mac,
            node_patience=timedelta(microseconds=parse_duration_ns(node_patience) / 1000),
            node_hash=node_hash,
            congestion=congestion,
            key=key,
            without_key=without_key,
        )
    )
    over = threading.Event()

    def leave(number: int, frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    server.start()
    host, port = server.address
    how = "whole messages" if onset == 0 else f"onset {onset}"
    if node:
        how += f", sums by the node at {node_mac} behind {interface}"
    elif nic != "software":
        how += f", sums by the {nic}"
    keyed = "with a key" if key else "without a key: whoever reaches it may use it"
    print(
        f"listening at {show_address(host, port)} for groups of up to {count(workers, 'worker')}, "
        f"{show_bytes(parse_bytes(memory))} each, {how}, {keyed}",
        flush=True,
    )
    over.wait()
    server.close()
    if least_bytes is not None and (reason := server.idle_reason(least_bytes)):
        print(f"slackline: {reason}", file=sys.stderr)
        return 1
    return 0
