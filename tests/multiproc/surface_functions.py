"""A table of the functions of torch.distributed, with the answer of each to slackline."""

from collections.abc import Callable
from datetime import timedelta
from inspect import getsource
from typing import Any
from unittest.mock import patch

import torch
from surface_rows import ALL, CPU, SAME, SECOND, At, Row, into, reduced, two, wait
from torch import distributed as dist
from torch.distributed.distributed_c10d import _add_ephemeral_timeout_for_all_pgs

__all__ = ["DISTRIBUTED", "LENGTHS", "TIMED"]


_NEEDS_DEVICE = "No device associated with the default pg"


def gathered_by_torch(at: At) -> Any:
    target = torch.zeros(2 if at.rank == 0 else 0)
    return wait(dist.gather_single(at.ones(), target, 0, async_op=True), target)


def gathered(call: Callable[..., Any]) -> Callable[[At], Any]:
    """Return a row of a function of torch.distributed that fills two targets in place."""
    return two(lambda at, targets: call(targets, at.ones(), async_op=True))


def listed(call: Callable[[At, list[Any]], Any], *, empty: bool = False) -> Callable[[At], Any]:
    """Return a row of a function that moves a list of Python objects."""

    def row(at: At) -> Any:
        objects: list[Any] = [None, None] if empty or at.rank else ["a", {"b": 1}]
        call(at, objects)
        return objects

    return row


def objects_sent(at: At) -> Any:
    objects: list[Any] = [None] if at.rank else [{"b": 1}]
    if at.rank == 0:
        dist.send_object_list(objects, 1)
    else:
        dist.recv_object_list(objects, 0)
    return objects


def sent(send: Callable[..., Any], receive: Callable[..., Any]) -> Callable[[At], Any]:
    def row(at: At) -> Any:
        target = torch.zeros(1)
        found = send(at.ones(), 1) if at.rank == 0 else receive(target, 0)
        if isinstance(found, dist.Work):
            found.wait()
        return target.tolist()

    return row


def batched(at: At) -> Any:
    target = torch.zeros(1)
    operations = [dist.P2POp(dist.isend, at.ones(), at.peer)]
    operations.append(dist.P2POp(dist.irecv, target, at.peer))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return target.tolist()


def recorded(at: At) -> Any:
    tensor = at.ones()
    with dist.record_comm("a name"):
        dist.all_reduce(tensor)
    return tensor.tolist()


def group_timeout(at: At) -> Any:
    other = at.other()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=7), other)
    return str(other._get_backend(CPU).options._timeout)


def subgroups(at: At) -> Any:
    mine, every = dist.new_subgroups(1)
    return [mine.size(), len(every)]


def enumerated(at: At) -> Any:
    mine, every = dist.new_subgroups_by_enumeration([[0], [1]])
    return [mine.size(), len(every)]


def opened_twice(at: At) -> Any:
    dist.init_process_group(at.name, store=at.store, rank=at.rank, world_size=2)


def destroyed(at: At) -> Any:
    other, known = at.other(), dist.distributed_c10d._world.pg_map
    before = len(known)
    dist.destroy_process_group(other)
    return len(known) - before


def of_world(name: str, *args: Any) -> Row:
    """Return a row of a function that only tells about the process, with gloo's own answer."""
    return Row(lambda at: getattr(dist, name)(*args), gives=SAME)


def split_by_torch(at: At) -> Any:
    """Call torch's function as it runs where the host has an accelerator that the group is bound
    to."""
    device = torch.device("cuda:0")
    tensor = at.ones()
    at.group.bound_device_id = device
    with (
        patch.object(torch.accelerator, "is_available", return_value=True),
        patch.object(torch.accelerator, "current_accelerator", return_value=device),
    ):
        both = dist.split_group(split_ranks=[[0, 1]], group_desc="both")
        alone = dist.split_group(split_ranks=[[0], [1]])
    at.group.bound_device_id = None
    dist.all_reduce(tensor, group=both)
    found = [dist.get_process_group_ranks(alone), both.group_desc, tensor.tolist()]
    dist.destroy_process_group(both)
    dist.destroy_process_group(alone)
    return found


