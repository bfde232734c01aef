"""Tests that models in torch's own wrappers get DataParallel's bits with virtual ranks."""

import os
from functools import partial

import pytest
import torch
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from slackline.bits import Evidence
from slackline.errors import MismatchError, UsageError
from slackline.overlap import DataParallel, DDPParts, FSDPParts

STEPS = 5
DATA = torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(4))


class Net(nn.Module):
    """A convolution with BatchNorm, dropout, tied weights and a parameter that some samples use.

    With `always` all samples use it.
    """

    def __init__(self, *, always):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()
        )
        self.features[0].to(memory_format=torch.channels_last)
        self.head = nn.Linear(3 * 36, 7)
        self.last, self.tied = nn.Linear(7, 7), nn.Linear(7, 7)
        self.tied.weight = self.last.weight
        self.rare = nn.Parameter(torch.ones(7))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)
        self.always = always

    def forward(self, x):
        y = self.tied(torch.relu(self.last(self.head(self.features(x)))))
        used = self.always or float(x[0, 0, 0, 0].detach()) > 0
        return y * self.rare if used else y


OPTIMIZERS = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.05, momentum=0.9),
    "fused": lambda parameters: optim.AdamW(parameters, lr=0.01, fused=True),
}


def train(rank, size):
    kind, optimizer = os.environ["KIND"], OPTIMIZERS[os.environ["OPTIMIZER"]]
    torch.set_num_threads(1)
    torch.manual_seed(2)
    always = os.environ["ALWAYS"] == "1"
    model = Net(always=always)
    stepper = optimizer(model.parameters())
    if kind == "own":
        parallel = wrapped = DataParallel(model, stepper, virtual_ranks=5, seed=3)
    else:
        wrapped = DistributedDataParallel(
            model,
            find_unused_parameters=not always,
            bucket_cap_mb=0.001,
            gradient_as_bucket_view=kind == "views",
        )
        parallel = DDPParts(wrapped, stepper, virtual_ranks=5, seed=3)
    for step in range(STEPS):
        for part in parallel.parts(step):
            with part:
                wrapped(DATA[part.indices(len(DATA), batch=20)]).square().mean().backward()
        if kind == "own":
            parallel.clip_grad_norm_(0.5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        stepper.step()
        stepper.zero_grad()
    if kind != "own":
        assert wrapped._get_ddp_logging_data()["has_rebuilt_buckets"] == always
    found = parallel.hash
    parallel.close()
    return found


@pytest.mark.parametrize("optimizer", ["fused", pytest.param("sgd", marks=pytest.mark.slow)])
def test_ddp_has_the_hash_of_data_parallel_on_any_number_of_processes(job, optimizer):
    def hashes(size, kind):
        environment = {"KIND": kind, "OPTIMIZER": optimizer, "ALWAYS": "0"}
        return {*job(size, train, environment=environment)}

    expected = hashes(1, "own")
    assert len(expected) == 1
    for size, kind in ((1, "copies"), (2, "copies"), (3, "copies"), (3, "views"), (5, "copies")):
        assert hashes(size, kind) == expected, (size, kind)


def test_ddp_has_that_hash_with_the_buckets_that_it_forms_anew_after_a_step(job, tmp_path):
    environment = {"OPTIMIZER": "fused", "ALWAYS": "1", "SLACKLINE_TENSOR_HASHES": "1-2"}
    hashes, runs = set(), []
    for size, kind in ((1, "own"), (2, "copies"), (3, "views")):
        folder = tmp_path / f"{kind}-{size}"
        given = {**environment, "KIND": kind, "SLACKLINE_TELEMETRY": str(folder)}
        hashes |= {*job(size, train, environment=given)}
        runs.append(Evidence(folder, pytest.fail))
    assert len(hashes) == 1
    own, *others = runs
    assert [*own.hashes] == list(range(STEPS))
    for other in others:
        assert other.hashes == own.hashes
        assert other.tensors.keys() == own.tensors.keys() != set()
        assert {place: each.hashes for place, each in other.tensors.items()} == {
            place: each.hashes for place, each in own.tensors.items()
        }


class Blocks(nn.Module):
    """Layers whose lengths no number of ranks divides, with dropout and a norm."""

    def __init__(self, norm=nn.BatchNorm1d):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(13, 7), nn.ReLU(), nn.Dropout(0.1), nn.Linear(7, 13))
            for _ in range(2)
        )
        self.norm = norm(13)
        self.head = nn.Linear(13, 5, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


POLICIES = {
    "fp32": {},
    "bf16": {"param_dtype": torch.bfloat16},
    "mixed": {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32},
}
SHARDED = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.05, momentum=0.9),
    "foreach": lambda parameters: optim.AdamW(parameters, lr=0.01, foreach=True),
    "plain": lambda parameters: optim.AdamW(parameters, lr=0.01, foreach=False),
}


