"""Where a job of `slackline run` plays: this machine, or the hosts of a lab; and what goes wrong.

A stage is open before the job starts and closes after it has ended.
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
"""Without a lab nobody here knows how many NICs the ranks use: the engine does."""


@dataclass(kw_only=True)
class Stage:
    """A place, and the faults that are carried out there."""

    place: Place
    settings: Mapping[str, str] = field(default_factory=dict)
    """For the environment of the ranks."""
    injection: Injection | None = None
    job: Job | None = None

    def watch(self, job: Job) -> None:
        """To be called now and then: the time of the faults begins when all ranks are there."""
        self.job = job
        if self.injection is not None and len(job.processes()) == job.ranks:
            self.injection.start()

    def _processes(self) -> dict[int, list[int]]:
        found = {} if self.job is None else self.job.processes()
        return {rank: [pid] for rank, pid in found.items()}


@contextmanager
def open_stage(options: LabOptions | None, plan: Plan, ranks: int) -> Iterator[Stage]:
    """A lab with these options and a rank on each host, or, without options, this machine.

    In a lab all faults happen to real processes and packets. Without one, faults of ranks do, and
    those of links and NICs are the engine's to inflict on itself.
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
    """What the options of the command ask for; None without --lab, which the others need."""
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
    """What programs that look for their NIC themselves are told."""
    first = lab.interfaces(0)[0]
    return {"GLOO_SOCKET_IFNAME": first, "NCCL_SOCKET_IFNAME": first, "TP_SOCKET_IFNAME": first}