DISTRIBUTED: dict[str, Row] = {
    "all_gather": Row(gathered(dist.all_gather), [[1], [2]]),
    "all_gather_coalesced": Row(
        two(
            lambda at, ts: dist.all_gather_coalesced([[t] for t in ts], [at.ones()], async_op=True)
        ),
        [[1], [2]],
    ),
    "all_gather_into_tensor": Row(
        into(2, lambda at, t: dist.all_gather_into_tensor(t, at.ones(), async_op=True)), [[1, 2]]
    ),
    "all_gather_object": Row(
        listed(lambda at, objects: dist.all_gather_object(objects, at.rank), empty=True), [0, 1]
    ),
    "all_gather_single": Row(
        into(2, lambda at, t: dist.all_gather_single(t, at.ones(), async_op=True)), [[1, 2]]
    ),
    "all_reduce": Row(reduced(lambda at, t: dist.all_reduce(t, async_op=True)), ALL),
    "all_reduce_coalesced": Row(
        reduced(lambda at, t: dist.all_reduce_coalesced([t], async_op=True)), ALL
    ),
    "all_to_all": Row(
        two(lambda at, ts: dist.all_to_all(ts, [at.ones(), at.ones()], async_op=True)), [[1], [2]]
    ),
    "all_to_all_single": Row(
        into(2, lambda at, t: dist.all_to_all_single(t, at.ones(2), async_op=True)), [[1, 2]]
    ),
    "barrier": Row(lambda at: dist.barrier()),
    "batch_isend_irecv": Row(batched, each=([2], [1])),
    "breakpoint": Row(lambda at: dist.breakpoint(rank=0, skip=1000)),
    "broadcast": Row(reduced(lambda at, t: dist.broadcast(t, 0, async_op=True)), [[1]]),
    "broadcast_object_list": Row(
        listed(lambda at, objects: dist.broadcast_object_list(objects, 0)), ["a", {"b": 1}]
    ),
    "destroy_process_group": Row(destroyed, -1),
    "gather": Row(
        two(lambda at, ts: dist.gather(at.ones(), ts if at.rank == 0 else None, 0, async_op=True)),
        each=([[1], [2]], [[0], [0]]),
    ),
    "gather_object": Row(
        listed(
            lambda at, objects: dist.gather_object(at.rank, None if at.rank else objects, 0),
            empty=True,
        ),
        each=([0, 1], [None, None]),
    ),
    "get_backend": Row(lambda at: dist.get_backend() == at.name, True),
    "get_backend_config": Row(
        lambda at: dist.get_backend_config() == f"cpu:{at.name},cuda:{at.name}", True
    ),
    "get_debug_level": of_world("get_debug_level"),
    "get_default_backend_for_device": of_world("get_default_backend_for_device", "cpu"),
    "get_global_rank": Row(lambda at: dist.get_global_rank(at.group, 1), 1),
    "get_group_rank": Row(lambda at: dist.get_group_rank(at.group, 1), 1),
    "get_node_local_rank": Row(lambda at: dist.get_node_local_rank(4), 4),
    "get_pg_count": Row(lambda at: dist.get_pg_count() >= 1, True),
    "get_process_group_ranks": Row(lambda at: dist.get_process_group_ranks(at.group), [0, 1]),
    "get_rank": Row(lambda at: dist.get_rank(), each=(0, 1)),
    "get_world_size": Row(lambda at: dist.get_world_size(), 2),
    "init_device_mesh": Row(lambda at: dist.init_device_mesh("cpu", (2,)).size(), 2),
    "init_process_group": Row(opened_twice, torchs="initialize the default process group twice"),
    "irecv": Row(sent(dist.isend, dist.irecv), each=([0], [1])),
    "is_available": of_world("is_available"),
    "is_backend_available": Row(lambda at: dist.is_backend_available(at.name), True),
    "is_gloo_available": of_world("is_gloo_available"),
    "is_initialized": Row(lambda at: dist.is_initialized(), True),
    "is_mpi_available": of_world("is_mpi_available"),
    "is_nccl_available": of_world("is_nccl_available"),
    "is_torchelastic_launched": of_world("is_torchelastic_launched"),
    "is_ucc_available": of_world("is_ucc_available"),
    "is_xccl_available": of_world("is_xccl_available"),
    "isend": Row(sent(dist.isend, dist.irecv), each=([0], [1])),
    "monitored_barrier": (
        Row(
            lambda at: dist.monitored_barrier(),
            torchs="only implemented for GLOO",
            unlike_gloo="torch asks for gloo's name; the group's own method serves",
        )
        if "only implemented for GLOO" in getsource(dist.monitored_barrier)
        else Row(lambda at: dist.monitored_barrier())
    ),
    "gather_single": Row(gathered_by_torch, each=([[1, 2]], [[]])),
    "gather_into_tensor": Row(gathered_by_torch, each=([[1, 2]], [[]])),
    "get_backend_impl": Row(lambda at: dist.get_backend_impl(at.group, CPU).size(), 2),
    "set_timeout": Row(lambda at: dist.set_timeout(timedelta(seconds=7), at.other())),
    "new_group": Row(lambda at: dist.new_group([0, 1]).size(), 2),
    "new_subgroups": Row(subgroups, [1, 2]),
    "new_subgroups_by_enumeration": Row(enumerated, [1, 2]),
    "record_comm": Row(recorded, [3]),
    "recv": Row(sent(dist.send, dist.recv), each=([0], [1])),
    "recv_object_list": Row(objects_sent, [{"b": 1}]),
    "reduce": Row(reduced(lambda at, t: dist.reduce(t, 0, async_op=True)), each=([[3]], [[2]])),
    "reduce_scatter": Row(
        into(1, lambda at, t: dist.reduce_scatter(t, [at.ones()] * 2, async_op=True)), [[3]]
    ),
    "reduce_scatter_single": Row(
        into(1, lambda at, t: dist.reduce_scatter_single(t, at.ones(2), async_op=True)), [[3]]
    ),
    "reduce_scatter_tensor": Row(
        into(1, lambda at, t: dist.reduce_scatter_tensor(t, at.ones(2), async_op=True)), [[3]]
    ),
    "register_rendezvous_handler": Row(
        lambda at: dist.register_rendezvous_handler("tcp", print),
        torchs="already registered",
    ),
    "rendezvous": Row(
        lambda at: next(dist.rendezvous("nowhere://a", at.rank, 2)), torchs="No rendezvous handler"
    ),
    "scatter": Row(
        into(
            1,
            lambda at, t: dist.scatter(
                t, None if at.rank else [at.ones(), at.ones()], 0, async_op=True
            ),
        ),
        [[1]],
    ),
    "scatter_object_list": Row(
        listed(
            lambda at, objects: dist.scatter_object_list(
                objects, None if at.rank else ["a", "b"], 0
            ),
            empty=True,
        ),
        each=(["a", None], ["b", None]),
    ),
    "send": Row(sent(dist.send, dist.recv), each=([0], [1])),
    "send_object_list": Row(objects_sent, [{"b": 1}]),
    "set_debug_level": Row(lambda at: dist.set_debug_level(dist.get_debug_level())),
    "set_debug_level_from_env": Row(lambda at: dist.set_debug_level_from_env()),
    "shrink_group": Row(
        lambda at: dist.shrink_group([at.peer]), torchs="does not support shrinking operations"
    ),
    "split_group": Row(
        lambda at: dist.split_group(split_ranks=[[0, 1]]).size(),
        2,
        torchs=_NEEDS_DEVICE if _NEEDS_DEVICE in getsource(dist.split_group) else "",
        without_gloo="its ranks wait for each other for ever in some runs",
    ),
    "split_group, with an accelerator": Row(
        split_by_torch,
        each=([[0], "both", [3.0]], [[1], "both", [3.0]]),
        without_gloo="its ranks wait for each other for ever in some runs",
    ),
    "supports_complex": Row(
        lambda at: [dist.supports_complex(op) for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX)],
        [True, False],
    ),
    "_set_pg_timeout": Row(group_timeout, "0:00:07"),
    "_add_ephemeral_timeout_for_all_pgs": Row(
        lambda at: _add_ephemeral_timeout_for_all_pgs(SECOND)
    ),
}


