"""How the ranks of a group find each other: what each publishes in the store, and what follows."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
from dataclasses import asdict, dataclass
from fcntl import ioctl
from pathlib import Path

from slackline.errors import UsageError
from slackline.nic._interface import Store
from slackline.nic._options import NicOptions

__all__ = ["Meeting", "Record", "host_identity", "local_addresses", "meet"]

_PROTOCOL = 1
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a rank tells the others about its engine."""

    engine: str
    """Unique for the life of the engine."""
    host: str
    """Ranks with the same value may share memory: one kernel, one network namespace, one user."""
    addresses: tuple[str, ...]
    """IPv4 addresses that its TCP listener can be reached at, best first."""
    port: int
    options: dict[str, object]
    protocol: int = _PROTOCOL


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What all ranks of a new group know after they met."""

    secret: bytes
    records: tuple[Record, ...]

    @property
    def epoch(self) -> int:
        """Names this life of the group in every frame; never 0."""
        return self._code("epoch") or 1

    def job(self, engines: tuple[str, str]) -> int:
        """The job code of the links between two engines that this group makes."""
        return self._code("job" + "|".join(sorted(engines)))

    def token(self, initiator: str, acceptor: str) -> str:
        """What `initiator` shows `acceptor` to prove that it belongs here. Never the secret."""
        text = f"{initiator}>{acceptor}".encode()
        return hmac.new(self.secret, text, hashlib.sha256).hexdigest()

    def _code(self, purpose: str) -> int:
        digest = hmac.new(self.secret, purpose.encode(), hashlib.sha256).digest()
        return int.from_bytes(digest[:4], "little")


def meet(store: Store, rank: int, size: int, record: Record) -> Meeting:
    """Publish `record`, read everybody's, and check that they fit together.

    Blocks until all have published (the store's own timeout ends it). Raises UsageError that names
    the rank and the option that differs.
    """
    if rank == 0:
        store.set("slackline/secret", secrets.token_hex(32))
    store.set(f"slackline/rank/{rank}", json.dumps(asdict(record)))
    secret = bytes.fromhex(store.get("slackline/secret").decode())
    records = []
    for peer in range(size):
        told = json.loads(store.get(f"slackline/rank/{peer}"))
        if told.get("protocol") != _PROTOCOL:
            raise UsageError(
                f"rank {peer} speaks protocol {told.get('protocol')}, rank {rank} speaks "
                f"{_PROTOCOL}: install the same version of slackline everywhere",
                rank=rank,
                peer=peer,
            )
        told["addresses"] = tuple(told["addresses"])
        records.append(Record(**told))
    for name, mine in record.options.items():
        for peer, other in enumerate(records):
            if other.options.get(name) != mine:
                raise UsageError(
                    f"{name} is {other.options.get(name)!r} on rank {peer} but {mine!r} on rank "
                    f"{rank}: every rank needs the same",
                    rank=rank,
                    peer=peer,
                )
    return Meeting(secret=secret, records=tuple(records))


def host_identity() -> str:
    """Equal for processes that can share memory: same boot, network namespace and user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat("/proc/self/ns/net").st_ino
    return f"{boot}/{namespace}/{os.getuid()}"


def local_addresses(options: NicOptions) -> tuple[str, ...]:
    """The IPv4 addresses of this host that peers may try, loopback last."""
    addresses: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # the interface has no IPv4 address
            addresses[name] = socket.inet_ntoa(reply[20:24])
    if options.interface is not None:
        if options.interface not in addresses:
            known = ", ".join(sorted(addresses)) or "none"
            raise UsageError(
                f"interface {options.interface!r} has no IPv4 address; those that have: {known}"
            )
        return (addresses[options.interface],)
    return tuple(sorted(set(addresses.values()), key=lambda address: address.startswith("127.")))
