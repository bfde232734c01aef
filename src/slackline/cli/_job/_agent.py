"""The process that runs torchrun for `slackline run` and records how each rank ended.

    python -m slackline.cli._job._agent PARENT RESULT SHUTDOWN OUTPUT torchrun-arguments...

PARENT is the process id of the `slackline run` command. RESULT is the descriptor of a file, to
which a JSON object of two lists is written. "failures" has {"rank", "pid", "exitcode", "time_s"}
for each rank whose exit code is not 0; `exitcode` is minus the signal's number for a rank that a
signal killed, and `time_s` is the Unix time when torchrun saw the end. "cut_off" has the local
number of each rank that was killed because it had not ended SHUTDOWN seconds after SIGTERM.
OUTPUT has the descriptors of the pipes for each rank's stdout and stderr: "5:7,9:11". This process
also holds the ends from which the command reads, so that a rank can still write a little if the
command has died.

On SIGTERM this process ends its ranks. The kernel sends SIGTERM to this process when the parent
process dies, so that no rank outlives the command. If this process is killed by SIGKILL, the
command adopts the orphaned ranks and ends them.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from slackline.cli._job._launch import ONE_AGENT

_SET_PARENT_DEATH_SIGNAL = 1  # The value is prctl's PR_SET_PDEATHSIG.


def die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:
        # The parent may have died before prctl took effect; then the kernel sends no signal.
        sys.exit("the slackline run command that started this job has ended")


def _once(close: Callable[..., None], shutdown_s: float, cut_off: list[int]) -> Callable[..., None]:
    """Return torch's function that ends the ranks, with one time limit and one signal a rank.

    torch grants a failed job's ranks 30 s whatever its own option says. A second SIGTERM would end
    its wait by an exception and make it send the ranks a second SIGTERM; such signals are ignored
    during the wait. The numbers of the ranks that torch kills at the limit are added to `cut_off`.
    """
    asked = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

    def close_once(ranks: Any, death_sig: signal.Signals | None = None, timeout: int = 0) -> None:
        del timeout  # the command's option takes its place
        handlers = [(number, signal.signal(number, signal.SIG_IGN)) for number in asked]
        running = [rank for rank, each in ranks.subprocess_handlers.items() if _runs(each.proc.pid)]
        begin_s = time.monotonic()
        try:
            close(ranks, death_sig, shutdown_s)
        finally:
            for number, handler in handlers:
                signal.signal(number, handler)
        if time.monotonic() - begin_s >= shutdown_s:
            codes = {rank: ranks.subprocess_handlers[rank].proc.returncode for rank in running}
            cut_off.extend(r for r in running if codes[r] in (None, -signal.SIGKILL))

    return close_once


def _runs(pid: int) -> bool:
    """Return whether a child process still runs; the code that started the child reaps it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _to_pipes(reify: Callable[..., Any], output: str) -> Callable[..., Any]:
    """Return torch's function that names the ranks' output files, with the pipes in their place."""
    pairs = [pair.split(":") for pair in output.split(",")]

    def reify_to_pipes(specs: Any, envs: dict[int, dict[str, str]]) -> Any:
        logs = reify(specs, envs)
        for rank, (stdout, stderr) in enumerate(pairs):
            logs.stdouts[rank] = f"/proc/self/fd/{stdout}"
            logs.stderrs[rank] = f"/proc/self/fd/{stderr}"
        return logs

    return reify_to_pipes


def _own_name_is_address() -> None:
    """Let torch take the machine's plain name for its log, where it would look up the full one.

    torch looks up the full name for each event. Each look-up takes ten seconds and more where the
    name server does not answer.
    """
    socket.getfqdn = lambda name="": name or socket.gethostname()


def main(parent: int, result: int, shutdown_s: float, output: str, arguments: list[str]) -> int:
    """Run torchrun with `arguments`, write the failed ranks to `result`, and return its code."""
    die_with(parent)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:  # The ranks inherit none: torch opens the pipes anew for each.
            with suppress(OSError):  # the folder's own descriptor is closed by now
                os.set_inheritable(descriptor, False)
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import (
        DefaultLogsSpecs,
        PContext,
        SignalException,
    )
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from slackline.cli._job._one_agent import register

    _own_name_is_address()
    register(ONE_AGENT)
    cut_off: list[int] = []
    PContext.close = _once(PContext.close, shutdown_s, cut_off)  # type: ignore[method-assign]
    reify = _to_pipes(DefaultLogsSpecs.reify, output)
    DefaultLogsSpecs.reify = reify  # type: ignore[method-assign]
    failures: list[dict[str, int]] = []
    try:
        torchrun.run(torchrun.parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        failures = [
            {
                "rank": rank,
                "pid": failure.pid,
                "exitcode": failure.exitcode,
                "time_s": failure.timestamp,
            }
            for rank, failure in error.failures.items()
        ]
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    finally:
        said = json.dumps({"failures": failures, "cut_off": sorted(cut_off)})
        os.write(result, said.encode())
    return 0


if __name__ == "__main__":
    _, parent, result, shutdown_s, output, *arguments = sys.argv
    sys.exit(main(int(parent), int(result), float(shutdown_s), output, arguments))
