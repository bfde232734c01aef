"""Handles: strings that name a process and say how to reach it, without any common store.

    process a                                   process b
    Door: a TCPStore of its own        <──────  connects to one of the addresses of a's handle
    get_handle() ── any way ─────────────────>  Handle.decode(...)

A handle has the addresses and the port of the process's door, the name of the process, and a digest
of a secret that only this process knows. By the secret, which it shows to those that it meets, a
process proves that the handle is its own, and that no other process has taken over its port.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import operator
import os
import secrets
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackline._lazy import record
from slackline.env import Environment
from slackline.errors import UsageError
from slackline.nic import NicOptions
from slackline.nic.connect import host_identity, load_links, local_interfaces, read_key

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

__all__ = ["Connections", "Door", "Handle", "Led", "open_door"]

LONGEST_HANDLE = 1024
"""The most bytes of a handle."""
_VERSION = 2
"""The version of handles, and of the way in which the members of a change meet."""
_PREFIX = "slackline-handle-"
_SHOWN = 40
_OWN = {"::": "::1", "0.0.0.0": "127.0.0.1"}
"""The addresses at which a process reaches a port of its own that listens at all addresses."""


@record(frozen=True, kw_only=True)
class Handle:
    """The name of a process, with what others need to reach it."""

    name: str
    """The unique name of the process."""
    addresses: tuple[str, ...]
    """The addresses at which the door may be reached; those of the loopback device come last."""
    port: int
    proof: str
    """The digest of the process's secret, in hexadecimal digits."""
    host: str
    """A digest of the host's identity: processes of one host reach each other by its loopback."""
    job: str
    """A digest of the key of SLACKLINE_KEY; empty without a key."""

    def encode(self) -> str:
        """Return the handle as a string of at most 1 KiB; addresses that do not fit are left out.

        The address that is dropped first is the last one.
        """
        addresses = list(self.addresses)
        while True:
            fields = [self.name, addresses, self.port, self.proof, self.host, self.job]
            packed = base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode())
            check = hashlib.sha256(packed).hexdigest()[:8]
            text = f"{_PREFIX}{_VERSION}.{packed.decode()}.{check}"
            if len(text) <= LONGEST_HANDLE:
                return text
            addresses.pop()

    @classmethod
    def decode(cls, text: str) -> Handle:
        """Return the handle that `encode` has written as `text`; raise UsageError for other text.

        The error names the text, and says what is wrong with it.
        """
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        if not text.startswith(_PREFIX):
            raise UsageError(f"{shown!r} is no handle: a handle begins with {_PREFIX!r}")
        version, _, rest = text.removeprefix(_PREFIX).partition(".")
        if version != str(_VERSION):
            raise UsageError(
                f"the handle {shown!r} has version {version!r}, and this slackline reads version "
                f"{_VERSION}: install the same version everywhere"
            )
        packed, _, check = rest.partition(".")
        if hashlib.sha256(packed.encode()).hexdigest()[:8] != check:
            raise UsageError(
                f"the handle {shown!r} of {len(text)} bytes is cut short or changed: its checksum "
                "is wrong"
            )
        try:
            name, addresses, port, *digests = json.loads(base64.urlsafe_b64decode(packed))
            proof, host, job = digests
            if not all(isinstance(part, str) for part in (name, *addresses, *digests)):
                raise TypeError("a part is no string")
            for address in addresses:
                ipaddress.ip_address(address)
            if operator.index(port) not in range(1, 1 << 16):
                raise ValueError(f"there is no port {port}")
            return cls(
                name=name,
                addresses=tuple(addresses),
                port=port,
                proof=proof,
                host=host,
                job=job,
            )
        except (ValueError, TypeError) as error:
            raise UsageError(f"the handle {shown!r} has wrong contents: {error}") from error

    def proven_by(self, secret: str) -> bool:
        """Return whether `secret` is the secret of the process whose handle this is."""
        return hmac.compare_digest(_digest(secret), self.proof)

    def reached_from(self, other: Handle) -> tuple[str, ...]:
        """Return the addresses at which the process with the handle `other` may reach the door.

        On one host the loopback addresses come first: torch's store asks for the name of each
        address that connects, and hosts files have that of ::1. They lack that of 127.0.0.1 as the
        store's sockets see it, mapped to IPv6. Another host's loopback addresses are left out if it
        has others.
        """
        near = [each for each in self.addresses if ipaddress.ip_address(each).is_loopback]
        near.sort(key=lambda each: ipaddress.ip_address(each).version, reverse=True)
        far = [each for each in self.addresses if each not in near]
        return (*near, *far) if self.host == other.host else tuple(far or near)

    def door_key(self) -> str:
        """Return the key under which the store of the process's door has the process's secret."""
        return f"slackline/door/{self.name}"


