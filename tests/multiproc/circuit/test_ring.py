"""Real ranks whose sums are made by twins of ring NICs, alone or beside software NICs."""

import hashlib
from datetime import timedelta

import pytest
import torch
from multiproc_ring import FP32, SUM, contribution, digests, joined, killed
from torch import distributed as dist
from torch import nn, optim

from slackline.errors import SlacklineError
from slackline.overlap import DataParallel

SOFTWARE = ["software"] * 4
TWINS = ["twin"] * 4
MIXED = ["twin", "software", "software", "twin"]
SOFTWARE = ["software"] * 4
TWINS = ["twin"] * 4
MIXED = ["twin", "software", "software", "twin"]


@pytest.mark.parametrize("rails", ["shm,tcp", "tcp", "udp"])
def test_sums_of_every_type_have_the_bits_of_software_over_every_rail(ring, rails):
    environment = {"SLACKLINE_RAILS": rails}
    (expected,) = {each[0] for each in ring(SOFTWARE, digests, environment=environment)}
    for nics in (TWINS, MIXED):
        for nic, found in zip(nics, ring(nics, digests, environment=environment), strict=True):
            assert found == [expected, "reduce-broadcast", nic == "twin"]


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


def test_training_through_twins_has_the_parameters_of_software(ring):
    expected = ring(SOFTWARE, trained)
    assert ring(TWINS, trained) == expected
    assert ring(["software", "twin", "twin", "software"], trained) == expected


def many(rank, size, path):
    """More tensors at once than a NIC has room for, in an order of its own on each rank."""
    group = joined(rank, size, path)
    count, tensors, works = 3000, {}, []
    for i in range(150):
        tag = i * (1, 7, 149, 11)[rank] % 150
        tensors[tag] = contribution(rank, tag, count)
        address = tensors[tag].data_ptr()
        works.append(
            group.all_reduce(address, address, count, FP32, SUM, tag=tag, priority=tag % 3)
        )
    for work in works:
        work.wait()
    dist.destroy_process_group()
    digest = hashlib.sha256()
    for tag in range(150):
        digest.update(tensors[tag].numpy().tobytes())
    return digest.hexdigest()


def test_more_tensors_than_a_nic_has_room_for_wait_and_are_summed(ring):
    assert ring(TWINS, many) == ring(SOFTWARE, many)


def broken(rank, size, path):
    """Rank 1's device breaks in the middle of the second tensor."""
    joined(rank, size, path)
    if rank == 1:
        from slackline.circuit._ring_twin import RingTwin

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


def test_a_device_that_fails_is_named_on_every_rank(ring):
    for name, words in ring(TWINS, broken):
        assert name == "InternalError"
        assert words.startswith("the device of rank 1 (twin) failed: the board does not answer")


@pytest.mark.parametrize("rails", ["shm,tcp", "udp"])
def test_a_rank_that_is_killed_is_named_by_all_others(ring, rails):
    results = ring(TWINS, killed, environment={"SLACKLINE_RAILS": rails}, dying=(2,))
    assert [result for rank, result in enumerate(results) if rank != 2] == [["PeerError", 2]] * 3


def late(rank, size, path):
    """Rank 1 does not post the first tensor in time; the group goes on with the next ones."""
    group = joined(rank, size, path)
    found = []
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
    dist.destroy_process_group()
    return found


def test_after_a_timeout_the_group_goes_on(ring):
    first, second = ring(["twin"] * 2, late)
    assert first == ["TimeoutError", *[[1.0]] * 69]
    assert second == [[1.0]] * 69
