"""The process that runs torchrun for `slackline run` and records how each rank ended.

    python -m slackline.cli._job._agent PARENT RESULT torchrun-arguments...

PARENT is the process id of the `slackline run` command. RESULT is the path of a file to write: a
JSON list of {"rank", "pid", "exitcode", "time_s"} with one entry for each rank whose exit code is
not 0. `exitcode` is minus the signal's number for a rank that a signal killed, and `time_s` is the
Unix time when torchrun saw the end.

On SIGTERM this process ends its ranks. The kernel sends SIGTERM to this process when the parent
process dies, so that no rank outlives the command. If this process is killed by SIGKILL, the
command adopts the orphaned ranks and ends them.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1  # The value is prctl's PR_SET_PDEATHSIG.


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:
        # The parent may have died before prctl took effect; then the kernel sends no signal.
        sys.exit("the slackline run command that started this job has ended")


def main(parent: int, result: Path, arguments: list[str]) -> int:
    """Run torchrun with `arguments`, write the failed ranks to `result`, and return its code."""
    _die_with(parent)
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

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
        result.write_text(json.dumps(failures))
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    result.write_text("[]")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
