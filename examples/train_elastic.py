"""Train on the digits through the loss of ranks: no step is lost, and none is taken twice.

Restart: torchrun starts all ranks again, at the step after the last one that any of them took.

    torchrun --standalone --nproc-per-node=4 --max-restarts=3 examples/train_elastic.py saved/

Shrink: the ranks that are left go on in their own processes. Each rank needs an agent of its own,
because torchrun ends all ranks of an agent when one of them dies. In four terminals:

    for NODE in 0 1 2 3:
    torchrun --nnodes=4 --nproc-per-node=1 --node-rank=$NODE --master-addr=127.0.0.1 \
        --master-port=29500 examples/train_elastic.py saved/ --shrink

A batch is dealt out to whatever ranks there are, so that a step is the same step for any number of
them that divides it; 120 suits one to six.
"""

import argparse
import os
from functools import lru_cache, partial
from pathlib import Path

from torch import distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from train_digits import TIMEOUT, Batch, Digits, digest, resnet

import slackline
from slackline.backend import ElasticState


class Steps:
    """The digits by the number of the step: what to train on depends on nothing else."""

    def __init__(self, batch: int, seed: int) -> None:
        self._digits = Digits(batch, seed)
        self._epoch = lru_cache(maxsize=1)(self._digits.epoch)

    def share(self, step: int, rank: int, ranks: int) -> Batch:
        """This rank's part of the step's batch."""
        epoch, index = divmod(step, self._digits.steps)
        return self._epoch(epoch, rank, ranks)[index]


class Diary:
    """What this process has done, line by line, in a file of its own; nothing without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / f"{os.getpid()}.log").open("w", buffering=1)

    def __call__(self, *words: object) -> None:
        if self._file is not None:
            print(*words, file=self._file)


def train(
    state: ElasticState,
    model: nn.Module,
    optimizer: Optimizer,
    data: Steps,
    last: int,
    diary: Diary,
) -> None:
    """From the step that the state has reached to the last one, with the ranks that there are."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    diary("ranks", ranks, "rank", rank, "from", state.step)
    if rank == 0:
        print(f"step {state.step} of {last}: going on with {ranks} ranks", flush=True)
    with slackline.overlap.DataParallel(model, optimizer) as parallel:
        while state.step < last:
            images, labels = data.share(state.step, rank, ranks)
            loss = functional.cross_entropy(parallel(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            state.commit()
            diary("step", state.step, "loss", loss.item())


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("saved", type=Path, help="where steps are saved and looked for")
    parser.add_argument("--shrink", action="store_true", help="go on in this process if possible")
    parser.add_argument("--steps", type=int, default=110, help="how many there are in all")
    parser.add_argument("--batch", type=int, default=120, help="images a step, over all ranks")
    parser.add_argument("--seed", type=int, default=0, help="weights and order of the images")
    parser.add_argument("--diary", type=Path, help="folder for a file of each process's steps")
    return parser.parse_args()


def main() -> None:
    given = options()
    diary = Diary(given.diary)
    dist.init_process_group("slackline", timeout=TIMEOUT)
    model = resnet(given.seed)
    optimizer = AdamW(model.parameters(), lr=2e-3)
    state = ElasticState(model=model, optimizer=optimizer)
    state.load(given.saved)
    body = partial(
        train, state, model, optimizer, Steps(given.batch, given.seed), given.steps, diary
    )
    with state.saving(given.saved):
        if given.shrink:
            state.run(body)
        else:
            state.sync()
            body()
    found = digest(model)
    diary("parameters", found)
    if dist.get_rank() == 0:
        print(f"step {state.step} of {given.steps}: parameters {found}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
