"""Tests of training with DataParallel between processes, compared with one process and with DDP."""

import copy
import os
import re
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn, optim
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.nn.parallel import DistributedDataParallel

from slackline.errors import SlacklineError
from slackline.history import read_directory, read_file
from slackline.overlap import DataParallel
from slackline.records import Decision, Operations, RunSummary, Setting, StepSummary, file_of

STEPS = 6


def convolutional(batch_norm=True):
    norm = nn.BatchNorm2d(4) if batch_norm else nn.Identity()
    head = nn.Linear(4 * 36, 10)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), head)


class Recurrent(nn.Module):
    """A model that reads its parameters in unusual ways: tied, recurrent and in attention."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        hidden, _ = self.recurrent(self.tokens(x))
        return self.head(self.attention(hidden)).mean(1)


def images(rank, turn, rows=4):
    seed = torch.Generator().manual_seed(1000 * turn + rank)
    return torch.randn(rows, 1, 8, 8, generator=seed), torch.randint(10, (rows,), generator=seed)


def sentences(rank, turn, rows=4):
    seed = torch.Generator().manual_seed(1000 * turn + rank)
    return torch.randint(16, (rows, 5), generator=seed), torch.randint(16, (rows,), generator=seed)


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "lbfgs": lambda p: optim.LBFGS(p, lr=0.1, max_iter=1),
}


def train(model, optimizer, batches, clip=None):
    scheduler = optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=STEPS + 1, cycle_momentum=not isinstance(optimizer, optim.LBFGS)
    )
    for inputs, targets in batches:
        if isinstance(optimizer, optim.LBFGS):

            def closure(inputs=inputs, targets=targets):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
                return loss

            optimizer.step(closure)
        else:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_everywhere(state):
    for name, value in state.items():
        first = value.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, value), name
    dist.barrier()


def beside_ddp(rank, size):
    """Check that results are bit-identical to DDP's, because both average each element over the
    ranks in the same order."""
    for make, data in ((convolutional, images), (Recurrent, sentences)):
        for name, make_optimizer in OPTIMIZERS.items():
            for clip in (None, 0.1):
                torch.manual_seed(0)
                plain = make()
                ours, theirs = copy.deepcopy(plain), DistributedDataParallel(plain)
                batches = [data(rank, turn) for turn in range(STEPS)]
                optimizer = make_optimizer(ours.parameters())
                model = DataParallel(ours, optimizer)
                mine = train(model, optimizer, batches, clip)
                expected = train(theirs, make_optimizer(plain.parameters()), batches, clip)
                for key, value in expected.items():
                    found = mine[key.removeprefix("module.")]
                    if size == 2:
                        assert torch.equal(found, value), (name, key)
                    torch.testing.assert_close(found, value, msg=f"{name} {key}")
                model.close()


def beside_one_process(rank, size):
    for make, data in ((lambda: convolutional(False), images), (Recurrent, sentences)):
        torch.manual_seed(rank)
        module = make()
        optimizer = OPTIMIZERS["sgd"](module.parameters())
        model = DataParallel(module, optimizer)
        whole = copy.deepcopy(module)
        mine = train(model, optimizer, [data(rank, turn) for turn in range(STEPS)])
        batches = [
            [torch.cat(part) for part in zip(*[data(r, turn) for r in range(size)], strict=True)]
            for turn in range(STEPS)
        ]
        expected = train(whole, OPTIMIZERS["sgd"](whole.parameters()), batches)
        same_everywhere(mine)
        for key, value in expected.items():
            # The gradients' sum over the batch is added in another order.
            torch.testing.assert_close(mine[key], value, rtol=1e-4, atol=1e-5)
        model.close()


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(32, 32)
        self.sides = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])

    def forward(self, x, side):
        return self.sides[side](self.trunk(x))


def branches(rank, group=None):
    torch.manual_seed(0)
    module = Branches()
    optimizer = optim.AdamW(module.parameters(), lr=0.01)
    model = DataParallel(module, optimizer, process_group=group)
    for turn in range(8):
        for part in range(1 + turn % 3):
            model.require_backward_grad_sync = turn % 2 == 0 or part == turn % 3
            seed = torch.Generator().manual_seed(100 * turn + 10 * part + rank)
            x = torch.randn(4, 32, generator=seed)
            model(x, (rank + turn + part) % 2).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    same_everywhere(state)
    assert module.sides[2].weight.grad is None
    return state, model


def different_branches(rank, size):
    mine, model = branches(rank)
    gloo, _ = branches(rank, dist.new_group(backend="gloo"))
    for name, value in mine.items():
        torch.testing.assert_close(value, gloo[name], msg=name)
    again, _ = branches(rank)
    for name, value in mine.items():
        assert torch.equal(value, again[name]), name
    return model.run_summary().rails


def over_gloo(rank, size):
    gloo = dist.new_group(backend="gloo")
    results = []
    for group in (None, gloo):
        torch.manual_seed(rank)
        module = convolutional(batch_norm=False)
        optimizers = [
            optim.SGD([p for p in module.parameters() if p.dim() > 1], lr=0.1),
            optim.AdamW([p for p in module.parameters() if p.dim() == 1], lr=0.01),
        ]
        model = DataParallel(module, optimizers, process_group=group)
        for turn in range(STEPS):
            inputs, targets = images(rank, turn)
            nn.functional.cross_entropy(model(inputs), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        results.append(model.state_dict())
    same_everywhere(results[1])
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], msg=name)


def saved_and_resumed(rank, size, store):
    """Check that runs resumed by torch's distributed checkpoints have the bits of whole runs."""
    dist.init_process_group("slackline", init_method=f"file://{store}", rank=rank, world_size=size)
    forms = {
        "sgd": StateDictOptions(),
        "adamw": StateDictOptions(flatten_optimizer_state_dict=True),
        "fused": StateDictOptions(full_state_dict=True),
    }
    for name, options in forms.items():
        batches = [images(rank, turn) for turn in range(2 * STEPS)]
        # DCP saves some buffers of rank 1, and BatchNorm's buffers differ between the forwards.
        module = convolutional(batch_norm=False)
        whole, resumed = copy.deepcopy(module), convolutional(batch_norm=False)
        folder = f"{store}.{name}"
        optimizer = OPTIMIZERS[name](whole.parameters())
        with DataParallel(whole, optimizer) as model:
            train(model, optimizer, batches[:STEPS])
            parts = get_state_dict(model, optimizer, options=options)
            checkpoint.save(dict(zip("mo", parts, strict=True)), checkpoint_id=folder)
            expected = train(model, optimizer, batches[STEPS:])
        optimizer = OPTIMIZERS[name](resumed.parameters())
        with DataParallel(resumed, optimizer) as model:
            parts = dict(zip("mo", get_state_dict(model, optimizer, options=options), strict=True))
            checkpoint.load(parts, checkpoint_id=folder)
            set_state_dict(
                model,
                optimizer,
                model_state_dict=parts["m"],
                optim_state_dict=parts["o"],
                options=options,
            )
            found = train(model, optimizer, batches[STEPS:])
        assert all(torch.equal(found[key], value) for key, value in expected.items()), name
    resumed_from_ddp(rank)
    dist.destroy_process_group()


