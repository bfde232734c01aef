"""The command `slackline bench`: the time and the rate of a collective by size, over any backend.

The command starts its ranks itself, on this machine or in a lab. Under torchrun, srun or another
launcher, which gives each process its rank, it is one of the ranks:

    torchrun --no-python --nproc-per-node 4 slackline bench all-reduce --backend gloo
"""

import os
from contextlib import nullcontext
from datetime import timedelta
from typing import Annotated

import typer

from slackline.cli._bench import COLLECTIVES, Asked
from slackline.cli._job._config import NO_CONFIG
from slackline.cli._job._launch import SHUTDOWN, on_this_machine
from slackline.cli._job._options import LabFlag, Nics, Rate
from slackline.cli._job._program import Program
from slackline.cli._job._running import Request, run_job
from slackline.cli._job._stage import NO_GROUP_NS, lab_options
from slackline.cli._serving import Served
from slackline.env import Environment
from slackline.errors import UsageError
from slackline.faults import Plan
from slackline.units import parse_bytes, parse_duration_ns

__all__ = ["bench"]

_DEFAULT_RANKS = 2


def bench(
    collective: Annotated[
        str, typer.Argument(help=f"Measure this collective: {', '.join(COLLECTIVES)}.")
    ] = "all-reduce",
    backend: Annotated[
        str, typer.Option(help="Measure this backend of torch.distributed: gloo, nccl.")
    ] = "slackline",
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", help="Start this many ranks. Default: 2.")
    ] = None,
    least: Annotated[str, typer.Option("--from", help="Begin with buffers of this size.")] = "1KiB",
    most: Annotated[str, typer.Option("--to", help="End with buffers of this size.")] = "64MiB",
    factor: Annotated[int, typer.Option(help="Go from size to size by this factor.")] = 4,
    dtype: Annotated[
        str, typer.Option(help="Take elements of this type: float32, bfloat16, int64.")
    ] = "float32",
    length: Annotated[
        str, typer.Option("--time", help="Measure each size for this long.")
    ] = "500ms",
    as_json: Annotated[bool, typer.Option("--json", help="Print an object for each size.")] = False,
    lab: LabFlag = False,
    nics: Nics = None,
    rate: Rate = None,
) -> int:
    """Measure a collective by size: its time, its rate, and whether its result is right.

    The columns are those of nccl-tests. algbw is the size of the buffer divided by the time. busbw
    is the lowest rate at which each rank has to send for this time.
    """
    asked = _asked(collective, backend, least, most, factor, dtype, length, as_json=as_json)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from slackline.cli._bench.rank import measure

        measure(asked)
        return 0
    options = lab_options(lab=lab, ranks=ranks, hosts=None, nics=nics, rate=rate, switch=None)
    count = options.hosts if options is not None else _DEFAULT_RANKS if ranks is None else ranks
    if count < 1:
        raise UsageError(f"ranks must be a positive integer, not {count}")
    request = Request(
        program=Program("slackline.cli._bench.rank", (asked.as_word(),), module=True),
        ranks=count,
        place=on_this_machine(count),
        lab=options,
        chosen=Environment.read(),
        variables={},
        config=NO_CONFIG,
        faults=(),
        plan=Plan(),
        fault_wait_ns=NO_GROUP_NS,
        grace=SHUTDOWN,
        keep=None,
        output="0",
        silent_as="slackline bench",
    )
    return run_job(request, nullcontext(Served(None, None)))


def _asked(
    collective: str,
    backend: str,
    least: str,
    most: str,
    factor: int,
    dtype: str,
    length: str,
    *,
    as_json: bool,
) -> Asked:
    """Return the measurement that the options describe; raise UsageError for a wrong value."""
    if collective not in COLLECTIVES:
        raise UsageError(
            f"there is no collective {collective!r}; there are {', '.join(COLLECTIVES)}"
        )
    sizes = parse_bytes(least), parse_bytes(most)
    if not 1 <= sizes[0] <= sizes[1]:
        raise UsageError(f"--from {least} must be at least 1B and at most --to {most}")
    if factor < 2:
        raise UsageError(f"--factor must be at least 2, not {factor}")
    time = timedelta(microseconds=parse_duration_ns(length) / 1000)
    if not time:
        raise UsageError(f"--time must be more than 0, not {length}")
    return Asked(
        collective=collective,
        backend=backend,
        least_bytes=sizes[0],
        most_bytes=sizes[1],
        factor=factor,
        dtype=dtype,
        seconds=time.total_seconds(),
        as_json=as_json,
    )
