"""The costs of this host, measured by two ranks and saved as a calibration of the simulator."""

import json
import os
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

from slackline.cli._doctor import _costs
from slackline.cli._job._launch import Job, on_this_machine
from slackline.cli._job._program import Program
from slackline.errors import UsageError
from slackline.sim import HostCalibration, Spread

__all__ = ["save"]

_SHUTDOWN = timedelta(seconds=5)
_PATIENCE = timedelta(seconds=90)
"""The time that the two ranks have to start, measure and end."""


def save(path: Path) -> HostCalibration:
    """Measure this host's costs, write them to a file and return them; blocks for some seconds.

    Raises UsageError if the file cannot be written, or if the measurement fails.
    """
    try:
        path.touch()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    shm, tcp = _samples("shm"), _samples("tcp")
    found = HostCalibration(
        message_shm_ns=Spread.of(shm["message_ns"]),
        message_tcp_ns=Spread.of(tcp["message_ns"]),
        byte_ps=Spread.of(shm["byte_ps"]),
        wakeup_ns=Spread.of(shm["wakeup_ns"]),
        reduce_byte_ps=Spread.of(shm["reduce_byte_ps"]),
        compute_ns=Spread.of(shm["compute_ns"]),
    )
    path.write_text(found.to_json())
    return found


def _samples(kind: str) -> dict[str, list[float]]:
    """Return the samples that two ranks take over one kind of rail."""
    directory = Path(tempfile.mkdtemp(prefix="slackline-doctor-"))
    result = directory / "samples.json"
    try:
        job = Job(
            directory,
            ranks=2,
            program=Program(_costs.__file__, (str(result),)),
            environment={**os.environ, "SLACKLINE_RAILS": kind, "OMP_NUM_THREADS": "1"},
            place=on_this_machine(2),
            shutdown=_SHUTDOWN,
        )
        try:
            ended = job.wait(_PATIENCE)
        finally:
            job.stop()
            job.wait(_PATIENCE)
        ending = job.ending()
        if ended and ending.exit_code == 0:
            samples: dict[str, list[float]] = json.loads(result.read_text())
            return samples
        why = job.last_line(ending.failures[0].rank) if ending.failures else ""
        why = why or ("torchrun failed" if ended else "it did not end in time")
        raise UsageError(f"the costs over {kind} could not be measured: {why}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
