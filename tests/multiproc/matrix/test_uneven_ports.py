"""Tests that a group on hosts of a lab finds the slow port by itself and sends less data through
this port."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slackline.faults import parse_all
from slackline.lab import Lab, LabOptions
from slackline.plan.collective import WHOLE

HOSTS = 4
RATE = 200_000_000
SLOW = 2
CALLS = 14

Ask = Callable[[int], list[dict[str, Any]]]


@pytest.fixture
def lab(lab_allowed: None) -> Iterator[Lab]:
    with Lab(LabOptions(hosts=HOSTS, rate=RATE)) as made:
        yield made


@pytest.fixture
def ask(lab: Lab, tmp_path: Path) -> Iterator[Ask]:
    """Provide ask(calls), which makes every rank perform `calls` all_reduces and returns the ranks'
    answers. The ranks start at the first use."""
    ranks: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:

        def answers() -> list[dict[str, Any]]:
            told = []
            for number, rank in enumerate(ranks):
                assert rank.stdout is not None
                line = rank.stdout.readline()
                assert line, f"rank {number} ended with {rank.wait(60)}"
                told.append(json.loads(line))
            return told

        def run(calls: int) -> list[dict[str, Any]]:
            if not ranks:
                program = [sys.executable, str(Path(__file__).with_name("shares_lab_rank.py"))]
                for number in range(HOSTS):
                    command = [*program, str(number), str(HOSTS), str(tmp_path)]
                    ranks.append(
                        stack.enter_context(
                            subprocess.Popen(
                                lab.command(number, command),
                                stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE,
                                text=True,
                            )
                        )
                    )
                answers()
            for rank in ranks:
                assert rank.stdin is not None
                print(calls, file=rank.stdin, flush=True)
            return answers()

        yield run
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in ranks:
            assert rank.wait(60) == 0


def test_a_host_whose_port_has_a_quarter_of_the_rate_gets_a_smaller_share(
    lab: Lab, ask: Ask
) -> None:
    with lab.inject(parse_all(f"nic {SLOW}.0 rate {RATE // 4}bit")):
        first, *others = ask(CALLS)
    assert others == [first] * (HOSTS - 1)
    assert sum(first["weights"]) == WHOLE
    assert min(first["weights"]) == first["weights"][SLOW]
    assert first["weights"][SLOW] < WHOLE // 8, first["reason"]
