"""Tests of all kinds of tensors: strided, empty, conjugated, leaves of autograd, in registered
memory."""

import gc

import pytest
import torch
from torch import distributed as dist

from slackline import backend
from slackline.errors import UsageError

SIZE = 2

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


@pytest.mark.parametrize("blocking", [True, False])
def test_strided_tensors_go_through_a_copy_and_come_back(ranks, blocking):
    def rank_main(group):
        def run(call):
            work = call(not blocking)
            if work is not None:
                work.wait()

        me = float(group.rank())
        base = torch.zeros(3, 4)
        column = base[:, 1]
        column += me + 1
        run(lambda later: dist.all_reduce(column, group=group, async_op=later))
        row = torch.zeros(4, 2).t()[0]
        row += me
        run(lambda later: dist.broadcast(row, group_src=1, group=group, async_op=later))
        outputs = list(torch.zeros(3, SIZE).t())
        source = torch.full((3, 2), me)[:, 0]
        run(lambda later: dist.all_gather(outputs, source, group=group, async_op=later))
        part = torch.zeros(2, 2)[:, 0]
        sources = torch.arange(8.0).view(4, 2)[:, 1]
        run(lambda later: dist.reduce_scatter_tensor(part, sources, group=group, async_op=later))
        return base.tolist(), row.tolist(), [o.tolist() for o in outputs], part.tolist()

    for rank, result in enumerate(ranks(SIZE, rank_main)):
        assert result == (
            [[0.0, 3.0, 0.0, 0.0]] * 3,
            [1.0] * 4,
            [[0.0] * 3, [1.0] * 3],
            [[2.0, 6.0], [10.0, 14.0]][rank],
        )


def test_a_strided_send_survives_the_loss_of_its_work(ranks):
    def rank_main(group):
        if group.rank() == 0:
            group.send([torch.arange(1000.0).view(10, 100).t()], 1)
            gc.collect()
            torch.full((1000,), 7.0)  # takes the memory of the copy if that was freed too early
            group.send([torch.ones(1)], 1, 1).wait()
            return None
        group.recv([torch.empty(1)], 0, 1).wait()
        received = torch.empty(100, 10)
        group.recv([received], 0).wait()
        return torch.equal(received, torch.arange(1000.0).view(10, 100).t())

    assert ranks(2, rank_main) == [None, True]


def test_empty_tensors_take_part(ranks):
    def rank_main(group):
        empty = torch.empty(0)
        dist.all_reduce(empty, group=group)
        dist.all_gather(
            [torch.empty(0), torch.empty(2)], torch.zeros(group.rank() * 2), group=group
        )
        target = torch.empty(0, 3)
        dist.all_to_all_single(target, torch.empty(0, 3), group=group)
        dist.broadcast(torch.empty(0, 5), group_src=0, group=group)
        return True

    assert ranks(SIZE, rank_main) == [True] * SIZE


def test_a_lazy_conjugate_arrives_conjugated(ranks):
    def rank_main(group):
        tensor = torch.tensor([1 + 2j])
        received = [torch.empty(1, dtype=torch.complex64) for _ in range(SIZE)]
        group.allgather([received], [tensor.conj()]).wait()
        return [value.item() for value in received]

    assert ranks(SIZE, rank_main) == [[1 - 2j] * SIZE] * SIZE


def test_parameters_that_require_gradients_are_plain_memory(ranks):
    def rank_main(group):
        parameter = torch.nn.Parameter(torch.full((2, 3), float(group.rank())).t())
        dist.broadcast(parameter, group_src=1, group=group)
        dist.all_reduce(parameter.data, group=group)
        return parameter.detach().flatten().tolist()

    assert ranks(SIZE, rank_main) == [[2.0] * 6] * SIZE


def test_tensors_in_registered_memory_give_it_back_when_they_die(ranks):
    def rank_main(group):
        tensor = backend.zeros(3, 4, group=group)
        other = backend.empty(5, dtype=torch.int16, group=group)
        view = tensor[1:]
        assert backend.counters(group)["allocated"] == 2
        assert tensor.data_ptr() % 64 == 0
        tensor += group.rank() + 1
        dist.all_reduce(tensor, group=group)
        result = view.tolist()
        del tensor, other
        assert backend.counters(group)["allocated"] == 1
        del view
        assert backend.counters(group)["allocated"] == 0
        assert backend.empty(0, 4, group=group).shape == (0, 4)
        return result

    assert ranks(SIZE, rank_main) == [[[3.0] * 4] * 2] * SIZE


def test_a_shape_must_not_be_negative():
    with pytest.raises(UsageError, match=r"^a shape's sizes must be at least 0, not \(2, -1\)$"):
        backend.empty(2, -1)


def test_group_of_another_backend_is_refused():
    with pytest.raises(UsageError, match=r"^there is no default process group"):
        backend.group_of()
    other = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    with pytest.raises(UsageError, match=r"^the process group must be of backend slackline, not "):
        backend.group_of(other)
