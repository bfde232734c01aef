"""Who owns a lab: a record in a runtime directory, so that nothing outlives its owner for long.

A record is written before the lab's first namespace is made and removed after the last one is gone.
It names the owner by process id and start time: whoever finds one whose owner has died may clean.
"""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self

from slackline.errors import UsageError
from slackline.lab import _names as names
from slackline.lab._commands import delete_namespace
from slackline.lab._system import NAMESPACES, SETTINGS, execute, namespace_pids, started

__all__ = ["RUNTIME", "Record", "clean", "door", "log_of", "records"]

RUNTIME = Path("/run/slackline/labs")
"""One NAME.json for each lab of this machine."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A lab as others on this machine know it."""

    name: str
    hosts: int
    nics: int
    rate: int | None
    switch: str
    """kernel or user."""
    standing: bool
    """Made by `slackline lab up`: anyone may use it and take it down."""
    pid: int
    """The owner."""
    started: int
    """When the owner was started, in clock ticks since boot."""

    @classmethod
    def read(cls, name: str) -> Self | None:
        """The record of a lab; None when there is none. Raises UsageError when it is no record."""
        try:
            said = json.loads(_path(name).read_text())
            return cls(**{field.name: said[field.name] for field in fields(cls)})
        except FileNotFoundError:
            return None
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"{_path(name)} is not the record of a lab of this version: {error!r}"
            ) from None

    @property
    def alive(self) -> bool:
        """Whether the owner still lives."""
        return started(self.pid) == self.started

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All namespaces that the lab may have made."""
        hosts = tuple(names.namespace(self.name, host) for host in range(self.hosts))
        return (names.fabric(self.name), *hosts) if self.switch == "kernel" else hosts

    def claim(self) -> None:
        """Write the record; what a dead owner of the name left is cleaned first.

        Raises UsageError when the name is in use by a living one, or its namespaces by somebody
        else.
        """
        RUNTIME.mkdir(parents=True, exist_ok=True)
        draft = RUNTIME / f".{self.name}.{os.getpid()}"
        draft.write_text(json.dumps(asdict(self)))
        try:
            other = self.read(self.name)
            if other is not None and not other.alive:
                clean(other)
            os.link(draft, _path(self.name))  # of two that claim a name at once one fails
        except FileExistsError:
            holder = self.read(self.name)
            whose = "another process" if holder is None else f"process {holder.pid}"
            raise UsageError(f"the lab {self.name!r} is up and belongs to {whose}") from None
        finally:
            draft.unlink()
        for namespace in self.namespaces:
            if (NAMESPACES / namespace).exists() or (SETTINGS / namespace).exists():
                self.release()
                raise UsageError(
                    f"the network namespace {namespace!r} exists and no lab owns it: "
                    f"remove it with `ip netns delete {namespace}`, and {SETTINGS / namespace}"
                )

    def write_hosts(self) -> None:
        """Give each host an /etc/hosts of its own, which programs started in it see."""
        for host in range(self.hosts):
            home = SETTINGS / names.namespace(self.name, host)
            home.mkdir(parents=True)
            (home / "hosts").write_text(names.hosts_file(self.hosts, host, socket.gethostname()))

    def release(self) -> None:
        """Remove the record."""
        _path(self.name).unlink(missing_ok=True)


def records() -> Iterator[Record]:
    """Every lab of this machine, living or not; those of other versions are not known here."""
    for path in sorted(RUNTIME.glob("[!.]*.json")):
        with suppress(UsageError):
            if (record := Record.read(path.stem)) is not None:
                yield record


def clean(record: Record) -> None:
    """End all processes in the lab's namespaces and take the namespaces away, then the record."""
    for namespace in record.namespaces:
        for pid in namespace_pids(namespace):
            if pid != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if (NAMESPACES / namespace).exists():
            execute([delete_namespace(namespace)])
        (SETTINGS / namespace / "hosts").unlink(missing_ok=True)
        if (SETTINGS / namespace).exists():
            (SETTINGS / namespace).rmdir()
    for path in (door(record.name), log_of(record.name)):
        path.unlink(missing_ok=True)
    record.release()


def door(name: str) -> Path:
    """The Unix socket at which the keeper of a standing lab listens."""
    return RUNTIME / f"{name}.sock"


def log_of(name: str) -> Path:
    """What the keeper of a standing lab has to say when nobody listens."""
    return RUNTIME / f"{name}.log"


def _path(name: str) -> Path:
    return RUNTIME / f"{name}.json"
