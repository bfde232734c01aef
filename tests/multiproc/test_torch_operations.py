"""torch.distributed's operations between processes, on the real engine."""

import os
import time
from datetime import timedelta
from functools import reduce

import pytest
import torch
import torch.distributed._functional_collectives as funcol
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn import functional as nn

from slackline import backend
from slackline.errors import ClosedError, MismatchError, PeerError, TimeoutError

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

SIZES = [2, 3, 4]


def data(rank, count, dtype=torch.float32):
    """Whole numbers, so that sums have the same bits in every order."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-4, 5, (count,), generator=generator).to(dtype)


def every_collective(rank, size):
    for count in (1, 1000, 300_007):
        parts = [data(r, count) for r in range(size)]
        mine = parts[rank]
        total = sum(parts[1:], start=parts[0])
        for later in (False, True):

            def run(call, *args, later=later, **kwargs):
                work = call(*args, async_op=later, **kwargs)
                if work is not None:
                    work.wait()

            tensor = mine.clone()
            run(dist.all_reduce, tensor)
            assert torch.equal(tensor, total)
            tensor = mine.clone()
            run(dist.broadcast, tensor, size - 1)
            assert torch.equal(tensor, parts[-1])
            tensor = mine.clone()
            run(dist.reduce, tensor, 0)
            assert torch.equal(tensor, total if rank == 0 else mine)
            gathered = [torch.empty(count) for _ in range(size)]
            run(dist.all_gather, gathered, mine)
            assert all(map(torch.equal, gathered, parts))
            flat = torch.empty(size * count)
            run(dist.all_gather_into_tensor, flat, mine)
            assert torch.equal(flat, torch.cat(parts))
            part = torch.empty(count)
            run(dist.reduce_scatter, part, [mine * (r + 1) for r in range(size)])
            assert torch.equal(part, total * (rank + 1))
            run(dist.reduce_scatter_tensor, part, flat, op=dist.ReduceOp.MAX)
            assert torch.equal(part, mine)
            at_root = [torch.empty(count) for _ in range(size)] if rank == 1 else None
            run(dist.gather, mine, at_root, 1)
            assert at_root is None or all(map(torch.equal, at_root, parts))
            part = torch.empty(count)
            run(dist.scatter, part, parts if rank == 1 else None, 1)
            assert torch.equal(part, mine)
            outputs = [torch.empty(count) for _ in range(size)]
            run(dist.all_to_all, outputs, [mine + r for r in range(size)])
            assert all(torch.equal(outputs[r], parts[r] + rank) for r in range(size))
            run(dist.barrier)


@pytest.mark.parametrize("size", SIZES)
def test_every_collective_gives_what_torch_promises(job, size):
    job(size, every_collective)


def every_type(rank, size):
    whole = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    for dtype in [torch.float32, torch.float64, torch.float16, torch.bfloat16, *whole]:
        parts = [data(r, 333, dtype) for r in range(size)]
        for op, expected in {
            dist.ReduceOp.SUM: sum(parts[1:], start=parts[0]),
            dist.ReduceOp.MIN: torch.stack(parts).amin(0),
            dist.ReduceOp.MAX: torch.stack(parts).amax(0),
            dist.ReduceOp.PRODUCT: reduce(torch.mul, parts),
        }.items():
            tensor = parts[rank].clone()
            dist.all_reduce(tensor, op)
            assert torch.equal(tensor, expected), (dtype, op)
        tensor = torch.full((9,), size, dtype=dtype) * (rank + 1)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert tensor.unique().tolist() == [size * (size + 1) // 2]
    for dtype in [*whole, torch.bool]:
        parts = [data(r, 333, dtype) for r in range(size)]
        for op, fold in {
            dist.ReduceOp.BAND: torch.bitwise_and,
            dist.ReduceOp.BOR: torch.bitwise_or,
            dist.ReduceOp.BXOR: torch.bitwise_xor,
        }.items():
            tensor = parts[rank].clone()
            dist.all_reduce(tensor, op)
            assert torch.equal(tensor, reduce(fold, parts)), (dtype, op)
    tensor = torch.tensor([rank + 1j, 2.0])
    dist.all_reduce(tensor)
    assert tensor.tolist() == [sum(range(size)) + size * 1j, 2.0 * size]


@pytest.mark.parametrize("size", [2, 3])
def test_every_type_reduces(job, size):
    job(size, every_type)


def uneven_and_empty(rank, size):
    sent = [rank + r for r in range(size)]
    received = [r + rank for r in range(size)]
    source = torch.arange(sum(sent) * 2.0).view(-1, 2) + 100 * rank
    target = torch.empty(sum(received), 2)
    dist.all_to_all_single(target, source, received, sent)
    start = 0
    for r in range(size):
        first = sum(r + q for q in range(rank))
        expected = torch.arange(2.0 * first, 2.0 * (first + r + rank)).view(-1, 2) + 100 * r
        assert torch.equal(target[start : start + r + rank], expected)
        start += r + rank
    dist.all_reduce(torch.empty(0))
    dist.all_gather([torch.empty(r) for r in range(size)], torch.zeros(rank))
    dist.broadcast(torch.empty(3, 0), 0)
    strided = torch.full((100, 50), float(rank)).t()
    dist.all_reduce(strided)
    assert strided.unique().tolist() == [sum(range(size))]


def test_uneven_empty_and_strided_tensors_take_part(job):
    job(3, uneven_and_empty)


def points(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 70_000, 1_000_000):
        received = torch.empty(count)
        ops = [
            dist.P2POp(dist.irecv, received, left),
            dist.P2POp(dist.isend, data(rank, count), right),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert torch.equal(received, data(left, count))
    if rank == 0:
        heard = {}
        for _ in range(size - 1):
            tensor = torch.empty(1)
            sender = dist.recv(tensor, tag=5)
            heard[sender] = tensor.item()
        assert heard == {r: r * 1.5 for r in range(1, size)}
    else:
        dist.send(torch.tensor([rank * 1.5]), 0, tag=5)
    if rank == 0:
        works = [dist.isend(torch.full((10,), float(tag)), 1, tag=tag) for tag in range(20)]
        for work in works:
            work.wait()
    if rank == 1:
        for tag in reversed(range(20)):
            tensor = torch.empty(10)
            dist.recv(tensor, 0, tag=tag)
            assert tensor.tolist() == [float(tag)] * 10


@pytest.mark.parametrize("size", [2, 3])
def test_point_to_point_messages_arrive(job, size):
    job(size, points)


def objects(rank, size):
    everyone = [None] * size
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * rank * 1000})
    assert [o["rank"] for o in everyone] == list(range(size))
    shared = ["from", {"root": 1}] if rank == 1 else [None, None]
    dist.broadcast_object_list(shared, 1)
    assert shared == ["from", {"root": 1}]
    part = [None]
    dist.scatter_object_list(part, [f"part {r}" for r in range(size)] if rank == 0 else None, 0)
    assert part == [f"part {rank}"]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank * 7, gathered, 0)
    assert gathered in (None, [r * 7 for r in range(size)])
    if rank == 0:
        dist.send_object_list([1, "two", 3.0], 1)
    if rank == 1:
        received = [None] * 3
        dist.recv_object_list(received, 0)
        assert received == [1, "two", 3.0]


def test_objects_travel(job):
    job(3, objects)


def groups(rank, size):
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    mine = low if rank < 2 else high
    tensor = torch.tensor([float(rank)])
    inner = dist.all_reduce(tensor, group=mine, async_op=True)
    world = torch.ones(1)
    dist.all_reduce(world)
    inner.wait()
    assert tensor.item() == (1.0 if rank < 2 else 5.0)
    assert world.item() == size
    assert backend.group_of(mine).size == 2
    assert backend.group_of().size == size
    dist.destroy_process_group(mine)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    for name, expected in {"replica": 2 + 2 * (rank % 2), "shard": 1 + 4 * (rank // 2)}.items():
        tensor = torch.tensor([rank])
        dist.all_reduce(tensor, group=mesh.get_group(name))
        assert tensor.item() == expected
    subgroups, _ = dist.new_subgroups(2)
    dist.barrier(group=subgroups)


def test_groups_and_meshes_have_traffic_of_their_own(job):
    job(4, groups)


def functional(rank, size):
    mine = torch.arange(size * 2.0) + rank
    total = sum((torch.arange(size * 2.0) + r for r in range(size)), start=torch.zeros(size * 2))
    group = dist.group.WORLD
    assert torch.equal(funcol.all_reduce(mine, "sum", group), total)
    assert torch.equal(
        funcol.all_gather_tensor(mine, 0, group),
        torch.cat([torch.arange(size * 2.0) + r for r in range(size)]),
    )
    assert torch.equal(
        funcol.reduce_scatter_tensor(mine, "sum", 0, group), total[rank * 2 : rank * 2 + 2]
    )
    assert torch.equal(funcol.broadcast(mine, 1, group), torch.arange(size * 2.0) + 1)
    exchanged = funcol.all_to_all_single(mine, [2] * size, [2] * size, group)
    assert exchanged.tolist() == [rank * 2.0 + i + r for r in range(size) for i in (0, 1)]
    many = funcol.all_reduce_coalesced([mine, mine * 2], "avg", group)
    assert torch.equal(many[1], total * 2 / size)
    assert torch.equal(mine, torch.arange(size * 2.0) + rank)
    permuted = funcol.permute_tensor(mine, [(r + 1) % size for r in range(size)], group)
    assert torch.equal(permuted, torch.arange(size * 2.0) + (rank - 1) % size)


def test_functional_collectives_find_the_group_by_name(job):
    job(3, functional)


def compiled(rank, size):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x):
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    assert step(torch.ones(4)).tolist() == [2.0 * size + 1] * 4


@pytest.mark.slow
def test_functional_collectives_compile(job):
    job(2, compiled)


def differentiable(rank, size):
    x = torch.full((2,), rank + 1.0, requires_grad=True)
    nn.all_reduce(x).sum().backward()
    assert x.grad.tolist() == [size] * 2
    x = torch.arange(size * 1.0, requires_grad=True)
    outputs = torch.empty(size)
    (nn.all_to_all_single(outputs, x) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [r + 1.0 for r in range(size)]
    parts = nn.all_gather(torch.ones(1, requires_grad=True) * rank)
    assert torch.cat(parts).tolist() == [float(r) for r in range(size)]


def test_differentiable_collectives_have_gradients(job):
    job(2, differentiable)


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
        while not os.path.exists(f"{path}.at"):
            time.sleep(0.01)
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
    assert time.monotonic() - start < 5
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
    if rank == 1:
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


def test_a_monitored_barrier_names_the_missing(job):
    job(3, roll_call)


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
