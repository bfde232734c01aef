"""Tests that torch's dispatcher sees operations: its modes, traces and transforms.

The tests of all kinds of tensors are in test_tensor_kinds.
"""

import gc
import json
import weakref
from collections import Counter
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch import distributed as dist
from torch import func
from torch._subclasses import FakeTensorMode
from torch.distributed.tensor.debug import CommDebugMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.profiler import ExecutionTraceObserver, profile
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from slackline.errors import PeerError, UsageError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
]

TWO = 2


class Names(TorchDispatchMode):
    """A dispatch mode that notes torch's operators for process groups."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            self.seen.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def ones(*shape):
    return torch.ones(*shape)


OPERATIONS = {
    "allreduce_": lambda group: dist.all_reduce(ones(4), group=group),
    "allreduce_coalesced_": lambda group: group.allreduce_coalesced([ones(4)]).wait(),
    "reduce_": lambda group: dist.reduce(ones(4), group=group, group_dst=1),
    "reduce_scatter_": lambda group: dist.reduce_scatter(ones(2), [ones(2)] * TWO, group=group),
    "_reduce_scatter_base_": lambda group: dist.reduce_scatter_tensor(
        ones(2), ones(4), group=group
    ),
    "reduce_scatter_tensor_coalesced_": lambda group: group.reduce_scatter_tensor_coalesced(
        [ones(2)], [ones(4)]
    ).wait(),
    "broadcast_": lambda group: dist.broadcast(ones(4), group=group, group_src=1),
    "allgather_": lambda group: dist.all_gather([ones(2), ones(2)], ones(2), group=group),
    "_allgather_base_": lambda group: dist.all_gather_into_tensor(ones(4), ones(2), group=group),
    "allgather_coalesced_": lambda group: group.allgather_coalesced(
        [[ones(2)], [ones(2)]], [ones(2)]
    ).wait(),
    "allgather_into_tensor_coalesced_": lambda group: group.allgather_into_tensor_coalesced(
        [ones(4)], [ones(2)]
    ).wait(),
    "gather_": lambda group: dist.gather(
        ones(2), [ones(2), ones(2)] if group.rank() else None, group=group, group_dst=1
    ),
    "scatter_": lambda group: dist.scatter(
        ones(2), [ones(2), ones(2)] if group.rank() else None, group=group, group_src=1
    ),
    "alltoall_": lambda group: dist.all_to_all([ones(2), ones(2)], [ones(2)] * TWO, group=group),
    "alltoall_base_": lambda group: dist.all_to_all_single(ones(4), ones(4), group=group),
    "barrier": lambda group: group.barrier().wait(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_dispatch_mode_sees_each_operation_once(ranks, name):
    def rank_main(group):
        with Names() as names:
            OPERATIONS[name](group)
        return names.seen

    assert ranks(TWO, rank_main) == [[name]] * TWO


def test_a_dispatch_mode_sees_messages(ranks):
    def rank_main(group):
        tensor = torch.full((3,), 1.0 - group.rank())
        with Names() as names:
            for _ in range(2):
                (group.recv([tensor], 0) if group.rank() else group.send([tensor], 1)).wait()
        return names.seen, tensor.tolist()

    assert ranks(TWO, rank_main) == [(["send"] * 2, [1.0] * 3), (["recv_"] * 2, [1.0] * 3)]


@pytest.mark.parametrize("modes", [1, 3])
def test_results_under_dispatch_modes_are_right_whatever_the_reduction(ranks, modes):
    def rank_main(group):
        tensors = [torch.full((3,), group.rank() + 1.0) for _ in range(3)]
        half = dist._make_nccl_premul_sum(0.5)
        with ExitStack() as stack:
            for _ in range(modes):
                stack.enter_context(Names())
            dist.all_reduce(tensors[0], op=dist.ReduceOp.MAX, group=group)
            dist.all_reduce(tensors[1], op=half, group=group)
            work = dist.all_reduce(tensors[2], group=group, async_op=True)
        work.wait()
        return [tensor.tolist() for tensor in tensors], work.is_completed()

    assert ranks(TWO, rank_main) == [([[2.0] * 3, [1.5] * 3, [3.0] * 3], True)] * TWO


@contextmanager
def execution_trace(path):
    """Record torch's operators in all threads; yield a list that has their nodes afterwards."""
    observer = ExecutionTraceObserver().register_callback(str(path))
    found = []
    observer.start()
    try:
        yield found
    finally:
        observer.stop()
        observer.unregister_callback()
    found += json.loads(path.read_text())["nodes"]


