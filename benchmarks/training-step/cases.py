"""The networks, models and contestants that are measured, and the length of each turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from _harness.network import Network
from _harness.summary import percentile

SLACKLINE, GLOO = "slackline", "gloo"
BACKENDS = (SLACKLINE, GLOO)

DIGITS, GPT, LAYERS, TENSORS = "digits", "gpt", "layers", "tensors"
VIT, RESNET, TINY, CLIPPING = "vit", "resnet", "tiny", "clipping"
"""The names of the models; models.py builds them."""
SHARDED = (DIGITS, GPT, LAYERS, TENSORS)
"""The models that FSDP2 trains too."""
MODELS = (*SHARDED, VIT, RESNET, TINY, CLIPPING)

ONE_HOST_2 = Network(name="host-2", title="1 host, 2 ranks", ranks=2)
ONE_HOST_4 = Network(name="host-4", title="1 host, 4 ranks", ranks=4)
LAB_1G = Network(name="lab-1g", title="2 hosts, 1 Gbit/s", ranks=2, rate_bps=10**9)
LAB_1G_4 = Network(name="lab-1g-4", title="4 hosts, 1 Gbit/s", ranks=4, rate_bps=10**9)
LAB_200M = Network(name="lab-200m", title="4 hosts, 200 Mbit/s", ranks=4, rate_bps=200 * 10**6)
MODELS_ON = {
    ONE_HOST_2: MODELS,
    ONE_HOST_4: MODELS,
    LAB_1G: (*SHARDED, VIT),
    LAB_1G_4: (GPT, LAYERS),
    LAB_200M: (*SHARDED, RESNET),
}
"""The models that are trained on each network."""
NETWORKS = tuple(MODELS_ON)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A model that is trained on a network."""

    network: Network
    model: str

    @property
    def name(self) -> str:
        """The name that `--part` takes, for example "host-2/gpt"."""
        return f"{self.network.name}/{self.model}"


CELLS = tuple(
    Cell(network=network, model=model) for network, models in MODELS_ON.items() for model in models
)
QUICK_CELLS = (Cell(network=ONE_HOST_2, model=GPT),)
PARTS = (*(network.name for network in NETWORKS), *(cell.name for cell in CELLS))


def cells_of(part: str | None, *, quick: bool) -> tuple[Cell, ...]:
    """Return the cells (a model on a network) to measure: those that `part` names.

    `part` is the name of a network or of a cell. If it is None, all cells are returned, or with
    `quick` one cell of one host.
    """
    if part is None:
        return QUICK_CELLS if quick else CELLS
    return tuple(cell for cell in CELLS if part in (cell.network.name, cell.name))


class Method(StrEnum):
    """The way in which gradients or parameters reach the other ranks."""

    ALONE = "alone"
    PCCO = "PCCO"
    DDP = "DDP"
    FSDP2 = "FSDP2"


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A method of training, with its backend and the settings of DDP."""

    method: Method
    backend: str | None = None
    """The backend of torch.distributed; None if nothing is sent."""
    bucket_mb: int | None = None
    """DDP's `bucket_cap_mb`; None is torch's default: a first bucket of 1 MB, then 25 MB."""
    static_graph: bool = False
    """DDP's `static_graph`: every step computes the same gradients in the same order."""
    batched_copy: bool = False
    """DDP's `batched_grad_copy`: a bucket's gradients are copied by one call, not one by one."""
    group_bytes: int | None = None
    """The most bytes of gradients in one reduction of PCCO; None finds the size by trial."""

    @property
    def has_trial(self) -> bool:
        """Whether a trial in the first steps chooses the groups of gradients."""
        return self.method is Method.PCCO and self.group_bytes is None

    @property
    def name(self) -> str:
        """The name of the contestant, which does not depend on the best settings of DDP."""
        if self.method in (Method.ALONE, Method.PCCO):
            return str(self.method)
        name = f"{self.method} over {self.backend}"
        if self.method is not Method.DDP:
            return name
        return f"{name}, {'default bucket' if self.bucket_mb is None else 'best settings'}"

    @property
    def settings(self) -> str:
        """The settings of DDP that a selection has chosen, empty for other contestants."""
        if self.bucket_mb is None:
            return ""
        static = ", static graph" if self.static_graph else ""
        batched = ", batched copies" if self.batched_copy else ""
        return f"{self.bucket_mb} MB{static}{batched}"


