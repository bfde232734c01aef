import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from _harness import pattern

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "allreduce-latency-bandwidth"
COUNT = 5000


def load(name: str) -> ModuleType:
    """Import the benchmark's module `name` under a unique name, and return it."""
    spec = importlib.util.spec_from_file_location(f"allreduce_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


cases = load("cases")


def buffers_after(size: int, calls: int, salt: int) -> list[torch.Tensor]:
    """Return the content of every rank's buffer after `calls` correct calls."""
    buffers = [torch.empty(COUNT) for _ in range(size)]
    for rank, buffer in enumerate(buffers):
        pattern.fill(buffer, pattern.contribution(rank, COUNT), salt)
    for _ in range(calls):
        total = torch.stack(buffers).sum(0)
        for buffer in buffers:
            buffer.copy_(total)
    return buffers


@pytest.mark.parametrize("salt", range(4))
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_the_right_number_of_right_calls_passes_in_every_case(case, salt: int) -> None:
    calls = case.warm_up + case.calls
    for buffer in buffers_after(case.ranks, calls, salt):
        pattern.check(buffer, pattern.total(case.ranks, COUNT), case.ranks, calls, salt)


@pytest.mark.parametrize("done", [9, 11])
def test_a_lost_or_doubled_call_is_found(done: int) -> None:
    buffer = buffers_after(2, done, 0)[0]
    with pytest.raises(ArithmeticError, match="after 10 calls"):
        pattern.check(buffer, pattern.total(2, COUNT), 2, 10, 0)


def test_the_result_of_the_turn_before_is_found() -> None:
    buffer = buffers_after(2, 10, 1)[0]
    with pytest.raises(ArithmeticError, match="after 10 calls"):
        pattern.check(buffer, pattern.total(2, COUNT), 2, 10, 2)


def test_one_wrong_element_is_named() -> None:
    buffer = buffers_after(4, 3, 0)[0]
    buffer[77] *= 1.5
    with pytest.raises(ArithmeticError, match=r"^element 77 is "):
        pattern.check(buffer, pattern.total(4, COUNT), 4, 3, 0)


def test_ranks_contribute_different_values() -> None:
    contributions = [pattern.contribution(rank, COUNT) for rank in range(4)]
    for one, other in itertools.combinations(contributions, 2):
        assert not (one == other).any()
