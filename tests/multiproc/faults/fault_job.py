"""Ranks as processes that the test may kill. The ranks meet at a store in the test's process.

Each request and each answer is a line of JSON. A request is ["set", key, value] or ["get", key],
which is answered once the key has been set, or ["check", key, ...], which is answered at once.
"""

import json
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from slackline.errors import TimeoutError
from slackline.testing import MemoryStore

RANKS = Path(__file__).with_name("fault_ranks.py")
PATIENCE = timedelta(seconds=60)


class Job:
    """The processes of a job, and the store through which they talk to the test."""

    def __init__(self) -> None:
        self.store = MemoryStore(timeout=PATIENCE)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="store", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self._server.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._server.close()
        for connection in self._connections:
            connection.close()

    def start(self, function: str, size: int, *, script: Path = RANKS, **arguments: Any) -> None:
        """Start `size` ranks; each runs `function(link, rank, size, **arguments)` of `script`."""
        port = self._server.getsockname()[1]
        for rank in range(size):
            what = json.dumps(arguments)
            command = [sys.executable, str(script), function, str(rank), str(size), str(port), what]
            self.processes.append(subprocess.Popen(command))

    def told(self, rank: int, what: str) -> Any:
        """Wait for the value that `rank` reports under the name `what`, and return it."""
        return json.loads(self.store.get(f"{rank}/{what}"))

    def tell(self, what: str) -> None:
        """Release the ranks that wait for `what`."""
        self.store.set(what, "null")

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)
        self.processes[rank].wait()

    def ends(self, ranks: tuple[int, ...]) -> list[int]:
        """Wait for `ranks` to end and return their exit codes."""
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
                    verb, *given = json.loads(line)
                    answer: str | bool | None = None
                    if verb == "set":
                        self.store.set(*given)
                    elif verb == "check":
                        answer = self.store.check(given)
                    else:
                        answer = self.store.get(*given).decode()
                    stream.write(json.dumps(answer) + "\n")
                    stream.flush()
        except (OSError, ValueError, TimeoutError):
            return  # a killed rank may close its connection at any point
