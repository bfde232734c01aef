"""Tests of torch's hooks of operations and of its flight recorder, in a torch that has them."""

import json
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d

from slackline.backend import create
from slackline.backend._hooked import HOOKS
from slackline.backend._torch import BackendOptions
from slackline.errors import UsageError

needs_hooks = pytest.mark.skipif(not HOOKS, reason="this torch has no hooks of operations")
CALLS = {
    "allreduce": lambda group, one: group.allreduce(one),
    "allreduce_coalesced": lambda group, one: group.allreduce_coalesced(
        [one], c10d.AllreduceCoalescedOptions()
    ),
    "reduce": lambda group, one: group.reduce(one, 0),
    "broadcast": lambda group, one: group.broadcast(one, 0),
    "allgather": lambda group, one: group.allgather([[torch.empty_like(one)]], [one]),
    "all_gather_single": lambda group, one: group.all_gather_single(torch.empty_like(one), one),
    "gather": lambda group, one: group.gather([[torch.empty_like(one)]], [one]),
    "scatter": lambda group, one: group.scatter([torch.empty_like(one)], [[one]]),
    "reduce_scatter": lambda group, one: group.reduce_scatter([torch.empty_like(one)], [[one]]),
    "reduce_scatter_single": lambda group, one: group.reduce_scatter_single(
        torch.empty_like(one), one
    ),
    "alltoall": lambda group, one: group.alltoall([torch.empty_like(one)], [one]),
    "all_to_all_single": lambda group, one: group.all_to_all_single(
        torch.empty_like(one), one, [], []
    ),
    "barrier": lambda group, one: group.barrier(),
}


@pytest.fixture
def group():
    """Open a group of one rank."""
    options = BackendOptions()
    options.store = dist.HashStore()
    options.group_rank, options.group_size = 0, 1
    options.timeout = timedelta(seconds=30)
    opened = create(options)
    opened._set_group_name("hooks")
    opened._set_group_desc("tests of hooks")
    yield opened
    opened.shutdown()


def test_torchs_questions_for_abilities_get_an_answer(group):
    names = [name for name in dir(dist.ProcessGroup) if name.startswith("supports_")]
    assert {name: getattr(group, name) for name in names} == dict.fromkeys(names, False)


@needs_hooks
@pytest.mark.parametrize("name", CALLS)
def test_hooks_see_each_operation_and_its_work(group, name):
    before, after = [], []
    group.register_pre_hook(7, before.append)
    group.register_post_hook(7, after.append)
    one = torch.arange(6.0)
    work = CALLS[name](group, one)
    work.wait()
    assert work.is_completed()
    assert one.tolist() == [0, 1, 2, 3, 4, 5]
    (given,), (done,) = before, after
    assert given.op_id == done.op_id
    assert given.name == done.name != c10d.HookOpName.UNKNOWN
    if name != "barrier":
        assert {tensor.numel() for tensor in given.input_tensors} == {6}
    assert done.work.wait()


@needs_hooks
def test_the_hooked_operation_is_the_callers_own(group):
    seen = []
    group.register_pre_hook(1, lambda given: seen.append(given.name.name))
    tensor = torch.ones(4, dtype=torch.float64)
    halved = dist._make_nccl_premul_sum(0.5)
    options = c10d.AllreduceOptions()
    options.reduceOp, options.asyncOp = halved, False
    group.allreduce([tensor], options)
    assert tensor.tolist() == [0.5] * 4
    gaps = torch.arange(8.0)[::2]
    group.allreduce(gaps).wait()
    assert gaps.tolist() == [0, 2, 4, 6]
    assert seen == ["ALLREDUCE", "ALLREDUCE"]
    with pytest.raises(UsageError, match="one tensor"):
        group.allreduce([torch.ones(2), torch.ones(2)])


@needs_hooks
def test_hooks_see_messages_whose_works_tell_the_sender(ranks):
    def exchange(group):
        seen = []
        group.register_pre_hook(1, lambda given: seen.append(given.name.name))
        peer = 1 - group.rank()
        sent, received = torch.full((3,), float(group.rank())), torch.empty(3)
        sending = group.send([sent], peer, 3)
        arriving = group.recv_anysource([received], 3)
        arriving.wait()
        sending.wait()
        assert arriving.source_rank() == peer
        assert received.tolist() == [float(peer)] * 3
        return seen

    assert ranks(2, exchange) == [["SEND", "RECV"]] * 2


@needs_hooks
def test_groups_beside_a_hooked_one_and_engines_errors_stay_as_they_are(group):
    assert not group.hooked
    plain = type(group)
    group.register_pre_hook(1, lambda given: None)
    assert group.hooked
    assert isinstance(group, plain)
    assert not plain.hooked
    with pytest.raises(UsageError, match="6 elements, not 5"):
        group.all_gather_single(torch.empty(5), torch.ones(6))

    def refuse(given):
        raise KeyError("this hook fails")

    group.register_pre_hook(2, refuse)
    with pytest.raises(KeyError, match="this hook fails"):
        group.allreduce(torch.ones(1))


@needs_hooks
def test_torchs_flight_recorder_and_its_check_for_nan_see_the_operations(group):
    recorder = c10d.FlightRecorderHook.attach(group)
    for count in (3, 5):
        group.allreduce(torch.ones(count)).wait()
    group.barrier().wait()
    separate = "backend" in (c10d._dump_fr_trace_json.__doc__ or "")
    where = {"backend": "slackline"} if separate else {}
    trace = json.loads(c10d._dump_fr_trace_json(True, False, **where))
    entries = [
        entry for entry in trace["entries"] if entry["process_group"] == ["hooks", "tests of hooks"]
    ]
    assert [entry["input_sizes"] for entry in entries[:2]] == [[[3]], [[5]]]
    assert len(entries) == 3
    recorder.remove()
    check = c10d.NanCheckHook.attach(group)
    with pytest.raises(RuntimeError, match="NaN"):
        group.allreduce(torch.tensor([1.0, float("nan")]))
    check.remove()
