"""The ring of a process's latest operations, the dump of it, and the look-out for failures."""

import itertools
import logging
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from slackline.backend._torch import Store
from slackline.backend.flight._entries import Entry, GroupRecord, Sizes
from slackline.backend.flight._signal import DumpSignal
from slackline.backend.flight._stack import call_stack
from slackline.backend.flight._torch_format import torch_format
from slackline.errors import SlacklineError, UsageError
from slackline.nic import in_callback
from slackline.wire import DType

__all__ = ["DEFAULT_ENTRIES", "FlightRecorder"]

_log = logging.getLogger("slackline.flight")

DEFAULT_ENTRIES = 2000
"""The number of operations that are kept, as in torch's own recorder."""

_PREFIX = "slackline_trace_rank_"
_LOOK_S = 0.25
_END = timedelta(seconds=10)
_MILLISECOND = timedelta(milliseconds=1)


class FlightRecorder:
    """A recorder of the operations of all groups of a process; any thread may call it.

    With a folder, the recorder writes a dump there when an operation fails on any rank.
    """

    def __init__(self, entries: int | None, folder: Path | None) -> None:
        """Create a recorder of the latest `entries` operations; None keeps 2000.

        Raises UsageError if the folder cannot be made.
        """
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(
                    f"the flight recorder cannot make the folder {folder}: {error}"
                ) from error
        self._ring: deque[Entry] = deque(maxlen=DEFAULT_ENTRIES if entries is None else entries)
        self._numbers = itertools.count()
        self._groups: list[GroupRecord] = []
        self._folder = folder
        self._rank: int | None = None
        self._lost: Callable[[], frozenset[int]] = frozenset
        self._signal: DumpSignal | None = None
        self._writing = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(
        self, group: GroupRecord, lost: Callable[[], frozenset[int]], store: Store | None
    ) -> None:
        """Add a group that has opened; the first one gives the rank in the job and the store.

        `lost` returns the ranks of the group that have ended. Without a `store` no rank asks
        another rank for a dump.
        """
        self._groups.append(group)
        if self._rank is not None:
            return
        self._rank, self._lost = group.members[group.rank], lost
        if self._folder is None:
            return
        if store is not None and len(group.members) > 1:
            self._signal = DumpSignal(store, group.rank, len(group.members))
        thread = threading.Thread(target=self._watch, name="slackline-flight", daemon=True)
        thread.start()
        self._thread = thread

    def enter(
        self,
        group: GroupRecord,
        kind: str,
        *,
        peer: int,
        tag: int | None,
        dtype: DType | None,
        inputs: Sizes,
        outputs: Sizes,
        timeout: timedelta,
    ) -> Entry:
        """Add an operation that is about to be posted; return its entry."""
        if in_callback(tag):
            sequence = 0  # an identity that is used once
        elif tag is None:
            sequence = group.collectives
            group.collectives = sequence + 1
        else:
            sequence = group.tagged[kind, peer, tag]
            group.tagged[kind, peer, tag] = sequence + 1
        entry = Entry(
            number=next(self._numbers),
            group=group,
            kind=kind,
            peer=peer,
            tag=tag,
            sequence=sequence,
            dtype=dtype,
            inputs=inputs,
            outputs=outputs,
            timeout_ms=timeout // _MILLISECOND,
            created_ns=time.time_ns(),
            stack=call_stack(),
        )
        self._ring.append(entry)
        return entry

    def withdraw(self, entry: Entry) -> None:
        """Remove the latest operation of its group, which the engine has not taken."""
        group = entry.group
        if entry.tag is None:
            group.collectives -= 1
        elif not in_callback(entry.tag):
            group.tagged[entry.kind, entry.peer, entry.tag] -= 1
        if entry in self._ring:
            self._ring.remove(entry)

    def failed(self, entry: Entry, error: SlacklineError) -> None:
        """Record the failure of an operation; write dumps on all ranks if there is a folder."""
        entry.failed(error)
        if not entry.reported:
            self._report()

    def dump(self, folder: Path) -> Path:
        """Write the recorded operations to FOLDER/slackline_trace_rank_N; return the file's path.

        N is the rank in the job. The folder is made if there is none; an earlier dump is replaced.
        Raises UsageError before the first group is open, and OSError if the file cannot be written.
        """
        if self._rank is None:
            raise UsageError("there is nothing to dump: this process has opened no group yet")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{_PREFIX}{self._rank}"
        with self._writing:
            # The name must not match the analyser's prefix while the file is incomplete.
            draft = folder / f".{self._rank}.incomplete"
            draft.write_bytes(pickle.dumps(self.contents()))
            os.replace(draft, path)
        return path

    def contents(self) -> dict[str, Any]:
        """Return the recorded operations as torch's analyser reads them; JSON can hold them too."""
        entries = list(self._ring)
        for entry in entries:
            entry.settle()
        return torch_format(
            entries,
            list(self._groups),
            unix_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
        )

    def close(self) -> None:
        """Stop looking for failures, after a last look."""
        self._stopped.set()
        if self._thread is None:
            return
        self._thread.join(_END.total_seconds())
        if not self._thread.is_alive():
            self._look()

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        """Write a dump if an operation has failed, or if another rank asks for one."""
        for entry in list(self._ring):
            if entry.transfer is not None:
                entry.settle()
        if self._unreported():
            self._report()
        if self._signal is not None and self._signal.requested():
            self._write()
            self._signal.answer()

    def _unreported(self) -> bool:
        return any(entry.failure and not entry.reported for entry in list(self._ring))

    def _report(self) -> None:
        """Write the dump, and have the other ranks write theirs; do nothing without a folder."""
        if self._folder is None:
            return
        self._write()
        if self._signal is not None:
            self._signal.request(self._lost())

    def _write(self) -> None:
        """Write the dump to the recorder's folder; log an error of the disk."""
        assert self._folder is not None
        for entry in list(self._ring):
            entry.reported = entry.reported or bool(entry.failure)
        try:
            path = self.dump(self._folder)
        except OSError as error:
            # The caller is about to raise the operation's own error, which matters more.
            _log.error("the flight recorder cannot write to %s: %s", self._folder, error)
            return
        _log.warning("the flight recorder has written %s", path)
