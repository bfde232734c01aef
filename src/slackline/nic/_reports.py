"""The state of an engine for the report of its rank: waiting and failed operations, and rails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import slackline._native as _native
from slackline.nic._translation import FailureTuple, to_error
from slackline.records import kind_of, plan_name_of
from slackline.records.failures import (
    DEFAULT_HANG,
    MissingPart,
    OperationState,
    RailState,
    Reporter,
    reporter_of,
)

__all__ = ["Reports"]

Sentences = Callable[[], dict[tuple[int, int, int], str]]
"""A function that returns the health of each direction of a rail, by source, target and rail."""


@dataclass(frozen=True, slots=True)
class _Opened:
    members: tuple[int, ...]
    health: Sentences


class Reports:
    """The report of the process's rank about its engine.

    The first group that is opened gives the rank. Any thread may call the methods.
    """

    def __init__(self, directory: Path, hang: timedelta | None = None) -> None:
        self._directory = directory
        self._hang = DEFAULT_HANG if hang is None else hang
        self._reporter: Reporter | None = None
        self._engine: _native.Engine | None = None
        self._groups: dict[int, _Opened] = {}
        self._peers: dict[int, int] = {}
        self._rank = -1

    def opening(self, rank: int) -> None:
        """Begin the report of `rank`, a rank in the job, before its group is open."""
        if self._reporter is None:
            self._rank = rank
            self._reporter = reporter_of(self._directory, rank, self._hang)

    def opened(
        self,
        engine: _native.Engine,
        epoch: int,
        members: Sequence[int],
        links: Sequence[int],
        health: Sentences,
    ) -> None:
        """Follow the operations of a new group.

        `members` are the ranks in the job, `links` the engine's numbers of the links to them.
        """
        if self._reporter is None:
            return
        self._groups[epoch] = _Opened(tuple(members), health)
        self._peers.update(
            (link, peer) for link, peer in zip(links, members, strict=True) if link >= 0
        )
        if self._engine is None:
            self._engine = engine
            self._reporter.follow(self)

    def close(self) -> None:
        """Report the last failures of the engine, before the engine is closed."""
        if self._engine is not None and self._reporter is not None:
            self._reporter.forget()
            self._engine = None

    def failures(self) -> tuple[list[OperationState], int]:
        if self._engine is None:
            return [], 0
        failed, left_out = self._engine.failures()
        return [self._state(each) for each in failed], left_out

    def waiting(self) -> list[OperationState]:
        return (
            [] if self._engine is None else [self._state(each) for each in self._engine.pending()]
        )

    def rails(self) -> list[tuple[RailState, int, int]]:
        if self._engine is None:
            return []
        sentences: dict[tuple[int, int, int], str] = {}
        for opened in list(self._groups.values()):
            sentences.update(opened.health())
        found = []
        for status in self._engine.rails():
            peer = self._peers.get(status.link)
            if peer is None:
                continue  # The link leads to an aggregation node.
            state = RailState(
                peer=peer,
                rail=status.rail,
                kind=status.kind,
                name=status.name,
                state=status.state,
                sent_bytes=status.bytes_sent,
                received_bytes=status.bytes_received,
                unconfirmed_bytes=status.unconfirmed_bytes,
                sent_ns=0,
                received_ns=0,
                outward=sentences.get((self._rank, peer, status.rail), ""),
                inward=sentences.get((peer, self._rank, status.rail), ""),
            )
            found.append((state, status.frames_sent, status.frames_received))
        return found

    def _state(self, given: _native.OpenOperation) -> OperationState:
        opened = self._groups.get(given.group)
        members = () if opened is None else opened.members

        def in_job(rank: int) -> int:
            return members[rank] if 0 <= rank < len(members) else rank

        failure: FailureTuple | None = given.failure
        return OperationState(
            kind=kind_of(given.collective, receives=given.receives),
            bytes=given.bytes,
            group=given.group,
            members=members,
            tag=given.tag,
            sequence=given.sequence,
            internal=given.internal,
            peer=in_job(given.peer),
            plan=plan_name_of(given.collective, given.plan),
            posted_ns=given.posted_ns,
            usual_ns=given.usual_ns,
            missing=tuple(
                MissingPart(rank=in_job(rank), state=state) for rank, state in given.missing
            ),
            waits_for=given.waits_for,
            refused=given.refused,
            error="" if failure is None else type(to_error(failure)).__name__,
            message="" if failure is None else failure[1],
            error_peer=-1 if failure is None else in_job(failure[3]),
            departure=given.departure,
        )
