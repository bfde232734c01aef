"""A table of the methods of torch's groups and Works, with slackline's answer to each.

A row calls one method of torch's ProcessGroup, Backend or Work on both ranks of a job, and states
the answer. The same rows are asked of gloo.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d

__all__ = [
    "ALL",
    "BACKEND",
    "CPU",
    "GROUP",
    "SAME",
    "SECOND",
    "WORK",
    "At",
    "Row",
    "into",
    "reduced",
    "two",
    "wait",
]

SAME = object()
"""The answer that gloo gives, whatever it is."""
CPU = torch.device("cpu")
SECOND = timedelta(seconds=1)


@dataclass
class At:
    """A rank of the job, its default group and that group's store."""

    rank: int
    group: Any
    store: Any
    name: str
    """The name of the backend."""
    backend: Any
    """The group's backend for CPU tensors, which is the group itself for slackline."""
    asked: Any = None
    """The object whose methods the rows ask: the group or its backend."""

    @property
    def peer(self) -> int:
        return 1 - self.rank

    def ones(self, count: int = 1) -> torch.Tensor:
        """Return a tensor of this rank's number plus one."""
        return torch.full((count,), self.rank + 1.0)

    def work(self) -> Any:
        """Return the Work of an asynchronous all_reduce."""
        return self.group.allreduce([self.ones()])

    def other(self) -> Any:
        """Return a new group of both ranks, which the caller may end."""
        return dist.new_group([0, 1])


@dataclass(frozen=True)
class Row:
    """The call of an entry, with what both ranks answer, or an answer for each rank."""

    call: Callable[[At], Any]
    gives: Any = None
    each: tuple[Any, Any] | None = None
    refused: str = ""
    """Words of slackline's UsageError; empty where slackline serves the entry."""
    torchs: str = ""
    """Words of the error with which torch's Python code refuses the entry to all backends."""
    unlike_gloo: str = ""
    """Why gloo's answer is another one."""
    without_gloo: str = ""
    """Why gloo is not asked."""

    def expected(self, rank: int) -> Any:
        return self.gives if self.each is None else self.each[rank]


def refused(call: Callable[[At], Any], words: str, unlike_gloo: str = "") -> Row:
    return Row(call, refused=words, unlike_gloo=unlike_gloo)


def wait(work: Any, *results: torch.Tensor) -> Any:
    """Wait for a Work; return the values of its results."""
    work.wait()
    return [each.tolist() for each in results]


def reduced(call: Callable[..., Any]) -> Callable[[At], Any]:
    def row(at: At) -> Any:
        tensor = at.ones()
        return wait(call(at, tensor), tensor)

    return row


def into(count: int, call: Callable[..., Any]) -> Callable[[At], Any]:
    """Return a row that calls an operation with an empty target of `count` elements."""

    def row(at: At) -> Any:
        target = torch.zeros(count)
        return wait(call(at, target), target)

    return row


def two(call: Callable[..., Any]) -> Callable[[At], Any]:
    """Return a row that calls an operation with a list of two empty targets."""

    def row(at: At) -> Any:
        targets = [torch.zeros(1), torch.zeros(1)]
        return wait(call(at, targets), *targets)

    return row


def message(at: At, receive: str, *source: int) -> Any:
    target = torch.zeros(1)
    if at.rank == 0:
        at.asked.send([at.ones()], 1, 3).wait()
    else:
        getattr(at.asked, receive)([target], *source, 3).wait()
    return target.tolist()


def coalesced(at: At) -> Any:
    tensor = at.ones()
    at.group._start_coalescing(CPU)
    at.group.allreduce([tensor])
    work = at.group._end_coalescing(CPU)
    return wait(work, tensor)


def ended(name: str) -> Callable[[At], Any]:
    def row(at: At) -> Any:
        other = at.other()
        getattr(other if at.asked is at.group else other._get_backend(CPU), name)()
        return None

    return row


