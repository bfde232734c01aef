"""Tests that torchft trains on over slackline when a replica dies by kill -9, and takes it back."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from torch import distributed as dist
from waiting import until

process_group = pytest.importorskip("torchft.process_group", reason="torchft is not installed")

TAKES_TORCHS_GROUPS = hasattr(process_group, "reconfigure_with_store")
"""Whether this torchft changes the members of torch's own groups, as versions after 0.2.0 do."""
HEARTBEAT_MS = 2000
"""The silence after which the lighthouse counts a replica as dead."""
GOES_ON_NS = 20_000_000_000
"""The longest pause of the survivor: half the time limit of its operations, which end at once."""
TOGETHER, ALONE = 10, 5


class Program:
    """A process that runs a program beside this file, with its output in a file.

    Use it as a context manager, at the end of which the process is killed.
    """

    def __init__(self, output: Path, name: str, *arguments: object, **variables: str) -> None:
        self._output = output
        self._command = [sys.executable, str(Path(__file__).with_name(name)), *map(str, arguments)]
        with output.open("w") as file:
            self.process = subprocess.Popen(
                self._command,
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)

    def said(self) -> str:
        """Return the command and the end of its output."""
        return f"{self._command}\n{self._output.read_text()[-5000:]}"

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; fail at once if the process ends before."""
        until(lambda: condition() or self.process.poll() is not None, self.said)
        assert condition(), self.said()

    def end(self) -> None:
        """Close the process's standard input, and wait for the end, which must be a good one."""
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.said()
        assert "nanobind: leaked" not in self.said()


class Replica(Program):
    """A replica that trains, and its diary."""

    def __init__(self, folder: Path, kind: str, number: int, life: int, lighthouse: str) -> None:
        self._diary = folder / f"diary-{number}-{life}"
        super().__init__(
            folder / f"output-{number}-{life}",
            "torchft_job.py",
            *(kind, number, self._diary),
            TORCHFT_LIGHTHOUSE=lighthouse,
            no_proxy="*",  # A replica fetches the state of another one by HTTP, at the host's name.
        )

    def steps(self, participants: int | None = None) -> dict[int, int]:
        """Return the committed steps, with the nanosecond of each: all, or those of so many."""
        return {
            int(words[1]): int(words[5])
            for words in self._lines()
            if words[0] == "step" and participants in (None, int(words[3]))
        }

    def take(self, count: int) -> None:
        """Wait until so many steps with two participants are committed."""
        self.until(lambda: len(self.steps(participants=2)) >= count)

    def parameters(self) -> str:
        """Return the digest with which the training has ended."""
        self.end()
        return self._lines()[-1][1]

    def _lines(self) -> list[list[str]]:
        """Return the words of the complete lines of the diary."""
        text = self._diary.read_text() if self._diary.exists() else ""
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture
def lighthouse(tmp_path: Path) -> Iterator[str]:
    """Provide the address of torchft's lighthouse, which has a process of its own."""
    address, output = tmp_path / "address", tmp_path / "output-lighthouse"
    with Program(output, "torchft_lighthouse.py", address, HEARTBEAT_MS) as program:
        program.until(lambda: address.exists() and address.stat().st_size > 0)
        yield address.read_text().strip()
        program.end()


@pytest.mark.parametrize(
    "kind",
    [
        "wrapped",
        pytest.param(
            "torch",
            marks=pytest.mark.skipif(
                not (TAKES_TORCHS_GROUPS and hasattr(dist, "_reconfigure")),
                reason="needs a torchft after 0.2.0, and torch 2.14",
            ),
        ),
    ],
)
@pytest.mark.parametrize("dying", [0, 1])  # The replicas meet at the store of replica 0.
@pytest.mark.timeout(240)
def test_a_replica_is_killed_and_comes_back(
    tmp_path: Path, lighthouse: str, kind: str, dying: int
) -> None:
    with ExitStack() as stack:

        def started(number: int, life: int) -> Replica:
            replica = Replica(tmp_path, kind, number, life, lighthouse)
            stack.enter_context(replica)
            return replica

        survivor, victim = started(1 - dying, 0), started(dying, 0)
        for each in (survivor, victim):
            each.take(TOGETHER)
        killed = time.monotonic_ns()
        os.kill(victim.process.pid, signal.SIGKILL)

        def alone() -> list[int]:
            return [at for at in survivor.steps(participants=1).values() if at > killed]

        survivor.until(lambda: len(alone()) >= ALONE)
        assert min(alone()) - killed < GOES_ON_NS
        last_alone = max(survivor.steps())
        back = started(dying, 1)
        parameters = back.parameters()
        assert survivor.parameters() == parameters
    steps = list(survivor.steps())
    assert steps == list(range(steps[0], steps[-1] + 1)), "none is lost, none is taken twice"
    assert min(back.steps()) > last_alone
    assert max(back.steps()) == steps[-1]