def resumed_from_ddp(rank):
    """Check that DDP and DataParallel go on from each other's checkpoints."""
    batches = [images(rank, turn) for turn in range(STEPS)]
    torch.manual_seed(0)
    plain = DistributedDataParallel(convolutional())
    reference = OPTIMIZERS["adamw"](plain.parameters())
    train(plain, reference, batches)
    states = copy.deepcopy((plain.state_dict(), reference.state_dict()))
    other = convolutional()
    optimizer = OPTIMIZERS["adamw"](other.parameters())
    with DataParallel(other, optimizer) as model:
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        for _ in range(2):
            mine = train(model, optimizer, batches)
            theirs = train(plain, reference, batches)
            for key, value in theirs.items():
                assert torch.equal(mine[key.removeprefix("module.")], value), key
            plain.module.load_state_dict(model.state_dict())
            reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def told(rank, size):
    module = convolutional()
    optimizer = OPTIMIZERS["sgd"](module.parameters())
    model = DataParallel(module, optimizer)
    train(model, optimizer, [images(rank, turn) for turn in range(STEPS)])
    model.close()


def tried(rank, size):
    """Train until a trial of group sizes has ended, and return its result."""
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    with DataParallel(module, optimizer) as model:
        while not model.trial_result:
            model(torch.ones(2, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.trial_result


def told_by_replicas(rank, size):
    replicas = [dist.new_group(members) for members in ([0, 1], [2, 3])]
    module = nn.Linear(4, 4)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    with DataParallel(module, optimizer, process_group=replicas[rank // 2]) as model:
        train(model, optimizer, [torch.ones(2, 4)] * STEPS)


def after_the_end(rank, size):
    module = nn.Linear(1000, 1000)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    model = DataParallel(module, optimizer)
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    dist.destroy_process_group()
    assert module.weight.grad.eq(1).all()
    with torch.no_grad():
        model.eval()
        model(torch.ones(1, 1000))
    model.close()
    assert module.weight.grad.eq(1).all()
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())


def a_rank_dies(rank, size):
    module = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    model = DataParallel(module, optimizer)
    for turn in range(5):
        try:
            model(torch.ones(2, 64)).sum().backward()
            if rank == 1 and turn == 2:
                os._exit(1)
            optimizer.step()
            optimizer.zero_grad()
        except SlacklineError as error:
            return type(error).__name__
    return "nothing"


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_trajectory_is_that_of_ddp(job, size):
    job(size, beside_ddp)


@pytest.mark.parametrize("size", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_the_trajectory_is_that_of_one_process_on_the_whole_batch(job, size):
    job(size, beside_one_process)


@pytest.mark.parametrize("rails", ["shm,tcp", pytest.param("tcp", marks=pytest.mark.slow)])
def test_ranks_may_differ_in_what_they_use_and_the_bits_are_the_same_again(job, rails):
    used = job(4, different_branches, environment={"SLACKLINE_RAILS": rails})
    assert used == [[rails.split(",")[0]]] * 4


def test_several_optimizers_and_another_backend_give_the_same(job):
    job(2, over_gloo)


@pytest.mark.slow
def test_checkpoints_of_torch_and_of_ddp_resume_a_run_with_the_same_bits(job):
    job(2, saved_and_resumed, bare=True)


def test_every_rank_writes_its_steps_where_the_environment_says(job, tmp_path: Path):
    job(2, told, environment={"SLACKLINE_TELEMETRY": str(tmp_path)})
    records = list(read_directory(tmp_path))
    runs = [record for record in records if isinstance(record, RunSummary)]
    assert [run.rank for run in runs] == [0, 1]
    assert [run.steps for run in runs] == [STEPS] * 2
    assert all(0 < run.communication_share < 1 for run in runs)
    assert sum(isinstance(record, StepSummary) for record in records) == 2 * STEPS
    sizes = [each for each in records if isinstance(each, Setting) and each.name == "group_bytes"]
    assert [(each.rank, each.value, each.origin) for each in sizes] == [
        (0, "", "default"),
        (1, "", "default"),
    ]


def test_the_times_of_a_step_s_reductions_are_the_engine_s_own(job, tmp_path: Path):
    environment = {"SLACKLINE_TELEMETRY": str(tmp_path), "SLACKLINE_FAULTS": "link 0-1 delay 5ms"}
    job(2, told, environment=environment)
    pending = hidden_ns = 0
    for rank in range(2):
        records = list(read_file(file_of(tmp_path, rank)))
        steps = [record for record in records if isinstance(record, StepSummary)]
        batches = [record for record in records if isinstance(record, Operations)]
        ends = {each.ended_ns for batch in batches for each in batch.rows}
        began = accumulate((step.wall_ns for step in steps[:-1]), initial=0)
        # A reduction of the rank that posts last ends within its post.
        of_steps = [
            at + ended
            for at, step in zip(began, steps, strict=True)
            for posted, ended in zip(step.group_posted_ns, step.group_ended_ns, strict=True)
            if ended > posted
        ]
        # Times in a step count from its beginning, which the record does not state.
        fits = [end for end in ends if all(end - of_steps[0] + each in ends for each in of_steps)]
        assert len(fits) == (1 if of_steps else len(ends))
        pending += len(of_steps)
        hidden_ns += sum(step.hidden_ns for step in steps)
        for step in steps:
            assert step.hidden_ns <= max(step.group_ended_ns) - min(step.group_posted_ns)
            assert step.optimizer_ns > 0
    assert pending >= STEPS
    assert hidden_ns > 0


TIME = r"\d[\d.]* [mu]?s"
NEAR = "within 2% of the fastest and with the fewest groups"


def test_the_trial_of_group_sizes_is_recorded_as_a_decision(job, tmp_path: Path):
    found = job(2, tried, environment={"SLACKLINE_TELEMETRY": str(tmp_path)})
    for rank, result in enumerate(found):
        records = read_file(file_of(tmp_path, rank))
        made = [each for each in records if isinstance(each, Decision) and each.subject == "groups"]
        assert [f"{each.choice}: {each.reason}" for each in made] == [result]
        assert re.fullmatch(rf"{TIME} a step(, {NEAR})?(; .+ {TIME})+", made[0].reason)


def test_ranks_of_several_groups_write_a_file_each(job, tmp_path: Path):
    job(4, told_by_replicas, environment={"SLACKLINE_TELEMETRY": str(tmp_path)})
    records = list(read_directory(tmp_path))
    runs = [record for record in records if isinstance(record, RunSummary)]
    assert [(run.rank, run.steps) for run in runs] == [(rank, STEPS) for rank in range(4)]
    assert sum(isinstance(record, StepSummary) for record in records) == 4 * STEPS


def test_gradients_can_be_read_after_the_group_has_ended(job):
    job(2, after_the_end)


def test_a_dead_rank_is_an_error_and_no_hang(job):
    answers = job(3, a_rank_dies, dying=(1,))
    assert {answers[0], answers[2]} <= {"PeerError", "LinkError"}
