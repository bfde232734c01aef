"""Tests of operations in torch's profiles and execution traces, against those of gloo."""

import json
import tempfile
import threading
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.profiler import ExecutionTraceObserver

from slackline.overlap import DataParallel
from slackline.pipeline import Schedule, ScheduleConfig

FACTS = ("bytes", "group", "peer", "tag", "sequence", "message")


def traced(step, *names):
    """Call `step` under a profiler; return, for each name, the facts of the posts of
    "slackline:NAME" in the trace that the profiler exports.
    """
    with torch.profiler.profile(record_shapes=True) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return {name: posts(events, f"slackline:{name}") for name in names}


def posts(events, name):
    found = [each for each in events if each["name"] == f"{name} posted"]
    return [
        {fact: post["args"][fact] for fact in FACTS if fact in post["args"]}
        | {"shapes": post["args"]["Input Dims"]}
        for post in sorted(found, key=lambda each: each["ts"])
    ]


def steps_of_ddp(group, folder):
    """Take a step of DistributedDataParallel; return the operators "c10d::*" of torch's profile and
    of its execution trace, with the kinds of their arguments, and of an execution trace alone.
    """
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def step():
        model = nn.parallel.DistributedDataParallel(layers, process_group=group)
        model(torch.ones(3, 8)).sum().backward()
        flag = torch.tensor([True])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group, async_op=True).wait()
        parts = [torch.empty(2, dtype=torch.int64) for _ in range(2)]
        dist.all_gather(parts, torch.ones(2, dtype=torch.int64), group=group)
        dist.barrier(group=group)

    names = [str(Path(folder) / name) for name in ("both.json", "alone.json", "profile.json")]
    observer = ExecutionTraceObserver().register_callback(names[0])
    with torch.profiler.profile(record_shapes=True, execution_trace_observer=observer) as profile:
        step()
    profile.export_chrome_trace(names[2])
    observer = ExecutionTraceObserver().register_callback(names[1])
    observer.start()
    step()
    observer.stop()
    observer.unregister_callback()
    both, alone, profiled = (json.loads(Path(name).read_text()) for name in names)
    return [
        sorted(
            [event["name"], event["args"]["Input Dims"], event["args"]["Input type"]]
            for event in profiled["traceEvents"]
            if event["name"].startswith("c10d::")
        ),
        *(
            sorted(
                [node["name"], node["inputs"]["shapes"], node["inputs"]["types"]]
                for node in trace["nodes"]
                if node["name"].startswith("c10d::")
            )
            for trace in (both, alone)
        ),
    ]


def compared(rank, size, path):
    start(rank, size, path)
    found = {}
    for backend in ("slackline", "gloo"):
        group = dist.new_group(backend=backend)
        with tempfile.TemporaryDirectory() as folder:
            found[backend] = steps_of_ddp(group, folder)
    dist.destroy_process_group()
    return found


def test_a_step_of_ddp_has_the_operators_of_gloo_in_profiles_and_execution_traces(job):
    for found in job(2, compared, bare=True):
        for recorded in found["slackline"]:
            names = {name for name, _, _ in recorded}
            assert {"c10d::allreduce_", "c10d::broadcast_", "c10d::allgather_"} <= names
            # One operator for the gradients, in the thread of autograd, and one for the flag.
            assert sum(name == "c10d::allreduce_" for name, _, _ in recorded) == 2
        assert found["slackline"] == found["gloo"]


def start(rank, size, path):
    dist.init_process_group("slackline", init_method=f"file://{path}", rank=rank, world_size=size)


def overlapped(rank, size, path, communicate=None):
    start(rank, size, path)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2, bias=False))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    model = DataParallel(layers, optimizer, group_bytes=0, communicate=communicate)

    def step():
        model(torch.ones(3, 8) * rank).sum().backward()
        optimizer.step()
        model.synchronize()

    step()  # number 0 of each gradient, before the profile

    def last():
        step()
        model.close()

    found = traced(last, "all_reduce")["all_reduce"]
    dist.destroy_process_group()
    return found


def test_a_profile_shows_the_reductions_of_gradients_on_every_rank(job):
    first, second = job(2, overlapped, bare=True)
    assert first == second
    assert sorted((each["bytes"], each["shapes"]) for each in first) == [
        (20, [[5]]),
        (36, [[9]]),
        (132, [[33]]),
    ]  # a reduction has one element more, which counts the ranks that have the gradient
    assert [(each["group"], each["sequence"]) for each in first] == [("0", 1)] * 3
    assert len({each["tag"] for each in first}) == 3


def overlapped_as_bf16(rank, size, path):
    return overlapped(rank, size, path, communicate=torch.bfloat16)


def test_a_profile_shows_the_bytes_of_gradients_that_travel_as_bf16(job):
    for found in job(2, overlapped_as_bf16, bare=True):
        assert sorted(each["bytes"] for each in found) == [10, 18, 66]


def ended_by_waits(rank, size, path):
    """Hold the thread of callbacks, and wait for operations in one profile after the other; return
    whether the events of all operations have ended then, and are asynchronous."""
    start(rank, size, path)
    held = threading.Event()
    first = dist.irecv(torch.ones(1), src=1 - rank)
    first.get_future().then(lambda _: held.wait(60))
    dist.barrier()  # torch runs a callback of a Future that is complete on this thread
    dist.send(torch.ones(1), dst=1 - rank)
    found = []
    for _ in range(5):
        with torch.autograd.profiler.profile() as profile:
            works = [dist.all_reduce(torch.ones(300_000), async_op=True) for _ in range(3)]
            for work in works:
                work.wait()
            found += [work.end_event.ended for work in works]
        events = [each for each in profile.function_events if each.name == "slackline:all_reduce"]
        found += [each.is_async for each in events]
    held.set()
    dist.destroy_process_group()
    return found


def test_the_event_of_an_operation_ends_before_a_wait_for_it_does(job):
    assert job(2, ended_by_waits, bare=True) == [[True] * 30] * 2


def pipelined(rank, size, path):
    start(rank, size, path)
    torch.manual_seed(rank)
    stage = PipelineStage(nn.Linear(6, 6), rank, size, torch.device("cpu"))
    config = ScheduleConfig(delegation="always")
    schedule = Schedule(stage, 2, nn.functional.mse_loss, schedule="1f1b", config=config)
    x = torch.ones(4, 6)

    def step():
        schedule.step(*([x] if rank == 0 else []), target=x if rank == 1 else None)

    step()
    step()  # From the second step on, a message is one transfer: its length is known.
    found = traced(step, "send", "recv")
    dist.destroy_process_group()
    return found


def test_a_profile_shows_the_messages_of_a_pipeline_on_both_ends(job):
    above, below = job(2, pipelined, bare=True)
    assert [each["message"] for each in above["send"]] == ["stage 0, F0", "stage 0, F1"]
    for sender, receiver in ((above, below), (below, above)):
        sent = sorted(sender["send"], key=lambda each: each["tag"])
        received = sorted(receiver["recv"], key=lambda each: each["tag"])
        for one, other in zip(sent, received, strict=True):
            assert one.pop("peer") != other.pop("peer")
            assert one == other
            assert (one["group"], one["sequence"]) == ("0", 2)
            assert one["bytes"] > 2 * 6 * 4
    assert {each["message"] for each in below["send"]} == {"stage 1, B0", "stage 1, B1"}
