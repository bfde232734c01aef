"""Tests of a group's whole lifetime on the real engine: memory, stores, errors, shutdown,
callbacks."""

import os
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch
from rank_marks import mark, wait_for_marks
from torch import distributed as dist
from waiting import until

from slackline import backend
from slackline.errors import ClosedError, MismatchError, PeerError, TimeoutError
from slackline.nic import NicOptions


def memory(rank, size):
    tensor = backend.zeros(1 << 18)
    tensor += rank + 1
    for _ in range(3):
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.unique().tolist() == [(size + 1) / 2]
    used = backend.counters()["arena_bytes"]
    view = tensor[5:]
    del tensor
    assert backend.counters()["arena_bytes"] == used
    del view
    assert backend.counters()["arena_bytes"] < used


def test_registered_memory_is_given_back(job):
    job(2, memory)


def outliving(rank, size, store):
    dist.init_process_group("slackline", init_method=f"file://{store}", rank=rank, world_size=size)
    tensor = backend.zeros(1 << 16)
    tensor += 3
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    assert tensor.sum().item() == 6 * (1 << 16)
    del tensor


def test_registered_memory_outlives_the_group(job):
    job(2, outliving, bare=True)


def named_device(rank, size, store):
    device = torch.device("cuda", rank)
    dist.init_process_group("slackline", init_method=f"file://{store}", rank=rank, world_size=size)
    # torch for the CPU alone refuses `device_id`; with others it then makes this call.
    dist.group.WORLD._get_backend(device).eager_connect_single_device(device)
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=dist.new_group([0, 1]))
    assert tensor.item() == 1
    dist.destroy_process_group()


def test_groups_open_after_init_process_group_has_named_a_device(job):
    job(2, named_device, bare=True)


def lives(rank, size, store):
    for life in range(3):
        dist.init_process_group(
            "slackline", init_method=f"file://{store}{life}", rank=rank, world_size=size
        )
        group = dist.group.WORLD
        tensor = torch.tensor([float(life)])
        dist.all_reduce(tensor)
        assert tensor.item() == life * size
        dist.destroy_process_group()
        with pytest.raises(ClosedError):
            group.allreduce([tensor]).wait()


def test_a_process_may_init_and_destroy_again_and_again(job):
    job(2, lives, bare=True)


def over_tcp_store(rank, size, path):
    port = 0
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        with open(f"{path}.port", "w") as file:
            file.write(str(store.port))
        os.rename(f"{path}.port", f"{path}.at")
    else:
        until(lambda: os.path.exists(f"{path}.at"), "rank 0 has no store")
        with open(f"{path}.at") as file:
            port = int(file.read())
        store = dist.TCPStore("127.0.0.1", port, size)
    dist.init_process_group("slackline", store=store, rank=rank, world_size=size)
    dist.barrier()
    dist.destroy_process_group()


def test_a_tcp_store_will_do(job):
    job(3, over_tcp_store, bare=True)


def beside_gloo(rank, size):
    other = dist.new_group(backend="gloo")
    tensor = torch.tensor([1.0])
    dist.all_reduce(tensor, group=other)
    dist.all_reduce(tensor)
    assert tensor.item() == size * size


def test_a_group_of_another_backend_lives_beside(job):
    job(2, beside_gloo)


def test_torchs_detailed_debugging_changes_nothing(job):
    job(2, beside_gloo, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


def made_by_a_library(rank, size, path):
    store = dist.FileStore(path, size)
    for life in range(3):
        group = backend.open_group(
            dist.PrefixStore(str(life), store), rank, size, timeout=timedelta(seconds=30)
        )
        tensor = torch.tensor([float(life)])
        group.allreduce([tensor]).wait()
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == life * size * size
        group.shutdown()
    assert not dist.is_initialized()


def test_a_library_opens_groups_without_a_default_group(job):
    job(2, made_by_a_library, bare=True)


def by_device(rank, size, store):
    dist.init_process_group(
        "cpu:slackline", init_method=f"file://{store}", rank=rank, world_size=size
    )
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    assert tensor.item() == 3
    dist.destroy_process_group()


def test_the_backend_may_be_named_for_a_device(job):
    job(2, by_device, bare=True)


def with_options(rank, size, store):
    options = NicOptions(plan="ring", order="any")
    dist.init_process_group(
        "slackline",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        pg_options=options,
    )
    dist.all_reduce(torch.ones(1 << 20))
    dist.new_group([0, 1])
    dist.destroy_process_group()


def test_options_of_the_engine_may_be_given_to_init(job):
    job(3, with_options, bare=True)


def leave_in_the_middle(rank, size, store):
    dist.init_process_group("slackline", init_method=f"file://{store}", rank=rank, world_size=size)
    dist.irecv(torch.empty(1), 1 - rank)


@pytest.mark.slow
def test_a_process_ends_soon_though_its_work_never_will(job):
    job(2, leave_in_the_middle, bare=True, seconds=20)


def disagree(rank, size):
    with pytest.raises(MismatchError):
        dist.all_reduce(torch.zeros(10 + rank))


def test_ranks_that_disagree_get_a_mismatch_error(job):
    job(2, disagree)


def wait_in_vain(rank, size):
    group = dist.group.WORLD
    store = group.get_group_store()
    if rank == 1:
        store.wait(["seen"])
        return
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=" Timed out "):
        group.allreduce([torch.ones(1)], dist.ReduceOp.SUM, timedelta(milliseconds=300)).wait()
    assert time.monotonic() - start < 25, "not the timeout of the group, 30 s"
    store.set("seen", "")


def test_an_operation_that_never_ends_times_out(job):
    job(2, wait_in_vain)


