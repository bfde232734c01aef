"""Every kind of torch tensor in every operation: the right values, or an error before anything is
posted."""

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.two_tensor import TwoTensor

from slackline.backend._torch import c10d
from slackline.errors import UsageError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*prototype:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*beta state:UserWarning"),
]

SIZE = 2
SUM = torch.classes.c10d.ReduceOp
TORCHS_OWN = (ValueError,)
"""The error with which torch itself refuses lists of tensors that differ in type."""
ROWS, COLUMNS = 4, 3


class Plain(torch.Tensor):
    """A subclass with memory of its own."""


def negated(values):
    return torch.complex(torch.zeros_like(values), -values).conj().imag


def with_gaps(values):
    return torch.stack([values, values + 100], -1)[..., 0]


def overlapping(values):
    return values.flatten()[: ROWS + COLUMNS].clone().as_strided((ROWS, COLUMNS), (1, 1))


def in_inference_mode(values):
    with torch.inference_mode():
        return with_gaps(values)


@dataclass(frozen=True)
class Kind:
    """A kind of tensors: how to make one, and whether it can be read and written."""

    make: Callable[[torch.Tensor], Any]
    read: bool = True
    written: bool = True
    show: Callable[[Any], torch.Tensor] = lambda tensor: tensor.detach().clone()


def waited_for(values):
    """Return a result of a functional collective, which is waited for when it is first used."""
    return functional.AsyncCollectiveTensor(values.clone())


def of_functional(tensor):
    """Return the values of a tensor that records its changes, as torch.func.functionalize does."""
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor).clone()


def in_vmap(values):
    """Return a tensor that torch.func.vmap has batched, of which its level is still open."""
    return torch._C._functorch._add_batch_dim(torch.stack([values, values]), 0, 1)


ZEROS = "zeros without memory"
MESH = DeviceMesh("cpu", torch.arange(1), _init_backend=False, _rank=0)
KINDS = {
    "plain": Kind(torch.clone),
    "parameter": Kind(lambda values: nn.Parameter(values.clone())),
    "subclass with memory": Kind(lambda values: values.clone().as_subclass(Plain)),
    "inference": Kind(in_inference_mode),
    "transposed": Kind(lambda values: values.t().contiguous().t()),
    "gaps": Kind(with_gaps),
    "negated": Kind(negated, show=lambda tensor: tensor.resolve_neg().clone()),
    "expanded": Kind(lambda values: values[:1].expand(ROWS, COLUMNS), written=False),
    "overlapping": Kind(overlapping, written=False),
    "result of a functional collective": Kind(waited_for, show=lambda tensor: tensor + 0),
    "wrapper of two": Kind(
        lambda values: TwoTensor(values.clone(), values.clone()),
        show=lambda tensor: tensor.b.clone(),
    ),
    "functional": Kind(
        lambda values: torch._to_functional_tensor(values.clone()), show=of_functional
    ),
    "meta": Kind(lambda values: values.to("meta"), read=False, written=False),
    "sparse": Kind(lambda values: values.to_sparse_csr(), read=False, written=False),
    "nested": Kind(
        lambda values: torch.nested.nested_tensor([values, values[:1]]), read=False, written=False
    ),
    "jagged": Kind(
        lambda values: torch.nested.nested_tensor([values, values[:1]], layout=torch.jagged),
        read=False,
        written=False,
    ),
    "quantized": Kind(
        lambda values: torch.quantize_per_tensor(values, 1.0, 0, torch.qint32),
        read=False,
        written=False,
    ),
    "batched by vmap": Kind(in_vmap, read=False, written=False),
    "DTensor": Kind(
        lambda values: DTensor.from_local(values, MESH, [Replicate()], run_check=False),
        read=False,
        written=False,
    ),
    ZEROS: Kind(
        lambda values: torch._efficientzerotensor((ROWS, COLUMNS)),
        read=False,
        written=False,
        show=torch.zeros_like,
    ),
}


def another(target):
    """Return a tensor of the same kind; a plain one of a tensor that lives within vmap only."""
    if torch._C._functorch.is_batchedtensor(target):
        return torch.empty(ROWS, COLUMNS)
    return target.clone()


def part(values):
    """Return the rows of rank 0 and of rank 1."""
    return list(values.chunk(SIZE))


