"""Tests of real ranks that reduce through a real aggregation node, and of what happens when the
node is lost."""

import hashlib
import logging
import os
import re
import signal
import socket
from datetime import timedelta
from functools import cache

import pytest
import torch
from rank_marks import mark, wait_for_marks
from torch import distributed as dist
from torch import nn, optim

from slackline.errors import SlacklineError
from slackline.overlap import DataParallel

OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8]
RING = {"SLACKLINE_RAILS": "tcp", "SLACKLINE_ORDER": "rank", "SLACKLINE_TIMEOUT": "30s"}


def plan_of(nbytes=1 << 20):
    return (
        dist.distributed_c10d._get_default_group()
        ._get_backend(torch.device("cpu"))
        .nic.plan_for(nbytes)
    )


def contribution(rank, turn, count, dtype=torch.float32):
    seed = torch.Generator().manual_seed(1000 * turn + rank)
    return (torch.randn(count, generator=seed) * 9).to(dtype)


def digests(rank, size):
    """Return a digest of the results of many reductions. Equal bits give equal digests."""
    digest = hashlib.sha256()
    most = int(os.environ["MOST"])
    counts = (each for each in (0, 1, 17, 5000, 100_003, 700_001) if each <= most)
    for turn, count in enumerate(counts):
        for dtype in DTYPES if count < 200_000 else DTYPES[:2]:
            for op in OPS if dtype is not torch.int64 else OPS[:1]:
                tensor = contribution(rank, turn, count, dtype)
                dist.all_reduce(tensor, op)
                digest.update(tensor.view(torch.uint8).numpy().tobytes())
    return plan_of().name, digest.hexdigest()


@pytest.mark.parametrize("most", ["100003", pytest.param("700001", marks=pytest.mark.slow)])
def test_every_size_type_and_reduction_has_the_bits_of_rank_order(job, nodes, most):
    through_it = job(4, digests, environment=nodes().environment(MOST=most))
    alone = among_themselves(job, digests, MOST=most)
    assert {name for name, _ in through_it} == {"star"}
    assert "star" not in {name for name, _ in alone}
    assert {digest for _, digest in through_it} == {digest for _, digest in alone}


