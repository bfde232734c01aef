"""All_reduces on hosts with two NICs, one of which goes down in the middle.

The simulator gets one further figure, found from a failure on two hosts that is not judged: the
time after which frames that were on the failed path are sent again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

from _harness.ranks import LabRanks
from cases import BURST_BYTES, HOSTS, ITEM_BYTES, RATE_BPS, Cell
from measure import ENVIRONMENT
from performer import Performer
from predictions import Calibration, fabric, least

from slackline.faults import parse_all
from slackline.lab import Lab, LabOptions
from slackline.plan.collective import Collective, generate
from slackline.sim import Operation, simulate_collective

NIC_RATE_BPS = RATE_BPS // 2
"""The rate of each of a host's two NICs."""
CUT_HOST, CUT_NIC = 1, 1
LEAD_MS = 400
"""The time from the request to the start of an all_reduce, within which all ranks get ready."""
MOST_RESEND_PS = 10**13


@dataclass(frozen=True, kw_only=True)
class Cut:
    """An all_reduce in which a NIC of a host goes down."""

    cell: Cell
    cut_ms: int
    """The time of the failure, from the start of the all_reduce."""

    def __str__(self) -> str:
        return f"{self.cell}, NIC {CUT_HOST}.{CUT_NIC} down at {self.cut_ms} ms"


FITTED = Cut(cell=Cell(hosts=2, plan="ring", nbytes=8 << 20), cut_ms=320)
"""The failure from which the time until frames are sent again is found. The all_reduce lasts 355 ms
without the failure: after an earlier failure the other NIC has other frames to send until the lost
ones are sent again, and the time of the all_reduce would not show when that is."""
CUTS = tuple(
    Cut(cell=Cell(hosts=HOSTS, plan="ring", nbytes=nbytes), cut_ms=cut_ms)
    for nbytes, cut_ms in ((8 << 20, 150), (8 << 20, 350), (16 << 20, 300))
)
QUICK_CUTS = CUTS[:1]


def lab_options() -> LabOptions:
    """Return the lab, whose hosts have two NICs with half of the usual rate each."""
    return LabOptions(hosts=HOSTS, nics=2, rate=NIC_RATE_BPS, burst=BURST_BYTES)


def measured(lab: Lab, cuts: Iterable[Cut], lives: int) -> dict[Cut, list[list[float]]]:
    """Return the seconds of each all_reduce, from the common start to the last rank's end.

    Each life has new processes and one failure.
    """
    return {cut: [[_measure(lab, cut)] for _ in range(lives)] for cut in cuts}


def _measure(lab: Lab, cut: Cut) -> float:
    environment = {
        **ENVIRONMENT,
        "SLACKLINE_INTERFACE": "eth0,eth1",
        "SLACKLINE_PLAN": cut.cell.plan,
    }
    fault = f"nic {CUT_HOST}.{CUT_NIC} down from {LEAD_MS + cut.cut_ms}ms"
    with LabRanks(Performer, lab, environment=environment, hosts=cut.cell.hosts) as ranks:
        ranks.ask("warm", cut.cell.nbytes)
        with lab.inject(parse_all(fault), started=False) as injection:
            start_ns = time.monotonic_ns() + LEAD_MS * 1_000_000
            injection.start()
            ended_ns = ranks.ask("reduce_at", start_ns)
        ranks.ask("close")
    return (max(ended_ns) - start_ns) / 1e9


def simulated_ps(cut: Cut, calibration: Calibration, resend_ps: int) -> int:
    """Return the simulated time of the all_reduce.

    A NIC carries the same share of its rate as the calibrated NIC does.
    """
    cell = cut.cell
    whole = fabric(cell.hosts, calibration)
    rate_bps = calibration.rate_bps * NIC_RATE_BPS // RATE_BPS
    host = replace(whole.hosts[0], rates_bps=(rate_bps,) * 2)
    plan = generate(Collective.ALL_REDUCE, cell.plan, cell.hosts)
    return simulate_collective(
        Operation(plan=plan, count=cell.nbytes // ITEM_BYTES, itemsize=ITEM_BYTES),
        replace(whole, hosts=(host,) * cell.hosts, resend_ps=resend_ps),
        faults=parse_all(f"nic {CUT_HOST}.{CUT_NIC} down from {cut.cut_ms}ms"),
    ).duration_ps


def found_resend_ps(lives_s: Iterable[Iterable[float]], calibration: Calibration) -> int:
    """Return the time until frames are sent again with which `FITTED` is simulated closest.

    The result is 0 if the measured time is that of a simulation without a wait, or shorter.
    """
    wanted_ps = statistics.median(chain.from_iterable(lives_s)) * 1e12
    return least(
        0, MOST_RESEND_PS, lambda value: simulated_ps(FITTED, calibration, value) >= wanted_ps
    )


def resend_note(resend_ps: int) -> str:
    """Return a sentence about the found time until frames are sent again."""
    if not resend_ps:
        return "nic-cut: the failure on two hosts shows no time until frames are sent again"
    return f"nic-cut: frames are sent again after {resend_ps / 1e9:.1f} ms"
