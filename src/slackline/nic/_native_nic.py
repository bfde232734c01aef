"""The native engine of one process: start and end, links to peers, and groups."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import slackline._native as _native
from slackline._lazy import record
from slackline._process_end import process_end
from slackline.env import Environment
from slackline.errors import ClosedError, UsageError
from slackline.nic._group import Epochs, NativeGroup, release_native_objects
from slackline.nic._interface import Introduction, Store
from slackline.nic._limits import clean_up, limits_named, require_descriptors, run_all
from slackline.nic._monitors import Monitors, Watch
from slackline.nic._numa import SYSFS, on_the_nodes_processors
from slackline.nic._options import NicOptions
from slackline.nic.collectives import (
    Completions,
    KnownTimes,
    PlanBook,
    first_peers,
    plan_number,
    starts,
)
from slackline.nic.connect import (
    Network,
    OpeningStore,
    Rendezvous,
    as_large_as_possible,
    exchange_descriptors,
)
from slackline.plan.collective import Collective, generate
from slackline.units import show_bytes

if TYPE_CHECKING:
    from slackline.nic._records import Records
    from slackline.nic._reports import Reports
    from slackline.nic.offload import DeviceCounts, Devices, DeviceThread

__all__ = ["NativeNic"]

_log = logging.getLogger("slackline.nic")

_SPIN_MICROSECONDS = 50
_SPIN_CROWDED_MICROSECONDS = 4
_CROWDED = 2
"""The number of ranks per processor above which waiting ranks hardly poll: they would mostly hand
the processor on to each other."""
_CLOSE_NS = 1_000_000_000


@record(frozen=True, kw_only=True)
class _Running:
    """The engine of a nic after its start."""

    engine: _native.Engine
    completions: Completions


@record(frozen=True, kw_only=True)
class _Met:
    """The ranks of a new group that have met, with the links between them."""

    running: _Running
    rendezvous: Rendezvous
    job: tuple[int, ...]
    """The members' ranks in the job."""
    rank: int
    links: list[int]
    book: PlanBook