def trained(rank, size):
    torch.manual_seed(0)
    wide = int(os.environ.get("WIDE", "256"))
    model = nn.Sequential(
        nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 8)
    )
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model = DataParallel(model, optimizer)
    for turn in range(6):
        if turn == 3 and rank == 0 and os.environ.get("KILL_IT"):
            os.kill(int(os.environ["NODE"]), signal.SIGKILL)
        model(contribution(rank, turn, 32 * 64).view(32, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().double().sum().item() for p in model.parameters()]


@cache
def among_themselves(job, function, ranks=4, **settings):
    """Return the results of the ranks without an aggregation node."""
    return job(ranks, function, environment=RING | settings)


SIMULATED = [pytest.mark.simulates, pytest.mark.timeout(300)]
NARROW = ("--circuit", "lanes=1,slots=4,payload=64")
"""The options of the node that tests/circuit also uses with 3 ports, so that it is compiled only
once."""
PATIENT = {"timeout": timedelta(seconds=240), "seconds": 280}
"""A circuit is simulated at the speed of a processor, which other programs may use as well."""
NODES = [
    ("twin", 4, ()),
    pytest.param("circuit", 3, NARROW, marks=SIMULATED),
    pytest.param("circuit", 4, (), marks=[*SIMULATED, pytest.mark.slow]),
]


@pytest.mark.parametrize(("nic", "ranks", "sizes"), NODES)
def test_a_node_of_gateware_has_the_bits_of_software(job, nodes, nic, ranks, sizes):
    node = nodes("--nic", nic, "--workers", str(ranks), "--expect-sums", "1MB", *sizes)
    assert f"sums by the {nic}" in node.said
    environment = node.environment(MOST="5000", SLACKLINE_TIMEOUT="240s")
    through_it = job(ranks, digests, environment=environment, **PATIENT)
    expected = {digest for _, digest in among_themselves(job, digests, ranks, MOST="5000")}
    assert {name for name, _ in through_it} == {"star"}
    assert {digest for _, digest in through_it} == expected
    assert node.interrupt() == 0
    ending = rf"frames by its {nic} \(\d[\d.]* [KM]iB\)"
    ending += r"(, \d+ cycles \(busy [^)]*\))?: every worker has closed the group\n$"
    assert re.search(ending, node.log)
    assert "is lost" not in node.log


def test_a_node_that_no_job_has_used_says_so(nodes):
    node = nodes("--expect-sums", "1B")
    assert node.interrupt() == 1
    assert node.log == "slackline: no group was served\n"


def test_a_node_whose_jobs_took_other_plans_says_so(job, nodes):
    node = nodes("--expect-sums", "16MB")
    environment = node.environment(MOST="17") | {"SLACKLINE_PLAN": "mesh"}
    assert {name for name, _ in job(2, digests, environment=environment)} == {"mesh"}
    assert node.interrupt() == 1
    assert re.search(
        r"\nslackline: this node has added \d[\d.]* [KM]iB for the groups that it served, 1 in "
        "all, and not 16MB: their operations took other plans; SLACKLINE_PLAN=star sends every "
        "all_reduce to the node\n$",
        node.log,
    )


@pytest.mark.parametrize(
    ("nic", "ranks", "sizes", "killed"),
    [
        ("twin", 4, (), True),
        pytest.param("twin", 4, (), False, marks=pytest.mark.slow),
        pytest.param("circuit", 3, NARROW, False, marks=[*SIMULATED, pytest.mark.slow]),
        pytest.param("circuit", 3, NARROW, True, marks=[*SIMULATED, pytest.mark.slow]),
        pytest.param("circuit", 4, (), False, marks=[*SIMULATED, pytest.mark.slow]),
        pytest.param("circuit", 4, (), True, marks=[*SIMULATED, pytest.mark.slow]),
    ],
)
def test_training_through_gateware_has_the_same_parameters_also_when_it_dies(
    job, nodes, nic, ranks, sizes, killed
):
    more = {"KILL_IT": "yes"} if killed else {}
    environment = nodes("--nic", nic, "--workers", str(ranks), *sizes).environment(
        WIDE="32", SLACKLINE_TIMEOUT="240s", **more
    )
    found = job(ranks, trained, environment=environment, **PATIENT)
    assert found == among_themselves(job, trained, ranks, WIDE="32")


@pytest.mark.parametrize("killed", [False, True])
def test_training_has_the_same_parameters_through_it_and_when_it_dies(job, nodes, killed):
    environment = nodes().environment(**({"KILL_IT": "yes"} if killed else {}))
    assert job(4, trained, environment=environment) == among_themselves(job, trained)


def outlive(rank, size):
    """Post forty operations, and lose the node when the first has finished and the others are in
    flight."""
    count, kinds = 100_003, 8
    sums = []
    for kind in range(kinds):
        each = [contribution(r, kind, count) for r in range(size)]
        total = each[0].clone()
        for other in each[1:]:
            total += other
        sums.append(total)
    for signal_sent in (None, int(os.environ["SIGNAL"]), None):
        tensors = [contribution(rank, i % kinds, count) for i in range(40)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        works[0].wait()
        if rank == 0 and signal_sent is not None:
            os.kill(int(os.environ["NODE"]), signal_sent)
        for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
            work.wait()
            assert torch.equal(tensor, sums[i % kinds])


@pytest.mark.parametrize(
    "how",
    [signal.SIGKILL, signal.SIGSTOP, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
)
def test_operations_in_flight_outlive_it(job, nodes, how):
    job(4, outlive, environment=nodes().environment(SIGNAL=str(int(how))))


def reach(rank, size):
    """Return the plan that the group uses, and the messages logged while the group was created."""
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("slackline.nic").addHandler(handler)
    try:
        group = dist.new_group(list(range(size)), backend="slackline")
    finally:
        logging.getLogger("slackline.nic").removeHandler(handler)
    tensor = torch.full((5000,), float(rank))
    dist.all_reduce(tensor, group=group)
    assert tensor.unique().tolist() == [sum(range(size))]
    return plan_of().name, told


def test_where_nobody_listens_the_ranks_go_on_without_and_say_why(job):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    where = f"127.0.0.1:{port}"
    environment = {**RING, "SLACKLINE_AGGREGATOR": where, "SLACKLINE_PLAN": "star"}
    for plan, told in job(3, reach, environment=environment):
        assert plan != "star"
        assert [
            f"the aggregator {where} is not used: rank 0 cannot reach it: [Errno 111] Connect call "
            f"failed ('127.0.0.1', {port})"
        ] == told


def test_who_does_not_have_the_key_is_turned_away(job, nodes, tmp_path):
    (tmp_path / "theirs").write_text("0123456789abcdef")
    (tmp_path / "ours").write_text("fedcba9876543210")
    node = nodes("--key", str(tmp_path / "theirs"))
    ours = node.environment(SLACKLINE_KEY=str(tmp_path / "ours"))
    for plan, told in job(2, reach, environment=ours):
        assert plan != "star"
        assert told[0].startswith(f"the aggregator {node.address} is not used: rank 0 cannot reach")
    assert "turned away 127.0.0.1: the proof is wrong: the other end does not have" in node.log
    theirs = node.environment(SLACKLINE_KEY=str(tmp_path / "theirs"))
    assert {plan for plan, _ in job(2, reach, environment=theirs)} == {"star"}


def test_a_group_that_is_too_large_is_refused_with_the_numbers(job, nodes):
    node = nodes()
    for plan, told in job(5, reach, environment=node.environment()):
        assert plan != "star"
        assert told == [
            f"the aggregator {node.address} is not used: a group must have 2 to 4 workers, not 5"
        ]


def lose_a_worker(rank, size):
    """End rank 2 once all ranks have finished the first reduction, and return the error on each
    other rank."""
    dist.all_reduce(torch.ones(1000))
    mark("has a sum")
    if rank == 2:
        wait_for_marks("has a sum", range(size))
        os._exit(7)
    tensor = torch.ones(100_000)
    told = "nothing", None
    try:
        for _ in range(100):
            dist.all_reduce(tensor)
    except SlacklineError as error:
        told = type(error).__name__, error.peer
    # A surviving rank must not leave before the others have seen the failure of rank 2, so that its
    # own end is not taken for that failure.
    mark("was told")
    wait_for_marks("was told", set(range(size)) - {2})
    return told


def test_a_worker_that_dies_is_named_and_the_node_serves_the_next_group(job, nodes):
    node = nodes()
    results = job(3, lose_a_worker, environment=node.environment(), dying=(2,))
    assert results[:2] == [["PeerError", 2]] * 2
    assert {plan for plan, _ in job(2, reach, environment=node.environment())} == {"star"}
    assert node.interrupt() == 0
    assert "a worker is lost" in node.log
