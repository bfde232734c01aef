"""Tests of the watch on the store's connections: tables of the kernel, and a store at work."""

import sys
import threading
from pathlib import Path

import pytest
from torch import distributed as dist

from slackline.backend import _store_watch
from slackline.backend._store_prefix import watched_store
from slackline.backend._store_watch import Stuck, stuck_connections

pytestmark = pytest.mark.skipif(sys.byteorder == "big", reason="the tables are of a little-endian")
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
HERE, STORE = "0200000A:E97E", "0100000A:7347"  # 10.0.0.2:59774 and 10.0.0.1:29511


def row(source: str, target: str, *, state: str, waiting: int, retransmits: int) -> str:
    return (
        f"   1: {source} {target} {state} {waiting:08X}:00000000 01:00000014 {retransmits:08X} 0\n"
    )


def test_a_connection_whose_data_do_not_arrive_is_found_at_both_ends() -> None:
    table = HEAD + row(HERE, STORE, state="01", waiting=1263, retransmits=3)
    assert stuck_connections(table, 29511) == [Stuck("10.0.0.2:59774", "10.0.0.1:29511", 1263)]
    table = HEAD + row(STORE, HERE, state="01", waiting=5, retransmits=9)
    assert stuck_connections(table, 29511) == [Stuck("10.0.0.1:29511", "10.0.0.2:59774", 5)]


def test_addresses_of_ipv6_are_read_and_those_of_ipv4_within_them() -> None:
    mapped = "0000000000000000FFFF0000" + HERE, "0000000000000000FFFF0000" + STORE
    local = "000080FE000000000000000001000000:7347", "000080FE000000000000000002000000:E97E"
    table = HEAD
    for ends in (mapped, local):
        table += row(*ends, state="01", waiting=7, retransmits=4)
    assert stuck_connections(table, 29511) == [
        Stuck("10.0.0.2:59774", "10.0.0.1:29511", 7),
        Stuck("[fe80::1]:29511", "[fe80::2]:59774", 7),
    ]


@pytest.mark.parametrize(
    ("state", "waiting", "retransmits", "port"),
    [
        ("01", 1263, 2, 29511),  # two timeouts happen on busy links
        ("01", 0, 3, 29511),  # all has arrived
        ("02", 1263, 3, 29511),  # not open yet: TCPStore says so itself
        ("01", 1263, 3, 29512),  # a connection of another program
    ],
)
def test_other_connections_are_left_out(
    state: str, waiting: int, retransmits: int, port: int
) -> None:
    table = HEAD + row(HERE, STORE, state=state, waiting=waiting, retransmits=retransmits)
    assert stuck_connections(table, port) == []


def test_the_kernels_own_table_is_read_and_a_store_at_work_is_not_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with watched_store(dist.PrefixStore("a", dist.PrefixStore("b", store)), 2, pause_s=1e-3):
        for number in range(300):
            store.set(str(number), "." * 2000)
            assert store.check([str(number)])
    assert caplog.records == []


def test_an_error_has_what_was_found_as_a_note_and_the_log_has_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    table = tmp_path / "tcp"
    ours = f"0200000A:{store.port:04X}"
    table.write_text(HEAD + row(ours, HERE, state="01", waiting=1263, retransmits=3))
    monkeypatch.setattr(_store_watch, "_TABLES", (tmp_path / "none", table))
    found = Stuck(f"10.0.0.2:{store.port}", "10.0.0.2:59774", 1263)

    def fail_once_it_is_told() -> None:
        with watched_store(store, 2, pause_s=1e-3):
            while not caplog.records:
                store.check(["a"])
            raise ValueError("the end")

    with pytest.raises(ValueError, match="the end") as raised:
        fail_once_it_is_told()
    assert [record.getMessage() for record in caplog.records] == [str(found)]
    assert raised.value.__notes__ == [str(found)]


@pytest.mark.parametrize("size", [1, 2])
def test_a_lone_rank_and_a_store_without_connections_are_not_watched(size: int) -> None:
    tcp = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = tcp if size == 1 else dist.HashStore()
    before = threading.active_count()
    with watched_store(store, size):
        assert threading.active_count() == before
    with watched_store(tcp, 2):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
