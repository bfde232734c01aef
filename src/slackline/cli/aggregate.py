"""`slackline aggregate`: a node that adds for the workers of a group, until it is interrupted."""

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from slackline.units import format_bytes, parse_bytes

__all__ = ["aggregate"]


def aggregate(
    listen: Annotated[
        str, typer.Option(help="Address and port to listen at: 10.0.0.9:7000, 0.0.0.0:7000.")
    ],
    workers: Annotated[int, typer.Option(help="How many workers a group may have.")],
    groups: Annotated[int, typer.Option(help="How many groups are served at a time.")] = 32,
    memory: Annotated[
        str, typer.Option(help="For each group's results under way; half of it for one operation.")
    ] = "1GiB",
    onset: Annotated[
        int,
        typer.Option(help="Segments of every worker before reduction starts; 0: whole messages."),
    ] = 1,
    nic: Annotated[str, typer.Option(help="What adds: software, twin or circuit.")] = "software",
    circuit: Annotated[
        str,
        typer.Option(metavar="SIZES", help="Of a twin or circuit: lanes=4,slots=4,payload=4096."),
    ] = "",
    congestion: Annotated[
        str, typer.Option(help="TCP congestion control, as SLACKLINE_CONGESTION.")
    ] = "",
    key: Annotated[
        Path | None, typer.Option(help="A file that the workers have too, as SLACKLINE_KEY.")
    ] = None,
) -> None:
    """Reduce for the workers that name this address in SLACKLINE_AGGREGATOR. Ctrl-C ends it."""
    from slackline.nic._aggregator import Aggregator, AggregatorOptions
    from slackline.nic._paths import parse_address

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("slackline.nic").setLevel(logging.WARNING)
    host, port = parse_address(listen)
    node = Aggregator(
        AggregatorOptions(
            host=host,
            port=port,
            workers=workers,
            groups=groups,
            memory_bytes=parse_bytes(memory),
            onset=onset,
            nic=nic,
            circuit=circuit,
            congestion=congestion,
            key=key,
        )
    )
    over = threading.Event()

    def leave(number: int, frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    node.start()
    host, port = node.address
    how = "whole messages" if onset == 0 else f"onset {onset}"
    if nic != "software":
        how += f", sums by the {nic}"
    keyed = "with a key" if key else "without a key: whoever reaches it may use it"
    print(
        f"listening at {host}:{port} for groups of up to {workers} workers, "
        f"{format_bytes(parse_bytes(memory))} each, {how}, {keyed}",
        flush=True,
    )
    over.wait()
    node.close()