def sharded(model, policy):
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def train_sharded(rank, size):
    kind, optimizer = os.environ["KIND"], SHARDED[os.environ["OPTIMIZER"]]
    torch.set_num_threads(1)
    torch.manual_seed(2)
    # BatchNorm takes no samples in bf16 beside statistics in fp32.
    model = Blocks(nn.BatchNorm1d if kind in ("own", "fp32") else nn.LayerNorm)
    if kind == "own":
        stepper = optimizer(model.parameters())
        parallel = DataParallel(model, stepper, virtual_ranks=6, seed=3)
    else:
        sharded(model, MixedPrecisionPolicy(**POLICIES[kind]))
        stepper = optimizer(model.parameters())
        parallel = FSDPParts(model, stepper, virtual_ranks=6, seed=3)
    data = torch.randn(96, 13, generator=torch.Generator().manual_seed(1))
    for step in range(STEPS):
        for part in parallel.parts(step):
            with part:
                model(data[part.indices(len(data), batch=48)]).square().mean().backward()
        stepper.step()
        stepper.zero_grad()
    found = parallel.hash
    parallel.close()
    return found


@pytest.mark.parametrize(
    "optimizer", ["foreach", *(pytest.param(e, marks=pytest.mark.slow) for e in ("plain", "sgd"))]
)
def test_fsdp_has_the_hash_of_data_parallel_where_its_ranks_divide_the_virtual_ranks(
    job, optimizer
):
    def hashes(size, kind):
        return {*job(size, train_sharded, environment={"KIND": kind, "OPTIMIZER": optimizer})}

    expected = hashes(1, "own")
    assert len(expected) == 1
    for size in (1, 2, 3):
        assert hashes(size, "fp32") == expected, size


def probe(rank, size):
    """Train a step in which rank 1 computes other bits."""
    torch.set_num_threads(1)
    torch.manual_seed(2)
    if os.environ["KIND"] == "ddp":
        model = Net(always=True)
        stepper = OPTIMIZERS["sgd"](model.parameters())
        wrapped = DistributedDataParallel(model)
        parallel = DDPParts(wrapped, stepper, virtual_ranks=6)
        data = DATA
    else:
        wrapped = model = Blocks(nn.LayerNorm)
        sharded(model, MixedPrecisionPolicy())
        stepper = SHARDED["sgd"](model.parameters())
        parallel = FSDPParts(model, stepper, virtual_ranks=6)
        data = torch.randn(96, 13, generator=torch.Generator().manual_seed(1))

    def step():
        for part in parallel.parts(0):
            with part:
                loss = wrapped(data[part.indices(len(data), batch=48)]).square().mean()
                (loss * (1 + rank * 2**-20)).backward()

    with pytest.raises(MismatchError) as raised:
        step()
    return str(raised.value)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_rank_with_other_bits_is_refused_by_name(job, kind):
    for text in job(2, probe, environment={"KIND": kind}):
        assert "rank 1 computes other bits than rank 0 from the same samples" in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bf16", "mixed"])
def test_fsdp_with_mixed_precision_has_one_hash(job, kind):
    environment = {"KIND": kind, "OPTIMIZER": "sgd"}
    hashes = set()
    for size in (1, 2, 6):
        hashes |= {*job(size, train_sharded, environment=environment)}
    assert len(hashes) == 1


def refusals(rank, size):
    def refused(text, function, error=UsageError):
        with pytest.raises(error, match=text):
            function()

    def ddp(model):
        return DistributedDataParallel(model)

    def made(model, kind=DDPParts, virtual_ranks=4, **options):
        stepper = optim.AdamW(model.parameters(), **options)
        return kind(model, stepper, virtual_ranks=virtual_ranks, seed=rank if size > 1 else 0)

    if size > 1:
        refused("rank 1 has virtual_ranks=4, seed=1", lambda: made(ddp(Blocks())), MismatchError)
        refused("must be a multiple of the 2 ranks", lambda: made(
            sharded(Blocks(), MixedPrecisionPolicy()), FSDPParts, 5
        ))  # fmt: skip
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
        refused("one mesh of one dimension", lambda: made(
            fully_shard(Blocks(), mesh=mesh), FSDPParts
        ))  # fmt: skip
        return
    refused("not a Blocks", lambda: made(Blocks()))
    refused("not a Blocks", lambda: made(Blocks(), FSDPParts))
    policy = MixedPrecisionPolicy()
    refused(
        r"AdamW\(fused=True\) rounds",
        lambda: made(sharded(Blocks(), policy), FSDPParts, fused=True),
    )
    inner = Blocks()
    fully_shard(inner, ignored_params={inner.head.weight})
    refused(r"'head\.weight' is not sharded", lambda: made(inner, FSDPParts))
    model = ddp(Blocks())
    made(model)
    refused("in `with part`", model(torch.ones(2, 13)).sum().backward)
    for make, kind in ((ddp, DDPParts), (lambda model: sharded(model, policy), FSDPParts)):
        model = make(Blocks())
        parallel = made(model, kind, 1)
        for part in parallel.parts(0):
            with part:
                model(torch.ones(2, 13)).sum().backward()
        refused("is left from the step before: call zero_grad", partial(parallel.parts, 1))


@pytest.mark.parametrize("size", [1, 2])
def test_wrong_uses_are_refused(job, size):
    job(size, refusals)
