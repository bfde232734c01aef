"""Tests of the files that an elastic state writes: the content that is saved, and the content that
is not."""

from pathlib import Path

import pytest
import torch

from slackline.elastic import ElasticState
from slackline.errors import UsageError


def a_state() -> tuple[torch.nn.Module, torch.optim.Optimizer, ElasticState]:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, optimizer, ElasticState(model=model, optimizer=optimizer)


def test_a_state_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    model, _, state = a_state()
    state.step = 41
    state.commit()
    assert state.save(tmp_path).name == "step-000000000042.pt"
    other, _, restored = a_state()
    assert restored.load(tmp_path)
    assert restored.step == 42
    assert torch.equal(other.weight, model.weight)


def test_there_may_be_nothing_to_load(tmp_path: Path) -> None:
    _, _, state = a_state()
    assert not state.load(tmp_path / "none")
    assert not state.load(tmp_path)
    assert state.step == 0


def test_the_two_latest_are_kept_and_the_latest_is_loaded(tmp_path: Path) -> None:
    _, _, state = a_state()
    for _ in range(4):
        state.commit()
        state.save(str(tmp_path))
    (tmp_path / "step-000000000009.pt.123.part").write_bytes(b"cut short")
    names = sorted(path.name for path in tmp_path.glob("*.pt"))
    assert names == ["step-000000000003.pt", "step-000000000004.pt"]
    assert a_state()[2].load(tmp_path)


def test_half_a_step_is_not_saved(tmp_path: Path) -> None:
    model, optimizer, state = a_state()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(UsageError, match=r"^step 1 is not complete: save after commit\(\)$"):
        state.save(tmp_path)
    state.commit()
    state.save(tmp_path)


def test_nothing_is_saved_when_there_is_nothing_new(tmp_path: Path) -> None:
    _, _, state = a_state()

    def fail() -> None:
        with state.saving(tmp_path):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_state_of_other_parts_is_refused(tmp_path: Path) -> None:
    model, _, state = a_state()
    state.commit()
    state.save(tmp_path)
    other = ElasticState(net=model)
    message = r"^the state that was saved has the parts model, optimizer, not net$"
    with pytest.raises(UsageError, match=message):
        other.load(tmp_path)
    with pytest.raises(UsageError, match=r"^a state needs parts"):
        ElasticState()
