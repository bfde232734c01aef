"""Tests of the models of the training-step benchmark, and of a step with and without clipping."""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from benchmark_modules import modules_of
from torch import nn

from slackline.overlap.reduction.tuning._trial import Outcome, Variant

EXAMPLES = str(Path(__file__).resolve().parents[3] / "examples")
NAMES = ("clipping", "digits", "gpt", "layers", "resnet", "tensors", "tiny", "vit")


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name; two models are imported from the examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        with modules_of("training-step", "cases", "contestants", "models") as found:
            yield found
        for name in ("train_digits", "pipeline_gpt"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "tensors", "megabytes", "smallest", "largest"),
    [
        ("digits", 24, 0.6, 40, 147_456),
        ("gpt", 78, 19.5, 1024, 1 << 20),
        ("clipping", 78, 19.5, 1024, 1 << 20),
        ("layers", 48, 50.4, 724 * 4, 724 * 724 * 4),
        ("tensors", 1000, 15.5, 1 << 10, 64 << 10),
        ("tiny", 400, 2.2, 1 << 10, 16 << 10),
        ("vit", 79, 10.8, 40, 589_824),
        ("resnet", 29, 1.2, 40, 589_824),
    ],
)
def test_a_model_has_the_tensors_that_the_page_tells(
    benchmark: ModuleType, name: str, tensors: int, megabytes: float, smallest: int, largest: int
) -> None:
    sizes = [each.nbytes for each in benchmark.models.MODELS[name]().build().parameters()]
    assert (len(sizes), min(sizes), max(sizes)) == (tensors, smallest, largest)
    assert round(sum(sizes) / 1e6, 1) == pytest.approx(megabytes, abs=0.06)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_share_a_batch_and_start_from_equal_weights(benchmark: ModuleType, name: str) -> None:
    model = benchmark.models.MODELS[name]()
    whole = model.batches(0, 1)
    for ranks in (2, 4):
        shares = [model.batches(rank, ranks) for rank in range(ranks)]
        assert [len(share) for share in shares] == [len(whole)] * ranks
        for part in (0, 1):
            joined = torch.cat([share[0][part] for share in shares])
            assert torch.equal(joined, whole[0][part])
    for one, other in zip(model.build().parameters(), model.build().parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_changes_every_tensor_of_a_model(benchmark: ModuleType, name: str) -> None:
    model = benchmark.models.MODELS[name]()
    trainer = benchmark.contestants.Trainer(model)
    loss = trainer.step(model.batches(0, 4)[0])
    assert math.isfinite(loss.item())
    before = model.build().parameters()
    for old, new in zip(before, trainer.plain.parameters(), strict=True):
        assert not torch.equal(old, new)


@pytest.mark.parametrize("max_norm", [None, 0.25])
def test_a_step_clips_gradients_if_the_model_has_a_norm(
    benchmark: ModuleType, max_norm: float | None
) -> None:
    model = replace(benchmark.models.tiny(), max_norm=max_norm)
    trainer = benchmark.contestants.Trainer(model)
    norms = []

    def read(*_: object) -> None:
        gradients = [each.grad for each in trainer.plain.parameters()]
        norms.append(nn.utils.get_total_norm(gradients).item())

    trainer._optimizer.register_step_pre_hook(read)
    trainer.step(model.batches(0, 1)[0])
    (norm,) = norms
    assert norm == pytest.approx(0.25) if max_norm else norm > 1


def test_only_pcco_has_a_trial(benchmark: ModuleType) -> None:
    trainer = benchmark.contestants.Trainer(benchmark.models.tiny())
    with pytest.raises(TypeError, match=r"^Trainer has no trial$"):
        trainer.chosen()


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("group_bytes", [0, 1 << 20])
@pytest.mark.parametrize("tried", [0, 2])
def test_the_choice_of_a_trial_is_read_from_its_result(
    benchmark: ModuleType, deferred: bool, group_bytes: int, tried: int
) -> None:
    variant = Variant(group_bytes=group_bytes, deferred=deferred)
    other = Variant(group_bytes=group_bytes, deferred=not deferred)
    result = str(Outcome(variant=variant, times_ns=[(variant, 5e6), (other, 6e6)][:tried]))
    choice = benchmark.contestants.choice_of(result, group_bytes=group_bytes, parameter_bytes=9)
    assert choice == benchmark.cases.Choice(
        result=result, group_bytes=group_bytes, deferred=deferred, parameter_bytes=9
    )
