"""Ranks as processes that the test may kill: they meet at a store in the test's process.

A line of JSON is a request and a line its answer: ["set", key, value], ["get", key], which is
answered once somebody has set it.
"""

import json
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from slackline.errors import TimeoutError
from slackline.testing import MemoryStore

RANKS = Path(__file__).with_name("fault_ranks.py")
PATIENCE = timedelta(seconds=60)


class Job:
    """Processes of one job, and the store where they meet the test."""

    def __init__(self) -> None:
        self.store = MemoryStore(timeout=PATIENCE)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="store", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._server.close()
        for connection in self._connections:
            connection.close()

    def start(self, function: str, size: int, **arguments: Any) -> None:
        """Start `size` ranks; each runs `function(link, rank, size, **arguments)`."""
        port = self._server.getsockname()[1]
        for rank in range(size):
            what = json.dumps(arguments)
            command = [sys.executable, str(RANKS), function, str(rank), str(size), str(port), what]
            self.processes.append(subprocess.Popen(command))

    def told(self, rank: int, what: str) -> Any:
        """What `rank` tells about `what`; waits until it does."""
        return json.loads(self.store.get(f"{rank}/{what}"))

    def tell(self, what: str) -> None:
        """Let ranks that wait for `what` go on."""
        self.store.set(what, "null")

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)
        self.processes[rank].wait()

    def ends(self, ranks: tuple[int, ...]) -> list[int]:
        """The exit codes of `ranks`; waits for them."""
        return [self.processes[rank].wait(PATIENCE.total_seconds()) for rank in ranks]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rw") as stream:
                for line in stream:
                    verb, key, *value = json.loads(line)
                    answer = None
                    if verb == "set":
                        self.store.set(key, value[0])
                    else:
                        answer = self.store.get(key).decode()
                    stream.write(json.dumps(answer) + "\n")
                    stream.flush()
        except (OSError, ValueError, TimeoutError):
            return  # a killed rank hangs up as it likes
