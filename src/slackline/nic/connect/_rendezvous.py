"""The rendezvous of a group: each rank publishes an endpoint descriptor in a shared store."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from slackline.errors import UsageError
from slackline.nic._interface import Store
from slackline.nic.connect._addresses import Interface, from_rows, to_rows

__all__ = [
    "EndpointDescriptor",
    "Rendezvous",
    "exchange_descriptors",
    "host_identity",
    "read_key",
    "to_descriptor",
]

_PROTOCOL = 8
_SHORTEST_KEY = 16
_TYPES = {
    "engine": str,
    "host": str,
    "chosen": bool,
    "options": dict,
    "device_bytes": int,
    "processors": int,
    "aggregates": bool,
}
"""The types of a descriptor's fields. The interfaces are checked when they are read."""
_READ_BY_ALL = 4
"""The largest group in which every rank reads every descriptor from the store. In a larger group
rank 0 reads the descriptors and publishes them together: n ranks then make 3 n accesses instead of
n * n."""


@dataclass(frozen=True, kw_only=True)
class EndpointDescriptor:
    """The endpoint descriptor of an engine, which each rank sends to the others."""

    engine: str
    """The unique name of the engine."""
    host: str
    """The host's identity: kernel, network namespace and user. Processes with equal values can
    share memory.
    """
    interfaces: tuple[Interface, ...]
    """The addresses and ports of the engine's listener, of all families."""
    chosen: bool
    """Whether the user has chosen the interfaces."""
    options: dict[str, object]
    device_bytes: int = 0
    """The longest payload that the rank's device (a ring NIC or its model) takes; 0 without one."""
    processors: int = 1
    """The processors that the engine's process may run on: bit i stands for processor i."""
    aggregates: bool = False
    """Whether the engine belongs to an aggregator and not to a rank."""
    protocol: int = _PROTOCOL

    def __post_init__(self) -> None:
        """Raise TypeError for a field of another type, ValueError if there is no processor.

        Descriptors are read from JSON.
        """
        for name, kind in _TYPES.items():
            if type(value := getattr(self, name)) is not kind:
                raise TypeError(f"{name} must be of type {kind.__name__}, not {value!r}")
        if self.processors < 1:
            raise ValueError(f"processors must name one or more, not {self.processors}")

    @property
    def network(self) -> str:
        """The identity of the host's network namespace, equal for all users of one host."""
        return self.host.rpartition("/")[0]

    def told(self) -> dict[str, Any]:
        """Return the descriptor as a dict for JSON, the inverse of to_descriptor."""
        return {**asdict(replace(self, interfaces=())), "interfaces": to_rows(self.interfaces)}


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """The result of a rendezvous, equal on all ranks: a secret and all endpoint descriptors."""

    secret: bytes
    descriptors: tuple[EndpointDescriptor, ...]

    @property
    def device_bytes(self) -> int:
        """The longest payload that all devices (ring NICs) of a group take; 0 without devices."""
        return min((r.device_bytes for r in self.descriptors if r.device_bytes), default=0)

    @property
    def crowding(self) -> dict[str, float]:
        """The number of ranks for each processor of a host, by the host's identity.

        Only processors that some rank of the host may run on count.
        """
        hosts: dict[str, list[int]] = {}
        for each in self.descriptors:
            hosts.setdefault(each.host, []).append(each.processors)
        return {host: len(here) / reduce(or_, here).bit_count() for host, here in hosts.items()}

    @property
    def ranks_per_processor(self) -> float:
        """The number of ranks for each processor on the fullest host, at least 1."""
        return max(1.0, *self.crowding.values())

    @property
    def epoch(self) -> int:
        """The number of this instance of the group, which every frame carries; never 0."""
        return self._code("epoch") or 1

    @property
    def fallback_epoch(self) -> int:
        """The epoch of the fallback group, which replaces a failed aggregator; never 0."""
        return self._code("fallback") or 1

    @property
    def code(self) -> int:
        """The public number of this rendezvous, by which its members recognize each other."""
        return self._code("meeting")

    def key(self, engines: tuple[str, str]) -> bytes:
        """Return the shared key that two engines authenticate with; the key is never sent."""
        text = "rails of " + " and ".join(sorted(engines))
        return hmac.new(self.secret, text.encode(), hashlib.sha256).digest()

    def _code(self, purpose: str) -> int:
        digest = hmac.new(self.secret, purpose.encode(), hashlib.sha256).digest()
        return int.from_bytes(digest[:4], "little")


