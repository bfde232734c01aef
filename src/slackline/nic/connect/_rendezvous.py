"""The rendezvous of a group: each rank publishes an endpoint descriptor in a shared store.

A descriptor also tells the rank's kernels, the functions that reduce elements. Each rank reduces
fixed inputs with its own kernels and publishes a checksum of the results for each element type and
reduction. Kernels that were built by another compiler, or that run on a processor of another make,
could give other bits; the ranks of a group would then disagree in silence.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, lru_cache, reduce
from operator import or_
from pathlib import Path
from typing import Any

import slackline._native as _native
from slackline._lazy import record
from slackline.errors import SlacklineError, UsageError
from slackline.nic._interface import Introduction
from slackline.nic._options import LIMITS, variable_of
from slackline.nic.connect._address_space import Mapper, new_arena
from slackline.nic.connect._addresses import Interface, devices, from_rows, to_rows
from slackline.nic.connect._opening_store import OpeningStore
from slackline.wire import DType, ReduceOp

__all__ = [
    "EndpointDescriptor",
    "Rendezvous",
    "check_kernels",
    "exchange_descriptors",
    "host_identity",
    "kernel_checksums",
    "read_key",
    "to_descriptor",
]

_log = logging.getLogger("slackline.nic")

_DIGITS = 4
_MOST_NAMED = 3


@cache
def kernel_checksums() -> str:
    """Return the checksums of this process's kernels, four hexadecimal digits for each pair."""
    return "".join(f"{checksum:0{_DIGITS}x}" for _, _, checksum in _native.kernel_fingerprints())


def check_kernels(checksums: Sequence[str], rank: int) -> None:
    """Raise UsageError on every rank if the kernels of some ranks would give other bits.

    `checksums` has the text of each rank; an empty text is not compared. The error names the ranks
    that differ from the first rank, and the element types and reductions that differ.
    """
    known = [(peer, text) for peer, text in enumerate(checksums) if text]
    if not known:
        return
    first, expected = known[0]
    others = [(peer, text) for peer, text in known if text != expected]
    if not others:
        return
    differing = sorted({pair for _, text in others for pair in _differing(expected, text)})
    names = [f"{ReduceOp(op).name} of {DType(dtype).name.lower()}" for dtype, op in differing]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    what = ", ".join(names[:_MOST_NAMED]) + more if names else "some reductions"
    ranks = ", ".join(str(peer) for peer, _ in others)
    plural = "ranks" if len(others) > 1 else "rank"
    raise UsageError(
        f"{plural} {ranks} would give other bits than rank {first}: {what}: install the same build "
        "of slackline on every host",
        rank=rank,
        peer=others[0][0],
    )


def _differing(one: str, other: str) -> list[tuple[int, int]]:
    """Return the pairs (element type, reduction) whose checksums differ in two texts."""
    pairs = [(dtype, op) for dtype, op, _ in _native.kernel_fingerprints()]
    if len(one) != len(other) or len(one) != _DIGITS * len(pairs):
        return []
    places = (slice(at, at + _DIGITS) for at in range(0, len(one), _DIGITS))
    return [pair for pair, place in zip(pairs, places, strict=True) if one[place] != other[place]]


_PROTOCOL = 11
_SHORTEST_KEY = 16
_TYPES = {
    "engine": str,
    "host": str,
    "chosen": bool,
    "options": dict,
    "device_bytes": int,
    "processors": int,
    "aggregates": bool,
    "kernels": str,
    "taken": int,
    "address_space": int,
    "arena_bytes": int,
    "has_arena": bool,
}
"""The types of a descriptor's fields. The interfaces are checked when they are read."""
_DRAWS = 4
"""The number of draws for a group's epochs. A draw that some rank cannot use, since another group
of the rank has the number, happens once in millions of groups."""
_STEP = "the exchange of addresses through the store"
_READ_BY_ALL = 4
"""The largest group in which every rank reads every descriptor from the store. In a larger group
rank 0 reads the descriptors and publishes them together: n ranks then make 3 n accesses instead of
n * n."""
_READ_TOGETHER = 16
"""The same for a store that returns several values for the price of one."""