def split(at: At) -> Any:
    whole = at.group.split_group([0, 1])
    tensor = at.ones()
    whole.allreduce([tensor]).wait()
    alone = at.group.split_group([at.rank], SECOND, None, "alone", "one rank", [CPU])
    absent = at.group.split_group([at.peer])
    name = (whole.group_name, alone.group_name, alone.group_desc)
    return [whole.rank() == at.rank, whole.size(), tensor.tolist(), *name, alone.size(), absent]


def merged(at: At) -> Any:
    store = dist.PrefixStore("merging", at.store)
    made = at.group.merge_remote_group(store, 2, timedelta(seconds=20))
    tensor = at.ones()
    made.allreduce([tensor]).wait()
    return [made.rank() in (0, 1), made.size(), made.group_name, made.group_desc, tensor.tolist()]


def numbered(at: At) -> Any:
    other = at.other()
    before = other._get_sequence_number_for_group()
    other.allreduce([at.ones()]).wait()
    other.broadcast([at.ones()]).wait()
    return other._get_sequence_number_for_group() - before


def timeout_of(at: At) -> Any:
    other = at.other()
    asked = other if at.asked is at.group else other._get_backend(CPU)
    asked.set_timeout(timedelta(seconds=7))
    return str(other._get_backend(CPU).options._timeout)


def named(at: At) -> Any:
    other = at.other()
    other._set_group_name("a name")
    other._set_group_desc("a description")
    return [other.group_name, other.group_desc]


ALL = [[3.0]]
BOTH: dict[str, Row] = {
    "_allgather_base": Row(into(2, lambda at, t: at.asked._allgather_base(t, at.ones())), [[1, 2]]),
    "_reduce_scatter_base": Row(
        into(1, lambda at, t: at.asked._reduce_scatter_base(t, at.ones(2))), ALL
    ),
    "abort": Row(ended("abort")),
    "all_gather_single": Row(
        into(2, lambda at, t: at.asked.all_gather_single(t, at.ones())), [[1, 2]]
    ),
    "all_gather_single_coalesced": Row(
        into(2, lambda at, t: at.asked.all_gather_single_coalesced([t], [at.ones()])), [[1, 2]]
    ),
    "all_to_all_single": Row(
        into(2, lambda at, t: at.asked.all_to_all_single(t, at.ones(2), [], [])), [[1, 2]]
    ),
    "allgather": Row(two(lambda at, ts: at.asked.allgather([ts], [at.ones()])), [[1], [2]]),
    "allgather_coalesced": Row(
        two(lambda at, ts: at.asked.allgather_coalesced([[t] for t in ts], [at.ones()])),
        [[1], [2]],
    ),
    "allgather_into_tensor_coalesced": Row(
        into(2, lambda at, t: at.asked.allgather_into_tensor_coalesced([t], [at.ones()])), [[1, 2]]
    ),
    "allreduce": Row(reduced(lambda at, t: at.asked.allreduce([t])), ALL),
    "allreduce_coalesced": Row(reduced(lambda at, t: at.asked.allreduce_coalesced([t])), ALL),
    "alltoall": Row(two(lambda at, ts: at.asked.alltoall(ts, [at.ones()] * 2)), [[1], [2]]),
    "alltoall_base": Row(
        into(2, lambda at, t: at.asked.alltoall_base(t, at.ones(2), [], [])), [[1, 2]]
    ),
    "barrier": Row(lambda at: wait(at.asked.barrier()), []),
    "broadcast": Row(reduced(lambda at, t: at.asked.broadcast([t])), [[1.0]]),
    "gather": Row(
        two(lambda at, ts: at.asked.gather([ts] if at.rank == 0 else [], [at.ones()])),
        each=([[1], [2]], [[0], [0]]),
    ),
    "monitored_barrier": Row(lambda at: at.asked.monitored_barrier()),
    "rank": Row(lambda at: at.asked.rank(), each=(0, 1)),
    "recv": Row(lambda at: message(at, "recv", 0), each=([0], [1])),
    "recv_anysource": Row(lambda at: message(at, "recv_anysource"), each=([0], [1])),
    "reduce": Row(
        reduced(lambda at, t: at.asked.reduce(t, 0, dist.ReduceOp.SUM, SECOND * 9)),
        each=(ALL, [[2.0]]),
    ),
    "reduce_scatter": Row(
        into(1, lambda at, t: at.asked.reduce_scatter([t], [[at.ones()] * 2])), ALL
    ),
    "reduce_scatter_single": Row(
        into(1, lambda at, t: at.asked.reduce_scatter_single(t, at.ones(2))), ALL
    ),
    "reduce_scatter_single_coalesced": Row(
        into(1, lambda at, t: at.asked.reduce_scatter_single_coalesced([t], [at.ones(2)])), ALL
    ),
    "reduce_scatter_tensor_coalesced": Row(
        into(1, lambda at, t: at.asked.reduce_scatter_tensor_coalesced([t], [at.ones(2)])), ALL
    ),
    "scatter": Row(
        into(1, lambda at, t: at.asked.scatter([t], [[at.ones()] * 2] if at.rank == 0 else [])),
        [[1]],
    ),
    "send": Row(lambda at: message(at, "recv", 0), each=([0], [1])),
    "set_timeout": Row(timeout_of, "0:00:07"),
    "shutdown": Row(ended("shutdown")),
    "size": Row(lambda at: at.asked.size(), 2),
    "name": Row(lambda at: at.asked.name() == at.name, True),
    "_get_backend_name": Row(lambda at: at.asked._get_backend_name() == at.name, True),
    "_get_sequence_number_for_group": Row(numbered, 2),
    "_set_sequence_number_for_group": Row(lambda at: at.asked._set_sequence_number_for_group()),
}