@record(frozen=True)
class Connections:
    """Two connections to the store of one door."""

    meetings: TCPStore
    """The torch store for meetings."""
    groups: Any
    """The torch store for groups; the program may wait in it, which keeps other threads out."""


@dataclass
class Led:
    """A change of members that met at this process's door, whose keys are still in the store."""

    keys: set[str]
    awaited: set[str]
    """The names of the members that may still read the keys."""


class Door:
    """The store of this process, at which others meet if its handle is the first of their list."""

    def __init__(self, options: NicOptions) -> None:
        """Open the store: at the one address that `options` allow, or else at all of the host.

        The handle names the addresses that the options allow. Raises UsageError if the options name
        an interface that this host lacks, OSError if no port is free.
        """
        from torch._C._distributed_c10d import TCPStore

        near = options.listen == "loopback"
        found = [
            each
            for each in local_interfaces(options.interfaces, loopback=near)
            if not each.ip.is_link_local
        ]
        if not found:
            raise UsageError("a handle needs an address that is not link-local, and there is none")
        addresses = [each.address for each in sorted(found, key=lambda each: each.is_loopback)]
        self.secret = secrets.token_hex(16)
        with _listener(addresses, near=near) as listener:
            listener.listen()
            address, port = listener.getsockname()[:2]
            # The store owns the descriptor from here on.
            server: Any = TCPStore(
                _OWN.get(address, address),
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        key = read_key(options.key)
        self.handle = Handle(
            name=secrets.token_hex(8),
            addresses=tuple(addresses),
            port=port,
            proof=_digest(self.secret),
            host=_digest(host_identity())[:16],
            job=hashlib.sha256(b"slackline job " + key).hexdigest()[:16] if key else "",
        )
        server.set(self.handle.door_key(), self.secret)
        self.connections = Connections(server, server.clone())
        self.kept: dict[str, Connections] = {}
        """The connections to the door of the change before, by the name of its process."""
        self._read: dict[str, Handle] = {}
        self._led = list[Led]()

    def read(self, texts: Sequence[str]) -> tuple[Handle, ...]:
        """Return the handles of a list; raise the errors of `Handle.decode`.

        Handles that the list before had as well are not decoded again.
        """
        read = {text: self._read.get(text) or Handle.decode(text) for text in texts}
        self._read = read
        return tuple(read[text] for text in texts)

    def leads(self, names: Sequence[str], keys: set[str]) -> None:
        """Remember a change that meets at this door, with the set that its keys are added to."""
        self._led.append(Led(keys, set(names)))

    def ended_by(self, names: Sequence[str]) -> list[str]:
        """Return the keys of earlier changes that nobody reads any more, and forget the changes.

        All processes called `names` have come to the latest change here. A process makes one change
        at a time, so it has ended those before.
        """
        ended = list[str]()
        *before, latest = self._led
        for led in before:
            led.awaited.difference_update(names)
            if not led.awaited:
                ended += led.keys
        self._led = [*(led for led in before if led.awaited), latest]
        return ended


def _listener(addresses: list[str], *, near: bool) -> socket.socket:
    """Return a bound socket: at the one address, or else at all addresses of the host."""
    alone = addresses[0] if near or len(addresses) == 1 else None
    if alone is None and socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if alone is not None and ":" in alone else socket.AF_INET
    return socket.create_server((alone or "0.0.0.0", 0), family=family)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()[:32]


_lock = threading.Lock()
_doors: dict[int, Door] = {}


def open_door() -> Door:
    """Return the door of this process; the first call opens it, also in a forked process."""
    with _lock:
        door = _doors.get(os.getpid())
        if door is None:
            # The door of a parent process stays in the table: to end it is the parent's business.
            door = _doors[os.getpid()] = Door(NicOptions.from_env(Environment.read()))
            load_links()  # Else the others would wait for it in this process's first change.
        return door
