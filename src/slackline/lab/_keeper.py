"""The process that owns a standing lab, from `slackline lab up` to `slackline lab down`.

    python -m slackline.lab._keeper NAME '{"hosts": 4, ...}'

It says {"ready": ...} or {"error": ...} in one line and then listens at the lab's door, a Unix
socket. A line with {"fault": text, "detach": bool} carries faults out, answered by {"running":
true} and, unless detached, by {"over": true} at their end; who hangs up before takes them back.
{"status": true} is answered by what is in force. SIGTERM takes the lab down.
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
from slackline.lab._ownership import door

_TICK = timedelta(milliseconds=100)


def main(name: str, options: str) -> int:
    """Keep the lab until SIGTERM."""
    try:
        with (
            Lab(LabOptions(**json.loads(options)), name=name, standing=True) as lab,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening,
        ):
            listening.bind(str(door(name)))
            listening.listen()
            _say(sys.stdout, {"ready": True, "switch": lab.switch})
            _leave_the_terminal()
            while True:
                caller, _ = listening.accept()
                threading.Thread(target=_serve, args=[lab, caller], daemon=True).start()
    except SlacklineError as error:
        _say(sys.stdout, {"error": str(error)})
        return 1


def _leave_the_terminal() -> None:
    """Whoever waits for the end of our output waits no longer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def _serve(lab: Lab, caller: socket.socket) -> None:
    with contextlib.suppress(ConnectionError), caller, caller.makefile("rw") as lines:
        asked = json.loads(lines.readline() or "{}")
        try:
            if "fault" in asked:
                _carry_out(lab, asked, caller, lines)
            elif "status" in asked:
                _say(lines, _status(lab))
        except SlacklineError as error:
            _say(lines, {"error": str(error)})


def _carry_out(lab: Lab, asked: dict[str, Any], caller: socket.socket, lines: IO[str]) -> None:
    injection = lab.inject(parse_all(asked["fault"]))
    try:
        _say(lines, {"running": True})  # the caller may have left by now
        if not asked["detach"]:
            _until_over(injection, caller)
            _say(lines, {"over": True})
    finally:
        if not asked["detach"]:
            injection.withdraw()


def _until_over(injection: Injection, caller: socket.socket) -> None:
    """Returns at the end of the faults, or when the caller hangs up."""
    caller.settimeout(_TICK.total_seconds())
    while not injection.wait(timedelta()):
        with contextlib.suppress(TimeoutError):
            if not caller.recv(1):
                return


def _status(lab: Lab) -> dict[str, Any]:
    faults = [str(plan) for plan in lab.plans()]
    paths = [vars(row) for row in lab.counters()] if lab.switch == "user" else []
    return {"faults": faults, "paths": paths}


def _say(where: IO[str], what: dict[str, Any]) -> None:
    where.write(json.dumps(what) + "\n")
    where.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
