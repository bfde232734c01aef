"""A server that imports torch once, and forks the ranks of all jobs of all pytest workers.

    python fork_server.py LISTENER NOTE

LISTENER is the descriptor of a listening Unix socket. A pytest worker connects once for each test
file. A request is one job as a line of JSON, sent with the descriptor that receives the output of
the ranks; the answer is a line of JSON with the result or the traceback of each rank.

The server forks a process for each test file, which imports the file and forks the ranks of its
jobs. A fork thus copies no more memory than torch and this one file take. The server imports torch
at the first job, writes the name of the latest job to the file NOTE, and ends itself when its
standard input is closed. The process of a file ends with the server, and the ranks of a client end
when it disconnects.
"""

import gc
import importlib
import json
import os
import socket
import sys
import traceback
from functools import cache
from pathlib import Path

from fork_clients import Client, Server, end_with

OPENING = {
    "slackline.backend": ["create"],
    "slackline.nic.connect": ["Admissions", "Attempt", "HandshakeChannel"],
    "slackline.plan.collective": ["choose", "expected_ns", "generate"],
}
"""Names whose packages import them late, with the modules that a rank needs to open a group."""


@cache
def load_torch() -> None:
    """Import what all ranks need. The first optimizer imports torch._dynamo, so it is included."""
    import fork_ranks  # noqa: F401
    import torch._dynamo  # noqa: F401

    import slackline.overlap  # noqa: F401

    for package, names in OPENING.items():
        for name in names:
            getattr(importlib.import_module(package), name)

    # A rank that visited these objects in a collection would copy their memory.
    gc.collect()
    gc.freeze()


class Entrance(Server):
    """The process that all clients connect to; it passes them on to the file processes."""

    def __init__(self, listener: socket.socket, note: Path) -> None:
        super().__init__()
        self._note = note
        self._files: dict[str, tuple[int, socket.socket]] = {}
        """The process id of each file's process, and the socket that passes clients to it."""
        self.watch(listener, lambda: self.admit(Client(listener.accept()[0])))
        self.watch(0, self.stop)

    def request(self, client: Client, request: bytes) -> None:
        job = json.loads(request)
        self._note.write_text(f"{job['function']} of {job['file']}")
        load_torch()
        pid, passage = self._files.get(job["file"], (0, None))
        if passage is None or os.waitpid(pid, os.WNOHANG)[0]:
            passage = self._fork(job["file"])
        handed = [client.connection.fileno(), client.output]
        socket.send_fds(passage, [request], handed)
        self.release(client)

    def close(self) -> None:
        """End the processes of all files, which end their ranks."""
        for _, passage in self._files.values():
            passage.close()
        for pid, _ in self._files.values():
            os.waitpid(pid, 0)

    def _fork(self, file: str) -> socket.socket:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        if pid := os.fork():
            there.close()
            self._files[file] = pid, here
            return here
        try:
            from fork_ranks import FileServer

            end_with(parent)
            here.close()
            for _, other in self._files.values():
                os.close(other.detach())
            self.leave()
            FileServer(there).run()
        except KeyboardInterrupt:
            pass  # the terminal sends Ctrl-C to the tests too, which tell of it
        except BaseException:  # this process must not return to the entrance
            traceback.print_exc()
        finally:
            os._exit(0)


if __name__ == "__main__":
    code = 0
    entrance = Entrance(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
    try:
        entrance.serve()
        entrance.close()
    except KeyboardInterrupt:  # the terminal sends Ctrl-C to the tests too, which tell of it
        code = 130
    os._exit(code)  # the end of an interpreter with torch takes long, and needs its exit handlers
