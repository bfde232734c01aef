"""Train a small residual network on scikit-learn's handwritten digits, data-parallel.

    slackline run --ranks 4 examples/train_digits.py                   PCCO over slackline
    slackline run --ranks 4 examples/train_digits.py --compare slackline gloo    and DDP beside it
    slackline run --ranks 4 examples/train_digits.py --backend gloo --method ddp

PCCO is the method of slackline.overlap: gradients are reduced during the backward pass, and the
next forward pass waits only for the parameters that it needs. DDP is torch's
DistributedDataParallel.

The trained network does not depend on the number of ranks. The images of a batch are split evenly,
and the network normalises with GroupNorm, whose statistics come from one image. BatchNorm's
statistics come from a rank's share of the batch, so with it four ranks would train a different
network than one.

Rounds of one epoch take turns: a round of each contestant, then a round of the same network that
trains alone, without communication. Turns are needed because the load of a shared machine changes.
All ranks begin a round together. The first rounds only warm up: in them PCCO finds by trial how
many gradients are best reduced together. With --compare and without --epochs, the rounds go on
until each ratio of step times is known to 3 %, or for 45 rounds. The figures are:

    step      time of a round divided by its steps, at the slowest rank
    exposed   step minus the same turn's step without communication: the cost of communication
    blocked   time that rank 0's training thread waited. For DDP this is the time from the last
              gradient of the rank's own backward pass to the end of `backward`; PCCO counts its
              own waits
"""

import argparse
import hashlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

import slackline

TIMEOUT = timedelta(minutes=1)
WARM_UP = 4
"""The rounds that are not timed, and more while a trial lasts; fewer if less than two timed rounds
would be left."""
EPOCHS, MOST_EPOCHS = 15, 45
KNOWN = 0.03
"""The distance of a ratio's bounds from the ratio, as a part of it, below which it is known."""
METHODS = ("pcco", "ddp")
BACKENDS = ("slackline", "gloo")

Batch = tuple[Tensor, Tensor]


class Block(nn.Module):
    """A residual block: two 3x3 convolutions with a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet(seed: int) -> nn.Module:
    """Return a residual network for 8x8 images in ten classes; the seed determines its weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        Block(32, 32, stride=1),
        Block(32, 64, stride=2),
        Block(64, 64, stride=1),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 2 * 2, 10),
    )


class Digits:
    """The data set of 1,797 images; a fifth is kept for the test, the same for every seed."""

    def __init__(self, batch: int, seed: int) -> None:
        images, labels = load_digits(return_X_y=True)
        parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
        x, test_x, y, test_y = (torch.tensor(part) for part in parts)
        self.x, self.test_x = (part.float().div(16).view(-1, 1, 8, 8) for part in (x, test_x))
        self.y, self.test_y = y, test_y
        self.batch, self.seed, self.steps = batch, seed, len(y) // batch

    def epoch(self, number: int, rank: int, ranks: int) -> list[Batch]:
        """Return one rank's share of every batch of an epoch, as (images, labels).

        The order of the images depends on the seed and the epoch alone.
        """
        generator = torch.Generator().manual_seed(self.seed * 10_000 + number)
        order = torch.randperm(len(self.y), generator=generator)
        batches = order[: self.steps * self.batch].view(self.steps, ranks, -1)[:, rank]
        return [(self.x[chosen], self.y[chosen]) for chosen in batches]

    def accuracy(self, model: nn.Module) -> float:
        with torch.no_grad():
            hits: Tensor = model(self.test_x).argmax(1) == self.test_y
        return hits.double().mean().item()


def digest(model: nn.Module) -> str:
    """Return a hash of all parameters, which is equal exactly if all bits are equal."""
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]


def pcco(model: nn.Module, optimizer: Optimizer, group: object) -> nn.Module:
    """Wrap a model for data-parallel training by PCCO (slackline.overlap), in one line."""
    return slackline.overlap.DataParallel(model, optimizer, process_group=group)


def ddp(model: nn.Module, optimizer: Optimizer, group: object) -> nn.Module:
    """Wrap a model for data-parallel training by torch's own DDP, in one line."""
    return DistributedDataParallel(model, process_group=group)


class LastGradient:
    """A gradient hook that records the time of the last gradient."""

    time_s = 0.0

    def __call__(self, parameter: Tensor) -> None:
        self.time_s = time.perf_counter()


