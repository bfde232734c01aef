"""Tests of torch.distributed's operations between processes, on the real engine."""

import copy
from functools import reduce

import pytest
import torch
import torch.distributed._functional_collectives as funcol
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn import functional as nn
from torch.nn.parallel import DistributedDataParallel

from slackline import backend
from slackline.errors import MismatchError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

SIZES = [2, 3, 4]


def data(rank, count, dtype=torch.float32):
    """Return whole numbers, whose sums are exact in every order."""
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


def within(rank, size):
    """Check calls whose input is any part of the output, or the reverse, as compiled code makes."""
    for count in (4, 100_000):
        for slot, number in [(slot, number) for slot in range(size) for number in range(4)]:
            given = [torch.arange(float(size * count)) + 100 * number + r for r in range(size)]
            whole = given[rank].clone()
            parts = list(whole.chunk(size))
            dist.all_gather_into_tensor(whole, parts[slot])
            gathered = torch.cat([each.chunk(size)[slot] for each in given])
            assert torch.equal(whole, gathered)
            whole.copy_(given[rank])
            dist.all_gather(parts, parts[slot])
            assert torch.equal(whole, gathered)
            whole.copy_(given[rank])
            dist.gather(parts[slot], parts if rank == 0 else None, dst=0)
            assert torch.equal(whole, gathered if rank == 0 else given[rank])
            total = sum(given[1:], start=given[0]).chunk(size)[rank]
            whole.copy_(given[rank])
            dist.reduce_scatter_tensor(parts[slot], whole)
            assert torch.equal(parts[slot], total)
            whole.copy_(given[rank])
            dist.reduce_scatter(parts[slot], parts)
            assert torch.equal(parts[slot], total)
            whole.copy_(given[rank])
            dist.scatter(parts[slot], parts if rank == 0 else None, src=0)
            assert torch.equal(parts[slot], given[0].chunk(size)[rank])


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
def test_an_input_within_the_output_is_read_before_it_is_overwritten(job, size):
    job(size, within)


@pytest.mark.parametrize("size", [2, 3])
def test_every_type_reduces(job, size):
    job(size, every_type)


def sparse(rank, size):
    def made(r, dtype=torch.float32):
        """Return a sparse matrix with rows of three elements. A rank has as many rows as its
        number, one of them twice."""
        rows = torch.tensor([[row % 5 for row in (*range(r), *([0] if r else []))]])
        values = torch.arange(3.0 * rows.shape[1]).view(-1, 3).add(r).to(dtype)
        return torch.sparse_coo_tensor(rows, values.view(-1, 3), (5, 3))

    for dtype in (torch.float32, torch.float64, torch.int64):
        for synchronous in (True, False):
            tensor = made(rank, dtype)
            work = dist.all_reduce(tensor, async_op=not synchronous)
            if work is not None:
                assert work.get_future().wait()[0] is tensor
                work.wait()
            expected = sum(made(r, dtype).to_dense() for r in range(size))
            assert tensor.is_sparse
            assert tensor.is_coalesced()
            assert tensor.dtype == dtype
            assert torch.equal(tensor.to_dense(), expected)
    nothing = torch.sparse_coo_tensor(torch.empty(2, 0, dtype=torch.int64), [], (4, 4))
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0
    with pytest.raises(UsageError, match="sparse tensors can only be summed, not reduced"):
        dist.all_reduce(made(rank), dist.ReduceOp.MAX)
    other = torch.sparse_coo_tensor([[0]], [1.0], (5 + rank,))
    with pytest.raises(MismatchError, match="sparse tensors must have one shape on all ranks, not"):
        dist.all_reduce(other)
    embedding = DistributedDataParallel(torch.nn.Embedding(10, 4, sparse=True))
    alone = copy.deepcopy(embedding.module)
    words = [torch.tensor([r, 3, 3]) for r in range(size)]
    embedding(words[rank]).square().sum().backward()
    (sum(alone(each).square().sum() for each in words) / size).backward()
    gradient = embedding.module.weight.grad
    assert gradient.is_sparse
    torch.testing.assert_close(gradient.to_dense(), alone.weight.grad.to_dense())


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sparse_tensors_are_added_and_come_back_coalesced(job, size):
    job(size, sparse)


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


def compiled_operators(rank, size):
    """Call the operators that compiled code calls, and a forward derivative."""
    ops, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
    mine = torch.full((2,), rank + 1.0)
    whole = ops.all_gather_into_tensor_out(mine, size, name, out=torch.zeros(2 * size))
    assert ops.wait_tensor(whole).tolist() == [1.0, 1.0, 2.0, 2.0]
    given = [mine * 2, torch.zeros(2)]
    if hasattr(ops, "batch_p2p_ops"):  # not in torch 2.11
        sent, received = ops.batch_p2p_ops(["isend", "irecv"], [1 - rank] * 2, [0, 0], given, name)
        assert ops.wait_tensor(received).tolist() == [2.0 * (2 - rank)] * 2
        ops.wait_tensor(sent)

    def scaled(t):
        total = t.detach().clone()
        dist.all_reduce(total)
        return total * t

    value, slope = torch.func.jvp(scaled, (mine,), (torch.ones(2),))
    assert (value.tolist(), slope.tolist()) == ([3.0 * (rank + 1)] * 2, [3.0] * 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_operators_of_compiled_code_and_forward_derivatives_reach_the_group(job):
    job(2, compiled_operators)


def beside_gloo(rank, size):
    other = dist.new_group(backend="gloo")
    for number in range(150):
        tensor = torch.full((16384,), float(number + rank))
        works = [dist.all_reduce(tensor, group=group, async_op=number % 3 == 0)
                 for group in (other, None)]  # fmt: skip
        for work in works:
            if work is not None:
                work.wait()
        expected = size * number + sum(range(size))
        if number % 3:
            assert tensor.unique().tolist() == [size * expected]


def test_a_group_of_gloo_works_beside_a_group_of_slackline(job):
    job(2, beside_gloo)