def leave_early(rank, size):
    store = dist.group.WORLD.get_group_store()
    if rank != 0:
        dist.gather(torch.full((100,), float(rank)), None, 0)
        dist.isend(torch.ones(3) * rank, 0).wait()
        dist.group.WORLD.shutdown()
        store.set(f"left {rank}", "")
        return
    store.wait([f"left {r}" for r in range(1, size)])
    gathered = [torch.empty(100) for _ in range(size)]
    dist.gather(torch.zeros(100), gathered, 0)
    assert [t.unique().tolist() for t in gathered] == [[float(r)] for r in range(size)]
    heard = torch.empty(3)
    assert dist.recv(heard) + dist.recv(torch.empty(3), 3 - int(heard[0])) == 3
    with pytest.raises(PeerError, match=" closed "):
        dist.recv(heard, 1)
    with pytest.raises(PeerError, match=" closed "):
        dist.recv(heard)
    with pytest.raises(PeerError, match=" closed "):
        dist.all_reduce(heard)


def test_a_rank_may_leave_when_its_part_is_done(job):
    job(3, leave_early)


def lose_a_peer(rank, size):
    dist.barrier()
    mark("left the barrier")
    if rank == 1:
        wait_for_marks("left the barrier", range(size))
        os._exit(3)
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    with pytest.raises(PeerError, match=" closed "):
        work.wait()
    with pytest.raises(RuntimeError, match="PeerError"):
        work.get_future().wait()


def test_a_peers_death_is_a_peer_error(job):
    job(3, lose_a_peer, dying=(1,))


def leave_work_behind(rank, size, store):
    dist.init_process_group("slackline", init_method=f"file://{store}", rank=rank, world_size=size)
    dist.all_reduce(torch.ones(1 << 20))


def test_a_process_may_end_without_destroying_its_group(job):
    job(3, leave_work_behind, bare=True)


def roll_call(rank, size):
    group = dist.group.WORLD
    group.monitored_barrier()
    if rank == 0:
        with pytest.raises(TimeoutError, match=r"ranks that did not come: 1, 2$"):
            group.monitored_barrier(timedelta(milliseconds=300), wait_all_ranks=True)
        mark("told")
    wait_for_marks("told", [0])  # a rank that leaves must not be reported as late


def test_a_monitored_barrier_names_the_missing(job):
    job(3, roll_call)


def roll_call_in_the_environments_time(rank, size):
    group = dist.group.WORLD
    assert group.default_timeout == timedelta(milliseconds=400)
    if rank == 0:
        with pytest.raises(TimeoutError) as caught:
            group.monitored_barrier()
        told = "monitored_barrier Timed out after 0:00:00.400000: ranks that did not come: 1"
        assert str(caught.value) == told
        mark("told")
    wait_for_marks("told", [0])


def test_a_monitored_barrier_without_a_timeout_has_the_engines_and_tells_it(job):
    limit = {"SLACKLINE_TIMEOUT": "400ms"}
    job(2, roll_call_in_the_environments_time, environment=limit)


def roll_call_of_the_dead(rank, size):
    group = dist.group.WORLD
    mark("is there")
    if rank == 1:
        wait_for_marks("is there", range(size))
        os._exit(3)
    if rank == 0:
        with pytest.raises(PeerError) as caught:
            group.monitored_barrier(timedelta(seconds=100), wait_all_ranks=True)
        assert caught.value.peer == 1
        assert "Timed out" not in str(caught.value)
        mark("told")
    wait_for_marks("told", [0])
    group.abort()


def test_a_monitored_barrier_names_the_dead_at_once_and_nobody_else(job):
    job(3, roll_call_of_the_dead, dying=(1,))


def many_at_once(rank, size):
    tensors = [torch.full((1000 * (i % 7 + 1),), float(i + rank)) for i in range(200)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future() for work in works[::3]]
    for future in futures:
        future.wait()
    for work in works:
        work.wait()
    for i, tensor in enumerate(tensors):
        assert tensor.unique().tolist() == [size * i + sum(range(size))]


def test_many_operations_may_be_under_way(job):
    job(3, many_at_once)


def chained(rank, size):
    def and_again(future):
        tensor = future.value()[0]
        return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

    def strided_too(future):
        dist.all_reduce(future.value(), async_op=True).wait()
        tensor = torch.ones(50, 50)
        dist.all_reduce(tensor.t()[1:], async_op=True).wait()
        return tensor

    for count in (10, 1 << 18):
        for _ in range(10):
            work = dist.all_reduce(torch.ones(count), async_op=True)
            future = work.get_future().then(and_again).then(strided_too)
            assert future.wait()[:, 0].unique().tolist() == [1]
            assert future.value()[:, 1].unique().tolist() == [size]


def test_a_futures_callback_may_wait_for_another_operation(job):
    job(2, chained)


def dropped_works(rank, size):
    kept = [torch.ones(1000) for _ in range(50)]
    for tensor in kept:
        dist.all_reduce(tensor, async_op=True)
        dist.all_reduce(torch.ones(5000), async_op=True)
        dist.all_reduce(torch.ones(70, 70).t()[1:], async_op=True)
    dist.barrier()
    assert all(tensor.unique().tolist() == [size] for tensor in kept)


def test_the_work_of_a_running_operation_may_be_dropped(job):
    job(2, dropped_works)


SCRIPT = """
import torch
from torch import distributed as dist
dist.init_process_group("slackline")
tensor = torch.ones(1000) * (dist.get_rank() + 1)
dist.all_reduce(tensor)
assert tensor.unique().tolist() == [3]
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_starts_ranks_that_find_each_other(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*command, script], check=True, timeout=110)
