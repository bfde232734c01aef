"""A process that imports torch and the test files once, and forks ranks from there.

The start of a job therefore takes milliseconds, and each rank is still a process of its own. The
process reads jobs as lines of JSON and answers each job with a line: the results or tracebacks of
its ranks.
"""

import atexit
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it: import it once, before ranks are forked
from torch import distributed as dist

import slackline.backend  # noqa: F401

LIMIT = timedelta(seconds=30)


@cache
def load(file: str) -> ModuleType:
    """Import a test's file, so that ranks forked later have it and everything it imports.

    A function `prepare` in the file, if there is one, imports modules that only ranks need.
    """
    if (folder := str(Path(file).parent)) not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(f"cases of {file}", file)
    assert spec is not None
    assert spec.loader is not None
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    getattr(cases, "prepare", lambda: None)()
    # Clear the exit handlers that imports registered, because they take longer than the rest of a
    # short job. A rank runs only the handlers that it registers itself.
    atexit._clear()
    return cases


def run_rank(job: dict[str, Any], rank: int, store: str) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ.update(job["environment"])
    function = getattr(load(job["file"]), job["function"])
    if job["bare"]:
        return function(rank, job["size"], store)
    dist.init_process_group(
        "slackline",
        init_method=f"file://{store}",
        rank=rank,
        world_size=job["size"],
        timeout=LIMIT,
    )
    result = function(rank, job["size"])
    dist.destroy_process_group()
    return result


def start_rank(job: dict[str, Any], rank: int, folder: str) -> int:
    if pid := os.fork():
        return pid
    answer: dict[str, Any] = {"rank": rank}
    try:
        answer["result"] = run_rank(job, rank, f"{folder}/store")
    except BaseException:  # reported to the test, whatever it is
        answer["error"] = traceback.format_exc()
    Path(f"{folder}/{rank}.part").write_text(json.dumps(answer))
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}")
    atexit._run_exitfuncs()
    os._exit(0)


def run_job(job: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        load(job["file"])
    except Exception:
        return [{"rank": 0, "exit": 0, "error": traceback.format_exc()}]
    # A context manager would delete the folder when the first rank ends.
    folder = tempfile.mkdtemp()
    try:
        ends = wait_for({start_rank(job, rank, folder): rank for rank in range(job["size"])}, job)
        answers = []
        for rank in range(job["size"]):
            path = Path(f"{folder}/{rank}")
            answer = json.loads(path.read_text()) if path.exists() else {"rank": rank}
            answers.append(answer | {"exit": ends.get(rank)})
        return answers
    finally:
        shutil.rmtree(folder)


def wait_for(ranks: dict[int, int], job: dict[str, Any]) -> dict[int, int]:
    """Return the exit codes of the ranks that ended in time, and kill the others."""
    ends: dict[int, int] = {}
    deadline = time.monotonic() + job["seconds"]
    while len(ends) < len(ranks) and time.monotonic() < deadline:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            ends[ranks[pid]] = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.005)
    for pid, rank in ranks.items():
        if rank not in ends:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return ends


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(run_job(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
