"""Fixtures that run aggregation nodes as processes with the command `slackline aggregate`."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class Node:
    """A `slackline aggregate` process that listens at a port of its own."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        command = [sys.executable, "-c", "from slackline.cli import main; raise SystemExit(main())"]
        command += ["aggregate", "--listen", "127.0.0.1:0"]
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [*command, "--workers", "4", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()
        found = re.match(r"listening at (127\.0\.0\.1:\d+) ", self.said)
        assert found is not None, self.log
        self.address = found[1]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "SLACKLINE_AGGREGATOR": self.address,
            "SLACKLINE_PLAN": "star",
            "SLACKLINE_RAILS": "tcp",
            "SLACKLINE_TIMEOUT": "30s",
            "NODE": str(self.process.pid),
            **more,
        }

    def interrupt(self) -> int:
        """Interrupt the process as Ctrl-C does, and return its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(*arguments: str) -> Node:
        made.append(Node(tmp_path / f"node{len(made)}.log", *arguments))
        return made[-1]

    yield make
    for node in made:
        if node.process.poll() is None:
            os.kill(node.process.pid, signal.SIGCONT)
            node.process.kill()
            node.process.wait()
        assert node.process.stdout is not None
        node.process.stdout.close()
