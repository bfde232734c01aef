"""`slackline circuit`: the circuits as Verilog."""

from pathlib import Path
from typing import Annotated

import typer

from slackline.units import parse_bytes

__all__ = ["app"]

app = typer.Typer(help="Circuits that reduce.", no_args_is_help=True, add_completion=False)


@app.callback()
def _group() -> None: ...


@app.command()
def verilog(
    out: Annotated[Path, typer.Option(help="The folder to write to.")],
    lanes: Annotated[int, typer.Option(help="Words of 32 bits in a beat.")] = 16,
    ports: Annotated[int, typer.Option(help="Ranks around the node.")] = 4,
    slots: Annotated[int, typer.Option(help="Frames in a port's buffer.")] = 4,
    payload: Annotated[str, typer.Option(help="The longest payload of a frame.")] = "8KiB",
) -> None:
    """Write an aggregation node, its registers as a C header and a table, and bare lanes."""
    from slackline import circuit

    options = circuit.NodeOptions(
        lanes=lanes, ports=ports, slots=slots, payload_bytes=parse_bytes(payload)
    )
    for path in circuit.export(options, out):
        print(path)
