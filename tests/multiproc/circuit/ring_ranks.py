"""The functions that ranks around a ring run. The environment variable NICS names the nic of each
rank."""

import hashlib
import itertools
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

import torch
from rank_marks import mark, wait_for_marks
from torch import distributed as dist
from torch import nn, optim

from slackline.errors import SlacklineError
from slackline.overlap import DataParallel
from slackline.wire import DType, ReduceOp

FP32, SUM = DType.FLOAT32, ReduceOp.SUM
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX]
DTYPES = [torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.float64]


def prepare():
    """Import the example whose training is one of the jobs."""
    import train_digits  # noqa: F401


def joined(rank, size, path):
    """Join the ring and return its group."""
    os.environ["SLACKLINE_NIC"] = os.environ["NICS"].split(",")[rank]
    dist.init_process_group(
        "slackline",
        init_method=f"file://{path}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=30),
    )
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).nic


def contribution(rank, turn, count, dtype=torch.float32):
    seed = torch.Generator().manual_seed(1000 * turn + rank)
    return (torch.randn(count, generator=seed) * 900).to(dtype)


def digests(rank, size, path):
    """Return a digest of the bits of many reductions' results, the name of the plan for 1 MiB, and
    whether the device has received frames."""
    group = joined(rank, size, path)
    digest = hashlib.sha256()
    most = int(os.environ.get("MOST", "100_003"))
    for turn, count in enumerate(each for each in (0, 1, 17, 700, 5000, 100_003) if each <= most):
        for dtype in DTYPES:
            for op in OPS:
                tensor = contribution(rank, turn, count, dtype)
                dist.all_reduce(tensor, op)
                digest.update(tensor.view(torch.uint8).numpy().tobytes())
    taken = group.counters()["device_frames_taken"]
    plan = group.plan_for(1 << 20).name
    dist.destroy_process_group()
    return digest.hexdigest(), plan, taken > 0


def digits(rank, size, path):
    """Train a small model on the digits for at least two steps, until operations of every rank's
    twin have been checked.

    Return the bits of the losses, the bits of the parameters, and the number of operations that
    were checked.
    """
    import train_digits

    group = joined(rank, size, path)
    data = train_digits.Digits(batch=64, seed=0)
    epochs = (data.epoch(number, rank, size) for number in itertools.count())
    batches = itertools.chain.from_iterable(epochs)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    model = DataParallel(model, optimizer)
    losses, parameters, done = [], "", torch.zeros(1, dtype=torch.int64)
    for images, labels in batches:
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        if len(losses) == 2:
            parameters = train_digits.digest(model)
        done[0] = group.counters().get("device_checks_done", 1)
        dist.all_reduce(done, dist.ReduceOp.MIN)
        if len(losses) >= 2 and done[0]:
            break
    dist.destroy_process_group()
    return losses[:2], parameters, int(done[0])


def disagreeing(rank, size, path):
    """Run with a faulty check: the circuit that repeats operations of rank 1 sends a wrong bit."""
    if rank == 1:
        from slackline.circuit import RingCircuit

        frames = RingCircuit.frames

        def changed(self):
            return [frame[:70] + bytes([frame[70] ^ 4]) + frame[71:] for frame in frames(self)]

        RingCircuit.frames = changed
    joined(rank, size, path)
    tensor = torch.ones(1000)
    try:
        for _ in range(10_000):
            dist.all_reduce(tensor)
    except SlacklineError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def killed(rank, size, path):
    """Kill rank 2 once all ranks have finished the first reduction, and return the error on each
    other rank."""
    joined(rank, size, path)
    dist.all_reduce(torch.ones(1000))
    mark("has a sum")
    tensor = torch.ones(int(os.environ.get("COUNT", "300_000")))
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 2:
        wait_for_marks("has a sum", range(size))
        os.kill(os.getpid(), signal.SIGKILL)
    told = "nothing", None
    try:
        work.wait()
        for _ in range(4):
            dist.all_reduce(tensor)
    except SlacklineError as error:
        told = type(error).__name__, error.peer
    # A surviving rank must not leave before the others have seen the failure of rank 2, so that its
    # own end is not taken for that failure.
    mark("was told")
    wait_for_marks("was told", set(range(size)) - {2})
    return told


def trained(rank, size, path):
    joined(rank, size, path)
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)]
    model = nn.Sequential(*layers)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model = DataParallel(model, optimizer)
    for turn in range(4):
        model(contribution(rank, turn, 32 * 64).view(32, 64) / 900).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    sums = [p.detach().double().sum().item() for p in model.parameters()]
    dist.destroy_process_group()
    return sums


def many(rank, size, path):
    """Reduce more tensors concurrently than a NIC has room for, in a different order on each
    rank."""
    group = joined(rank, size, path)
    count, several = 1000, int(os.environ.get("TENSORS", "75"))
    tensors, works = {}, []
    for i in range(several):
        tag = i * (1, 7, several - 1, 11)[rank] % several
        tensors[tag] = contribution(rank, tag, count)
        address = tensors[tag].data_ptr()
        works.append(
            group.all_reduce(address, address, count, FP32, SUM, tag=tag, priority=tag % 3)
        )
    for work in works:
        work.wait()
    dist.destroy_process_group()
    digest = hashlib.sha256()
    for tag in range(several):
        digest.update(tensors[tag].numpy().tobytes())
    return digest.hexdigest()


def broken(rank, size, path):
    """Break the device of rank 1 in the middle of the second tensor."""
    joined(rank, size, path)
    if rank == 1:
        from slackline.circuit.device import RingTwin

        receive, seen = RingTwin.receive, []

        def breaking(self, frame):
            seen.append(frame)
            if len(seen) > 150:
                raise OSError("the board does not answer")
            receive(self, frame)

        RingTwin.receive = breaking
    tensor = torch.ones(100_000)
    try:
        for _ in range(4):
            dist.all_reduce(tensor)
    except SlacklineError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def late(rank, size, path):
    """Post the first tensor on every rank except rank 1, and continue with the next tensors after
    the timeout.

    Return the outcome of each operation, and the growth of the used arena memory.
    """
    group = joined(rank, size, path)
    found, before = [], group.counters()["arena_bytes"]
    for tag in range(70):
        tensor = torch.full((100,), float(rank))
        address, limit = tensor.data_ptr(), timedelta(milliseconds=50 if tag == 0 else 20_000)
        if tag == 0 and rank == 1:
            continue
        try:
            group.all_reduce(
                address, address, 100, FP32, SUM, tag=tag, timeout=limit, blocking=True
            )
            found.append(tensor.unique().tolist())
        except SlacklineError as error:
            found.append(type(error).__name__)
    more = group.counters()["arena_bytes"] - before
    dist.destroy_process_group()
    return found, more
