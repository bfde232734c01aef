"""The engine that serves one group, whose ranks are called workers (native, aggregator.cc)."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import slackline._native as _native
from slackline.errors import SlacklineError, UsageError
from slackline.nic import NicOptions
from slackline.nic.aggregator._options import WHOLE, AggregatorOptions
from slackline.nic.collectives import STAR, aggregator_tree, compile_program
from slackline.nic.connect import EndpointDescriptor, Network, Rendezvous
from slackline.nic.offload import DeviceThread, EthernetNodes, NodeHost, Nodes
from slackline.plan.collective import Collective, part
from slackline.units import count, show_bytes

__all__ = ["Service"]

_log = logging.getLogger("slackline.nic.aggregator")

_RENDEZVOUS_S = 30.0
_CLOSE_NS = 1_000_000_000
_SPIN_MICROSECONDS = 0
_PASSED_ON = ("wire_segment_bytes", "eager_bytes", "connections", "checksums", "tls")


class Service:
    """The engine that serves one group, from its rendezvous to its end."""

    def __init__(
        self,
        options: AggregatorOptions,
        interfaces: tuple[str, ...],
        workers: tuple[EndpointDescriptor, ...],
        on_end: Callable[[Service], None],
        nodes: Nodes | EthernetNodes | None,
    ) -> None:
        self._options, self._on_end, self._nodes = options, on_end, nodes
        theirs = workers[0].options
        if missing := [name for name in (*_PASSED_ON, "rails") if name not in theirs]:
            raise UsageError(
                f"the descriptors that the workers sent lack the fields {', '.join(missing)}"
            )
        given = {name: theirs[name] for name in _PASSED_ON}
        rails = tuple(r for r in _texts(theirs["rails"]) if r != "shm") or ("tcp",)
        # The workers' values are of any JSON type; a wrong one raises here and is refused by name.
        nic = NicOptions(
            rails=rails,
            interfaces=interfaces,
            congestion=options.congestion,
            **given,  # type: ignore[arg-type]
        )
        self._identity = secrets.token_hex(16)
        self._network = Network(self._identity, nic, key=b"", anywhere=bool(options.key))
        self.descriptor = replace(self._network.descriptor(), aggregates=True)
        self._engine = _native.Engine(
            arena_bytes=options.memory_bytes,
            wire_segment_bytes=nic.wire_segment_bytes,
            memory_segment_bytes=nic.memory_segment_bytes,
            eager_bytes=nic.eager_bytes,
            spin_microseconds=_SPIN_MICROSECONDS,
        )
        self._left: set[int] = set()
        self._size = len(workers)
        self._over, self._connected = threading.Event(), False
        self._why = ""
        self.added_bytes = 0
        """The bytes that the engine and the circuit have added for all workers; 0 before the end.
        """
        self._thread: threading.Thread | None = None

    def start(self, rendezvous: Rendezvous, whence: str) -> None:
        """Connect to the workers and serve them, on a background thread."""
        self._network.start(self._engine, self._heed)
        self._thread = threading.Thread(
            target=self._serve, args=(rendezvous, whence), name="slackline-service", daemon=True
        )
        self._thread.start()

    def end(self, why: str) -> None:
        """Ask the service to end for the reason `why`; any thread may call."""
        self._why = self._why or why
        self._over.set()
        if not self._connected:
            self._network.manager.stop()  # Ends the wait for the workers.

    def join(self) -> None:
        """Wait for the end of the service."""
        assert self._thread is not None
        self._thread.join()

    def _serve(self, rendezvous: Rendezvous, whence: str) -> None:
        name = f"group {rendezvous.epoch:08x}"
        device_thread: DeviceThread | None = None
        node: NodeHost | None = None
        try:
            deadline = time.monotonic() + _RENDEZVOUS_S
            workers = range(self._size)
            links, _ = self._network.connect(rendezvous, self._size, workers, deadline)
            self._connected = True
            group = self._engine.open_group(rendezvous.epoch, self._size, links, True)
            mine = part(Collective.ALL_REDUCE, STAR, self._size, self._size)
            if self._nodes is not None:
                group.attach(self._nodes.kind)
                node = self._nodes.node(self._size, rendezvous.epoch)
                device_thread = DeviceThread(group, node, self._failed)
            program = compile_program(mine, offloads=self._nodes is not None)
            tree = self._tree()
            group.serve(program, self._options.onset or WHOLE, tree)
            _log.info("%s: %d workers, requested by %s", name, self._size, whence)
            self._over.wait()
        except SlacklineError as error:
            self.end(str(error))
        finally:
            counters = self._engine.counters()
            self._engine.close(_CLOSE_NS)
            if device_thread is not None:
                device_thread.join()
            self._network.close()
            self.added_bytes = counters["bytes_reduced"]
            added = f"{show_bytes(self.added_bytes)} added"
            if self._nodes is not None:
                by_it = 0 if node is None else node.added_bytes
                self.added_bytes += by_it
                frames = counters["device_frames_given"]
                added += (
                    f", {count(frames, 'frame')} by its {self._nodes.kind} ({show_bytes(by_it)})"
                )
                added += "" if node is None else node.remark
            done = counters["operations"]
            _log.info("%s: over after %d operations, %s: %s", name, done, added, self._why)
            self._on_end(self)

    def _tree(self) -> _native.Program | None:
        """Return the program for one node of a tree of each worker; None if the node cannot add so.

        A circuit adds in the order of its ports, which two workers' tree cannot tell from its own.
        """
        if self._nodes is not None and self._size > 2:
            return None
        return aggregator_tree(self._size, offloads=self._nodes is not None)

    def _failed(self, why: str) -> None:
        assert self._nodes is not None
        self.end(f"its {self._nodes.kind} failed: {why}")

    def _heed(self, event: _native.RailEvent) -> None:
        """End the service when a worker is lost, or when all workers have left the group.

        A worker that has left closes its connection before other workers leave.
        """
        if event.what == "down" and event.link not in self._left:
            self.end(f"a worker is lost: {event.reason}")
        elif event.what == "left":
            self._left.add(event.link)
            if len(self._left) == self._size:
                self.end("every worker has closed the group")


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"rails must be a list, not {value!r}")
    return tuple(str(each) for each in value)
