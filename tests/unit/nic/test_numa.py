"""Tests of the NUMA nodes of a host, on made-up files of sysfs."""

import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from slackline.nic import NativeNic, NicOptions, _native_nic
from slackline.nic._numa import (
    node_of_nic,
    nodes,
    on_the_nodes_processors,
    processors_of_node,
)
from slackline.testing import MemoryStore


def sysfs(folder: Path, *lists: str, **nics: int) -> Path:
    """Write the files of nodes with these processor lists, and of NICs on these nodes."""
    for number, text in enumerate(lists):
        node = folder / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{text}\n")
    for name, node_number in nics.items():
        device = folder / f"class/net/{name}/device"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node_number}\n")
    return folder


def test_nodes_have_the_processors_that_sysfs_lists(tmp_path: Path) -> None:
    root = sysfs(tmp_path, "0-2,8", "3-7,9-10", "")
    assert nodes(root) == {
        0: frozenset({0, 1, 2, 8}),
        1: frozenset({3, 4, 5, 6, 7, 9, 10}),
        2: frozenset(),
    }
    assert nodes(tmp_path / "none") == {}


def test_a_nic_is_on_the_node_of_its_slot(tmp_path: Path) -> None:
    root = sysfs(tmp_path, eth0=1, virt0=-1)
    assert [node_of_nic(name, root) for name in ("eth0", "virt0", "lo")] == [1, None, None]


def test_a_rank_stays_on_the_processors_of_its_node_that_it_may_use() -> None:
    places = {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}
    assert processors_of_node({2, 3, 4}, 3, places) == {2, 3}
    assert processors_of_node({2, 3, 4}, 4, places) == {4}
    assert processors_of_node({2, 9}, 9, places) == {2, 9}


def affinities() -> dict[int, set[int]]:
    """Return the processors that each thread of this process may run on, by thread."""
    found = {}
    for thread in map(int, os.listdir("/proc/self/task")):
        try:
            found[thread] = os.sched_getaffinity(thread)
        except ProcessLookupError:
            continue  # The thread has ended meanwhile.
    return found


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_the_engines_threads_stay_on_the_ranks_node_and_the_caller_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = os.sched_getaffinity(0)
    root = sysfs(tmp_path, *map(str, sorted(mine)))
    monkeypatch.setattr(_native_nic, "SYSFS", root)
    before = affinities()
    nic = NativeNic(NicOptions(arena_bytes=64 << 20))
    group = nic.open_group(MemoryStore(), 0, 1, timeout=timedelta(seconds=20))
    made = {thread: cpus for thread, cpus in affinities().items() if thread not in before}
    assert os.sched_getaffinity(0) == mine
    assert any(len(cpus) == 1 for cpus in made.values())
    group.close()
    nic.close()


def test_a_host_of_one_node_changes_nothing(tmp_path: Path) -> None:
    mine = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    with on_the_nodes_processors(sysfs(tmp_path, "0-1023")):
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == [mine]
