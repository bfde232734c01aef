"""The work of one rank: training under a trial that measures every variant in turns for long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place
from cases import DIGITS, GPT, SMALL, WIDE
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

import slackline
from slackline.overlap.exchange import Average
from slackline.overlap.reduction.tuning import _tuning
from slackline.overlap.reduction.tuning._trial import (
    LENGTHS,
    WARM_UP,
    Candidate,
    Outcome,
    Trial,
    Variant,
)

TIMEOUT = timedelta(seconds=100)
BATCH, LENGTH, VOCABULARY = 16, 32, 256

Batch = tuple[Tensor, Tensor]


class Survey(Trial):
    """A trial that takes its turns for a given number of rounds, and keeps all step times."""

    rounds = 1
    latest: Survey | None = None
    """The survey that runs now; the trial of a wrapped model is made inside the wrapper."""

    def __init__(self, candidates: list[Candidate], average: Average, *, first: Variant) -> None:
        self.candidates = candidates
        self.times: list[list[list[int]]] = []
        Survey.latest = self
        super().__init__(candidates, average, first=first)

    def _steps(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate | None, bool]]:
        yield from [(None, False)] * WARM_UP
        for turn in range(self.rounds):
            for candidate in candidates if turn % 2 == 0 else reversed(candidates):
                yield candidate, False
                yield from [(candidate, True)] * LENGTHS.turn
            yield None, False  # the time of the last step is known in this step
            self.times.append([list(each.step_ns) for each in candidates])
            for each in candidates:
                each.step_ns.clear()
        self.outcome = Outcome(variant=candidates[0].variant, times_ns=())


class Block(nn.Module):
    """A block of a GPT: causal attention and a perceptron, each with a shortcut around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.mix(self.first(x)).view(rows, length, 3, 4, width // 4).unbind(2)
        query, key, value = (each.transpose(1, 2) for each in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        y: Tensor = self.down(functional.gelu(self.up(self.second(x))))
        return x + y


def digits() -> tuple[nn.Module, Callable[[int, int], Batch]]:
    """Return a small convolutional network for images of 8 x 8, and its batches."""
    parts: list[nn.Module] = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()]
    for _ in range(8):
        parts += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def batch(rank: int, ranks: int) -> Batch:
        return torch.randn(64 // ranks, 1, 8, 8), torch.randn(64 // ranks, 10)

    return net, batch


def gpt() -> tuple[nn.Module, Callable[[int, int], Batch]]:
    """Return a GPT of 6 blocks of width 256: 76 tensors, 19 MB."""
    net = nn.Sequential(
        nn.Embedding(VOCABULARY, 256), *(Block(256) for _ in range(6)), nn.Linear(256, VOCABULARY)
    )

    def batch(rank: int, ranks: int) -> Batch:
        rows = max(1, 4 // ranks)
        return torch.randint(VOCABULARY, (rows, LENGTH)), torch.randn(rows, LENGTH, VOCABULARY)

    return net, batch


def small() -> tuple[nn.Module, Callable[[int, int], Batch]]:
    """Return a chain of 400 matrices of 1 to 16 KiB."""
    widths = [4 + 60 * (7 * k % 200) // 200 for k in range(200)]
    pairs = [
        nn.Sequential(nn.Linear(64, width, bias=False), nn.Linear(width, 64, bias=False))
        for width in widths
    ]
    return nn.Sequential(*pairs), _vectors(64)


def wide() -> tuple[nn.Module, Callable[[int, int], Batch]]:
    """Return a perceptron of 24 layers of 724 x 724: 48 tensors, 50 MB."""
    layers = [nn.Sequential(nn.Linear(724, 724), nn.ReLU()) for _ in range(24)]
    return nn.Sequential(*layers), _vectors(724)


def _vectors(width: int) -> Callable[[int, int], Batch]:
    def batch(rank: int, ranks: int) -> Batch:
        return torch.randn(BATCH // ranks, width), torch.randn(BATCH // ranks, width)

    return batch


MODELS = {DIGITS: digits, GPT: gpt, SMALL: small, WIDE: wide}


class Performer:
    """A rank that records the step times of all variants."""

    def __init__(self, place: Place) -> None:
        self._place = place
        torch.set_num_threads(1)
        join(place, TIMEOUT)
        # The wrapper has no option for another trial, which only this benchmark needs.
        _tuning.Trial = Survey  # type: ignore[misc]

    def prepare(self, model: str, rounds: int) -> None:
        """Wrap a model, and begin a survey of `rounds` rounds."""
        torch.manual_seed(0)
        net, batch = MODELS[model]()
        self._batches = [batch(self._place.rank, self._place.size) for _ in range(4)]
        optimizer = AdamW(net.parameters(), lr=1e-4, fused=True)
        Survey.rounds, Survey.latest = rounds, None
        self._model = slackline.overlap.DataParallel(net, optimizer)
        self._optimizer = optimizer
        self._steps = 0

    def train(self, seconds: float) -> bool:
        """Train for about `seconds`, as long as on rank 0; return whether the survey has ended."""
        began, ended = time.monotonic(), torch.zeros(1)
        while not ended:
            for _ in range(10):
                inputs, target = self._batches[self._steps % len(self._batches)]
                self._steps += 1
                functional.mse_loss(self._model(inputs), target).backward()
                self._optimizer.step()
                self._optimizer.zero_grad()
            survey = Survey.latest
            over = survey is not None and survey.outcome is not None
            ended.fill_(float(over or time.monotonic() - began > seconds))
            dist.broadcast(ended, 0)
        return over

    def results(self) -> dict[str, object]:
        """End the training; return the variants and the times of all rounds, as JSON has them."""
        survey = Survey.latest
        assert survey is not None
        self._model.close()
        return {
            "variants": [
                [each.variant.group_bytes, each.variant.deferred] for each in survey.candidates
            ],
            "groups": [each.groups for each in survey.candidates],
            "rounds": survey.times,
        }

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()
