"""The process of one test file, which imports the file and forks the ranks of its jobs."""

import atexit
import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from fork_clients import MOST_BYTES, Client, Server, end_with
from torch import distributed as dist

__all__ = ["FileServer"]


class FileServer(Server):
    """The process of one test file, which forks the ranks of all jobs of the file."""

    def __init__(self, passage: socket.socket) -> None:
        super().__init__()
        self.watch(passage, partial(self._take, passage))

    def run(self) -> None:
        """Serve until the entrance has ended; then kill all ranks that still run."""
        try:
            self.serve()
        finally:
            for client in list(self.clients):
                self.drop(client)

    def request(self, client: Client, request: bytes) -> None:
        self._start(client, json.loads(request))

    def patience_s(self) -> float | None:
        deadlines_s = [client.deadline_s for client in self.clients if client.ranks]
        return max(min(deadlines_s) - time.monotonic(), 0) if deadlines_s else None

    def expire(self) -> None:
        for client in [each for each in self.clients if each.ranks]:
            if time.monotonic() >= client.deadline_s:
                self._kill(client)
                self._answer(client)

    def drop(self, client: Client) -> None:
        """End the job of a client that has disconnected."""
        self._kill(client)
        self._clear(client)
        self.release(client)

    def _take(self, passage: socket.socket) -> None:
        """Take over a client with its first request."""
        request, descriptors, *_ = socket.recv_fds(passage, MOST_BYTES, 2)
        if not request:
            self.stop()
            return
        connection, output = descriptors
        client = Client(socket.socket(fileno=connection), output=output)
        self.admit(client)
        self.request(client, request)

    def _start(self, client: Client, job: dict[str, Any]) -> None:
        try:
            load(job["file"])
        except KeyboardInterrupt:
            raise
        except BaseException:  # reported to the test; a file may also skip or exit
            self._send(client, [{"rank": 0, "exit": 0, "error": traceback.format_exc()}])
            return
        # Clear the exit handlers that imports registered, because they take longer than the rest of
        # a short job. A rank runs only the handlers that it registers itself.
        atexit._clear()
        client.folder, client.size = tempfile.mkdtemp(), job["size"]
        client.deadline_s = time.monotonic() + job["seconds"]
        for rank in range(client.size):
            client.ranks[rank] = self._fork(client, job, rank)
            self.watch(client.ranks[rank][1], partial(self._reap, client, rank))

    def _fork(self, client: Client, job: dict[str, Any], rank: int) -> tuple[int, int]:
        parent = os.getpid()
        if pid := os.fork():
            return pid, os.pidfd_open(pid)
        code = 1
        try:
            end_with(parent)
            self.leave(client.output)
            be_rank(job, rank, client.folder, client.output)
            code = 0
        except BaseException:  # shown with the output; this process must not return to the server
            traceback.print_exc()
        finally:
            os._exit(code)

    def _reap(self, client: Client, rank: int) -> None:
        pid, handle = client.ranks.pop(rank)
        client.ends[rank] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.unwatch(handle)
        os.close(handle)
        if not client.ranks:
            self._answer(client)

    def _kill(self, client: Client) -> None:
        """Kill the client's ranks and reap them; their exit codes are not reported."""
        for pid, handle in client.ranks.values():
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.unwatch(handle)
            os.close(handle)
        client.ranks.clear()

    def _answer(self, client: Client) -> None:
        answers = []
        for rank in range(client.size):
            path = Path(f"{client.folder}/{rank}")
            answer = json.loads(path.read_text()) if path.exists() else {"rank": rank}
            answers.append(answer | {"exit": client.ends.get(rank)})
        self._send(client, answers)

    def _send(self, client: Client, answers: list[dict[str, Any]]) -> None:
        self._clear(client)
        try:
            client.connection.sendall(json.dumps(answers).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            self.drop(client)

    def _clear(self, client: Client) -> None:
        """Remove what the client's latest job has left."""
        if client.folder:
            shutil.rmtree(client.folder)
        if client.output >= 0:
            os.close(client.output)
        client.folder, client.output = "", -1
        client.ends.clear()


@cache
def load(file: str) -> ModuleType:
    """Import a test's file, so that ranks forked later have it and everything it imports.

    A function `prepare` in the file, if there is one, imports modules that only ranks need.
    """
    for folder in (str(Path(__file__).parents[1] / "support"), str(Path(file).parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(f"cases of {file}", file)
    assert spec is not None
    assert spec.loader is not None
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    getattr(cases, "prepare", lambda: None)()
    return cases


def run_rank(job: dict[str, Any], rank: int, store: str) -> Any:
    """Run the job's function as a rank and return its result."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    function = getattr(load(job["file"]), job["function"])
    if job["bare"]:
        return function(rank, job["size"], store)
    dist.init_process_group(
        "slackline",
        init_method=f"file://{store}",
        rank=rank,
        world_size=job["size"],
        timeout=timedelta(seconds=job["timeout_s"]),
    )
    result = function(rank, job["size"])
    dist.destroy_process_group()
    return result


def be_rank(job: dict[str, Any], rank: int, folder: str, output: int) -> None:
    """Run the job in this forked process, and leave the result or the traceback in the folder."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(job["environment"])
    answer: dict[str, Any] = {"rank": rank}
    try:
        answer["result"] = run_rank(job, rank, f"{folder}/store")
    except BaseException:  # reported to the test, whatever it is
        answer["error"] = traceback.format_exc()
    Path(f"{folder}/{rank}.part").write_text(json.dumps(answer))
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}")
    atexit._run_exitfuncs()