def gathered(name: str) -> Callable[[At], Any]:
    def row(at: At) -> Any:
        target = torch.zeros(2 if at.rank == 0 else 0)
        return wait(getattr(at.asked, name)(target, at.ones(), c10d.GatherOptions()), target)

    return row


NEWER: dict[str, Row] = {
    "_add_ephemeral_timeout": Row(lambda at: at.other()._add_ephemeral_timeout(SECOND)),
    "gather_single": Row(gathered("gather_single"), each=([[1, 2]], [[]])),
    "gather_into_tensor": Row(gathered("gather_into_tensor"), each=([[1, 2]], [[]])),
    "get_reconfigure_handle": refused(
        lambda at: at.asked.get_reconfigure_handle(),
        "slackline.elastic.get_handle",
        unlike_gloo="gloo's groups need no enable_reconfigure",
    ),
    "new_window": refused(lambda at: at.asked.new_window(), "call send and recv"),
    "reconfigure": refused(
        lambda at: at.asked.reconfigure(c10d.ReconfigureOptions()), "slackline.elastic.reconfigure"
    ),
    "register_abort_hook": refused(
        lambda at: at.asked.register_abort_hook(1, len), "catch the error"
    ),
    "supports_abort_hooks": Row(lambda at: at.asked.supports_abort_hooks, False),
    "supports_completion_hooks": Row(lambda at: at.asked.supports_completion_hooks, False),
    "supports_reconfigure": Row(
        lambda at: at.asked.supports_reconfigure,
        False,
        unlike_gloo="gloo's groups need no enable_reconfigure",
    ),
    "supports_window": Row(lambda at: at.asked.supports_window, False),
    "unregister_abort_hook": refused(
        lambda at: at.asked.unregister_abort_hook(1), "catch the error"
    ),
}
"""What groups and backends are asked from torch 2.14 on."""


