"""How the ranks of a group find each other: what each publishes in the store, and what follows."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slackline.errors import UsageError
from slackline.nic._interface import Store
from slackline.nic._paths import Interface

__all__ = ["Meeting", "Record", "host_identity", "meet", "read_key", "to_record"]

_PROTOCOL = 3
_SHORTEST_KEY = 16


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a rank tells the others about its engine."""

    engine: str
    """Unique for the life of the engine."""
    host: str
    """Ranks with the same value may share memory: one kernel, one network namespace, one user."""
    interfaces: tuple[Interface, ...]
    """Where its listener can be reached."""
    chosen: bool
    """Whether the user named the interfaces."""
    options: dict[str, object]
    device_bytes: int = 0
    """The longest payload that the device behind its engine takes; 0: it has none."""
    aggregates: bool = False
    """Whether it is no rank but an aggregator."""
    protocol: int = _PROTOCOL


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What all ranks of a new group know after they met."""

    secret: bytes
    records: tuple[Record, ...]

    @property
    def device_bytes(self) -> int:
        """The longest payload that every device of the group takes; 0: no rank has one."""
        return min((r.device_bytes for r in self.records if r.device_bytes), default=0)

    @property
    def epoch(self) -> int:
        """Names this life of the group in every frame; never 0."""
        return self._code("epoch") or 1

    @property
    def fallback_epoch(self) -> int:
        """Of the group that does what an aggregator no longer does; never 0."""
        return self._code("fallback") or 1

    @property
    def code(self) -> int:
        """Names the meeting to whoever was there, in the open."""
        return self._code("meeting")

    def key(self, engines: tuple[str, str]) -> bytes:
        """What two engines prove to each other that they know. Never sent."""
        text = "rails of " + " and ".join(sorted(engines))
        return hmac.new(self.secret, text.encode(), hashlib.sha256).digest()

    def _code(self, purpose: str) -> int:
        digest = hmac.new(self.secret, purpose.encode(), hashlib.sha256).digest()
        return int.from_bytes(digest[:4], "little")


def meet(store: Store, rank: int, size: int, record: Record, key: bytes = b"") -> Meeting:
    """Publish `record`, read everybody's, and check that they fit together.

    The secret is what rank 0 put into the store, mixed with `key`, which never gets there. Blocks
    until all have published (the store's own timeout ends it). Raises UsageError that names the
    rank and the option that differs.
    """
    if rank == 0:
        store.set("slackline/secret", secrets.token_hex(32))
    store.set(f"slackline/rank/{rank}", json.dumps(asdict(record)))
    given = bytes.fromhex(store.get("slackline/secret").decode())
    secret = hmac.new(key, given, hashlib.sha256).digest()
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
        records.append(to_record(told))
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


def to_record(told: dict[str, Any]) -> Record:
    """The record that somebody made a dict of."""
    interfaces = tuple(Interface(**each) for each in told["interfaces"])
    return Record(**{**told, "interfaces": interfaces})


def host_identity() -> str:
    """Equal for processes that can share memory: same boot, network namespace and user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat("/proc/self/ns/net").st_ino
    return f"{boot}/{namespace}/{os.getuid()}"


def read_key(path: Path | None) -> bytes:
    """The key in the file, b"" without one; raises UsageError when it is missing or too short."""
    if path is None:
        return b""
    try:
        key = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the key {str(path)!r} cannot be read: {error.strerror}") from error
    if len(key) < _SHORTEST_KEY:
        raise UsageError(
            f"the key {str(path)!r} must have at least {_SHORTEST_KEY} bytes, not {len(key)}"
        )
    return key
