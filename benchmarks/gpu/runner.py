"""The processes of a stage: started under a limit, and aborted with all stacks if they hang."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from rank import Rank
from stages import Stage

__all__ = ["Outcome", "Runner"]

_HUNG = "hung"
_STACKS_S = 3.0
"""The time in which an aborted process writes its stacks."""
_AFTER_FAILURE_S = 10.0
"""The time that the other ranks get after the first one has failed."""
_MOST_LINES = 12
_PRELOADED = ("torch.distributed.fsdp", "torch.distributed.pipelining", "rich.table")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a stage ended."""

    stage: str
    seconds: float
    ended: tuple[str, ...]
    """The exit status of each rank, or "hung"."""
    said: str
    """The last lines of the ranks that failed."""

    @property
    def failed(self) -> bool:
        """Whether a rank did not end well."""
        return any(each != "0" for each in self.ended)


class Runner:
    """The start of stages, each in processes that have imported torch and used no device yet."""

    def __init__(self, folder: Path, *, cpu: bool) -> None:
        """Write results and logs to `folder`."""
        self._folder, self._cpu = folder, cpu
        self.results = folder / "results.jsonl"
        self.results.write_text("")
        # A server forks all ranks, so that torch is imported once. It never touches a device.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(_PRELOADED))

    def run(self, stage: Stage, *, left_s: float) -> Outcome:
        """Run a stage within its limit, and within `left_s` seconds."""
        began_s = time.monotonic()
        folder = self._folder / stage.name.replace(", ", "-").replace(" ", "-")
        folder.mkdir()
        logs = [folder / f"rank{rank}.log" for rank in range(stage.ranks)]
        processes = []
        for rank, log in enumerate(logs):
            place = Rank(
                stage=stage.name,
                rank=rank,
                size=stage.ranks,
                folder=folder,
                results=self.results,
                cpu=self._cpu,
            )
            processes.append(self._context.Process(target=_serve, args=(stage, place, log)))
            processes[-1].start()
        deadline_s = began_s + min(stage.limit_s, left_s)
        waiting = {process.sentinel: process for process in processes}
        while waiting and (left := deadline_s - time.monotonic()) > 0:
            for sentinel in wait(list(waiting), left):
                process = waiting.pop(sentinel)
                if process.exitcode:
                    deadline_s = min(deadline_s, time.monotonic() + _AFTER_FAILURE_S)
        hung = set(waiting.values())
        for process in hung:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGABRT)
        for process in hung:
            process.join(_STACKS_S)
            if process.is_alive():
                process.kill()
                process.join()
        ended = tuple(_HUNG if each in hung else str(each.exitcode) for each in processes)
        return Outcome(
            stage=stage.name,
            seconds=round(time.monotonic() - began_s, 1),
            ended=ended,
            said=_last_lines(ended, logs),
        )


def _serve(stage: Stage, place: Rank, log: Path) -> None:
    """Be a rank of a stage; all output goes to `log`."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable(all_threads=True)
    os.environ.update(stage.variables(cpu=place.cpu))
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.size))
    os.environ["LOCAL_RANK"] = "0"
    folder = str(Path(__file__).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    place.use_device()
    importlib.import_module(stage.module).run(place)


def _last_lines(ended: Sequence[str], logs: Sequence[Path]) -> str:
    found = []
    for rank, (code, log) in enumerate(zip(ended, logs, strict=True)):
        if code != "0":
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            found += [f"rank {rank} ended with {code}:", *lines[-_MOST_LINES:]]
    return "\n".join(found)