GROUP: dict[str, Row] = {
    **BOTH,
    "_backend_id": Row(
        lambda at: type(at.group._backend_id(dist.ProcessGroup.BackendType.GLOO)).__name__, "int"
    ),
    "_device_types": Row(lambda at: "cpu" in map(str, at.group._device_types), True),
    "_enable_collectives_timing": Row(lambda at: at.other()._enable_collectives_timing()),
    "_start_coalescing": Row(coalesced, ALL),
    "_end_coalescing": Row(coalesced, ALL),
    "_get_backend": Row(lambda at: at.group._get_backend(CPU).size(), 2),
    "_has_hooks": Row(lambda at: at.group._has_hooks(), False),
    "_id": Row(lambda at: at.group._id() == at.group._id(), True),
    **NEWER,
    "get_backend": Row(lambda at: at.group.get_backend(CPU).size(), 2),
    "register_pre_hook": Row(lambda at: at.other().register_pre_hook(1, len)),
    "register_post_hook": Row(lambda at: at.other().register_post_hook(1, len)),
    "unregister_pre_hook": Row(lambda at: at.group.unregister_pre_hook(1)),
    "unregister_post_hook": Row(lambda at: at.group.unregister_post_hook(1)),
    "_register_backend": refused(
        lambda at: at.other()._register_backend(
            torch.device("xpu"), dist.ProcessGroup.BackendType.CUSTOM, None
        ),
        "name both backends",
        unlike_gloo="gloo's group is torch's own, which holds backends",
    ),
    "_register_on_completion_hook": refused(
        lambda at: at.other()._register_on_completion_hook(lambda info: None), "get_future()"
    ),
    "_set_default_backend": refused(
        lambda at: at.other()._set_default_backend(dist.ProcessGroup.BackendType.GLOO),
        "its own backend",
        unlike_gloo="gloo's group is torch's own, which holds backends",
    ),
    "_set_group_desc": Row(named, ["a name", "a description"]),
    "_set_group_name": Row(named, ["a name", "a description"]),
    "_wait_for_pending_works": Row(lambda at: at.group._wait_for_pending_works()),
    "bound_device_id": Row(lambda at: at.group.bound_device_id),
    "boxed": Row(lambda at: dist.ProcessGroup.unbox(at.group.boxed()).size(), 2),
    "get_group_store": Row(lambda at: isinstance(at.group.get_group_store(), dist.Store), True),
    "group_desc": Row(lambda at: at.group.group_desc, "default_pg"),
    "group_name": Row(lambda at: at.group.group_name, "0"),
    "merge_remote_group": Row(
        merged,
        [True, 2, "0:merge", "default_pg", ALL[0]],
        without_gloo="its ranks of one default group wait for each other for ever",
    ),
    "split_group": Row(
        split,
        [True, 2, ALL[0], "0:split:[0, 1]", "alone", "one rank", 1, None],
        without_gloo="its ranks wait for each other for ever in some runs",
    ),
    "unbox": Row(lambda at: dist.ProcessGroup.unbox(at.group.boxed()).rank(), each=(0, 1)),
    "use_pg_for_symm_mem_rendezvous": Row(
        lambda at: at.group.use_pg_for_symm_mem_rendezvous, False
    ),
}

