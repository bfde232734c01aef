"""The conductor of one drawn change of members, a process that is in no group.

It continues the processes that have stopped, waits for the end of the change on all processes,
checks the laws that concern several of them, and tells them the end.
"""

import json
import os
import signal
import time
from pathlib import Path

from change_cases import HELD, STOPPED_S, Case, End, Outcome, broken_laws
from change_ranks import Board
from waiting import until

__all__ = ["conduct"]


def conduct(case: Case, path: str) -> str:
    """Conduct the change of a case; return how it has ended, in a few words."""
    board = Board(path)
    with board.telling_of_failure("the conductor"):
        return _Conductor(case, board).run()


class _Conductor:
    def __init__(self, case: Case, board: Board) -> None:
        self._case, self._board = case, board
        self._held = {each.process for each in case.faults if each.kind in HELD}
        self._stopped: dict[int, tuple[int, float]] = {}
        """The processes that are stopped: their process ids, and the times to continue them."""
        self._continued: set[int] = set()
        self._released = False
        self._moved = set[int]()

    def run(self) -> str:
        try:
            until(self._ended, lambda: f"the change has not ended: {self._outcomes()}")
        finally:
            for each in list(self._stopped):
                self._continue(each)
        outcomes = self._outcomes()
        everybody = range(self._case.count)
        reached = {each for each in everybody if self._board.has(f"reached {each}")}
        wrong = broken_laws(self._case, outcomes, reached)
        assert not wrong, "\n".join(wrong)
        groups = {group for group in self._case.groups if group is not None}
        aborted = {group for group in groups if self._board.has(f"aborted {group}")}
        end = End(outcomes=outcomes, aborted=aborted, moved=self._moved)
        self._board.post("end", end.encode())
        new = {outcomes[each].new for each in self._case.listed if each in outcomes}
        return {(True,): "done", (False,): "given up", (): "nobody"}.get(tuple(new), "mixed")

    def _ended(self) -> bool:
        """Continue the processes whose time has come; return whether all have an end."""
        self._note_stopped()
        going = {each for each in range(self._case.count) if not self._has_end(each)}
        if not self._released and going <= self._held:
            self._released = True
            self._go_on_without_the_held()
            self._board.post("the others have returned")
        for each, (_, until_s) in list(self._stopped.items()):
            if time.monotonic() >= until_s or (self._released and each in self._held):
                self._continue(each)
        return not going

    def _go_on_without_the_held(self) -> None:
        """Have the other processes make a further change, if the case says so."""
        if self._case.further:
            self._moved = set(self._outcomes()) - self._held
        self._board.post("further", json.dumps([e for e in self._case.order if e in self._moved]))
        for each in self._moved:
            self._board.read(f"moved {each}")

    def _note_stopped(self) -> None:
        for fault in self._case.faults:
            each = fault.process
            new = each not in self._stopped and each not in self._continued
            if new and self._board.has(f"stopped {each}"):
                pid = int(self._board.read(f"stopped {each}"))
                until(lambda pid=pid: _state(pid) == "T", f"process {each} has not stopped")
                self._stopped[each] = pid, time.monotonic() + STOPPED_S[fault.kind]

    def _continue(self, process: int) -> None:
        pid, _ = self._stopped.pop(process)
        self._continued.add(process)
        self._board.post(f"continued {process}")
        os.kill(pid, signal.SIGCONT)

    def _has_end(self, process: int) -> bool:
        return self._board.has(f"outcome {process}") or self._dead(process)

    def _dead(self, process: int) -> bool:
        if not self._board.has(f"dying {process}"):
            return False
        return _state(int(self._board.read(f"dying {process}"))) in ("Z", "X", "")

    def _outcomes(self) -> dict[int, Outcome]:
        """Return the outcomes that the processes have told."""
        told = {
            each: json.loads(self._board.read(f"outcome {each}"))
            for each in range(self._case.count)
            if self._board.has(f"outcome {each}")
        }
        return {each: Outcome(**outcome) for each, outcome in told.items()}


def _state(pid: int) -> str:
    """Return the letter of a process's state; an empty string if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
