"""The hosts that a job of `slackline run` runs on, and the injection of faults there.

The hosts are this machine, alone or with others, or the hosts of a lab (a virtual network on this
machine). A stage is opened before the job starts and closed after it has ended.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from slackline.cli._job._launch import Job, Place, meeting_at, on_this_machine, ranks_named
from slackline.errors import UsageError
from slackline.faults import Plan
from slackline.lab import Executor, Injection, Lab, LabOptions
from slackline.units import parse_rate, show_time

__all__ = ["NO_GROUP_NS", "Stage", "lab_options", "open_stage"]

NO_GROUP_NS = 30 * 10**9
"""The default time, in nanoseconds, from the start of all ranks' processes to the start of the
faults' clock if some rank opens no group of slackline.

A script that opens no such group can thus be run with faults too.
"""

_ANY_NICS = 1 << 20
"""The bound on NIC numbers without a lab: only the engine knows how many NICs the ranks use."""


@dataclass(kw_only=True)
class Stage:
    """The hosts that a job runs on, and the faults that are injected there."""

    place: Place
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables for the environment of the ranks."""
    lab: Lab | None = None
    injection: Injection | None = None
    no_group_ns: int = NO_GROUP_NS
    """The longest time from the start of all ranks' processes to the start of the faults' clock."""
    job: Job | None = None
    _left_out: deque[str] = field(default_factory=deque)
    _running_since_ns: int | None = None

    def left_out(self) -> list[str]:
        """Return a sentence for each fault that was left out since the last call."""
        return [self._left_out.popleft() for _ in range(len(self._left_out))]

    def watch(self, job: Job, opened: Collection[int], now_ns: int) -> str:
        """Start the clock of the faults once all ranks of `job` have opened a group.

        Only the ranks of this machine count; `opened` lists the ranks that have opened a group. If
        some rank has not opened a group `no_group_ns` after all processes have started, the clock
        starts nevertheless, and the method returns a sentence that says so, else an empty text.
        Call it periodically with the time of the monotonic clock.
        """
        self.job = job
        if self.injection is None or self.injection.started:
            return ""
        if len(opened) == len(job.ranks):
            self.injection.start()
            return ""
        if self._running_since_ns is None and len(job.processes()) == len(job.ranks):
            self._running_since_ns = now_ns
        since_ns = self._running_since_ns
        if since_ns is None or now_ns - since_ns < self.no_group_ns:
            return ""
        self.injection.start()
        missing = sorted(set(job.ranks) - set(opened))
        return (
            f"the faults count from now: {ranks_named(missing)} opened no group of slackline in "
            f"the {show_time(self.no_group_ns)} since the processes have started"
        )

    def unused(self) -> str:
        """Return a sentence if the job ended before the clock of its faults started, else ""."""
        if (
            self.injection is None
            or self.injection.started
            or self.injection.plan.next_change(0) is None
        ):
            return ""
        return "the job ended before its ranks had opened a group: no fault with a time occurred"

    def _processes(self) -> dict[int, list[int]]:
        found = {} if self.job is None else self.job.processes()
        return {rank: [pid] for rank, pid in found.items()}


@contextmanager
def open_stage(
    options: LabOptions | None,
    plan: Plan,
    ranks: int,
    place: Place | None = None,
    *,
    no_group_ns: int = NO_GROUP_NS,
    more_hosts: int = 0,
) -> Iterator[Stage]:
    """Open a lab with the given options and a rank on each host; without options, use `place`, or
    this machine if there is none.

    The faults' clock starts when all ranks have opened a group of slackline, but at most
    `no_group_ns` nanoseconds after all of their processes have started.

    In a lab all faults act on real processes and packets. Without a lab, faults of ranks act on the
    processes of this machine, and the engine simulates faults of links and NICs itself. `ranks` is
    the number of ranks on all machines. A lab gets `more_hosts` hosts after those of the ranks,
    without faults.
    """
    if options is None:
        place = place or on_this_machine(ranks)
        plan.check(ranks, _ANY_NICS)
        settings = {"SLACKLINE_FAULTS": str(plan.of_network)} if plan else {}
        stage = Stage(place=place, settings=settings, no_group_ns=no_group_ns)
        if not plan.of_ranks:
            yield stage
            return
        executor = Executor()
        try:
            stage.injection = executor.inject(
                plan.of_ranks,
                processes=stage._processes,
                started=False,
                warn=stage._left_out.append,
            )
            yield stage
        finally:
            executor.close()
        return
    plan.check(options.hosts, options.nics)
    with Lab(replace(options, hosts=options.hosts + more_hosts), faults=plan) as lab:
        address = lab.address(0)
        place = Place(
            agent=tuple(lab.command(0, [])),
            rendezvous=meeting_at(address),
            program=("--module", "slackline.lab.enter", lab.name),
        )
        stage = Stage(place=place, settings=_interfaces(lab), lab=lab, no_group_ns=no_group_ns)
        if plan:
            stage.injection = lab.inject(
                plan, processes=stage._processes, started=False, warn=stage._left_out.append
            )
            stage.settings = {**stage.settings, "SLACKLINE_FAULTS": ""}
        yield stage


def lab_options(
    *,
    lab: bool,
    ranks: int | None,
    hosts: str | None,
    nics: int | None,
    rate: str | None,
    switch: str | None,
) -> LabOptions | None:
    """Return the lab that the command's options describe; None without --lab.

    In a lab `hosts` is a number; without --lab, _hosts.py reads it as a list of names.

    Raises UsageError if an option of a lab is given without --lab, or if options contradict each
    other.
    """
    given = {"nics": nics, "rate": rate, "switch": switch}
    if not lab:
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"--{name} is an option of a lab: add --lab")
        return None
    if hosts is not None and not hosts.isdecimal():
        raise UsageError(f"--hosts of a lab is a number of hosts, not {hosts!r}")
    count = None if hosts is None else int(hosts)
    if ranks is not None and count is not None and ranks != count:
        raise UsageError(f"a lab has one rank on each host: --ranks {ranks} is not --hosts {count}")
    if count is None:
        count = 4 if ranks is None else ranks
    return LabOptions(
        hosts=count,
        nics=1 if nics is None else nics,
        rate=None if rate is None else parse_rate(rate),
        switch=switch or "auto",
    )


def _interfaces(lab: Lab) -> dict[str, str]:
    """Return variables that tell gloo, NCCL and TensorPipe which network interface to use."""
    first = lab.interfaces(0)[0]
    return {"GLOO_SOCKET_IFNAME": first, "NCCL_SOCKET_IFNAME": first, "TP_SOCKET_IFNAME": first}