BACKEND: dict[str, Row] = {
    **BOTH,
    **NEWER,
    "_enable_collectives_timing": Row(
        lambda at: at.other()._get_backend(CPU)._enable_collectives_timing()
    ),
    "_end_time_estimate": refused(lambda at: at.backend._end_time_estimate(), "measure"),
    "_register_on_completion_hook": refused(
        lambda at: at.backend._register_on_completion_hook(len), "get_future"
    ),
    "_set_group_uid": Row(lambda at: at.other()._get_backend(CPU)._set_group_uid("7")),
    "_start_time_estimate": refused(lambda at: at.backend._start_time_estimate(), "measure"),
    "_supports_time_estimate": Row(lambda at: at.backend._supports_time_estimate, False),
    "_wait_for_pending_works": Row(lambda at: at.backend._wait_for_pending_works()),
    "allreduce_sparse": Row(
        lambda at: at.backend.allreduce_sparse(
            [at.ones().to_sparse()], c10d.AllreduceOptions()
        ).wait(),
        True,
    ),
    "bound_device_id": Row(lambda at: at.backend.bound_device_id),
    "get_error": Row(lambda at: str(at.backend.get_error()), "ErrorType.SUCCESS"),
    "merge": refused(lambda at: at.backend.merge(), "merge_remote_group"),
    "split": refused(lambda at: at.backend.split(), "split_group"),
    "_end_coalescing": Row(coalesced, ALL),
    "_start_coalescing": Row(coalesced, ALL),
    "_set_default_timeout": Row(
        lambda at: at.other()._get_backend(CPU)._set_default_timeout(timedelta(seconds=7))
    ),
    "allocate_tensor": refused(
        lambda at: at.backend.allocate_tensor(4, dtype=torch.float32, device=CPU),
        "slackline.backend.empty",
    ),
    "eager_connect_single_device": Row(lambda at: at.backend.eager_connect_single_device(CPU)),
    "mem_allocator": refused(lambda at: at.backend.mem_allocator, "slackline.backend.empty"),
    "memory_stats": refused(lambda at: at.backend.memory_stats(), "slackline.backend.counters"),
    "options": Row(lambda at: type(at.backend.options._timeout).__name__, "timedelta"),
    "resume": refused(lambda at: at.backend.resume(), "call init_process_group again"),
    "setUsePgForSymmMemRendezvous": refused(
        lambda at: at.backend.setUsePgForSymmMemRendezvous(True),
        "leave the exchange to the store",
        unlike_gloo="gloo takes the wish, and the exchange over gloo then fails",
    ),
    "shrink": refused(lambda at: at.backend.shrink([1]), "slackline.elastic.shrink"),
    "supports_coalescing": Row(lambda at: at.backend.supports_coalescing, False),
    "supports_shrinking": Row(lambda at: at.backend.supports_shrinking, False),
    "supports_splitting": Row(lambda at: at.backend.supports_splitting, True),
    "supports_tensor_alloc": Row(lambda at: at.backend.supports_tensor_alloc(CPU), False),
    "supports_time_estimate": Row(lambda at: at.backend.supports_time_estimate, False),
    "suspend": refused(lambda at: at.backend.suspend(), "call destroy_process_group"),
}


def received(at: At) -> Any:
    target = torch.zeros(1)
    if at.rank == 0:
        at.group.send([at.ones()], 1, 5).wait()
        return None
    work = at.group.recv_anysource([target], 5)
    work.wait()
    return [work.source_rank(), work._source_rank()]


def unboxed(at: At) -> Any:
    tensor = at.ones()
    boxed = at.group.allreduce([tensor]).boxed()
    work = dist.Work.unbox(boxed)
    del boxed
    return [work.wait(), work.get_future().wait()[0].tolist(), tensor.tolist()]


def waited(name: str) -> Callable[[At], Any]:
    def row(at: At) -> Any:
        work = at.work()
        work.wait()
        return getattr(work, name)()

    return row


WORK: dict[str, Row] = {
    "_get_sequence_number": refused(
        waited("_get_sequence_number"),
        "_get_sequence_number_for_group",
        unlike_gloo="a Work does not know its group's number",
    ),
    "timeout": refused(
        lambda at: at.work().timeout,
        "default_timeout",
        unlike_gloo="a Work does not know its timeout",
    ),
    "_get_duration": refused(waited("_get_duration"), "torch.profiler"),
    "_get_op_type": Row(
        waited("_get_op_type"),
        int(c10d.OpType.UNKNOWN),
        unlike_gloo="torch's class for Works in Python has no place for the operation",
    ),
    "_source_rank": Row(received, each=(None, [0, 0])),
    "source_rank": Row(received, each=(None, [0, 0])),
    "block_current_stream": Row(waited("block_current_stream")),
    "boxed": Row(unboxed, [True, [3.0], [3.0]]),
    "exception": Row(waited("exception")),
    "get_future": Row(lambda at: [each.tolist() for each in at.work().get_future().wait()], ALL),
    "get_future_result": Row(lambda at: at.work().get_future_result().wait(), 0),
    "is_completed": Row(waited("is_completed"), True),
    "is_success": Row(waited("is_success"), True),
    "result": Row(lambda at: [each.tolist() for each in waited("result")(at)], ALL),
    "synchronize": Row(lambda at: at.work().synchronize()),
    "unbox": Row(unboxed, [True, [3.0], [3.0]]),
    "wait": Row(lambda at: at.work().wait(timedelta(seconds=9)), True),
}
