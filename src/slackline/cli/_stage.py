"""The hosts that a job of `slackline run` runs on, and the injection of faults there.

The hosts are this machine, or the hosts of a lab (a virtual network on this machine). A stage is
opened before the job starts and closed after it has ended.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from slackline.cli._launch import HERE, Job, Place
from slackline.errors import UsageError
from slackline.faults import Plan
from slackline.lab import Executor, Injection, Lab, LabOptions

__all__ = ["Stage", "open_stage"]

_ANY_NICS = 1 << 20
"""The bound on NIC numbers without a lab: only the engine knows how many NICs the ranks use."""


@dataclass(kw_only=True)
class Stage:
    """The place that a job runs at, and the faults that are injected there."""

    place: Place
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables for the environment of the ranks."""
    injection: Injection | None = None
    job: Job | None = None

    def watch(self, job: Job) -> None:
        """Start the clock of the faults once all ranks of `job` are running.

        Call this periodically.
        """
        self.job = job
        if self.injection is not None and len(job.processes()) == job.ranks:
            self.injection.start()

    def _processes(self) -> dict[int, list[int]]:
        found = {} if self.job is None else self.job.processes()
        return {rank: [pid] for rank, pid in found.items()}


@contextmanager
def open_stage(options: LabOptions | None, plan: Plan, ranks: int) -> Iterator[Stage]:
    """Open a lab with these options and a rank on each host or, without options, this machine.

    In a lab all faults act on real processes and packets. Without a lab, faults of ranks act on the
    processes, and the engine simulates faults of links and NICs itself.
    """
    if options is None:
        plan.check(ranks, _ANY_NICS)
        settings = {"SLACKLINE_FAULTS": str(plan.of_network)} if plan else {}
        stage = Stage(place=HERE, settings=settings)
        if not plan.of_ranks:
            yield stage
            return
        executor = Executor()
        try:
            stage.injection = executor.inject(
                plan.of_ranks, processes=stage._processes, started=False
            )
            yield stage
        finally:
            executor.close()
        return
    with Lab(options, faults=plan) as lab:
        address = lab.address(0)
        place = Place(
            agent=tuple(lab.command(0, [])),
            rendezvous=(
                "--nnodes=1",
                "--rdzv-backend=c10d",
                "--rdzv-conf=is_host=true",
                f"--rdzv-endpoint={address}:0",
                f"--rdzv-id={uuid.uuid4()}",
                f"--local-addr={address}",
            ),
            program=("--module", "slackline.lab._enter", lab.name),
        )
        stage = Stage(place=place, settings=_interfaces(lab))
        if plan:
            stage.injection = lab.inject(plan, processes=stage._processes, started=False)
            stage.settings = {**stage.settings, "SLACKLINE_FAULTS": ""}
        yield stage


def lab_options(
    *,
    lab: bool,
    ranks: int | None,
    hosts: int | None,
    nics: int | None,
    rate: int | None,
    switch: str | None,
) -> LabOptions | None:
    """Return the lab that the command's options describe; None without --lab.

    Raises UsageError if an option about a lab is given without --lab, or if options contradict each
    other.
    """
    given = {"hosts": hosts, "nics": nics, "rate": rate, "switch": switch}
    if not lab:
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"--{name} is about a lab: add --lab")
        return None
    if ranks is not None and hosts is not None and ranks != hosts:
        raise UsageError(f"a lab has one rank on each host: --ranks {ranks} is not --hosts {hosts}")
    if hosts is None:
        hosts = 4 if ranks is None else ranks
    return LabOptions(
        hosts=hosts, nics=1 if nics is None else nics, rate=rate, switch=switch or "auto"
    )


def _interfaces(lab: Lab) -> dict[str, str]:
    """Return variables that tell gloo, NCCL and TensorPipe which network interface to use."""
    first = lab.interfaces(0)[0]
    return {"GLOO_SOCKET_IFNAME": first, "NCCL_SOCKET_IFNAME": first, "TP_SOCKET_IFNAME": first}