class Contestant:
    """A network in training, with the times of its rounds."""

    def __init__(self, name: str, seed: int, wrap: Callable[..., nn.Module], group: object) -> None:
        self.name = name
        self.plain = resnet(seed)
        self.optimizer = AdamW(self.plain.parameters(), lr=2e-3, fused=True)
        self.model = wrap(self.plain, self.optimizer, group)
        self.losses: list[Tensor] = []
        self.step_s: list[float] = []
        self.blocked_s: list[float] = []
        self.trial_rounds = 0
        """The rounds in which a trial was still running."""
        self.last_gradient = LastGradient()
        for parameter in self.plain.parameters():
            parameter.register_post_accumulate_grad_hook(self.last_gradient)

    def round(self, batches: list[Batch]) -> None:
        """Train on the batches, and record the time of a step and the time spent waiting."""
        counted_s = self._counted_s()
        self.trial_rounds += self._tries()
        waited_s = 0.0
        distributed.barrier()
        start_s = time.perf_counter()
        for images, labels in batches:
            loss = functional.cross_entropy(self.model(images), labels)
            loss.backward()
            waited_s += time.perf_counter() - self.last_gradient.time_s
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.detach())
        self._finish()
        self.step_s.append((time.perf_counter() - start_s) / len(batches))
        blocked_s = waited_s if counted_s is None else (self._counted_s() or 0.0) - counted_s
        self.blocked_s.append(blocked_s / len(batches))

    def digest(self) -> str:
        return digest(self.model)

    def _finish(self) -> None:
        if isinstance(self.model, slackline.overlap.DataParallel):
            self.model.synchronize()

    def _tries(self) -> bool:
        pcco = isinstance(self.model, slackline.overlap.DataParallel)
        return pcco and not self.model.trial_result

    def _counted_s(self) -> float | None:
        if isinstance(self.model, slackline.overlap.DataParallel):
            return self.model.run_summary().exposed_ns / 1e9
        return None


def quantiles_ms(seconds: list[float]) -> dict[str, float]:
    """Return the median, the 10th and the 90th percentile of durations, in milliseconds."""
    milliseconds = [1e3 * value for value in seconds]
    tenths = statistics.quantiles(milliseconds, n=10, method="inclusive")
    return {"median": statistics.median(milliseconds), "p10": tenths[0], "p90": tenths[-1]}


def timed(per_round: list[float], warm_up: int) -> list[float]:
    """Return the values of the timed rounds, without those that warm up."""
    return per_round[min(warm_up, len(per_round) - 2) :]


