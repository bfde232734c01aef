"""Persistent labs: the requests that the command line sends to the daemons that own the labs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, Any

from slackline.errors import TimeoutError, UsageError
from slackline.lab import _names as names
from slackline.lab._options import LabOptions, check_name
from slackline.lab._ownership import RUNTIME, Record, clean, control_socket, log_of, records
from slackline.lab._system import require

__all__ = ["command", "find", "inject", "stand_up", "status", "take_down"]

_PATIENCE_S = 30.0
_LOOK_S = 0.02


def stand_up(name: str, options: LabOptions) -> str:
    """Start a daemon that owns a persistent lab; return the lab's switch, "kernel" or "user".

    Raises UsageError when the lab cannot be built.
    """
    check_name(name)
    require()
    RUNTIME.mkdir(parents=True, exist_ok=True)
    with (
        log_of(name).open("ab") as log,
        subprocess.Popen(
            [sys.executable, "-m", "slackline.lab._daemon", name, json.dumps(asdict(options))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,  # The daemon outlives this process and its stderr.
            text=True,
            start_new_session=True,
        ) as daemon,
    ):
        assert daemon.stdout is not None
        line = daemon.stdout.readline()
        if line and "ready" in (said := json.loads(line)):
            daemon.returncode = 0  # The daemon runs on, so Popen must not wait for its end.
            return str(said["switch"])
    why = said["error"] if line else f"the daemon failed:\n{log_of(name).read_text()}"
    if Record.read(name) is None:
        log_of(name).unlink(missing_ok=True)
    raise UsageError(why)


def find(name: str | None = None) -> Record:
    """Return the running lab with this name; without a name, the only persistent lab.

    Without a name and without a persistent lab, the result is the only lab of a running program.
    Raises UsageError if there is no such lab, or if there are several and no name was given.
    """
    if name is not None:
        record = Record.read(check_name(name))
        if record is None or not record.alive:
            raise UsageError(f"there is no lab {name!r}")
        return record
    living = [record for record in records() if record.alive]
    if not living:
        raise UsageError("there is no lab: `slackline lab up` makes one")
    meant = [record for record in living if record.persistent] or living
    if len(meant) > 1:
        known = ", ".join(record.name for record in meant)
        raise UsageError(f"there are several labs, choose one with --name: {known}")
    return meant[0]


def command(record: Record, host: int, argv: Sequence[str]) -> list[str]:
    """Return the command line that runs `argv` on a host of the lab, without a child process."""
    if not 0 <= host < record.hosts:
        raise UsageError(
            f"a host must be between 0 and {record.hosts - 1} in the lab {record.name!r}, "
            f"not {host}"
        )
    return ["ip", "netns", "exec", names.namespace(record.name, host), *argv]


def inject(record: Record, text: str, *, detach: bool) -> None:
    """Inject faults and block until the faults end; with `detach`, only until the faults begin.

    Faults that are not detached end with the calling process. Raises UsageError for a fault that
    the lab has left out, because the fault was over before the lab could start it.
    """
    with _ask(record, {"fault": text, "detach": detach}) as lines:
        _answer(record, lines)
        if not detach:
            _answer(record, lines)


def status(record: Record) -> dict[str, Any]:
    """Return the faults in force, sentences about faults that were left out, and the counters of
    the user-space switch.

    The result is {"faults": [text, ...], "left_out": [text, ...], "paths": [counters, ...]}; all
    are empty for a lab that is not persistent.
    """
    if not record.persistent:
        return {"faults": [], "left_out": [], "paths": []}
    with _ask(record, {"status": True}) as lines:
        return _answer(record, lines)


def take_down(record: Record) -> None:
    """Take down a persistent lab, or a lab whose owner has died; return once the lab is gone.

    Raises UsageError when the lab belongs to another running program, and TimeoutError after 30 s.
    """
    if not record.alive:
        clean(record)
        return
    if not record.persistent:
        raise UsageError(
            f"the lab {record.name!r} belongs to process {record.pid} and ends with it"
        )
    os.kill(record.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + _PATIENCE_S
    while Record.read(record.name) == record:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the lab {record.name!r} is still up after {_PATIENCE_S:.0f} s")
        time.sleep(_LOOK_S)


def _ask(record: Record, what: dict[str, Any]) -> IO[str]:
    """Send a request to the daemon of a persistent lab; return the lines of its answers."""
    if not record.persistent:
        raise UsageError(
            f"the lab {record.name!r} belongs to process {record.pid}, which alone can do this"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(str(control_socket(record.name)))
            asking.sendall(json.dumps(what).encode() + b"\n")
        except (ConnectionError, FileNotFoundError):
            raise _gone(record) from None
        return asking.makefile("r")


def _answer(record: Record, lines: IO[str]) -> dict[str, Any]:
    """Return the daemon's next answer; raise UsageError if the answer is an error."""
    try:
        line = lines.readline()
    except ConnectionError:
        line = ""
    if not line:
        raise _gone(record)
    said: dict[str, Any] = json.loads(line)
    if "error" in said:
        raise UsageError(said["error"])
    return said


def _gone(record: Record) -> UsageError:
    """Return the error for a lab whose daemon does not answer."""
    return UsageError(f"the lab {record.name!r} no longer exists")
