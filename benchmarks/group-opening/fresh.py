"""Groups of processes that have just started: each job imports torch and opens one group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch.distributed as dist
from _harness.report import Row, Scalar, Target
from _harness.rounds import in_turns
from _harness.summary import Summary

TIMEOUT = timedelta(seconds=100)
CONTESTANTS = ("slackline", "gloo")
SIZES = (2, 4, 8, 16, 32, 64)
QUICK_SIZES = SIZES[:-1]
ROUNDS = 3
QUICK_SECONDS = 32.0
"""The time of a quick run's jobs. A size whose jobs would take longer is skipped."""
OVER_GLOO = {4: 1.2, 32: 2.0}
"""The largest allowed ratio of slackline's time to gloo's, by the number of ranks."""
PARTS = ("opening", "all_reduce", "whole", "since exec")
_PROGRAM = Path(__file__).with_name("fresh_rank.py")


class JobError(RuntimeError):
    """The error of a rank that ended before it had answered, or that failed at its end."""


def run_job(backend: str, size: int) -> dict[str, float]:
    """Start a job of `size` processes that open a group; return the seconds of each part.

    All ranks begin at the same time, when each of them has imported torch. A part ends with the
    last rank's part. "processor" is the median of the ranks' processor times. Raises JobError, with
    the ranks' output of errors, if a rank fails.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    # Python keeps the byte code of slackline's modules, as it does for every program.
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryFile("w+") as errors, ExitStack() as stack:
        executed = time.monotonic()
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, _PROGRAM, str(rank), str(size), str(store.port), backend],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                    text=True,
                )
            )
            for rank in range(size)
        ]
        try:
            turns = _turns(ranks)
            for process in ranks:
                process.communicate()  # The end of its input ends a rank.
                if process.returncode:
                    raise JobError(f"a rank ended with status {process.returncode}")
        except JobError as error:
            errors.seek(0)
            raise JobError(f"{backend}: {error}\n{errors.read()[-4000:]}") from error
        finally:
            for process in ranks:
                process.kill()
    begun = min(turn["begun"] for turn in turns)
    opened, reduced = (max(turn[name] for turn in turns) for name in ("opened", "reduced"))
    times = (opened - begun, reduced - opened, reduced - begun, reduced - executed)
    processor = median(turn["processor_s"] for turn in turns)
    return {**dict(zip(PARTS, times, strict=True)), "processor": processor}


def _turns(ranks: Sequence[subprocess.Popen[str]]) -> list[dict[str, float]]:
    """Have all ranks begin once all are ready; return what each of them has measured."""
    for rank, process in enumerate(ranks):
        _line(rank, process)
    for process in ranks:
        assert process.stdin is not None
        process.stdin.write("begin\n")
        process.stdin.flush()
    return [json.loads(_line(rank, process)) for rank, process in enumerate(ranks)]


def _line(rank: int, process: subprocess.Popen[str]) -> str:
    """Return the next line that a rank writes; block until there is one."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise JobError(f"rank {rank} has ended before its answer")
    return line


@dataclass
class FreshSample:
    """The jobs of one contestant with one number of ranks."""

    jobs: list[dict[str, float]] = field(default_factory=list)
    """The seconds of each part, of each job."""

    def summary(self, part: str) -> Summary:
        """Return the times of one part over all jobs."""
        return Summary.of_seconds([each[part] for each in self.jobs])

    def over(self, other: FreshSample, part: str = "whole") -> float:
        """Return the median, over the rounds, of the ratio of a part's time to `other`'s."""
        pairs = zip(self.jobs, other.jobs, strict=True)
        return round(median(ours[part] / theirs[part] for ours, theirs in pairs), 2)


Samples = dict[str, FreshSample]


def measure_fresh(*, quick: bool) -> dict[int, Samples | None]:
    """Measure jobs of each contestant and size, in turns; return samples by size and name.

    A quick run measures a size once, and None stands for a size for which it has no time.
    """
    started = time.monotonic()
    run_job("slackline", 2)  # Python's byte code and the files of torch are in place from now on.
    rank_s = 0.0
    found: dict[int, Samples | None] = {}
    for size in QUICK_SIZES if quick else SIZES:
        begun = time.monotonic()
        left_s = QUICK_SECONDS - (begun - started)
        if quick and rank_s * size * len(CONTESTANTS) > left_s:
            found[size] = None
            continue
        samples = {name: FreshSample() for name in CONTESTANTS}
        for number in range(1 if quick else ROUNDS):
            for name in in_turns(CONTESTANTS, number + size // 2):
                samples[name].jobs.append(run_job(name, size))
        rounds = len(samples["gloo"].jobs)
        rank_s = (time.monotonic() - begun) / (rounds * size * len(CONTESTANTS))
        found[size] = samples
    return found


def fresh_rows(found: dict[int, Samples | None]) -> list[Row]:
    """Return the report's rows of jobs that have just started."""
    rows = []
    for size, samples in found.items():
        for name in CONTESTANTS:
            labels: dict[str, Scalar] = {"processes": "fresh", "ranks": size, "contestant": name}
            if samples is None:
                rows.append(Row(labels=labels, skipped="no time for these jobs in a quick run"))
                continue
            rows += [
                Row(labels={**labels, "part": part}, values=samples[name].summary(part).values())
                for part in (*PARTS, "processor")
            ]
    return rows


def fresh_targets(found: dict[int, Samples | None]) -> list[Target]:
    """Return the targets of jobs that have just started: slackline's time over gloo's."""
    return [
        Target(
            name=f"{size} fresh ranks: slackline over gloo",
            target=bound,
            measured=None if (samples := found[size]) is None else over_gloo(samples),
            bound="at most",
        )
        for size, bound in OVER_GLOO.items()
    ]


def over_gloo(samples: Samples) -> float:
    """Return slackline's whole time divided by gloo's in the same round."""
    return samples["slackline"].over(samples["gloo"])


def fresh_cells(found: dict[int, Samples | None]) -> list[Sequence[str]]:
    """Return the rows of the table of jobs that have just started; the largest ratio is first."""
    cells: list[tuple[float, list[str]]] = []
    for size, samples in found.items():
        if samples is None:
            continue
        for name, sample in samples.items():
            ratio = over_gloo(samples)
            times = [f"{sample.summary(part).median_us / 1000:.1f} ms" for part in PARTS]
            processor = f"{sample.summary('processor').median_us / 1000:.1f} ms"
            since = sample.over(samples["gloo"], "since exec")
            over = [f"{ratio:.2f}x", f"{since:.2f}x"] if name != "gloo" else ["", ""]
            cells.append((ratio, [str(size), name, *times, processor, *over]))
    return [row for _, row in sorted(cells, key=lambda cell: -cell[0])]
