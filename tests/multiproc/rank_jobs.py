"""Jobs of forked ranks: the process that forks the ranks, and the runner that asks it for a job."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest

SERVER = Path(__file__).with_name("fork_server.py")
GROUP_TIMEOUT = timedelta(seconds=30)
END = timedelta(seconds=60)
"""The limit for the end of the server, which takes milliseconds on an idle machine."""


class ForkServer:
    """A process that forks the ranks of all jobs; every pytest worker connects to `address`."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="slackline-ranks-"))
        self.address = str(self._folder / "socket")
        self._note = self._folder / "job"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, SERVER, str(listener.fileno()), self._note],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, limit: timedelta = END) -> None:
        """End the server and all ranks that still run.

        Raises TimeoutError, with the name of the latest job, if the server has not ended within
        `limit`; then the server is killed.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(limit.total_seconds())
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            job = self._note.read_text() if self._note.exists() else "none"
            raise TimeoutError(
                f"the process that forks ranks has not ended within {limit}; its latest job: {job}"
            ) from None
        finally:
            shutil.rmtree(self._folder)


class Jobs:
    """A runner of jobs. If a rank raises an exception, the test fails with its traceback."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connections: dict[str, socket.socket] = {}
        """The connection for each test file."""

    def __call__(
        self,
        size: int,
        function: Callable[..., Any],
        *,
        bare: bool = False,
        environment: Mapping[str, str] | None = None,
        timeout: timedelta = GROUP_TIMEOUT,
        seconds: float = 110,
        dying: tuple[int, ...] = (),
    ) -> list[Any]:
        """Run `function(rank, size)` on each rank, between init and destroy of the process group,
        and return the results.

        With `bare`, call `function(rank, size, path of an empty file store)` instead, without init
        and destroy. The ranks in `dying` may end in any way. `timeout` is the timeout of the group.
        Ranks that still run after `seconds` are killed, and the test fails.
        """
        job = {
            "file": function.__code__.co_filename,
            "function": function.__name__,
            "size": size,
            "bare": bare,
            "environment": {**os.environ, **(environment or {})},
            "timeout_s": timeout.total_seconds(),
            "seconds": seconds,
        }
        answers = self._ask(job)
        troubles = [
            f"rank {answer['rank']}: {trouble}"
            for answer in answers
            if answer["rank"] not in dying and (trouble := _trouble(answer))
        ]
        if troubles:
            pytest.fail("\n".join(troubles), pytrace=False)
        return [answer.get("result") for answer in answers]

    def post(self, job: Mapping[str, Any]) -> None:
        """Ask the server to start a job; its ranks write to this process's standard error."""
        file = job["file"]
        if file not in self._connections:
            self._connections[file] = socket.socket(socket.AF_UNIX)
            self._connections[file].connect(self.address)
        request = json.dumps(job).encode() + b"\n"
        sent = socket.send_fds(self._connections[file], [request], [sys.__stderr__.fileno()])
        self._connections[file].sendall(request[sent:])

    def answers(self, file: str) -> list[dict[str, Any]]:
        """Wait for the end of the file's latest job and return the answers of its ranks."""
        with self._connections[file].makefile() as lines:
            if not (line := lines.readline()):
                pytest.fail("the process that forks ranks has ended", pytrace=False)
        found: list[dict[str, Any]] = json.loads(line)
        return found

    def close(self) -> None:
        """Disconnect from the server, which ends the ranks of a job that still runs."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _ask(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            self.post(job)
            return self.answers(job["file"])
        except BaseException:  # after a timeout, a late answer must not reach the next test
            self.close()
            raise


def _trouble(answer: Mapping[str, Any]) -> str | None:
    if "error" in answer:
        return str(answer["error"])
    if answer["exit"] is None:
        return "did not end"
    return f"ended with {answer['exit']}" if answer["exit"] else None