LENGTHS = {
    "zero": timedelta(),
    "negative": timedelta(seconds=-5),
    "a month": timedelta(days=31),
    "thousand years": timedelta(days=365_000),
    "timedelta.max": timedelta.max,
}


def with_options(at: At, timeout: timedelta, asynchronous: bool) -> Any:
    options, tensor = dist.AllreduceOptions(), at.ones()
    options.timeout, options.asyncOp = timeout, asynchronous
    return wait(at.group.allreduce([tensor], options), tensor)


def timed(at: At, timeout: Any) -> Any:
    other = at.other()
    other.set_timeout(timeout)
    tensor = at.ones()
    return wait(other.allreduce([tensor]), tensor)


TIMED: dict[str, Callable[[At, Any], Any]] = {
    "Work.wait": lambda at, limit: at.work().wait(limit),
    "Work.wait of a barrier": lambda at, limit: at.group.barrier().wait(limit),
    "an operation's argument": lambda at, limit: at.group.allreduce(
        [at.ones()], dist.ReduceOp.SUM, limit
    ).wait(),
    "an operation's options": lambda at, limit: with_options(at, limit, True),
    "a blocking operation's options": lambda at, limit: with_options(at, limit, False),
    "barrier": lambda at, limit: at.group.barrier(limit).wait(),
    "monitored_barrier": lambda at, limit: at.group.monitored_barrier(limit),
    "set_timeout": timed,
    "_set_pg_timeout": lambda at, limit: dist.distributed_c10d._set_pg_timeout(limit, at.other()),
    "new_group": lambda at, limit: dist.new_group([0, 1], timeout=limit).size(),
    "split_group": lambda at, limit: at.group.split_group([at.rank], limit).size(),
}
