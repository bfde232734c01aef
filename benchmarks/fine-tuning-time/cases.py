"""The networks and the contestants."""

from __future__ import annotations

from dataclasses import dataclass

HOSTS = 2
LOSS = 2.5
"""The loss to reach, in nats a byte: the mean of CURVE_MEAN steps."""
CURVE_MEAN = 10
CURVE_STEPS = 160
EQUAL_STEPS = 12
"""The steps for which gloo, slackline and slackline.overlap must have the same losses."""
RATES = {"lab-200m": 200, "lab-1g": 1000}
"""The rate of each NIC in Mbit/s, by the name of the part."""
PARTS = ("curve", *RATES)


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A way to train: the backend, the wrapper, and the network's fault."""

    name: str
    backend: str
    method: str = "ddp"
    nics: int = 1
    fault: str = ""
    """A fault of the network since the start; `{tenth}` stands for a tenth of a NIC's rate."""
    cut: bool = False
    """Whether one of the NICs is cut in the middle of the run."""


GLOO = Contestant(name="DDP over gloo", backend="gloo")
DDP = Contestant(name="DDP over slackline", backend="slackline")
OVERLAP = Contestant(name="overlap", backend="slackline", method="overlap")
BF16 = Contestant(name="overlap, bf16 on the wire", backend="slackline", method="bf16")
TWO = Contestant(name="DDP over slackline, two NICs", backend="slackline", nics=2)
CUT = Contestant(
    name="DDP over slackline, two NICs, one is cut", backend="slackline", nics=2, cut=True
)
TENTH = Contestant(
    name="DDP over slackline, two NICs, one at a tenth of its rate",
    backend="slackline",
    nics=2,
    fault="nic 1.0 rate {tenth}Mbit",
)
GLOO_TENTH = Contestant(
    name="DDP over gloo, two NICs, its own at a tenth of its rate",
    backend="gloo",
    nics=2,
    fault="nic 1.0 rate {tenth}Mbit",
)
CONTESTANTS = (GLOO, DDP, OVERLAP, BF16, TWO, CUT, TENTH, GLOO_TENTH)
QUICK_CONTESTANTS = (GLOO, DDP)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The size of the model, and the numbers of steps and rounds."""

    size: str
    steps: int
    warm_up: int
    rounds: int


FULL = Lengths(size="full", steps=7, warm_up=2, rounds=2)
QUICK = Lengths(size="quick", steps=6, warm_up=2, rounds=1)
CUT_STEPS = 12
CUT_AFTER_S = {200: 20, 1000: 11}
"""The time of the cut after the opening of the group, by the rate of a NIC."""
TENTH_STEPS = 4
"""The steps of a run with a NIC at a tenth of its rate: over that NIC alone one takes a minute."""