_MOST_DECODED = 64
"""The number of descriptors that are not decoded again when their engines meet again."""


@record(frozen=True, kw_only=True)
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
    kernels: str = ""
    """Checksums of the results of the engine's kernels, by element type and reduction; empty if
    they are not known."""
    taken: int = 0
    """The draws for the group's epochs that the engine cannot use: bit i stands for draw i."""
    address_space: int = 0
    """The bytes that the process could map when its nic was made; 0 if there is no limit."""
    arena_bytes: int = 64 << 30
    """The size of the engine's arena (registered memory) in bytes, or before the engine starts the
    largest size that its options allow."""
    has_arena: bool = False
    """Whether the engine has started, so that the size of its arena is fixed."""
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
        """Return the descriptor as a dict for JSON, the inverse of to_descriptor.

        Fields that have their default value are left out, for the store carries all descriptors.
        """
        told = {
            each.name: value
            for each in fields(self)
            if (value := getattr(self, each.name)) != each.default or each.name == "protocol"
        }
        return {**told, "interfaces": to_rows(self.interfaces)}


@record(frozen=True, kw_only=True)
class Rendezvous:
    """The result of a rendezvous, equal on all ranks: a secret and all endpoint descriptors."""

    secret: bytes
    descriptors: tuple[EndpointDescriptor, ...]
    draw: int = 0
    """The first draw of the group's epochs that all ranks can use."""
    opening: str = ""
    """The name of the opening, of which its epochs are made; if empty, of the secret."""

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

    def arena_bytes(self, rank: int) -> int:
        """Return the size in bytes of the arena that the engine of `rank` makes when it starts."""
        mappers = {
            other: Mapper(
                address_space=each.address_space,
                arena_bytes=each.arena_bytes,
                has_arena=each.has_arena,
            )
            for other, each in enumerate(self.descriptors)
            if each.host == self.descriptors[rank].host
        }
        return new_arena(mappers[rank], list(mappers.values()))

    @property
    def ranks_per_processor(self) -> float:
        """The number of ranks for each processor on the fullest host, at least 1."""
        return max(1.0, *self.crowding.values())

    @property
    def epoch(self) -> int:
        """The number of this instance of the group, which every frame carries; never 0."""
        return self.epochs(self.draw)[0]

    @property
    def fallback_epoch(self) -> int:
        """The epoch of the fallback group, which replaces a failed aggregator; never 0."""
        return self.epochs(self.draw)[1]

    def epochs(self, draw: int) -> tuple[int, int]:
        """Return the epochs of the group and of its fallback group in a draw."""
        again = f" {draw}" if draw else ""
        key = self.opening.encode() or self.secret
        return _code(key, f"epoch{again}") or 1, _code(key, f"fallback{again}") or 1

    @property
    def code(self) -> int:
        """The public number of this rendezvous, by which its members recognize each other."""
        return _code(self.secret, "meeting")

    def key(self, engines: tuple[str, str]) -> bytes:
        """Return the shared key that two engines authenticate with; the key is never sent."""
        text = "rails of " + " and ".join(sorted(engines))
        return hmac.new(self.secret, text.encode(), hashlib.sha256).digest()


def _code(key: bytes, purpose: str) -> int:
    digest = hmac.new(key, purpose.encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:4], "little")


