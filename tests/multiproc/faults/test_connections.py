"""Tests of rails (paths to a peer) that are lost and restored, of several NICs, and of the end of
threads and tasks beside the engine."""

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from slackline.errors import PeerError, UsageError
from slackline.nic import Group, NicOptions
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

COUNT = 100_003
TWO_NICS = ("127.0.1.1/24", "127.0.2.1/24")


def options(**changes: Any) -> NicOptions:
    values: dict[str, Any] = {"rails": ("tcp",), "plan": "mesh", "arena_bytes": 64 << 20}
    return NicOptions(**(values | changes))


def engine(group: Group) -> Any:
    return group._engine  # type: ignore[attr-defined]


def rails(group: Group) -> list[tuple[int, int, str, str]]:
    return sorted((rail.link, rail.rail, rail.kind, rail.name) for rail in engine(group).rails())


def sum_is_right(group: Group) -> None:
    data = np.arange(COUNT, dtype=np.float32) * (group.rank + 1)
    at = data.ctypes.data
    group.all_reduce(at, at, COUNT, DType.FLOAT32, ReduceOp.SUM, blocking=True)
    factor = group.size * (group.size + 1) // 2
    assert data.tobytes() == (np.arange(COUNT, dtype=np.float32) * factor).tobytes()


@pytest.mark.parametrize("kinds", [("tcp",), ("udp",), ("tcp", "udp")])
def test_two_nics_make_a_rail_each_with_the_same_index_at_both_ends(kinds: tuple[str, ...]) -> None:
    def body(group: Group) -> list[tuple[int, int, str, str]]:
        sum_is_right(group)
        found = rails(group)
        group.barrier(blocking=True)
        return found

    for found in run_ranks(2, body, options=options(rails=kinds, interfaces=TWO_NICS)):
        assert found == [
            (0, index, kind, f"{kind} {address}>{address}")
            for index, (kind, address) in enumerate(
                (kind, address) for kind in kinds for address in ("127.0.1.1", "127.0.2.1")
            )
        ]


def test_both_nics_carry_what_is_sent() -> None:
    def body(group: Group) -> list[int]:
        for _ in range(20):
            sum_is_right(group)
        sent = [rail.bytes_sent for rail in engine(group).rails()]
        group.barrier(blocking=True)
        return sent

    for sent in run_ranks(2, body, options=options(interfaces=TWO_NICS)):
        assert len(sent) == 2
        assert all(nbytes > 20 * COUNT for nbytes in sent), sent


@pytest.mark.parametrize("dropping", [0, 1])
@pytest.mark.parametrize("how", ["tcp", "udp", "tls"])
def test_a_rail_that_either_end_drops_comes_back(how: str, dropping: int) -> None:
    """Check that operations in progress wait for the link's only rail until it is restored."""

    def body(group: Group) -> dict[str, int]:
        for _ in range(5):
            if group.rank == dropping:
                engine(group).drop_rail(0, 0, "the test says so")
            sum_is_right(group)
        counters = dict(group.counters())
        group.barrier(blocking=True)
        return counters

    for counters in run_ranks(2, body, options=secured(how)):
        assert counters["rails_lost"] == counters["rails_restored"] >= 5


def secured(how: str) -> NicOptions:
    if how != "tls":
        return options(rails=(how,))
    pytest.importorskip("cryptography", reason="TLS needs the package cryptography")
    return options(tls="require")


def test_the_bits_are_the_same_with_tls() -> None:
    def body(group: Group) -> bytes:
        data = np.random.default_rng(group.rank).standard_normal(1_000_003).astype(np.float32)
        at = data.ctypes.data
        group.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
        return data.tobytes()

    plain, secret = (
        run_ranks(3, body, options=options(order="rank", tls=secured(how).tls))
        for how in ("tcp", "tls")
    )
    assert len(set(plain + secret)) == 1


def test_tls_leaves_udp_rails_no_place() -> None:
    with pytest.raises(UsageError) as caught:
        options(rails=("tcp", "udp"), tls="require")
    assert str(caught.value) == (
        "tls encrypts TCP rails only: leave udp out of rails, or use tls='off'"
    )


@pytest.mark.parametrize("how", ["tcp", "udp", "tls"])
def test_a_peer_that_has_closed_its_nic_is_gone_at_once(how: str) -> None:
    left = threading.Event()

    def body(group: Group) -> str | None:
        sum_is_right(group)
        if group.rank == 1:
            return None  # its nic is closed after this function
        with pytest.raises(PeerError) as caught:
            sum_is_right(group)
        left.set()
        return str(caught.value)

    assert run_ranks(2, body, options=secured(how))[0].startswith("rank 1 ")


def no_more_threads(before: set[threading.Thread]) -> list[str]:
    return [t.name for t in set(threading.enumerate()) - before if t.name.startswith("slackline")]


@pytest.mark.parametrize("how", ["tcp", "udp", "tls"])
def test_a_closed_nic_leaves_no_thread(how: str) -> None:
    before = set(threading.enumerate())
    run_ranks(2, sum_is_right, options=secured(how))
    assert no_more_threads(before) == []


ENDS: dict[str, str] = {
    "the program just ends": "",
    "the program ends with an error": "raise SystemExit(3)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_never_closes_its_nic_ends_without_a_word(end: str) -> None:
    code = f"""
import threading
from datetime import timedelta
from slackline.nic import NativeNic, NicOptions
from slackline.testing import MemoryStore
store = MemoryStore()
def open_one(rank):
    nic = NativeNic(NicOptions(rails=("tcp",), arena_bytes=64 << 20))
    kept.append((nic, nic.open_group(store, rank, 2, timeout=timedelta(seconds=20))))
kept = []
threads = [threading.Thread(target=open_one, args=(rank,)) for rank in (0, 1)]
for thread in threads: thread.start()
for thread in threads: thread.join()
{ENDS[end]}
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode == (3 if ENDS[end] else 0)


def test_faults_of_the_plan_are_inflicted_and_end() -> None:
    """Check that an operation waits while a fault drops everything on its link, and that the result
    is bit-identical to the expected sum."""

    def body(group: Group) -> int:
        for _ in range(3):
            sum_is_right(group)
        sent: int = sum(rail.packets_resent for rail in engine(group).rails())
        group.barrier(blocking=True)
        return sent

    how = options(rails=("udp",), faults="link 0-1 loss 5% seed 3")
    assert sum(run_ranks(2, body, options=how)) > 0


def test_a_fault_of_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        run_ranks(2, sum_is_right, options=options(faults="link 0-7 loss 1%"))
    assert "7" in str(caught.value)