def operators(names):
    return Counter(name.removeprefix("c10d::") for name in names if name.startswith("c10d::"))


def messages(group):
    tensor = torch.ones(3)
    (group.recv([tensor], 0, 1) if group.rank() else group.send([tensor], 1, 1)).wait()
    (group.recv_anysource([tensor], 2) if group.rank() else group.send([tensor], 1, 2)).wait()


EACH = Counter(list(OPERATIONS))
SENT, RECEIVED = {"send": 2}, {"recv_": 1, "recv_any_source_": 1}


def test_an_execution_trace_has_each_operation_of_every_thread_once(ranks, tmp_path):
    def rank_main(group):
        for operation in OPERATIONS.values():
            operation(group)
        messages(group)

    with execution_trace(tmp_path / "trace.json") as nodes:
        ranks(TWO, rank_main)
    expected = EACH + EACH + Counter(SENT) + Counter(RECEIVED)
    assert operators(node["name"] for node in nodes) == expected
    shown = next(node for node in nodes if node["name"] == "c10d::broadcast_")
    assert (shown["inputs"]["shapes"][0], shown["inputs"]["types"][0]) == (
        [[4]],
        "GenericList[Tensor(float)]",
    )


@pytest.fixture
def profiler():
    """Have the test's own thread initialise torch's profiler, which another thread must not do."""
    with profile():
        pass


@pytest.mark.usefixtures("profiler")
def test_a_profile_has_each_operation_of_its_thread_once(ranks):
    def rank_main(group):
        if group.rank():
            for operation in OPERATIONS.values():
                operation(group)
            messages(group)
            return None
        with profile(record_shapes=True) as found:
            for operation in OPERATIONS.values():
                operation(group)
            messages(group)
        return [event.name for event in found.events()]

    names, _ = ranks(TWO, rank_main)
    assert operators(names) == EACH + Counter(SENT)
    posts = Counter(name for name in names if name.startswith("slackline:"))
    assert posts["slackline:broadcast"] == 1
    assert posts["slackline:reduce"] == 1


def test_a_wrapper_or_a_mode_is_traced_once(ranks, tmp_path):
    def rank_main(group):
        dist.all_reduce(TwoTensor(torch.ones(3), torch.ones(3)), group=group)
        with Names():
            dist.broadcast(torch.ones(3), group=group, group_src=0)
        func.grad(lambda t: (plain_sum(group) * t).sum())(torch.ones(3))

    def plain_sum(group):
        dist.reduce(PLAIN[group.rank()], group=group, group_dst=0)
        return 1

    with execution_trace(tmp_path / "trace.json") as nodes:
        ranks(TWO, rank_main)
    # Both parts of a TwoTensor are reduced, each by an operator below the TwoTensor's own.
    found = operators(node["name"] for node in nodes)
    assert found["broadcast_"] == 2 * TWO  # The mode calls the operator again.
    assert found["reduce_"] == TWO
    assert found["allreduce_"] == 3 * TWO


PLAIN = [torch.ones(3), torch.ones(3)]


@pytest.mark.usefixtures("profiler")
def test_a_wrong_call_is_refused_under_a_profile_as_without_one(ranks):
    def rank_main(group):
        with profile() as found:
            with pytest.raises(UsageError) as refused:
                group.allreduce("text")
            dist.all_reduce(torch.ones(3), group=group)
        with pytest.raises(UsageError) as alone:
            group.allreduce("text")
        assert str(refused.value) == str(alone.value)
        return operators(event.name for event in found.events())

    assert ranks(1, rank_main) == [Counter({"allreduce_": 1})]


@pytest.mark.usefixtures("profiler")
def test_a_profile_changes_neither_results_nor_refusals(ranks):
    def values(group):
        def batched(t):
            dist.all_reduce(t, group=group)
            return t

        def constant(t):
            other = torch.ones(3)
            dist.all_reduce(other, group=group)
            return (other * t).sum()

        negated = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
        assert negated.is_neg()
        dist.all_reduce(negated, group=group)
        sparse = torch.eye(3).to_sparse()
        dist.all_reduce(sparse, group=group)
        with torch.inference_mode():
            inferred = torch.ones(3)
            dist.all_reduce(inferred, group=group)
        parameter = torch.nn.Parameter(torch.ones(3))
        dist.all_reduce(parameter, group=group)
        refusals = []
        for call in (
            lambda: torch.vmap(batched)(torch.ones(2, 3)),
            lambda: dist.all_reduce(torch.ones(3, device="meta"), group=group),
        ):
            with pytest.raises(UsageError) as refused:
                call()
            refusals.append(str(refused.value))
        return [
            negated.tolist(),
            sparse.to_dense().tolist(),
            inferred.tolist(),
            parameter.tolist(),
            func.grad(constant)(torch.ones(3)).tolist(),
            torch.vmap(constant)(torch.ones(2, 3)).tolist(),
            refusals,
        ]

    def rank_main(group):
        alone = values(group)
        with profile(record_shapes=True) as found:
            assert values(group) == alone
        return operators(event.name for event in found.events())

    # Six operations, and the one that is refused for its device.
    assert ranks(1, rank_main) == [Counter({"allreduce_": 7})]