def exchange_descriptors(
    opening: OpeningStore,
    descriptor: EndpointDescriptor,
    key: bytes = b"",
    *,
    reserve: Callable[[Sequence[int]], int] = lambda epochs: 0,
    introduction: Introduction | None = None,
) -> Rendezvous:
    """Publish this rank's descriptor, read all ranks' descriptors, and check that options agree.

    The group's secret is made of a random number that rank 0 stores, and of `key`, which is never
    stored. `reserve` gets the candidates for the group's epochs, two for each draw, and returns a
    bit mask of those that this engine cannot use. With an `introduction`, which all ranks must have
    or none, the ranks read it with the descriptors, and need not wait for the number of rank 0
    before: each adds a number of its own, and the epochs are made of the opening's name. Blocks
    until all ranks have published, or raises TimeoutError that names those that have not. Raises
    UsageError that names the rank and the option that differs, the ranks whose kernels give other
    bits, or the descriptor that is wrong, PeerError if another rank cannot open the group, and the
    errors of the introduction.
    """
    rank = opening.rank
    if introduction is None:
        secret = hmac.new(key, _number_of_rank_0(opening), hashlib.sha256).digest()
        drawn = Rendezvous(secret=secret, descriptors=())
    else:
        drawn = Rendezvous(secret=b"", descriptors=(), opening=introduction.opening)
    mask = reserve([epoch for draw in range(_DRAWS) for epoch in drawn.epochs(draw)])
    taken = sum(1 << draw for draw in range(_DRAWS) if mask >> 2 * draw & 0b11)
    told = json.dumps(replace(descriptor, taken=taken).told())
    if introduction is not None:
        told = json.dumps([secrets.token_hex(32), introduction.said, told])
    opening.set(f"slackline/rank/{rank}", told)
    published = _descriptors(opening)
    if introduction is not None:
        numbers, published = _introduced(published, introduction, rank)
        drawn = replace(drawn, secret=hmac.new(key, numbers, hashlib.sha256).digest())
    descriptors = [_read(stored, rank, peer) for peer, stored in enumerate(published)]
    _check_engines(descriptors, rank)
    _check_options(descriptors, rank)
    check_kernels([each.kernels for each in descriptors], rank)
    taken = reduce(or_, (each.taken for each in descriptors))
    free = [draw for draw in range(_DRAWS) if not taken >> draw & 1]
    if not free:
        raise UsageError(
            f"all {_DRAWS} numbers drawn for the group belong to other groups of its ranks: open "
            "the group again",
            rank=rank,
        )
    return replace(drawn, descriptors=tuple(descriptors), draw=free[0])


def _number_of_rank_0(opening: OpeningStore) -> bytes:
    """Return a random number that rank 0 draws and stores; block until it has."""
    if opening.rank == 0:
        number = secrets.token_bytes(32)
        opening.set("slackline/secret", number.hex())
        return number
    return bytes.fromhex(opening.get("slackline/secret", of=0, step=_STEP).decode())


def _introduced(
    published: Sequence[bytes], introduction: Introduction, rank: int
) -> tuple[bytes, list[bytes]]:
    """Return the random numbers of all ranks, joined, and their descriptors.

    Raises UsageError if another rank has published something else, and the errors of the
    introduction.
    """
    numbers, descriptors = list[bytes](), list[bytes]()
    for peer, stored in enumerate(published):
        try:
            number, said, told = json.loads(stored)
            numbers.append(bytes.fromhex(number))
            descriptors.append(told.encode("latin-1"))
            introduction.check(peer, said)
        except SlacklineError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise _wrong(rank, peer, error) from error
    return b"".join(numbers), descriptors


def _descriptors(opening: OpeningStore) -> list[bytes]:
    """Return the stored descriptors of all ranks; block until all have published.

    Raises UsageError if the list that rank 0 has published is wrong.
    """
    rank, size = opening.rank, opening.size
    keys = {peer: f"slackline/rank/{peer}" for peer in range(size)}
    most = _READ_TOGETHER if opening.reads_together else _READ_BY_ALL
    if size <= most or rank == 0:
        stored = opening.get_all(keys, _STEP)
        if size > most:
            opening.set("slackline/ranks", json.dumps([each.decode("latin-1") for each in stored]))
        return stored
    together = opening.get("slackline/ranks", of=0, step=_STEP, needs=keys)
    try:
        texts = json.loads(together)
        if not isinstance(texts, list) or len(texts) != size:
            raise TypeError(f"a list of {size} descriptors was expected, not {texts!r}")
        return [text.encode("latin-1") for text in texts]
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the list of descriptors in the rendezvous store is wrong: {error}", rank=rank, peer=0
        ) from error