def exchange_descriptors(
    store: Store, rank: int, size: int, descriptor: EndpointDescriptor, key: bytes = b""
) -> Rendezvous:
    """Publish this rank's descriptor, read all ranks' descriptors, and check that options agree.

    The group's secret is made of a random number that rank 0 stores, and of `key`, which is never
    stored. Blocks until all ranks have published, limited by the store's own timeout. Raises
    UsageError that names the rank and the option that differs, or the descriptor that is wrong.
    """
    if rank == 0:
        store.set("slackline/secret", secrets.token_hex(32))
    store.set(f"slackline/rank/{rank}", json.dumps(descriptor.told()))
    given = bytes.fromhex(store.get("slackline/secret").decode())
    secret = hmac.new(key, given, hashlib.sha256).digest()
    descriptors = []
    for peer, stored in enumerate(_descriptors(store, rank, size)):
        try:
            told = json.loads(stored)
            if not isinstance(told, dict):
                raise TypeError(f"an object was expected, not {told!r}")
        except (TypeError, ValueError, RecursionError) as error:
            raise _wrong(rank, peer, error) from error
        if told.get("protocol") != _PROTOCOL:
            raise UsageError(
                f"rank {peer} speaks protocol {told.get('protocol')}, rank {rank} speaks "
                f"{_PROTOCOL}: install the same version of slackline everywhere",
                rank=rank,
                peer=peer,
            )
        try:
            descriptors.append(to_descriptor(told))
        except (KeyError, TypeError, ValueError) as error:
            raise _wrong(rank, peer, error) from error
    for name, mine in descriptor.options.items():
        for peer, other in enumerate(descriptors):
            if other.options.get(name) != mine:
                raise UsageError(
                    f"{name} is {other.options.get(name)!r} on rank {peer} but {mine!r} on rank "
                    f"{rank}: every rank needs the same",
                    rank=rank,
                    peer=peer,
                )
    return Rendezvous(secret=secret, descriptors=tuple(descriptors))


def _descriptors(store: Store, rank: int, size: int) -> list[bytes]:
    """Return the stored descriptors of all ranks; block until all have published.

    Raises UsageError if the list that rank 0 has published is wrong.
    """
    if size <= _READ_BY_ALL or rank == 0:
        stored = [store.get(f"slackline/rank/{peer}") for peer in range(size)]
        if size > _READ_BY_ALL:
            store.set("slackline/ranks", json.dumps([each.decode("latin-1") for each in stored]))
        return stored
    together = store.get("slackline/ranks")
    try:
        texts = json.loads(together)
        if not isinstance(texts, list) or len(texts) != size:
            raise TypeError(f"a list of {size} descriptors was expected, not {texts!r}")
        return [text.encode("latin-1") for text in texts]
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the list of descriptors in the rendezvous store is wrong: {error}", rank=rank, peer=0
        ) from error


def _wrong(rank: int, peer: int, error: Exception) -> UsageError:
    return UsageError(
        f"the descriptor of rank {peer} in the rendezvous store is wrong: {error}",
        rank=rank,
        peer=peer,
    )


def to_descriptor(told: dict[str, Any]) -> EndpointDescriptor:
    """Return the endpoint descriptor from its dict, the inverse of EndpointDescriptor.told.

    Raises KeyError, TypeError or ValueError if a field is missing or wrong.
    """
    return EndpointDescriptor(**{**told, "interfaces": from_rows(told["interfaces"])})


def host_identity() -> str:
    """Return the host's identity, equal for processes that can share memory.

    Such processes have boot, network namespace and user in common.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat("/proc/self/ns/net").st_ino
    return f"{boot}/{namespace}/{os.getuid()}"


def read_key(path: Path | None) -> bytes:
    """Return the key in a file, b"" for None; raise UsageError if it is missing or too short."""
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
