"""Tests of fault plans executed by the clock, on a network that records its states and on
processes."""

import logging
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from waiting import until

from slackline.errors import UsageError
from slackline.faults import Effects, RankState, parse_all
from slackline.lab import Executor, Injection
from slackline.lab._ranks import Ranks, duty

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

DOWN = Effects(down=True)
LONG = timedelta(seconds=20)
MS = 10**6


class Network:
    """A network that records every fault state that the executor sets."""

    def __init__(self) -> None:
        self.states: list[tuple[dict[object, Effects], dict[object, Effects]]] = []

    def __call__(self, pairs: Mapping[object, Effects], nics: Mapping[object, Effects]) -> None:
        self.states.append((dict(pairs), dict(nics)))


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def executor(network: Network) -> Iterator[Executor]:
    executor = Executor(network)
    yield executor
    executor.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def state(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_starts_at_once_is_in_force_at_once(executor: Executor, network: Network) -> None:
    injection = executor.inject(parse_all("link 0>1 down; nic 1.0 down"))
    assert network.states == [({(0, 1): DOWN}, {(1, 0): DOWN})]
    injection.withdraw()
    assert network.states[1:] == [({}, {})]


def test_faults_come_and_go_in_their_order(network: Network) -> None:
    plan = parse_all("link 0>1 down from 20ms for 20ms; nic 1.0 down from 30ms for 20ms")
    now_ns = 7 * MS
    executor = Executor(network, clock=lambda: now_ns)
    try:
        injection = executor.inject(plan)
        assert network.states == []
        for number, (at_ms, wanted) in enumerate(
            (
                (20, ({(0, 1): DOWN}, {})),
                (39, ({(0, 1): DOWN}, {(1, 0): DOWN})),
                (40, ({}, {(1, 0): DOWN})),
                (50, ({}, {})),
            )
        ):
            now_ns = (7 + at_ms) * MS
            until(lambda: len(network.states) > number, f"no change at {at_ms} ms")  # noqa: B023
            assert network.states[number:] == [wanted]
        assert injection.wait(LONG)
    finally:
        executor.close()


@pytest.mark.parametrize("end", ["clock", "withdraw", "close"])
def test_a_plan_is_over_once_the_network_has_no_fault_of_it(end: str) -> None:
    now_ns = 0
    injections: list[Injection] = []
    over: list[bool] = []

    def network(_: object, nics: Mapping[object, Effects]) -> None:
        if not nics:
            over.append(injections[0].wait(timedelta()))

    executor = Executor(network, clock=lambda: now_ns)
    try:
        injections.append(executor.inject(parse_all("nic 1.0 down for 20ms"), started=False))
        if end == "clock":
            injections[0].start()
            now_ns = 20 * MS
            assert injections[0].wait(LONG)
        elif end == "withdraw":
            injections[0].withdraw()
    finally:
        executor.close()
    assert over == [False]
    assert injections[0].wait(timedelta())


def test_plans_that_are_there_together_add_up(executor: Executor, network: Network) -> None:
    with executor.inject(parse_all("link 0>1 delay 10ms")):
        with executor.inject(parse_all("link 0>1 delay 5ms")):
            assert network.states[-1] == ({(0, 1): Effects(delay_ns=15 * MS)}, {})
        assert network.states[-1] == ({(0, 1): Effects(delay_ns=10 * MS)}, {})
    assert network.states[-1] == ({}, {})


def test_time_stands_still_until_it_is_started(executor: Executor, network: Network) -> None:
    injection = executor.inject(parse_all("nic 0.0 down for 1ms"), started=False)
    assert not injection.wait(timedelta(milliseconds=20))
    assert network.states == [({}, {(0, 0): DOWN})]
    injection.start()
    assert injection.wait(LONG)
    assert network.states == [({}, {(0, 0): DOWN}), ({}, {})]


def test_a_plan_without_an_end_is_over_when_it_is_withdrawn(executor: Executor) -> None:
    injection = executor.inject(parse_all("link 0-1 down"))
    assert not injection.wait(timedelta())
    injection.withdraw()
    assert injection.wait(timedelta())


def test_a_fault_that_was_over_before_its_thread_ran_is_reported_with_the_delay(
    executor: Executor, network: Network
) -> None:
    said: list[str] = []
    plan = parse_all("nic 1.0 down from 2ms for 1ms; link 0>1 down from 4ms for 60s")
    injection = executor.inject(plan, started=False, warn=said.append)
    with executor.changed:  # The thread cannot step until the first fault is over.
        injection.start()
        over_ns = time.monotonic_ns() + 5 * MS
        while time.monotonic_ns() < over_ns:
            pass
    until(lambda: network.states != [], "the network has no state")
    assert network.states == [({(0, 1): DOWN}, {})]
    (sentence,) = said
    start = "the fault 'nic 1.0 down from 2ms for 1ms' is left out: "
    reason = r"the thread that starts faults was late by ([0-9.]+) (ms|s)"
    found = re.fullmatch(re.escape(start) + reason, sentence)
    assert found is not None, sentence
    assert float(found[1]) * {"ms": 1, "s": 1000}[found[2]] >= 3.0


def test_without_a_receiver_the_logger_names_a_fault_that_was_left_out(
    executor: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    assert executor.inject(parse_all("nic 1.0 down from 1ms for 1ns")).wait(LONG)
    ((name, level, sentence),) = caplog.record_tuples
    assert (name, level) == ("slackline.lab", logging.WARNING)
    assert sentence.startswith("the fault 'nic 1.0 down from 1ms for 1ns' is left out: ")


def test_what_goes_wrong_reaches_whoever_asks() -> None:
    def refuse(pairs: object, nics: object) -> None:
        raise UsageError("no such network")

    executor = Executor(refuse)
    with pytest.raises(UsageError, match=r"^no such network$"):
        executor.inject(parse_all("link 0-1 down"))
    executor.close()


def test_a_plan_needs_what_it_is_about() -> None:
    executor = Executor()
    try:
        message = "'rank 0 kill' needs the process ids of the ranks"
        with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
            executor.inject(parse_all("rank 0 kill"))
        with pytest.raises(
            UsageError, match=r"^'link 0-1 down' needs a network; there is none here$"
        ):
            executor.inject(parse_all("link 0-1 down"))
    finally:
        executor.close()


def test_a_rank_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    executor = Executor()
    executor.inject(parse_all("rank 3 kill"), processes=lambda: {3: [sleeper.pid]})
    assert sleeper.wait(60) == -signal.SIGKILL
    executor.close()


def test_a_rank_stands_still_and_goes_on(sleeper: subprocess.Popen[bytes]) -> None:
    executor = Executor()
    with executor.inject(parse_all("rank 0 stop"), processes=lambda: {0: [sleeper.pid]}):
        _until(sleeper, "T")
    _until(sleeper, "S")
    executor.close()


def test_a_rank_runs_again_when_the_executor_ends(sleeper: subprocess.Popen[bytes]) -> None:
    executor = Executor()
    executor.inject(parse_all("rank 0 stop"), processes=lambda: {0: [sleeper.pid]})
    executor.close()
    _until(sleeper, "S")


def test_a_rank_that_has_ended_is_nobody_s_loss(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    executor = Executor()
    plan = parse_all("rank 0 stop for 1ms; rank 0 kill from 2ms")
    assert executor.inject(plan, processes=lambda: {0: [sleeper.pid]}).wait(LONG)
    executor.close()


def test_a_slow_rank_runs_for_a_part_of_each_20_ms() -> None:
    times = (0, 5 * MS - 1, 5 * MS, 20 * MS - 1, 20 * MS)
    assert [duty(now_ns, 4.0) for now_ns in times] == [
        (False, 5 * MS),
        (False, 5 * MS),
        (True, 20 * MS),
        (True, 20 * MS),
        (False, 25 * MS),
    ]


def test_a_slow_rank_is_stopped_and_continued(sleeper: subprocess.Popen[bytes]) -> None:
    ranks = Ranks(lambda: {0: [sleeper.pid]})
    slow = {0: RankState(action="slow", factor=2.0)}
    assert ranks.apply(0, slow) == 10 * MS
    assert ranks.apply(10 * MS, slow) == 20 * MS
    _until(sleeper, "T")
    assert ranks.apply(20 * MS, slow) == 30 * MS
    _until(sleeper, "S")
    assert ranks.apply(25 * MS, {}) is None
    ranks.close()


def test_a_process_that_comes_later_is_found(sleeper: subprocess.Popen[bytes]) -> None:
    found: dict[int, list[int]] = {}
    ranks = Ranks(lambda: found)
    stopped = {0: RankState(action="stop")}
    assert ranks.apply(0, stopped) == 100 * MS
    found[0] = [sleeper.pid]
    ranks.apply(100 * MS, stopped)
    _until(sleeper, "T")
    ranks.close()
    _until(sleeper, "S")


def _until(process: subprocess.Popen[bytes], wanted: str) -> None:
    """Wait until the kernel has acted on a signal and the process has the wanted state."""
    until(lambda: state(process) == wanted, lambda: f"{state(process)} is not {wanted}")