class NativeNic:
    """The native NIC engine of a process; slackline.nic.Nic states the contract.

    The engine starts with the first group and serves all groups.
    """

    def __init__(self, options: NicOptions | None = None) -> None:
        self.options = options or NicOptions()
        self.identity = uuid.uuid4().hex
        chosen = self.options
        self._devices: Devices | None = None
        self._device_counts: DeviceCounts | None = None
        if chosen.nic != "software":
            from slackline.nic.offload import DeviceCounts, Devices  # Most ranks have no device.

            self._devices = Devices(chosen.nic, chosen.nic_check, chosen.circuit)
            self._device_counts = DeviceCounts(self._devices_counted)
        self._device_threads: set[DeviceThread] = set()
        self._network = Network(self.identity, self.options)
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._groups: set[NativeGroup] = set()
        self._epochs = Epochs()
        self._times = KnownTimes()
        environment = Environment.read()
        self._records = _records(environment, self.options)
        self._monitors = Monitors(None if self._records is None else self._records.write)
        self._reports = _reports(environment)
        self._closed = False
        self._process = os.getpid()
        # The engine's threads must end before the interpreter does.
        process_end.add(self._end)
        process_end.add_last(release_native_objects)

    def open_group(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: timedelta,
        opening: timedelta | None = None,
        members: Sequence[int] | None = None,
        anew: bool = True,
        introduction: Introduction | None = None,
    ) -> NativeGroup:
        if os.getpid() != self._process:
            raise UsageError("this process was forked from the one whose nic it is", rank=rank)
        if not 0 <= rank < size:
            raise UsageError(f"rank must be 0 to {size - 1}, not {rank}", rank=rank)
        limit_s = (timeout if opening is None else opening).total_seconds()
        meeting = OpeningStore(store, rank, size, limit_s=limit_s, closed=lambda: self._closed)
        group: NativeGroup | None = None
        met: _Met | None = None
        try:
            with meeting.telling(), limits_named(rank):
                with self._epochs.opening() as reserve:
                    job = tuple(members or range(size))
                    met = self._meet(meeting, job, reserve, introduction)
                    group = self._made(met, self.options.timeout or timeout)
                group.opens_until(meeting.deadline_s)
                if anew:
                    group.barrier(blocking=True, timeout=timedelta(seconds=meeting.left_s))
                if self.options.aggregator and size > 1:
                    self._reach_aggregator(group, met, meeting)
                links = met.links if met.book.shares_ports else None
                group.calibrate(self._times, links, anew=anew)
        except BaseException as error:
            if group is not None:  # The others know the reason; now the links may end.
                clean_up(error, partial(group.close, timedelta(0)))
            elif met is not None:
                self._network.left(met.links)
            if met is not None:
                self._network.forget(met.links, met.rendezvous.code)
            raise
        return group

    def _meet(
        self,
        meeting: OpeningStore,
        job: tuple[int, ...],
        reserve: Callable[[Sequence[int]], int],
        introduction: Introduction | None,
    ) -> _Met:
        """Meet the other ranks of a new group and connect its first links.

        `job` are the members' ranks in the job. Other threads may open groups meanwhile: no lock is
        held while this rank waits for other ranks.
        """
        rank, size = meeting.rank, meeting.size
        needed = first_peers(rank, size)
        with self._lock:
            self._require_open(rank)
            require_descriptors(len(needed), starts=self._running is None, rank=rank)
            if self._reports is not None:
                self._reports.opening(job[rank])
            device_bytes = self._devices.payload_bytes if self._devices and size > 1 else 0
            arena_bytes = 0 if self._running is None else self._running.engine.arena_bytes
            descriptor = self._network.descriptor(device_bytes, arena_bytes)
        rendezvous = exchange_descriptors(
            meeting, descriptor, self._network.key, reserve=reserve, introduction=introduction
        )
        with self._lock:
            self._require_open(rank)
            running = self._start(rendezvous, rank)
        links, shared = self._network.connect(
            rendezvous, rank, needed, meeting.deadline_s, meeting.glance, job=job
        )
        book = PlanBook(
            rank,
            size,
            self.options,
            all_shared=shared,
            hosts=[descriptor.host for descriptor in rendezvous.descriptors],
            device_bytes=rendezvous.device_bytes,
            ranks_per_processor=rendezvous.ranks_per_processor,
            decide=None if self._records is None else self._records.decided,
        )
        return _Met(
            running=running, rendezvous=rendezvous, job=job, rank=rank, links=links, book=book
        )

    def _made(self, met: _Met, timeout: timedelta) -> NativeGroup:
        """Make the group of ranks that have met; `timeout` limits its operations."""
        engine, rank, links, book = met.running.engine, met.rank, met.links, met.book
        epoch, size = met.rendezvous.epoch, len(met.job)
        with self._lock:
            self._require_open(rank)
            native = engine.open_group(epoch, rank, links, book.order == "rank")
            undo: list[Callable[[], object]] = [partial(native.close, 0)]
            try:
                device_thread = None
                if size > 1:
                    device_thread = self._attach(native, met.rendezvous, book.device_plan)
                if device_thread is not None:
                    undo.append(partial(self._device_ended, device_thread))
                if self._records is not None:
                    first = met.job[rank]
                    self._records.opened(first, size, epoch=epoch, members=met.job, links=links)
                grows = not native.all_shared
                watch = self._monitors.watch(engine, links, rank, met.job, grows=grows)
                undo.append(partial(self._monitors.end, watch))
                if self._reports is not None:
                    self._reports.opened(engine, epoch, met.job, links, watch.sentences)
            except BaseException as error:
                clean_up(error, *undo)
                raise
            group = NativeGroup(
                engine,
                native,
                book,
                met.running.completions,
                timeout=timeout,
                on_close=partial(self._forget, links, watch, device_thread),
                lost=partial(_lost, engine, links),
                health=watch.judgements,
                link_reports=watch.reports,
                counters=partial(_counters, engine, self._devices),
                prepare=partial(self._network.prepare, links),
            )
            self._groups.add(group)
        return group

    def _reach_aggregator(self, group: NativeGroup, met: _Met, meeting: OpeningStore) -> None:
        """Connect a new group to the aggregator, if all ranks can reach it."""
        from slackline.nic.offload import reach  # Most jobs have no aggregator.

        star = reach(
            met.running.engine,
            self._network,
            meeting,
            met.rendezvous,
            met.rank,
            met.links,
            met.book,
            self.options,
            group.agree,
        )
        if star is not None:
            group.use(star)

    def _require_open(self, rank: int) -> None:
        if self._closed:
            raise ClosedError("the nic is closed", rank=rank)

    def close(self) -> None:
        if os.getpid() != self._process:
            return  # The engine belongs to the parent, whose thread may have held the lock.
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for group in list(self._groups):
            group.close()
        self._end()

    def _attach(
        self, native: _native.Group, rendezvous: Rendezvous, name: str
    ) -> DeviceThread | None:
        """Attach a device to a new group for the plan called `name`; None without devices.

        A device is hardware, or its model, that adds in place of the engine.
        """
        if self._devices is None:
            return None
        from slackline.nic.offload import DeviceThread  # Most ranks have no device.

        plan = generate(Collective.ALL_REDUCE, name, native.size)
        try:
            native.attach(self._devices.kind)
            device = self._devices.ring(
                native.rank,
                native.size,
                rendezvous.epoch,
                plan_number(plan),
                len(set(starts(plan))),
            )
        except BaseException:
            native.close(0)
            raise
        assert self._device_counts is not None
        device_thread = DeviceThread(native, device, on_counters=self._device_counts.of_device())
        self._device_threads.add(device_thread)
        return device_thread

    def _forget(
        self,
        links: Sequence[int],
        watch: Watch,
        device_thread: DeviceThread | None,
        group: NativeGroup,
    ) -> None:
        """Forget a group that has been closed; stop its monitor and its device thread."""
        self._groups.discard(group)
        self._network.left(links)
        self._monitors.end(watch)
        if device_thread is not None:
            self._device_ended(device_thread)

    def stepped(self, optimizer: int) -> None:
        if self._records is not None:
            self._records.stepped(optimizer)

    def _device_ended(self, device_thread: DeviceThread) -> None:
        """Wait for the device thread of a group that has been closed."""
        device_thread.join()
        self._device_threads.discard(device_thread)

    def _end(self) -> None:
        """Close the engine and its connections, at `close` or at the interpreter's exit.

        Every part is closed, also after an error of another part, which is raised at the end.
        """
        process_end.remove(self._end)
        if os.getpid() != self._process:
            return  # In a forked child the engine and its threads belong to the parent.
        running, steps = self._running, list[Callable[[], object]]()
        if self._records is not None:
            steps.append(self._records.leaving)
        if self._reports is not None:
            steps.append(self._reports.close)
        steps.append(self._monitors.close)
        if running is not None:
            steps.append(partial(running.engine.close, _CLOSE_NS))
        steps += [device_thread.join for device_thread in self._device_threads]
        if running is not None:
            steps.append(running.completions.join)
        steps.append(self._network.close)
        records = self._records
        if running is not None and records is not None:
            steps.append(lambda: records.close(_counters(running.engine, self._devices)))
        run_all(steps)

    def _start(self, rendezvous: Rendezvous, rank: int) -> _Running:
        """Return the running engine; the call for the first group, where this is `rank`, starts it.

        If a part of the engine does not start, the nic is closed: a half-open engine serves nobody.
        """
        if self._running is not None:
            return self._running
        crowded = rendezvous.crowding[self._network.host] > _CROWDED
        engine = None
        try:
            with on_the_nodes_processors(SYSFS):
                engine = _new_engine(self.options, rendezvous.arena_bytes(rank), crowded=crowded)
            self._epochs.engine = engine
            if self._records is not None:
                self._records.follow(engine)
            running = _Running(engine=engine, completions=Completions(engine))
            self._network.start(engine, self._rail_changed)
        except BaseException as error:
            self._closed = True
            if engine is not None:
                clean_up(error, partial(engine.close, 0))
            clean_up(error, self._end)
            raise
        self._running = running
        return running

    def _devices_counted(self, counters: Mapping[str, int]) -> None:
        if self._records is not None and self._devices is not None:
            self._records.device_counted(self._devices.kind, counters)

    def _rail_changed(self, event: _native.RailEvent) -> None:
        """Write a change of a rail at once, and have its link looked at."""
        if self._records is not None:
            self._records.rail_changed(event)
        self._monitors.rail_changed(event.link, event.rail, event.what, event.reason)


