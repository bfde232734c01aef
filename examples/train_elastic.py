"""Train on the digits through the loss of ranks: no step is lost, and none is taken twice.

Restart: torchrun starts all ranks again, at the step after the last one that any of them took.

    torchrun --standalone --nproc-per-node=4 --max-restarts=3 examples/train_elastic.py saved/

Shrink: the remaining ranks continue in their own processes. Each rank needs a torchrun agent of its
own, because torchrun ends all ranks of an agent when one of them dies. In four terminals:

    for NODE in 0 1 2 3:
    torchrun --nnodes=4 --nproc-per-node=1 --node-rank=$NODE --master-addr=127.0.0.1 \
        --master-port=29500 examples/train_elastic.py saved/ --shrink

A batch is split over the present ranks, so a step has the same result for any number of ranks that
divides the batch. A batch of 120 suits one to six ranks.
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
from slackline.elastic import ElasticState


class Steps:
    """The training data by step number; a step's data depends on nothing else."""

    def __init__(self, batch: int, seed: int) -> None:
        self._digits = Digits(batch, seed)
        self._epoch = lru_cache(maxsize=1)(self._digits.epoch)

    def share(self, step: int, rank: int, ranks: int) -> Batch:
        """Return one rank's part of the batch of a step, as (images, labels)."""
        epoch, index = divmod(step, self._digits.steps)
        return self._epoch(epoch, rank, ranks)[index]


class Diary:
    """A log of this process's steps, in a file of its own; without a folder nothing is written."""

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
    """Train with the present ranks, from the step that the state has reached to the last step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    diary("ranks", ranks, "rank", rank, "from", state.step)
    if rank == 0:
        print(f"step {state.step} of {last}: going on with {ranks} ranks", flush=True)
    losses = []
    with slackline.overlap.DataParallel(model, optimizer) as parallel:
        while state.step < last:
            images, labels = data.share(state.step, rank, ranks)
            loss = functional.cross_entropy(parallel(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            state.commit()
            losses.append(loss.item())
            diary("step", state.step, "loss", losses[-1])
    if rank == 0 and losses:
        print(f"loss {losses[0]:.4f}, then {losses[-1]:.4f}")


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("saved", type=Path, help="save steps to this folder, and resume from it")
    parser.add_argument(
        "--shrink", action="store_true", help="continue in this process if possible"
    )
    parser.add_argument("--steps", type=int, default=110, help="take this many steps in all (110)")
    parser.add_argument(
        "--batch", type=int, default=120, help="take this many images a step, over all ranks (120)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed the weights and the order of the images (0)"
    )
    parser.add_argument(
        "--diary",
        type=Path,
        help="log each process's steps to a file in this folder (default: none)",
    )
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
