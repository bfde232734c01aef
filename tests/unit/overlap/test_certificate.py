"""The hash of the state after each step, and the comparison of the ranks' bits in the first one."""

import random

import pytest
import torch
from torch import nn, optim

from slackline.errors import MismatchError
from slackline.history import StateHashes, read_all
from slackline.overlap import DataParallel
from slackline.overlap.certificate._state import HashedState
from slackline.records import Conditions, Decision, StateHash, TensorHashes

SAMPLES = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))


class Net(nn.Module):
    """A model with BatchNorm, a parameter that some samples use, and one that no optimizer has."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 2, bias=False)
        self.rare = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        with torch.no_grad():
            for number, each in enumerate(self.parameters()):
                each.copy_(torch.linspace(-0.5, 0.6 + number / 9, each.numel()).view(each.shape))

    def forward(self, x):
        y = self.last(torch.relu(self.norm(self.first(x))))
        return y * self.rare if float(x[0, 0].detach()) > 0 else y


def adamw(model, lr=0.01):
    return optim.AdamW(model.parameters(), lr=lr)


def train(group, folder, *, steps=5, asked=(), skipped=(), loss=None, make=adamw, **options):
    """Train on one rank; return the hashes that were asked for, and whether the run is exact."""
    model = Net()
    optimizer = make(model)
    found = {}
    with DataParallel(
        model, optimizer, process_group=group, virtual_ranks=6, telemetry=folder, **options
    ) as parallel:
        for step in range(steps):
            for part in parallel.parts(step):
                with part:
                    x = SAMPLES[part.indices(len(SAMPLES), batch=24)]
                    value = parallel(x).square().mean()
                    (value if loss is None else loss(value, part)).backward()
            if step not in skipped:
                optimizer.step()
            optimizer.zero_grad()
            if step in asked:
                found[step] = parallel.hash
    return found, parallel.exact


def records(folder, kind):
    found = [each for path in sorted(folder.glob("*.jsonl")) for each in read_all(path)]
    return [each for each in found if isinstance(each, kind)]


def hashes(folder):
    sums = StateHashes()
    found = {}
    for each in records(folder, StateHash):
        if (whole := sums.take(each)) is not None:
            found[each.step] = whole[0]
    assert sums.incomplete == []
    return dict(sorted(found.items()))


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_each_step_has_the_hash_of_its_state(ranks, tmp_path, size):
    asked, quiet = tmp_path / "asked", tmp_path / "quiet"
    ((expected, _),) = ranks(1, lambda group: train(group, asked, asked=range(5), skipped={2}))
    results = ranks(size, lambda group: train(group, quiet, skipped={2}))
    assert len(results) == size
    assert list(expected) == list(range(5))
    assert len({*expected.values()}) == 5  # the buffers change in the skipped step, too
    assert hashes(quiet) == expected == hashes(asked)
    # Each rank has hashed a part of each state, and another one in each step.
    parts = {(each.step, each.part): each.rank for each in records(quiet, StateHash)}
    assert len(parts) == 5 * size
    assert {parts[step, 0] for step in range(5)} == {-step % size for step in range(5)}


@pytest.mark.parametrize(("every", "steps"), [(0, []), (2, [1, 3, 4]), (4, [3, 4]), (9, [4])])
def test_only_some_steps_are_hashed_and_the_last_one(ranks, tmp_path, every, steps):
    ranks(2, lambda group: train(group, tmp_path, hash_every=every))
    assert list(hashes(tmp_path)) == steps


def test_a_question_for_the_hash_writes_it_down_once(ranks, tmp_path):
    ranks(2, lambda group: train(group, tmp_path, hash_every=9, asked={1, 4}))
    assert [each.step for each in records(tmp_path, StateHash)] == [1, 4] * 2
    assert list(hashes(tmp_path)) == [1, 4]


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_the_state_add_up_to_its_hash(seed):
    draw = random.Random(seed)
    module = nn.Module()
    for number in range(draw.randint(1, 40)):
        size = draw.choice([0, 1, 7, 1000, 100_000, 700_000])
        dtype = draw.choice([torch.float32, torch.bfloat16, torch.int64])
        module.register_buffer(f"b{number}", torch.arange(size).to(dtype))
    state = HashedState(module, [])
    state.refresh()
    whole = state.digest(state.pages)
    for count in range(1, 9):
        parts = [state.part(number, count) for number in range(count)]
        assert [page for part in parts for page in part] == list(state.pages)
        low, high = map(sum, zip(*map(state.digest, parts), strict=True))
        assert (low % 2**64, high % 2**64) == whole


def test_pages_that_change_places_have_another_hash():
    def of(*values):
        module = nn.Module()
        for number, value in enumerate(values):
            module.register_buffer(f"b{number}", torch.full((300_000,), value))
        state = HashedState(module, [])
        state.refresh()
        return state.digest(state.pages)

    # A fold by XOR, or one that ignores the place, would not see these.
    assert len({of(1.0, 1.0), of(2.0, 2.0), of(1.0, 2.0), of(2.0, 1.0)}) == 4


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_with_other_bits_is_refused_by_name(ranks, tmp_path, size):
    def run(group):
        def loss(value, part):
            return value * (1 + 2**-20) if group.rank == 1 else value

        with pytest.raises(MismatchError) as raised:
            train(group, tmp_path, loss=loss)
        return str(raised.value)

    for text in ranks(size, run):
        assert "rank 1 computes other bits than rank 0 from the same samples" in text
        assert "no known setting differs" in text
        assert "exact=False" in text


def test_a_rank_with_another_optimizer_is_refused_with_the_setting(ranks, tmp_path):
    def run(group):
        with pytest.raises(MismatchError) as raised:
            train(group, tmp_path, make=lambda model: adamw(model, lr=0.01 * (1 + group.rank // 2)))
        return str(raised.value)

    for text in ranks(3, run):
        assert "rank 2 computes other bits" in text
        assert "optimizer 0 is 'AdamW, lr=0.01," in text
        assert "and 'AdamW, lr=0.02," in text


def test_an_inexact_run_goes_on_and_says_so(ranks, tmp_path, caplog):
    def run(group):
        def loss(value, part):
            return value * (1 + 2**-20) if group.rank == 1 else value

        return train(group, tmp_path, loss=loss, exact=False)

    assert [exact for _, exact in ranks(2, run)] == [False, False]
    assert {each.exact for each in records(tmp_path, StateHash)} == {False}
    decision, *_ = [each for each in records(tmp_path, Decision) if each.subject == "exact"]
    assert "rank 1 computes other bits" in decision.reason
    assert "the training is inexact: rank 1 computes other bits" in caplog.text


def test_conditions_and_hashes_of_tensors_are_recorded(ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("SLACKLINE_TENSOR_HASHES", "1-2")
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    ranks(1, lambda group: train(group, alone))
    ranks(3, lambda group: train(group, shared))
    assert [each.rank for each in records(shared, Conditions)] == [0, 1, 2]
    assert records(alone, Conditions)[0].values["threads"] == str(torch.get_num_threads())

    def found(folder):
        return {
            (each.step, each.what, each.virtual_rank): each.hashes
            for each in records(folder, TensorHashes)
        }

    expected = {(step, "gradients", number) for step in (1, 2) for number in range(6)}
    expected |= {(step, what, -1) for step in (1, 2) for what in ("sums", "state")}
    assert found(alone).keys() == expected
    assert found(shared) == found(alone)
    # The parameter that no sample of a part used has no gradient there.
    assert any("-" * 16 in each for place, each in found(alone).items() if place[1] == "gradients")
