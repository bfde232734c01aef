"""The search for a plan during training: a process, and the thread that communicates with it."""

import contextlib
import json
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence

from slackline.plan.pipeline import Scenario, read_block, scenario_numbers, write_block

__all__ = ["PlanSearch"]

_log = logging.getLogger("slackline.pipeline")

_COMMAND = (sys.executable, "-m", "slackline.plan.pipeline.search_process")


class PlanSearch:
    """A search for one plan at a time, in a process that starts with the first search.

    A search in a thread would hold Python's global lock, and so delay the training thread. Only one
    thread may call the methods.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._answer: bytes | None = None

    @property
    def running(self) -> bool:
        """True if a search was started and its answer has not been taken yet."""
        return self._thread is not None

    def start(
        self,
        schedule: str,
        scenario: Scenario,
        placement: Sequence[int],
        *,
        effort: float,
        reason: str,
        whole: Scenario | None = None,
        core_wait: float = 0.0,
    ) -> None:
        """Start the search for the plans of `schedule` for the scenario; do not block.

        `placement` is the rank of each stage. `effort` multiplies the search's budget. `reason`
        becomes part of the answer. `whole` and `core_wait` are those of `rivals`.
        """
        request = json.dumps(
            {
                "schedule": schedule,
                "effort": effort,
                "placement": list(placement),
                "scenario": scenario_numbers(scenario),
                "whole": None if whole is None else scenario_numbers(whole),
                "core_wait": core_wait,
                "reason": reason,
            }
        ).encode()
        process = self._started()
        self._answer = None
        self._thread = threading.Thread(
            target=self._ask, args=(process, request), name="slackline-plan-search", daemon=True
        )
        self._thread.start()

    def answer(self) -> tuple[bytes, str] | None:
        """Return the answer of a finished search; None while the search runs. Do not block.

        The answer is encoded PlanUpdates and an empty text, or no bytes and a sentence that says
        why there is no plan.
        """
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        answer = self._answer
        if answer is None:
            assert self._process is not None
            code = self._process.wait()
            self._process = None
            text = f"the process that searches for plans ended with code {code}"
            _log.error("%s", text)
            return b"", text
        return (answer[1:], "") if answer[:1] == b"+" else (b"", answer[1:].decode())

    def wait(self) -> None:
        """Block until the running search has ended; return at once if none runs."""
        if self._thread is not None:
            self._thread.join()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            # In a session of its own, the process does not receive Ctrl-C of a terminal.
            self._process = subprocess.Popen(
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            weakref.finalize(self, _end, self._process)
        return self._process

    def _ask(self, process: "subprocess.Popen[bytes]", request: bytes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_block(process.stdin, request)
            self._answer = read_block(process.stdout)
        except BrokenPipeError:
            self._answer = None  # The process has ended; `answer` reports its exit code.


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        # The buffer of stdin may hold a part of a request that the process did not read.
        with contextlib.suppress(BrokenPipeError):
            stream.close()