def test_comm_debug_mode_counts(ranks):
    def rank_main(group):
        with CommDebugMode() as counts:
            dist.all_reduce(torch.ones(3), group=group)
            dist.broadcast(torch.ones(3), group=group, group_src=0)
        return counts.get_total_counts()

    assert ranks(1, rank_main) == [2]


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_traced_graph_keeps_the_operation(ranks, mode):
    def rank_main(group):
        def work(x):
            y = x * 2
            dist.all_reduce(y, op=dist.ReduceOp.MAX, group=group)
            return y + 1

        graph = make_fx(work, tracing_mode=mode)(torch.ones(3))
        with Names() as names:
            found = graph(torch.full((3,), 5.0))
        return names.seen, found.tolist()

    assert ranks(1, rank_main) == [(["allreduce_"], [11.0] * 3)]


def test_a_fake_mode_posts_nothing(ranks):
    def rank_main(group):
        with FakeTensorMode():
            for _ in range(3):
                dist.all_reduce(torch.ones(3), group=group)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        return tensor.tolist()

    assert ranks(TWO, rank_main) == [[2.0] * 3] * TWO


def test_transforms_of_torch_func_compute_with_the_reduced_values(ranks):
    """Check all but jvp, whose levels torch shares between threads: real ranks check it."""

    def rank_main(group):
        x = torch.full((3,), group.rank() + 1.0)

        def reduced(t):
            dist.all_reduce(t, group=group)
            return t

        def gathered(t):
            parts = [torch.zeros(3), torch.zeros(3)]
            dist.all_gather(parts, t.detach(), group=group)
            return (sum(parts) * t).sum()

        return (
            func.grad(lambda t: (reduced(t.detach().clone()) * t).sum())(x).tolist(),
            func.grad(gathered)(x).tolist(),
            func.functionalize(lambda t: reduced(t * 1))(x).tolist(),
        )

    assert ranks(TWO, rank_main) == [([3.0] * 3,) * 3] * TWO


def test_a_vmapped_operation_is_refused_before_it_is_posted(ranks):
    def rank_main(group):
        def work(t):
            dist.all_reduce(t, group=group)
            return t

        with pytest.raises(UsageError, match=r"torch\.func\.vmap has batched"):
            torch.vmap(work)(torch.ones(2, 3))
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        return tensor.tolist()

    assert ranks(TWO, rank_main) == [[2.0] * 3] * TWO


def test_a_negated_tensor_under_a_mode_is_refused_since_torch_would_change_a_copy(ranks):
    def rank_main(group):
        negated = torch.complex(ones(3), ones(3)).conj().imag
        with Names(), pytest.raises(UsageError, match=r"pass its resolve_neg\(\)\.resolve_conj"):
            dist.all_reduce(negated, group=group)
        return negated.tolist()

    assert ranks(TWO, rank_main) == [[-1.0] * 3] * TWO


class RefusedError(RuntimeError):
    pass


class Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            raise RefusedError
        return function(*args, **(kwargs or {}))


def test_an_error_of_a_mode_stays_what_it_is(ranks):
    def rank_main(group):
        with Refuses(), pytest.raises(RefusedError):
            dist.all_reduce(torch.ones(3), group=group)
        return True

    assert ranks(1, rank_main) == [True]


def test_an_error_of_the_operation_stays_what_it_is(ranks):
    def rank_main(group):
        if group.rank() == 1:
            group.abort()
            return True
        with Names(), pytest.raises(PeerError):
            dist.all_reduce(torch.ones(3), group=group)
        return True

    assert ranks(TWO, rank_main) == [True] * TWO


def test_a_group_that_used_the_dispatcher_goes_without_the_collector(ranks):
    gc.disable()
    try:

        def rank_main(group):
            with Names():
                dist.all_reduce(torch.ones(3), group=group)
            return weakref.ref(group)

        assert [each() for each in ranks(1, rank_main)] == [None]
    finally:
        gc.enable()