def slowest(step_s: list[float], warm_up: int) -> list[float]:
    """Return each timed round's time of a step at the slowest rank, in seconds.

    All ranks call this together.
    """
    by_rank: list[list[float]] = [[] for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(by_rank, step_s)
    return timed([max(times) for times in zip(*by_rank, strict=True)], warm_up)


def interval(values: list[float]) -> tuple[float, float]:
    """Return two of the values between which their median lies with a probability of 95 %.

    A value is as likely above the median as below it, so the number of values below it has a
    binomial distribution.
    """
    count, below, tail = len(values), 0, 0.0
    while (tail := tail + math.comb(count, below) / 2**count) <= 0.025:
        below += 1
    ranked = sorted(values)
    return ranked[max(below - 1, 0)], ranked[-max(below, 1)]


def ratio(first_s: list[float], other_s: list[float]) -> dict[str, float]:
    """Return how many times as long another contestant's step takes as the first one's.

    The two took turns, so the ratio is the median of the rounds' ratios.
    """
    ratios = [other / first for first, other in zip(first_s, other_s, strict=True)]
    low, high = interval(ratios)
    return {"median": statistics.median(ratios), "low": low, "high": high}


def warm_up_of(contestants: list[Contestant]) -> int:
    """Return the number of rounds that are not timed, the same on every rank."""
    return max(WARM_UP, *(each.trial_rounds for each in contestants))


def known(contestants: list[Contestant]) -> bool:
    """Return whether the ratios of all step times are known; all ranks call this together."""
    warm_up = warm_up_of(contestants)
    first_s, *others_s = (slowest(each.step_s, warm_up) for each in contestants)
    return all(
        found["high"] - found["median"] <= KNOWN * found["median"]
        and found["median"] - found["low"] <= KNOWN * found["median"]
        for found in (ratio(first_s, other_s) for other_s in others_s)
    )


def measure(
    contestant: Contestant, first_s: list[float], alone_s: list[float], digits: Digits, warm_up: int
) -> dict[str, object]:
    """Return a contestant's figures for the table and the JSON; all ranks call this together."""
    digests: list[str] = [""] * distributed.get_world_size()
    distributed.all_gather_object(digests, contestant.digest())
    if len(set(digests)) > 1:
        raise SystemExit(f"{contestant.name}: the ranks' parameters differ: {digests}")
    step_s = slowest(contestant.step_s, warm_up)
    exposed_s = [step - alone for step, alone in zip(step_s, alone_s, strict=True)]
    return {
        "name": contestant.name,
        "accuracy": digits.accuracy(contestant.plain),
        "parameters": digests[0],
        "step_ms": quantiles_ms(step_s),
        "exposed_ms": quantiles_ms(exposed_s),
        "blocked_ms": quantiles_ms(timed(contestant.blocked_s, warm_up)),
        "ratio": ratio(first_s, step_s),
    }


def ratios(results: list[dict]) -> str:
    """Return a sentence that compares the first contestant's step time with the others'."""
    first, *others = results
    told = []
    for each in others:
        found = each["ratio"]
        bounds = f"{found['low']:.2f} to {found['high']:.2f}"
        equal = ": equal within the noise" if found["low"] <= 1 <= found["high"] else ""
        told.append(f"{found['median']:.2f}x as fast as {each['name']} ({bounds}{equal})")
    return f"{first['name']} takes a step {', '.join(told)}"


def show(results: list[dict], alone: dict[str, float], groups: str) -> None:
    """Print the contestants side by side, how they compare, and the groups found by trial."""

    def row(label: str, *cells: str) -> None:
        print(f"{label:>14}" + "".join(f"{cell:>26}" for cell in cells))

    def spread(value: dict[str, float]) -> str:
        return f"{value['median']:.2f} [{value['p10']:.2f}, {value['p90']:.2f}]"

    row("", *(result["name"] for result in results))
    row("accuracy", *(f"{result['accuracy']:.2%}" for result in results))
    for key, label in (("step_ms", "step"), ("exposed_ms", "exposed"), ("blocked_ms", "blocked")):
        row(f"{label} (ms)", *(spread(result[key]) for result in results))
    print(f"{'alone (ms)':>14}{spread(alone):>26}  without communication")
    print("median [p10, p90] over rounds; exposed: step less alone; blocked: stood still, rank 0")
    if len(results) > 1:
        print(ratios(results))
        print("in brackets: bounds of the median ratio, right with a probability of 95 %")
    if groups:
        print(f"found by trial, gradients reduced together: {groups}")


def options() -> argparse.Namespace:
    """Parse the command line; a mistake exits with code 2 before any rank waits for another."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--backend", choices=BACKENDS, default="slackline", help="communicate by this (slackline)"
    )
    parser.add_argument(
        "--method", choices=METHODS, default="pcco", help="train in parallel by this method (pcco)"
    )
    parser.add_argument(
        "--compare",
        choices=BACKENDS,
        nargs="+",
        default=[],
        help="also train by DDP over these, in turns (default: none)",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        help="train for this many rounds, at least 3 (15; with --compare as many as are needed)",
    )
    parser.add_argument(
        "--batch", type=int, default=128, help="take this many images a step, over all ranks (128)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed the weights and the order of the images (0)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--bits", action="store_true", help="print rank 0's losses as float.hex()")
    given = parser.parse_args()
    if given.epochs is not None and given.epochs < 3:
        parser.error(f"--epochs must be at least 3, not {given.epochs}: the first warms up")
    if not 1 <= given.batch <= 1437:
        parser.error(f"--batch must be between 1 and 1437, not {given.batch}")
    return given


def main() -> None:
    given = options()
    # The environment gives the number of ranks, so a mistake is found before any rank waits for
    # another.
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if given.batch % ranks:
        raise SystemExit(f"--batch must be a multiple of the {ranks} ranks, not {given.batch}")
    distributed.init_process_group(given.backend, timeout=TIMEOUT)
    rank = distributed.get_rank()
    digits = Digits(given.batch, given.seed)

    wraps = {"pcco": pcco, "ddp": ddp}
    name = f"{given.method.upper()} over {given.backend}"
    contestants = [Contestant(name, given.seed, wraps[given.method], distributed.group.WORLD)]
    for backend in dict.fromkeys(given.compare):
        group = distributed.new_group(backend=backend, timeout=TIMEOUT)
        contestants.append(Contestant(f"DDP over {backend}", given.seed, ddp, group))
    alone = Contestant("alone", given.seed, lambda model, *_: model, None)

    talks = rank == 0 and not given.json
    least = given.epochs or EPOCHS
    most = MOST_EPOCHS if given.epochs is None and given.compare else least
    for epoch in range(most):
        if epoch >= least and known(contestants):
            break
        batches = digits.epoch(epoch, rank, ranks)
        turn = [*contestants, alone]
        for place in range(len(turn)):
            turn[(place + epoch) % len(turn)].round(batches)
        if talks:
            losses = "  ".join(f"{each.name}: loss {each.losses[-1]:.4f}" for each in contestants)
            more = "" if most == least else " or more"
            print(f"epoch {epoch + 1:>2} of {least}{more}  {losses}", flush=True)

    warm_up = warm_up_of(contestants)
    alone_s = slowest(alone.step_s, warm_up)
    first_s = slowest(contestants[0].step_s, warm_up)
    results = [measure(each, first_s, alone_s, digits, warm_up) for each in contestants]
    if rank == 0:
        if given.bits:
            for contestant in contestants:
                for step, loss in enumerate(contestant.losses):
                    print(f"{contestant.name}: step {step} loss {loss.item().hex()}")
                print(f"{contestant.name}: parameters {contestant.digest()}")
        if given.json:
            settings = {"ranks": ranks, **vars(given), "epochs": len(alone.step_s)}
            result = {"settings": settings, "alone_ms": quantiles_ms(alone_s), "results": results}
            json.dump(result, sys.stdout, indent=2)
            print()
        else:
            model = contestants[0].model
            tried = isinstance(model, slackline.overlap.DataParallel)
            show(results, quantiles_ms(alone_s), model.trial_result if tried else "")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
