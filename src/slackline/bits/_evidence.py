"""All that a run has recorded about its bits, from the files of its ranks."""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

from slackline.errors import UsageError
from slackline.history import StateHashes, files_of, read_all, telemetry_of
from slackline.records import (
    Conditions,
    Decision,
    GroupOpened,
    HashedTensors,
    Setting,
    StateHash,
    TensorHashes,
)

__all__ = ["Evidence"]

_DIGITS = 16
"""The hex digits of the hash of one tensor."""

_COMPARED = ("plan", "order", "rails", "nic", "shares", "segment", "aggregator", "group_bytes")
"""The settings of a run that are shown beside its conditions."""


class Evidence:
    """The hashes of a run with virtual ranks, with the conditions under which it ran."""

    def __init__(self, directory: Path, report: Callable[[str], None]) -> None:
        """Read the files of all ranks.

        `report` receives a sentence for each line that cannot be read. Raises UsageError without
        files, and without any hash of a state.
        """
        self.directory = directory
        self.hashes: dict[int, str] = {}
        """The hash of the state after each step, in the order of the steps."""
        self.conflicts: set[int] = set()
        """The steps that were hashed more than once with different results."""
        self._sums = StateHashes(sys.maxsize)
        self._parts: dict[tuple[int, int, int], str] = {}
        self.inexact = False
        """Whether the ranks have computed other bits in the first step."""
        self.inexact_reason = ""
        """The ranks with other bits, and what is known to differ; empty for an exact run."""
        self.ranks = 0
        """The number of ranks of the largest group."""
        self.conditions: dict[int, dict[str, str]] = {}
        """The latest conditions of each rank, and the settings of its communication."""
        self.parameters: tuple[str, ...] = ()
        """The names of the parameters, in the order of the hashes of gradients and sums."""
        self.state: tuple[str, ...] = ()
        """The names of the tensors of the state, in the order of their hashes."""
        self.tensors: dict[tuple[int, str, int], TensorHashes] = {}
        """The hashes of tensors, by step, kind and virtual rank; those of sums and states are of
        the lowest rank."""
        paths = files_of(telemetry_of(directory))
        if not paths:
            raise UsageError(
                f"there is no telemetry in {directory}: it has no rank-*.jsonl; "
                "slackline run --keep DIR and SLACKLINE_TELEMETRY=DIR write telemetry"
            )
        for path in paths:
            for record in read_all(path, report):
                self._take(record)
        if not self.hashes and self._sums.incomplete:
            raise UsageError(
                f"each hash in {directory} lacks the part of a rank: give the telemetry of all "
                "ranks"
            )
        if not self.hashes:
            raise UsageError(
                f"the run in {directory} has no hashes: train with virtual ranks, "
                "DataParallel(model, optimizer, virtual_ranks=8), and hash_every of 1 or more"
            )
        self.hashes = dict(sorted(self.hashes.items()))

    @property
    def chain(self) -> str:
        """The hash of the hashes of all steps, as 32 hex digits."""
        text = "".join(f"{step} {each}\n" for step, each in self.hashes.items())
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @staticmethod
    def split(hashes: TensorHashes) -> list[str]:
        """Return the hash of each tensor in a record."""
        text = hashes.hashes
        return [text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)]

    def _take(self, record: object) -> None:
        match record:
            case StateHash():
                self._add(record)
            case Conditions():
                self._known(record.rank).update(record.values)
            case Setting() if record.name in _COMPARED:
                self._known(record.rank)[record.name] = record.value
            case GroupOpened():
                self.ranks = max(self.ranks, record.size)
            case Decision() if record.subject == "exact":
                self.inexact, self.inexact_reason = True, record.reason
            case HashedTensors():
                self.parameters, self.state = record.parameters, record.state
            case TensorHashes():
                self.tensors.setdefault((record.step, record.what, record.virtual_rank), record)
            case _:
                pass

    def _add(self, record: StateHash) -> None:
        """Add a part of a hash; remember parts that were hashed again with another result."""
        place = record.step, record.part, record.parts
        if self._parts.setdefault(place, record.hash) != record.hash:
            self.conflicts.add(record.step)
        self.inexact |= not record.exact
        whole = self._sums.take(record)
        if whole is not None and self.hashes.setdefault(record.step, whole[0]) != whole[0]:
            self.conflicts.add(record.step)

    def _known(self, rank: int) -> dict[str, str]:
        return self.conditions.setdefault(rank, {})
