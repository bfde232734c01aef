"""The daemon that owns a persistent lab, from `slackline lab up` to `slackline lab down`.

    python -m slackline.lab._daemon NAME '{"hosts": 4, ...}'

The daemon prints one line, {"ready": ...} or {"error": ...}, and then listens on the lab's Unix
socket for requests of one JSON line each:

{"fault": text, "detach": bool}    injects faults. The daemon answers {"running": true} and, unless
                                   detached, {"over": true} at the faults' end. If the client closes
                                   the connection earlier, the daemon removes the faults.
{"status": true}                   returns the faults in force and the switch's counters.

SIGTERM takes the lab down.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from datetime import timedelta
from typing import IO, Any

from slackline.errors import SlacklineError
from slackline.faults import parse_all
from slackline.lab._executor import Injection
from slackline.lab._lab import Lab
from slackline.lab._options import LabOptions
from slackline.lab._ownership import control_socket

_TICK = timedelta(milliseconds=100)


def main(name: str, options: str) -> int:
    """Build the lab and serve requests until SIGTERM; return 1 if the lab cannot be built."""
    try:
        with (
            Lab(LabOptions(**json.loads(options)), name=name, persistent=True) as lab,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening,
        ):
            listening.bind(str(control_socket(name)))
            listening.listen()
            left_out: list[str] = []
            _say(sys.stdout, {"ready": True, "switch": lab.switch})
            _leave_the_terminal()
            while True:
                caller, _ = listening.accept()
                threading.Thread(target=_serve, args=[lab, caller, left_out], daemon=True).start()
    except SlacklineError as error:
        _say(sys.stdout, {"error": str(error)})
        return 1


def _leave_the_terminal() -> None:
    """Ignore Ctrl-C and close standard output, so that the parent's read of the output ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def _serve(lab: Lab, caller: socket.socket, left_out: list[str]) -> None:
    """Read one request from a connection and answer it."""
    with contextlib.suppress(ConnectionError), caller, caller.makefile("rw") as lines:
        asked = json.loads(lines.readline() or "{}")
        try:
            if "fault" in asked:
                _carry_out(lab, asked, caller, lines, left_out)
            elif "status" in asked:
                _say(lines, {**_status(lab), "left_out": left_out})
        except SlacklineError as error:
            _say(lines, {"error": str(error)})


def _carry_out(
    lab: Lab, asked: dict[str, Any], caller: socket.socket, lines: IO[str], left_out: list[str]
) -> None:
    """Carry out the faults of a request until they end or the caller disconnects.

    A caller that waits gets an error for a fault that was left out; `left_out` keeps the sentences
    about faults of callers that do not wait.
    """
    own: list[str] = []
    warn = left_out.append if asked["detach"] else own.append
    injection = lab.inject(parse_all(asked["fault"]), warn=warn)
    try:
        _say(lines, {"running": True})  # The write may fail: the caller may have left.
        if not asked["detach"]:
            _until_over(injection, caller)
            _say(lines, {"error": "; ".join(own)} if own else {"over": True})
    finally:
        if not asked["detach"]:
            injection.withdraw()


def _until_over(injection: Injection, caller: socket.socket) -> None:
    """Block until the faults are over or the caller closes the connection."""
    caller.settimeout(_TICK.total_seconds())
    while not injection.wait(timedelta()):
        with contextlib.suppress(TimeoutError):
            if not caller.recv(1):
                return


def _status(lab: Lab) -> dict[str, Any]:
    """Return the faults in force in the lab and the counters of its user-space switch."""
    faults = [str(plan) for plan in lab.plans()]
    paths = [vars(row) for row in lab.counters()] if lab.switch == "user" else []
    return {"faults": faults, "paths": paths}


def _say(where: IO[str], what: dict[str, Any]) -> None:
    """Write one JSON line."""
    where.write(json.dumps(what) + "\n")
    where.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