def _records(environment: Environment, options: NicOptions) -> Records | None:
    """Return the writer of the engine's telemetry and log; None if no variable asks for them."""
    if environment.telemetry is None and environment.log is None:
        return None
    # Here and not above: a rank without telemetry needs none of its modules. They are all imported
    # before the engine starts, so that no record of a failure waits for an import.
    from slackline.nic._records import Records
    from slackline.records import log_of

    settings = options.origins(environment)
    log = log_of(environment)
    return Records(environment.telemetry, environment.telemetry_limit, settings=settings, log=log)


def _reports(environment: Environment) -> Reports | None:
    """Return the reports about the engine; None if no variable asks for reports."""
    directory = environment.reports or environment.telemetry
    if directory is None:
        return None
    # As for the telemetry, no report of a failure waits for an import.
    from slackline.nic._reports import Reports

    return Reports(directory, environment.hang)


def _new_engine(options: NicOptions, arena_bytes: int, *, crowded: bool) -> _native.Engine:
    """Return a new engine whose arena has `arena_bytes`, or less where the process may map less.

    `crowded` says that more ranks than processors poll for frames on this host.
    """

    def make(size: int) -> _native.Engine:
        return _native.Engine(
            arena_bytes=size,
            wire_segment_bytes=options.wire_segment_bytes,
            memory_segment_bytes=options.memory_segment_bytes,
            eager_bytes=options.eager_bytes,
            spin_microseconds=_SPIN_CROWDED_MICROSECONDS if crowded else _SPIN_MICROSECONDS,
        )

    engine = as_large_as_possible(make, arena_bytes)
    if engine.arena_bytes < options.arena_bytes:
        _log.warning(
            "registered memory is limited to %s in place of %s, because this rank or another one "
            "of its host may map no more (ulimit -v, ulimit -f): lift the limit, or set "
            "SLACKLINE_ARENA to a smaller size",
            show_bytes(engine.arena_bytes),
            show_bytes(options.arena_bytes),
        )
    return engine


def _counters(engine: _native.Engine, devices: Devices | None) -> Mapping[str, int]:
    return {**engine.counters(), **({} if devices is None else devices.counters())}


def _lost(engine: _native.Engine, links: Sequence[int]) -> frozenset[int]:
    return frozenset(
        rank for rank, link in enumerate(links) if link >= 0 and not engine.link_alive(link)
    )
