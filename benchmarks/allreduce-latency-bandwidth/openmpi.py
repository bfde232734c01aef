"""OpenMPI as a contestant: mpi_allreduce.c, compiled at run time and kept waiting between turns."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

SOURCE = Path(__file__).with_name("mpi_allreduce.c")
TURN_TIMEOUT = timedelta(minutes=1)
BYTE_TRANSFER = {"tcp": "self,tcp", "shm": "self,vader"}
"""OpenMPI's transports beside our rails; vader is its shared memory."""


class OpenMpiError(RuntimeError):
    """mpicc or mpirun failed, gave a wrong result, or did not answer in time."""


def missing() -> str | None:
    """Why OpenMPI cannot take part, or None where it can."""
    for program in ("mpirun", "mpicc"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return None


class OpenMpi:
    """`size` ranks under mpirun. Use as a context manager; leaving it ends them."""

    def __init__(self, size: int, rails: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="slackline-openmpi-")
        folder = Path(self._folder.name)
        program = folder / "mpi_allreduce"
        _compile(program)
        pipes = [folder / f"ask.{rank}" for rank in range(size)]
        for pipe in pipes:
            os.mkfifo(pipe)
        command = [
            *("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
            *("--mca", "btl", BYTE_TRANSFER[rails], "--mca", "btl_tcp_if_include", "lo"),
            *("-n", str(size), str(program), str(folder)),
        ]
        self._errors = folder / "errors"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        # Open for both ways, so that opening does not wait for mpirun to have started the ranks.
        self._questions = [os.open(pipe, os.O_RDWR) for pipe in pipes]

    def turn(self, count: int, calls: int, warm_up: int, salt: int) -> float:
        """Seconds a call of MPI_Allreduce, at the slowest rank, results checked."""
        question = f"{count} {calls} {warm_up} {salt}\n".encode()
        for pipe in self._questions:
            os.write(pipe, question)
        answers = self._process.stdout
        assert answers is not None
        ready, _, _ = select.select([answers], [], [], TURN_TIMEOUT.total_seconds())
        if not ready:
            raise OpenMpiError(f"no answer from mpirun within {TURN_TIMEOUT.total_seconds():g} s")
        line = answers.readline().decode().strip()
        if not line:
            errors = self._errors.read_text(errors="replace").strip()
            raise OpenMpiError(f"mpirun ended with {self._process.wait()}: {errors}")
        if line == "wrong":
            raise OpenMpiError(f"MPI_Allreduce of {count} elements gave a wrong result")
        return float(line) * 1e-9

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._questions:
            os.close(pipe)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()


def _compile(program: Path) -> None:
    command = ["mpicc", "-O2", str(SOURCE), "-o", str(program), "-lm"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise OpenMpiError(f"mpicc ended with {result.returncode}: {result.stderr.strip()}")
