"""The native engine of one process: start and end, links to peers, and groups."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

import slackline._native as _native
from slackline._process_end import process_end
from slackline.env import Environment
from slackline.errors import ClosedError, UsageError
from slackline.nic._epochs import Epochs
from slackline.nic._first_links import first_peers
from slackline.nic._group import NativeGroup
from slackline.nic._health import Monitor, Monitors
from slackline.nic._interface import Store
from slackline.nic._numa import SYSFS, on_the_nodes_processors
from slackline.nic._options import NicOptions
from slackline.nic._records import Records
from slackline.nic._reports import Reports
from slackline.nic.collectives import Completions, PlanBook, plan_number, starts
from slackline.nic.connect import Network, Rendezvous, exchange_descriptors
from slackline.nic.offload import Devices, DeviceThread, reach
from slackline.plan.collective import Collective, generate

__all__ = ["NativeNic"]

_log = logging.getLogger("slackline.nic")

_SPIN_MICROSECONDS = 50
_SPIN_CROWDED_MICROSECONDS = 4
_CROWDED = 2
"""The number of ranks per processor above which waiting ranks hardly poll: they would mostly hand
the processor on to each other."""
_CLOSE_NS = 1_000_000_000


class NativeNic:
    """The native NIC engine of a process; slackline.nic.Nic states the contract.

    The engine starts with the first group and serves all groups.
    """

    def __init__(self, options: NicOptions | None = None) -> None:
        self.options = options or NicOptions()
        self.identity = uuid.uuid4().hex
        chosen = self.options
        self._devices = None
        if chosen.nic != "software":
            self._devices = Devices(chosen.nic, chosen.nic_check, chosen.circuit)
        self._device_threads = set[DeviceThread]()
        self._network = Network(self.identity, self.options)
        self._lock = threading.Lock()
        self._engine: _native.Engine | None = None
        self._completions: Completions | None = None
        self._groups: set[NativeGroup] = set()
        self._epochs = Epochs()
        environment = Environment.read()
        self._records = Records(
            environment.telemetry,
            environment.telemetry_limit,
            settings=self.options.origins(environment),
        )
        self._monitors = Monitors(self._records)
        self._reports = Reports(environment.reports or environment.telemetry, environment.hang)
        self._closed = False
        self._process = os.getpid()
        # The engine's threads must end before the interpreter does.
        process_end.add(self._end)

    def open_group(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: timedelta,
        opening: timedelta | None = None,
        members: Sequence[int] | None = None,
    ) -> NativeGroup:
        if os.getpid() != self._process:
            raise UsageError("this process was forked from the one whose nic it is", rank=rank)
        limit = opening or timeout
        if not 0 <= rank < size:
            raise UsageError(f"rank must be 0 to {size - 1}, not {rank}", rank=rank)
        with self._lock, self._epochs.opening() as reserve:
            if self._closed:
                raise ClosedError("the nic is closed", rank=rank)
            job = tuple(members or range(size))
            self._reports.opening(job[rank])
            device_bytes = self._devices.payload_bytes if self._devices and size > 1 else 0
            descriptor = self._network.descriptor(device_bytes)
            rendezvous = exchange_descriptors(
                store, rank, size, descriptor, self._network.key, reserve=reserve
            )
            engine = self._start(rendezvous)
            deadline = time.monotonic() + limit.total_seconds()
            needed = first_peers(rank, size)
            links, shared = self._network.connect(rendezvous, rank, needed, deadline)
            book = PlanBook(
                rank,
                size,
                self.options,
                all_shared=shared,
                hosts=[descriptor.host for descriptor in rendezvous.descriptors],
                device_bytes=rendezvous.device_bytes,
                ranks_per_processor=rendezvous.ranks_per_processor,
                decide=self._records.decided,
            )
            native = engine.open_group(rendezvous.epoch, rank, links, book.order == "rank")
            device_thread = self._attach(native, rendezvous, book.device_plan) if size > 1 else None
            assert self._completions is not None
            self._records.opened(job[rank], size, epoch=rendezvous.epoch, members=job, links=links)
            monitor = self._monitors.watch(engine, links, rank, members, grows=not shared)
            self._reports.opened(engine, rendezvous.epoch, job, links, monitor.sentences)
            group = NativeGroup(
                engine,
                native,
                book,
                self._completions,
                timeout=self.options.timeout or timeout,
                on_close=partial(self._forget, monitor, device_thread),
                lost=partial(_lost, engine, links),
                health=monitor.judgements,
                link_reports=monitor.reports,
                counters=partial(_counters, engine, self._devices),
                prepare=partial(self._network.prepare, links),
            )
            self._groups.add(group)
        try:
            group.barrier(blocking=True, timeout=limit)
            if self.options.aggregator and size > 1:
                star = reach(
                    engine,
                    self._network,
                    store,
                    rendezvous,
                    rank,
                    links,
                    book,
                    self.options,
                    group.agree,
                )
                if star is not None:
                    group.use(star)
            group.calibrate(links if book.shares_ports else None)
        except BaseException:
            group.close(timedelta(0))  # The peers learn that the group does not open.
            raise
        return group

    def close(self) -> None:
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
        device_thread = DeviceThread(native, device)
        self._device_threads.add(device_thread)
        return device_thread

    def _forget(
        self, monitor: Monitor, device_thread: DeviceThread | None, group: NativeGroup
    ) -> None:
        """Stop the monitor and the device thread of a group that has been closed."""
        self._groups.discard(group)
        self._monitors.end(monitor)
        if device_thread is not None:
            device_thread.join()
            self._device_threads.discard(device_thread)

    def _end(self) -> None:
        """Close the engine and its connections, at `close` or at the interpreter's exit."""
        process_end.remove(self._end)
        if os.getpid() != self._process:
            return  # In a forked child the engine and its threads belong to the parent.
        self._reports.close()
        self._monitors.close()
        if self._engine is not None:
            self._engine.close(_CLOSE_NS)
        for device_thread in self._device_threads:
            device_thread.join()
        if self._completions is not None:
            self._completions.join()
        self._network.close()
        if self._engine is not None:
            self._records.close(_counters(self._engine, self._devices))

    def _start(self, rendezvous: Rendezvous) -> _native.Engine:
        """Return the engine; the first group's call starts the engine."""
        if self._engine is None:
            crowded = rendezvous.crowding[self._network.host] > _CROWDED
            options = self.options
            with on_the_nodes_processors(SYSFS):
                self._engine = _native.Engine(
                    arena_bytes=options.arena_bytes,
                    wire_segment_bytes=options.wire_segment_bytes,
                    memory_segment_bytes=options.memory_segment_bytes,
                    eager_bytes=options.eager_bytes,
                    spin_microseconds=_SPIN_CROWDED_MICROSECONDS if crowded else _SPIN_MICROSECONDS,
                )
            self._epochs.engine = self._engine
            self._records.follow(self._engine)
            self._completions = Completions(self._engine)
            self._network.start(self._engine, self._records.rail_changed)
        return self._engine


def _counters(engine: _native.Engine, devices: Devices | None) -> Mapping[str, int]:
    return {**engine.counters(), **({} if devices is None else devices.counters())}


def _lost(engine: _native.Engine, links: Sequence[int]) -> frozenset[int]:
    return frozenset(
        rank for rank, link in enumerate(links) if link >= 0 and not engine.link_alive(link)
    )
