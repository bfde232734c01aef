"""Tests of processes that a rank forks, as data loaders do: a forked process cannot affect the
rank's job."""

import gc
import os
import signal
import sys
import tempfile

import torch
from torch import distributed as dist

from slackline import backend
from slackline.errors import UsageError

LIMIT_S = 20


def in_a_fork(body):
    """Run `body` in a forked process and return its exit code, -14 when it hung."""
    process = os.fork()
    if process == 0:
        signal.alarm(LIMIT_S)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        body()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def refused(call):
    try:
        call()
    except UsageError as error:
        if str(error).startswith("this process was forked from the one whose "):
            return
    os._exit(7)


def using(rank, size):
    group, tensor = dist.group.WORLD, torch.ones(1 << 20)
    work = dist.all_reduce(tensor, async_op=True)
    ends = [
        in_a_fork(lambda: refused(lambda: dist.all_reduce(tensor))),
        in_a_fork(lambda: refused(lambda: dist.send(tensor, 1 - rank))),
        in_a_fork(lambda: group.shutdown()),
        in_a_fork(dist.destroy_process_group),
    ]
    work.wait()
    dist.all_reduce(tensor)
    assert ends == [0] * 4
    assert tensor.unique().tolist() == [float(size * size)]


def test_a_forked_process_is_refused_and_its_rank_goes_on(job):
    job(2, using)


def leaving(rank, size):
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)

    def forget():
        dist.distributed_c10d._world.pg_map.clear()
        dist.distributed_c10d._world.default_pg = None
        gc.collect()

    def leave():
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        sys.exit(3)

    ends = [in_a_fork(forget), in_a_fork(lambda: os.execv("/bin/true", ["true"]))]
    process = os.fork()
    if process == 0:
        leave()
    ends.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    dist.all_reduce(tensor)
    assert ends[:2] == [0, 0]
    assert ends[2] >= 0
    assert tensor.unique().tolist() == [float(size * size)]


def test_a_forked_process_may_forget_the_group_exec_or_exit(job):
    job(2, leaving)


def holding(rank, size):
    """Check that a fork that frees registered memory leaves the pages to its parent.

    The engine keeps the pages of the 512 MiB that were freed last and returns those of earlier
    blocks, so the first tensor's pages are at risk.
    """
    tensors = [backend.empty(nbytes, dtype=torch.uint8) for nbytes in (8 << 20, 513 << 20)]
    tensors[0].fill_(7)
    end = in_a_fork(tensors.clear)
    held = tensors[0].unique().tolist()
    dist.barrier()
    assert end == 0
    assert held == [7]


def test_a_forked_process_gives_back_nothing_of_its_parent_s_memory(job):
    job(2, holding)


def loading(rank, size):
    data = torch.utils.data.TensorDataset(torch.arange(64.0))
    total = torch.zeros(1)
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=16, num_workers=2):
        part = batch.sum().reshape(1)
        dist.all_reduce(part)
        total += part
    assert total.item() == size * sum(range(64))


def test_data_is_loaded_by_forked_workers_while_ranks_reduce(job):
    job(2, loading)


def of_its_own(rank, size):
    """Open a new engine and group in a forked process."""
    with tempfile.TemporaryDirectory() as folder:

        def alone():
            dist.destroy_process_group()
            store = dist.FileStore(f"{folder}/store", 1)
            dist.init_process_group("slackline", store=store, rank=0, world_size=1)
            tensor = torch.full((5,), 2.0)
            dist.all_reduce(tensor)
            dist.destroy_process_group()
            os._exit(0 if tensor.tolist() == [2.0] * 5 else 7)

        assert in_a_fork(alone) == 0
    dist.barrier()


def test_a_forked_process_may_have_a_group_of_its_own(job):
    job(2, of_its_own)