ALONE = Contestant(method=Method.ALONE)
PCCO = Contestant(method=Method.PCCO, backend=SLACKLINE)
DDP_DEFAULT = {backend: Contestant(method=Method.DDP, backend=backend) for backend in BACKENDS}
FSDP2 = {backend: Contestant(method=Method.FSDP2, backend=backend) for backend in BACKENDS}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The variant of a step that a trial of PCCO has chosen."""

    result: str
    """The text of the trial: the chosen variant, and the step time of each variant."""
    group_bytes: int
    """The most bytes of gradients in one reduction; 0 reduces each gradient alone."""
    deferred: bool
    """Whether parameters are updated one by one, during the next forward.

    False stands for one update of all parameters within the optimizer's step.
    """
    parameter_bytes: int
    """The bytes of all parameters."""

    def __str__(self) -> str:
        if self.group_bytes == 0:
            groups = "each gradient alone"
        elif self.group_bytes >= self.parameter_bytes:
            groups = "one group"
        else:
            groups = f"groups of {self.group_bytes >> 10} KiB"
        return groups if self.deferred else f"{groups}, one update"


def contestants(model: str) -> list[Contestant]:
    """Return the contestants whose settings need no selection, apart from PCCO."""
    sharded = FSDP2.values() if model in SHARDED else ()
    return [ALONE, *DDP_DEFAULT.values(), *sharded]


BUCKETS_MB, QUICK_BUCKETS_MB = (1, 2, 5, 10, 25), (1, 25)
"""The bucket sizes of DDP in MB, ascending, among which the best is searched."""


def candidates(backend: str, parameter_bytes: int, *, quick: bool) -> list[Contestant]:
    """Return DDP with each bucket size that makes a difference.

    With a bucket as large as the model a step has a single bucket, and larger sizes change nothing.
    """
    known = QUICK_BUCKETS_MB if quick else BUCKETS_MB
    smaller = [size for size in known if size << 20 < parameter_bytes]
    sizes = known[: len(smaller) + 1]
    return [Contestant(method=Method.DDP, backend=backend, bucket_mb=size) for size in sizes]


def with_settings(best: Contestant, *, batched_copy: bool, few: bool) -> list[Contestant]:
    """Return `best`, which is DDP with its best bucket size, with each further setting of DDP.

    `best` comes first. `batched_copy` says whether this torch's DDP can copy gradients in batches.
    With `few`, either all further settings are used or none.
    """
    several = [(static, batched) for static in (False, True) for batched in (False, True)]
    if few:
        several = [(False, False), (True, batched_copy)]
    return [
        replace(best, static_graph=static, batched_copy=batched)
        for static, batched in several
        if batched_copy or not batched
    ]


def fastest(times: Mapping[Contestant, Sequence[float]]) -> Contestant:
    """Return the contestant with the smallest median time; the first one of several."""
    return min(times, key=lambda contestant: percentile(times[contestant], 50))


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The numbers of steps and rounds that are measured of one model on one network."""

    warm_up: int
    """The number of steps before the clock starts.

    A contestant that follows another one finds idle connections, cold caches, and ranks that are
    not in step yet.
    """
    steps: int
    """The number of timed steps in one turn."""
    selection_rounds: int
    """The number of rounds that choose DDP's settings; none of them enters the comparison."""
    rounds: int
    """The number of rounds in the comparison."""


ROUNDS, BRIEF_ROUNDS, QUICK_ROUNDS = 5, 9, 2
"""The numbers of rounds for long steps, for brief steps, and with --quick.

Brief steps get more rounds, because they vary by a fifth from turn to turn where ranks share cores.
"""
TURN_S, QUICK_TURN_S = 0.5, 0.15
"""The least total time of a turn's steps in seconds; the number of steps has limits of its own."""
WARM_UP_S = 0.5
MOST_STEPS, FEWEST_STEPS = 25, 2
MOST_WARM_UP = 3
SELECTION_ROUNDS = 3
STEADY_S = 0.25
"""The length in seconds above which a step needs only one round to select DDP's settings.

Such a step waits for the wire, whose rate does not change.
"""


def lengths(step_s: float, *, quick: bool) -> Lengths:
    """Return the numbers of steps and rounds for a step of about `step_s` seconds.

    The length of a turn is set in seconds rather than in steps, because a step lasts from 20 ms to
    5 s.
    """
    turn_s = QUICK_TURN_S if quick else TURN_S
    rounds = BRIEF_ROUNDS if step_s <= STEADY_S else ROUNDS
    return Lengths(
        warm_up=min(max(math.ceil(WARM_UP_S / step_s), 1), MOST_WARM_UP),
        steps=min(max(math.ceil(turn_s / step_s), FEWEST_STEPS), MOST_STEPS),
        selection_rounds=1 if quick or step_s > STEADY_S else SELECTION_ROUNDS,
        rounds=QUICK_ROUNDS if quick else rounds,
    )