def _read(stored: bytes, rank: int, peer: int) -> EndpointDescriptor:
    """Return the descriptor that `peer` has stored; raise UsageError at `rank` if it is wrong."""
    try:
        return _decoded(stored)
    except _OtherProtocolError as error:
        raise UsageError(
            f"rank {peer} speaks protocol {error}, rank {rank} speaks {_PROTOCOL}: install the "
            "same version of slackline everywhere",
            rank=rank,
            peer=peer,
        ) from None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _wrong(rank, peer, error) from error


def _wrong(rank: int, peer: int, error: Exception) -> UsageError:
    return UsageError(
        f"the descriptor of rank {peer} in the rendezvous store is wrong: {error}",
        rank=rank,
        peer=peer,
    )


class _OtherProtocolError(Exception):
    """A descriptor of an engine that speaks another protocol, which is the error's text."""


@lru_cache(maxsize=_MOST_DECODED)
def _decoded(stored: bytes) -> EndpointDescriptor:
    """Return the descriptor that is stored; raise _OtherProtocolError, or the error of its JSON."""
    told = json.loads(stored)
    if not isinstance(told, dict):
        raise TypeError(f"an object was expected, not {told!r}")
    if told.get("protocol") != _PROTOCOL:
        raise _OtherProtocolError(told.get("protocol"))
    return to_descriptor(told)


def _check_engines(descriptors: Sequence[EndpointDescriptor], rank: int) -> None:
    """Raise UsageError if two ranks have one engine, which cannot connect to itself."""
    ranks: dict[str, int] = {}
    for peer, descriptor in enumerate(descriptors):
        first = ranks.setdefault(descriptor.engine, peer)
        if first != peer:
            raise UsageError(
                f"ranks {first} and {peer} of one group are in one process and share its engine: "
                "every rank needs a process of its own",
                rank=rank,
                peer=peer if first == rank else first,
            )


def _check_options(descriptors: Sequence[EndpointDescriptor], rank: int) -> None:
    """Raise UsageError if ranks differ in an option; log a warning if it is only a limit.

    A rank other than rank 0 warns only of a difference from rank 0, so that one rank with a limit
    of its own leads to two warnings and not to one on every rank.
    """
    if all(each.options == descriptors[rank].options for each in descriptors):
        return
    for name, mine in descriptors[rank].options.items():
        variable = variable_of(name)
        called = f"{name} ({variable})" if variable else name
        for peer, other in enumerate(descriptors):
            theirs = other.options.get(name)
            if theirs == mine:
                continue
            differs = f"{called} is {theirs!r} on rank {peer} but {mine!r} on rank {rank}"
            if name not in LIMITS:
                raise UsageError(f"{differs}: every rank needs the same", rank=rank, peer=peer)
            if rank == 0 or peer == 0:
                _log.warning("%s: give every rank the same", differs)
                break


def to_descriptor(told: dict[str, Any]) -> EndpointDescriptor:
    """Return the endpoint descriptor from its dict, the inverse of EndpointDescriptor.told.

    Raises KeyError, TypeError or ValueError if a field is missing or wrong.
    """
    return EndpointDescriptor(**{**told, "interfaces": from_rows(told["interfaces"])})


def host_identity() -> str:
    """Return the host's identity, equal for processes that can share memory.

    Such processes have boot, network namespace and user in common.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # A sandbox masks it. Other facts that hosts rarely share take its place.
        boot = f"{os.uname().nodename} {_interface_addresses()}"
    try:
        namespace = str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        namespace = "-"
    return f"{boot}/{namespace}/{os.getuid()}"


def _interface_addresses() -> str:
    """Return a digest of all addresses but loopback's, equal in one network namespace."""
    texts = {each.text for device in devices() for each in device.addresses if not device.loopback}
    return hashlib.sha256(",".join(sorted(texts)).encode()).hexdigest()[:16]


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