def all_reduce(group, given, target):
    dist.all_reduce(given, group=group)
    return given


def all_reduce_async(group, given, target):
    dist.all_reduce(given, group=group, async_op=True).wait()
    return given


def all_reduce_coalesced(group, given, target):
    group.allreduce_coalesced([given]).wait()
    return given


def broadcast(group, given, target):
    source = given if group.rank() == 0 else target
    dist.broadcast(source, group=group, group_src=0)
    return source


def all_gather(group, given, target):
    other = another(target)
    outputs = [other, target] if group.rank() else [target, other]
    dist.all_gather(outputs, given, group=group)
    return target


def all_gather_into_tensor(group, given, target):
    dist.all_gather_into_tensor(target, given[: ROWS // SIZE], group=group)
    return target


def all_gather_coalesced(group, given, target):
    with _coalescing_manager(group=group, device=torch.device("cpu")) as manager:
        dist.all_gather_into_tensor(target, given[: ROWS // SIZE], group=group)
    if manager.works:
        manager.wait()
    return target


def reduce_scatter(group, given, target):
    dist.reduce_scatter(target, [given, given], group=group)
    return target


def reduce_scatter_tensor(group, given, target):
    dist.reduce_scatter_tensor(target[: ROWS // SIZE], given, group=group)
    return target


def gather(group, given, target):
    other = another(target)
    outputs = [target, other] if group.rank() == 0 else None
    dist.gather(given, outputs, group=group, group_dst=0)
    return target


def scatter(group, given, target):
    dist.scatter(target, [given, given] if group.rank() == 0 else None, group=group, group_src=0)
    return target


def all_to_all(group, given, target):
    outputs = [target, another(target)]
    dist.all_to_all(outputs, [given, given], group=group)
    return target


def all_to_all_single(group, given, target):
    dist.all_to_all_single(target, given, group=group)
    return target


def message(group, given, target):
    work = group.recv([target], 0) if group.rank() else group.send([given], 1)
    work.wait()
    return target


def exchange(group, given, target):
    peer = 1 - group.rank()
    for work in [group.send([given], peer), group.recv([target], peer)]:
        work.wait()
    return target


OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "all_reduce": (all_reduce, lambda mine, all_, old: sum(all_)),
    "all_reduce, asynchronous": (all_reduce_async, lambda mine, all_, old: sum(all_)),
    "all_reduce, coalesced": (all_reduce_coalesced, lambda mine, all_, old: sum(all_)),
    "broadcast": (broadcast, lambda mine, all_, old: all_[0]),
    "all_gather": (all_gather, lambda mine, all_, old: all_[mine]),
    "all_gather_into_tensor": (
        all_gather_into_tensor,
        lambda mine, all_, old: torch.cat([part(each)[0] for each in all_]),
    ),
    "all_gather_into_tensor, coalesced": (
        all_gather_coalesced,
        lambda mine, all_, old: torch.cat([part(each)[0] for each in all_]),
    ),
    "reduce_scatter": (reduce_scatter, lambda mine, all_, old: sum(all_)),
    "reduce_scatter_tensor": (
        reduce_scatter_tensor,
        lambda mine, all_, old: torch.cat([part(sum(all_))[mine], part(old)[1]]),
    ),
    "gather": (gather, lambda mine, all_, old: old if mine else all_[0]),
    "scatter": (scatter, lambda mine, all_, old: all_[0]),
    "all_to_all": (all_to_all, lambda mine, all_, old: all_[0]),
    "all_to_all_single": (
        all_to_all_single,
        lambda mine, all_, old: torch.cat([part(each)[mine] for each in all_]),
    ),
    "message": (message, lambda mine, all_, old: all_[0] if mine else old),
    "exchange": (exchange, lambda mine, all_, old: all_[1 - mine]),
}


def of_c10d(name, *given):
    """Call an operator of torch's dispatcher for process groups; wait for its Work."""
    found = getattr(torch.ops.c10d, name)(*given)
    dist.Work.unbox(found[-1] if isinstance(found, tuple) else found).wait()


def c10d_all_reduce(group, given, target):
    of_c10d("allreduce_", [given], group.boxed(), SUM(), None)
    return given


def c10d_all_reduce_coalesced(group, given, target):
    of_c10d("allreduce_coalesced_", [given], group.boxed(), SUM())
    return given


def c10d_broadcast(group, given, target):
    source = given if group.rank() == 0 else target
    of_c10d("broadcast_", [source], group.boxed(), 0, 0)
    return source


def c10d_all_gather(group, given, target):
    other = another(target)
    outputs = [other, target] if group.rank() else [target, other]
    of_c10d("allgather_", [outputs], [given], group.boxed())
    return target


def c10d_all_gather_into_tensor(group, given, target):
    of_c10d("_allgather_base_", target, given[: ROWS // SIZE], group.boxed())
    return target


def c10d_reduce_scatter(group, given, target):
    of_c10d("reduce_scatter_", [target], [[given, given]], group.boxed(), SUM())
    return target


def c10d_reduce_scatter_tensor(group, given, target):
    of_c10d("_reduce_scatter_base_", target[: ROWS // SIZE], given, group.boxed(), SUM())
    return target


def c10d_gather(group, given, target):
    outputs = [[target, another(target)]] if group.rank() == 0 else []
    of_c10d("gather_", outputs, [given], group.boxed(), 0)
    return target


def c10d_scatter(group, given, target):
    inputs = [[given, given]] if group.rank() == 0 else []
    of_c10d("scatter_", [target], inputs, group.boxed(), 0)
    return target


def c10d_all_to_all(group, given, target):
    of_c10d("alltoall_", [target, another(target)], [given, given], group.boxed())
    return target


def c10d_all_to_all_single(group, given, target):
    of_c10d("alltoall_base_", target, given, group.boxed(), [], [])
    return target


def c10d_message(group, given, target):
    if group.rank():
        of_c10d("recv_", [target], group.boxed(), 0, 0)
    else:
        of_c10d("send", [given], group.boxed(), 1, 0)
    return target


def of_functional_collectives(name, *given):
    """Return a call of an operator of torch's functional collectives, which compiled code calls."""

    def call(group, tensor, target):
        name_of_group = f"rank {group.rank()}"
        group._set_group_name(name_of_group)
        c10d._register_process_group(name_of_group, group)
        try:
            operators = torch.ops._c10d_functional
            result = getattr(operators, name)(tensor, *given, name_of_group)
            return operators.wait_tensor(result)
        finally:
            c10d._unregister_process_group(name_of_group)

    return call


OPERATORS = {
    f"operator {call.__name__}": (call, OPERATIONS[like][1])
    for call, like in (
        (c10d_all_reduce, "all_reduce"),
        (c10d_all_reduce_coalesced, "all_reduce"),
        (c10d_broadcast, "broadcast"),
        (c10d_all_gather, "all_gather"),
        (c10d_all_gather_into_tensor, "all_gather_into_tensor"),
        (c10d_reduce_scatter, "reduce_scatter"),
        (c10d_reduce_scatter_tensor, "reduce_scatter_tensor"),
        (c10d_gather, "gather"),
        (c10d_scatter, "scatter"),
        (c10d_all_to_all, "all_to_all"),
        (c10d_all_to_all_single, "all_to_all_single"),
        (c10d_message, "message"),
    )
}
"""The operations as operators `c10d::*` of torch's dispatcher, which take a group."""
FUNCTIONAL = {
    "functional all_reduce": (
        of_functional_collectives("all_reduce", "sum"),
        lambda mine, all_, old: sum(all_),
    ),
    "functional broadcast": (
        of_functional_collectives("broadcast", 0),
        lambda mine, all_, old: all_[0],
    ),
    "functional all_gather_into_tensor": (
        of_functional_collectives("all_gather_into_tensor", SIZE),
        lambda mine, all_, old: torch.cat(all_),
    ),
    "functional reduce_scatter_tensor": (
        of_functional_collectives("reduce_scatter_tensor", "sum", SIZE),
        lambda mine, all_, old: part(sum(all_))[mine],
    ),
    "functional all_to_all_single": (
        of_functional_collectives("all_to_all_single", [2, 2], [2, 2]),
        lambda mine, all_, old: torch.cat([part(each)[mine] for each in all_]),
    ),
}
"""The operators `_c10d_functional::*`, which take a group's name and return new tensors."""
CALLS = {**OPERATIONS, **OPERATORS, **FUNCTIONAL}
FREQUENT = {"plain", "gaps", "negated", "result of a functional collective", "wrapper of two"}
"""The kinds for which the operators are asked in the short run of the tests, with "meta"."""
IN_PLACE = {name for name in CALLS if "all_reduce" in name and name not in FUNCTIONAL}
SLICED = {
    *("all_gather_into_tensor", "all_gather_into_tensor, coalesced", "reduce_scatter_tensor"),
    *("operator c10d_all_gather_into_tensor", "operator c10d_reduce_scatter_tensor"),
}
"""The operations on a part of a tensor, which some kinds cannot be cut into."""
LISTS_OF_LISTS = {
    ("functional", "all_gather", "output"),
    ("functional", "reduce_scatter", "input"),
    ("functional", "gather", "output"),
    ("functional", "scatter", "input"),
}
LISTS_OF_OPERATORS = {(f"operator c10d_{operation}", role) for _, operation, role in LISTS_OF_LISTS}
"""The operations that take lists of lists, in which torch leaves functional tensors as they are."""
SKIPPED = {"nested", "jagged", "sparse", "functional", "batched by vmap"}
"""The kinds that cannot be cut into rows, or copied, by one rank's program."""
OF_PARTS = {"wrapper of two"}
"""The kinds that are several tensors, so that all ranks must use the kind for all arguments."""
CONCERNED = {
    ("broadcast", "input"): {0},
    ("broadcast", "output"): {1},
    ("gather", "output"): {0},
    ("scatter", "input"): {0},
    ("message", "input"): {0},
    ("message", "output"): {1},
}
CONCERNED |= {
    (f"operator c10d_{operation}", role): ranks for (operation, role), ranks in CONCERNED.items()
}
"""The ranks that use the tensor; elsewhere all ranks do."""


def values_of(rank):
    return torch.arange(1.0, ROWS * COLUMNS + 1).view(ROWS, COLUMNS) * (rank + 1)


def takes(name, operation, role):
    """Return whether an operation serves a kind of tensors as its input or its output."""
    kind = KINDS[name]
    if (name, operation.removeprefix("operator c10d_"), role) in LISTS_OF_LISTS:
        return False
    if name == "result of a functional collective" and (operation, role) in LISTS_OF_OPERATORS:
        return False
    if operation in IN_PLACE:
        return kind.read and kind.written
    if name == ZEROS and role == "input" and operation not in OPERATIONS:
        return (operation, role) not in LISTS_OF_OPERATORS  # torch passes on zeros with memory
    return kind.read if role == "input" else kind.written


def refused_for_its_gaps(call, tensor):
    """Return whether torch refuses a functional collective of the tensor whatever the backend.

    torch 2.11 refuses tensors with gaps between their elements. The group has no backend, so that
    torch names another reason only if it comes before the search for one.
    """
    group = dist.ProcessGroup(dist.HashStore(), 0, SIZE)
    with torch.no_grad(), pytest.raises(RuntimeError) as refused:
        call(group, tensor, None)
    return "is_contiguous" in str(refused.value)


def of_all_kinds():
    """Yield each kind and operation; those of operators and rare kinds are slow together."""
    for name in KINDS:
        for operation in CALLS:
            rare = operation not in OPERATIONS and name not in FREQUENT | {"meta"}
            yield pytest.param(name, operation, marks=[pytest.mark.slow] if rare else [])


@pytest.mark.parametrize("role", ["input", "output"])
@pytest.mark.parametrize(("name", "operation"), list(of_all_kinds()))
def test_an_operation_serves_a_kind_of_tensor_or_refuses_it_before_it_posts_anything(
    ranks, name, operation, role
):
    kind = KINDS[name]
    call, expect = CALLS[operation]
    if (operation in IN_PLACE or operation in FUNCTIONAL) and role == "output":
        pytest.skip("its input is its output, or its output is new")
    if name in SKIPPED and operation in SLICED:
        pytest.skip("the kind cannot be cut into rows")
    made = kind.make if role == "input" or name in OF_PARTS else torch.clone
    given = [made(values_of(rank)) for rank in (0, 1)]
    made = kind.make if role == "output" or name in OF_PARTS else torch.clone
    empty = torch.full((ROWS, COLUMNS), -7.0)
    targets = [made(empty) for _ in (0, 1)]
    if operation in OPERATORS and name == "negated" and (role == "output" or operation in IN_PLACE):
        pytest.skip("torch gives every backend a copy of it, and forgets the copy")
    served = takes(name, operation, role)
    if served and operation in FUNCTIONAL:
        served = not refused_for_its_gaps(call, given[0])
    refusals = (UsageError, *TORCHS_OWN)
    if operation not in OPERATIONS:
        refusals = (RuntimeError, *TORCHS_OWN)  # torch may refuse a tensor before it asks us
    calls = {0, 1} if served else CONCERNED.get((operation, role), {0, 1})

    def rank_main(group):
        me, result = group.rank(), None
        try:
            if me in calls:
                with torch.no_grad():
                    result = call(group, given[me], targets[me])
        except refusals as error:
            result = error
        check = torch.ones(2)
        dist.all_reduce(check, group=group)
        assert check.tolist() == [2.0, 2.0]
        return result

    shown = [kind.show(each) if role == "input" and served else values_of(0) for each in given]
    if role == "output":
        shown = [values_of(0), values_of(1)]
    results = ranks(SIZE, rank_main)
    for rank in calls:
        result = results[rank]
        if name == "meta" and operation not in OPERATIONS:
            continue  # torch's own kernel tells the shape of a result, and posts nothing
        if not served:
            assert isinstance(result, refusals), result
            assert "No backend type" not in str(result)
            continue
        assert isinstance(result, torch.Tensor), result
        of_kind = name in OF_PARTS or result is (given if role == "input" else targets)[rank]
        seen = kind.show(result) if of_kind else result
        assert torch.equal(seen, expect(rank, shown, empty))


@contextmanager
def default_type():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


STATES = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "default type": nullcontext,
}
"""torch's states of the calling thread. The default type is one of the whole process, so that the
test sets it before the threads of the ranks begin."""


@pytest.mark.parametrize("operation", [*OPERATIONS, "sparse all_reduce", "PREMUL_SUM"])
@pytest.mark.parametrize("state", STATES)
def test_a_thread_s_state_of_torch_does_not_reach_an_operation(ranks, state, operation):
    sparse = operation == "sparse all_reduce"
    call, expect = OPERATIONS.get(operation, OPERATIONS["all_reduce"])
    strided = [with_gaps(values_of(rank)) for rank in (0, 1)]
    given = [each.to_sparse() if sparse else each for each in strided]
    empty = torch.full((ROWS, COLUMNS), -7.0)
    targets = [empty.clone() for _ in (0, 1)]
    half = dist._make_nccl_premul_sum(0.5)

    def rank_main(group):
        me = group.rank()
        with STATES[state]():
            if operation == "PREMUL_SUM":
                dist.all_reduce(given[me], op=half, group=group)
                return given[me] * 2
            if sparse:  # by the method, since torch's function hides the default device
                group.allreduce([given[me]]).wait()
                return given[me]
            return call(group, given[me], targets[me])

    with default_type() if state == "default type" else nullcontext():
        results = ranks(SIZE, rank_main)
    for rank, result in enumerate(results):
        assert result.device.type == "cpu"
        dense = result.to_dense() if sparse else result
        assert torch.equal(dense, expect(rank, [values_of(0), values_of(1)], empty))


@pytest.mark.parametrize("count", [2, 2000, 200_000])
@pytest.mark.parametrize("form", ["list", "tensor"])
def test_all_to_all_reads_all_of_its_input_before_it_writes_an_output_in_the_same_memory(
    ranks, form, count
):
    def rank_main(group):
        tensor = torch.arange(float(count)) + group.rank() * count
        if form == "tensor":
            dist.all_to_all_single(tensor, tensor, group=group)
        else:
            dist.all_to_all(list(tensor.chunk(2)), list(tensor.chunk(2)), group=group)
        return tensor

    whole = torch.arange(2.0 * count).view(2, 2, -1).transpose(0, 1).reshape(2, -1)
    for rank, result in enumerate(ranks(SIZE, rank_main)):
        assert torch.equal(result, whole[rank])


def test_a_dtensor_is_refused_with_the_way_out(ranks):
    def rank_main(group):
        given = DTensor.from_local(torch.ones(2), MESH, [Replicate()], run_check=False)
        with pytest.raises(UsageError, match=r"not a DTensor, .*`to_local\(\)`"):
            dist.all_reduce(given, group=group)

    ranks(1, rank_main)
