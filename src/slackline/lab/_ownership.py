"""Ownership of labs: one record file per lab, so that a lab can be removed after its owner died.

A record is written before the lab's first namespace is created and removed after the last one is
deleted. The record names the owner by process id and start time. Any process that finds a record
of a dead owner may remove the lab.
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

from slackline._process_start import started
from slackline.errors import UsageError
from slackline.lab import _names as names
from slackline.lab._commands import delete_namespace
from slackline.lab._system import NAMESPACES, SETTINGS, execute, namespace_pids

__all__ = ["RUNTIME", "Record", "clean", "control_socket", "log_of", "records"]

RUNTIME = Path("/run/slackline/labs")
"""The directory of records: one NAME.json for each lab of this machine."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The public record of a lab on this machine, with its owner."""

    name: str
    hosts: int
    nics: int
    rate: int | None
    switch: str
    """The switch: "kernel" or "user"."""
    persistent: bool
    """Whether `slackline lab up` made the lab, so that any process may use it and take it down."""
    pid: int
    """The process id of the owner."""
    started: int
    """The start time of the owner, in clock ticks since boot."""

    @classmethod
    def read(cls, name: str) -> Self | None:
        """Return the record of a lab, or None without one; raise UsageError if it is invalid."""
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
        """Whether the owning process is still running."""
        return started(self.pid) == self.started

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The names of all network namespaces that the lab may have created."""
        hosts = tuple(names.namespace(self.name, host) for host in range(self.hosts))
        return (names.fabric(self.name), *hosts) if self.switch == "kernel" else hosts

    def claim(self) -> None:
        """Write the record, after removing a lab of the same name whose owner has died.

        Raises UsageError when a running process owns the name, or when a namespace of the lab
        exists without a record.
        """
        RUNTIME.mkdir(parents=True, exist_ok=True)
        draft = RUNTIME / f".{self.name}.{os.getpid()}"
        draft.write_text(json.dumps(asdict(self)))
        try:
            other = self.read(self.name)
            if other is not None and not other.alive:
                clean(other)
            os.link(draft, _path(self.name))  # atomic: only one process gets the name
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
        """Write an /etc/hosts file for each host, which `ip netns exec` shows to its programs."""
        for host in range(self.hosts):
            home = SETTINGS / names.namespace(self.name, host)
            home.mkdir(parents=True)
            (home / "hosts").write_text(names.hosts_file(self.hosts, host, socket.gethostname()))

    def release(self) -> None:
        """Delete the record's file."""
        _path(self.name).unlink(missing_ok=True)


def records() -> Iterator[Record]:
    """Yield the record of every lab of this machine, also if the lab's owner has died.

    Records that this version cannot read are skipped.
    """
    for path in sorted(RUNTIME.glob("[!.]*.json")):
        with suppress(UsageError):
            if (record := Record.read(path.stem)) is not None:
                yield record


def clean(record: Record) -> None:
    """Kill all processes in the lab's namespaces, then delete the namespaces and the record."""
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
    for path in (control_socket(record.name), log_of(record.name)):
        path.unlink(missing_ok=True)
    record.release()


def control_socket(name: str) -> Path:
    """Return the path of the Unix socket that the daemon of a persistent lab listens on."""
    return RUNTIME / f"{name}.sock"


def log_of(name: str) -> Path:
    """Return the path of the log file that the daemon of a persistent lab writes errors to."""
    return RUNTIME / f"{name}.log"


def _path(name: str) -> Path:
    return RUNTIME / f"{name}.json"
