"""Tests that training in the example survives kill -9 of one of four ranks: no step is lost and
none is repeated."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from example_ranks import EXAMPLES, asked, example
from torch import distributed as dist

from slackline.elastic import ElasticState

EXAMPLE = EXAMPLES / "train_elastic.py"
STEPS, VICTIM, AT = 33, 1, 12


class Diary:
    """The records that one training process has written."""

    def __init__(self, path: Path) -> None:
        self.pid = int(path.stem)
        lines = path.read_text().splitlines()
        self.steps: list[tuple[int, int]] = []
        """Each step with the number of ranks that took it."""
        self.starts: list[int] = []
        self.losses: list[float] = []
        self.rank, ranks, self.parameters = -1, 0, ""
        for words in map(str.split, lines):
            if words[0] == "ranks":
                ranks, self.rank = int(words[1]), int(words[3])
                self.starts.append(int(words[5]))
            elif words[0] == "step":
                self.steps.append((int(words[1]), ranks))
                self.losses.append(float(words[3]))
            else:
                self.parameters = words[1]


def diaries(folder: Path) -> list[Diary]:
    return [Diary(path) for path in folder.glob("*.log") if path.read_text().endswith("\n")]


@contextmanager
def murder(folder: Path) -> Iterator[None]:
    """Kill rank VICTIM once it has taken step number AT."""
    over = threading.Event()

    def lie_in_wait() -> None:
        while not over.wait(0.002):
            for diary in diaries(folder):
                if diary.rank == VICTIM and (AT, 4) in diary.steps:
                    os.kill(diary.pid, signal.SIGKILL)
                    return

    killer = threading.Thread(target=lie_in_wait)
    killer.start()
    yield
    over.set()
    killer.join()


def check(found: list[Diary], ranks_after: int) -> list[Diary]:
    """Check that every step was taken once, and return the records of the surviving processes."""
    through = [diary for diary in found if diary.parameters]
    assert len(through) == ranks_after
    (resumed,) = {diary.starts[-1] for diary in through}
    assert resumed >= AT - 1
    for diary in found:
        numbers = [step for step, _ in diary.steps]
        assert numbers == sorted(set(numbers)), "nothing is taken twice"
    before = {step for diary in found for step, ranks in diary.steps if step <= resumed}
    assert before == set(range(1, resumed + 1)), "nothing is lost"
    for diary in through:
        after = [(step, ranks_after) for step in range(resumed + 1, STEPS + 1)]
        assert [entry for entry in diary.steps if entry[0] > resumed] == after
        assert sum(diary.losses[-5:]) < sum(found[0].losses[:5])
    assert len({diary.parameters for diary in through}) == 1
    return through


def settings(store: dist.TCPStore, *arguments: object) -> dict[str, str]:
    return asked(store, EXAMPLE.name, *arguments, "--steps", STEPS)


def example_with_a_death(rank: int, size: int, path: str) -> tuple[str, str]:
    """Run the example, and kill rank VICTIM after it has taken step AT and begun the next one."""
    if rank == VICTIM:
        commit = ElasticState.commit

        def die_at(state: ElasticState) -> None:
            if state.step == AT:
                os.kill(os.getpid(), signal.SIGKILL)
            commit(state)

        ElasticState.commit = die_at  # type: ignore[method-assign]
    return example(rank, size, path)


def test_three_ranks_go_on_in_their_processes(job, store, tmp_path):
    diary = tmp_path / "diary"
    diary.mkdir()
    environment = settings(store, tmp_path / "saved", "--diary", diary, "--shrink")
    job(4, example_with_a_death, bare=True, environment=environment, dying=(VICTIM,))
    found = check(diaries(diary), 3)
    assert len(found) == 3
    assert not (tmp_path / "saved").exists(), "nobody had to read or write anything"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_torchrun_starts_again_after_the_last_step_and_comes_to_the_same_bits(job, store, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    broken.mkdir()
    environment = settings(store, tmp_path / "none", "--diary", whole)
    job(4, example, bare=True, environment=environment)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=4", "--max-restarts=3", str(EXAMPLE), str(tmp_path / "saved")]
    with murder(broken):
        subprocess.run(
            [*command, "--diary", broken, "--steps", str(STEPS)],
            check=True,
            timeout=170,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    found = check(diaries(broken), 4)
    assert {diary.parameters for diary in found} == {diaries(whole)[0].parameters}
    assert [path.name for path in (tmp_path / "saved").iterdir()] == [
        f"step-{found[0].starts[0]:012}.pt"
    ]
