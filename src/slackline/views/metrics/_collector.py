"""The metrics of a job, made from its state at each scrape.

Counters are sums over all records of the ranks' files, so an exporter that restarts goes on with
the same values. docs/how-to/top.md lists the metrics.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from slackline.causes import Spell, Watch
from slackline.detect import Condition, Episode
from slackline.history import Job, Link, OperationTotals, Rank, State
from slackline.views.metrics._labels import (
    MOST_CAUSES,
    MOST_GROUPS,
    OTHER,
    group_text,
    grouped_links,
)

__all__ = ["metrics_text", "registry_of"]

_CAUSES = (Condition.SLOW, Condition.LOSING, Condition.SILENT, Condition.CUT)
_RAIL = ("rank", "peer", "link", "rail")

T = TypeVar("T")

_Row = tuple[str, str, Callable[[T], float | None]]
"""A metric of things of one type: name, help text, and the value of a thing; None has no series."""

_RANK_GAUGES: tuple[_Row[Rank], ...] = (
    ("slackline_rank_ended", "1 if the rank has written its final record.", lambda r: r.ended),
    (
        "slackline_rank_last_record_timestamp_seconds",
        "Unix time of the rank's latest record, by the clock of its host.",
        lambda r: r.seen_ns / 1e9,
    ),
)

_RANK_COUNTERS: tuple[_Row[Rank], ...] = (
    ("slackline_processes", "Processes that have written for the rank.", lambda r: r.processes),
    (
        "slackline_lost_records",
        "Records and operations that are missing from the rank's file.",
        lambda r: r.lost,
    ),
    ("slackline_steps", "Steps of the first optimizer.", lambda r: r.step_count),
    (
        "slackline_step_seconds",
        "Duration of the steps of the first optimizer.",
        lambda r: r.wall_ns / 1e9,
    ),
    (
        "slackline_exposed_seconds",
        "Time in which the training thread waited for communication.",
        lambda r: r.exposed_ns / 1e9,
    ),
    (
        "slackline_hidden_seconds",
        "Time in which reductions ran behind the training thread, in steps where it is known.",
        lambda r: None if r.hidden_ns is None else r.hidden_ns / 1e9,
    ),
    (
        "slackline_reduced_bytes",
        "Bytes of gradients that the rank gave to reductions.",
        lambda r: r.reduced_bytes,
    ),
    ("slackline_pipeline_steps", "Steps of the pipeline.", lambda r: r.pipeline_count),
    (
        "slackline_pipeline_step_seconds",
        "Duration of the steps of the pipeline.",
        lambda r: r.pipeline_wall_ns / 1e9,
    ),
    (
        "slackline_pipeline_computing_seconds",
        "Time of the pipeline's steps in which the rank computed.",
        lambda r: r.pipeline_computing_ns / 1e9,
    ),
    (
        "slackline_pipeline_waiting_seconds",
        "Time of the pipeline's steps in which no instruction was ready.",
        lambda r: r.pipeline_waiting_ns / 1e9,
    ),
)

_OPERATION_COUNTERS: tuple[_Row[OperationTotals], ...] = (
    ("slackline_operations", "Operations that have ended.", lambda t: t.count),
    ("slackline_operation_failures", "Operations that have failed.", lambda t: t.failed),
    ("slackline_operation_bytes", "Bytes of the operations' whole buffers.", lambda t: t.bytes),
    (
        "slackline_operation_seconds",
        "Time from each operation's post to its end.",
        lambda t: t.running_ns / 1e9,
    ),
    (
        "slackline_operation_waited_seconds",
        "Time for which a thread was blocked until an operation's end.",
        lambda t: t.waited_ns / 1e9,
    ),
)

_RAIL_COUNTERS: tuple[_Row[list[Link]], ...] = (
    (
        "slackline_link_packets",
        "Packets that the rank sent: datagrams over UDP, segments with data over TCP.",
        lambda links: sum(link.packets for link in links),
    ),
    (
        "slackline_link_resent_packets",
        "Packets that the rank sent again.",
        lambda links: sum(link.resent for link in links),
    ),
)

_RAIL_GAUGES: tuple[_Row[Link], ...] = (
    (
        "slackline_link_round_trip_seconds",
        "Smoothed round trip of the rail.",
        lambda link: link.latest.round_trip_ns / 1e9 or None,
    ),
    (
        "slackline_link_queued_bytes",
        "Bytes that are queued in the engine.",
        lambda link: link.latest.queued_bytes,
    ),
    (
        "slackline_link_unconfirmed_bytes",
        "Bytes that are queued or in flight.",
        lambda link: link.latest.unconfirmed_bytes,
    ),
)


class _JobCollector(Collector):
    """The metrics of one job; any thread may collect them."""

    def __init__(self, watch: Watch) -> None:
        """Create the collector; each `collect` updates `watch`, which no other code may update."""
        self._watch = watch
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """Read the records that the ranks have added, and return all metrics."""
        with self._lock:
            self._watch.update(time.time_ns())
            job = self._watch.job
            now_ns = time.time_ns()
            return [
                GaugeMetricFamily("slackline_ranks", "Ranks in the job.", job.world_size),
                *_rank_metrics(job.ranks.values(), now_ns),
                *_operation_metrics(job.ranks.values()),
                *_device_metrics(job.ranks.values()),
                *_link_metrics(job.links, job.episodes),
                _decisions(job),
                _causes(self._watch.spells),
            ]


def registry_of(watch: Watch) -> CollectorRegistry:
    """Return a registry with the metrics of a job, which no other code may update afterwards."""
    registry = CollectorRegistry()
    registry.register(_JobCollector(watch))
    return registry


def metrics_text(watch: Watch) -> str:
    """Return the present metrics of a job in the text format of Prometheus."""
    return generate_latest(registry_of(watch)).decode()


def _families(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    labels: Sequence[str],
    rows: Iterable[_Row[T]],
    things: Sequence[tuple[list[str], T]],
) -> Iterator[Metric]:
    """Yield the metric of each row, with a series for each thing and the values of its labels."""
    for name, help_text, value_of in rows:
        metric = family(name, help_text, labels=labels)
        for label, thing in things:
            if (value := value_of(thing)) is not None:
                metric.add_metric(label, value)
        yield metric


def _rank_metrics(ranks: Iterable[Rank], now_ns: int) -> Iterator[Metric]:
    found = [([str(rank.number)], rank) for rank in ranks]
    info = InfoMetricFamily("slackline_rank", "The host of each rank.", labels=["rank"])
    for label, rank in found:
        if rank.header is not None:
            info.add_metric(label, {"host": rank.header.host})
    yield info
    running: _Row[Rank] = (
        "slackline_rank_running",
        "1 if the rank has written a record in the last five seconds and has not ended, else 0.",
        lambda rank: rank.state(now_ns) is State.RUNNING,
    )
    yield from _families(GaugeMetricFamily, ["rank"], (running, *_RANK_GAUGES), found)
    yield from _families(CounterMetricFamily, ["rank"], _RANK_COUNTERS, found)


def _device_metrics(ranks: Iterable[Rank]) -> Iterator[Metric]:
    labels = ["rank", "device"]
    cycles = CounterMetricFamily(
        "slackline_device_cycles", "Clock cycles of the rank's simulated circuits.", labels=labels
    )
    states = CounterMetricFamily(
        "slackline_device_beat_cycles",
        "Cycles with work: an addition began (busy), or the reason why none began.",
        labels=[*labels, "state"],
    )
    events = CounterMetricFamily(
        "slackline_device_events",
        "Events of the rank's circuits or twins, by the name of their counter.",
        labels=[*labels, "event"],
    )
    for rank in ranks:
        if (device := rank.device) is None:
            continue
        place = [str(rank.number), device.device]
        if device.cycles:
            cycles.add_metric(place, device.cycles)
            for state, value in {"busy": device.busy, **device.stalls}.items():
                states.add_metric([*place, state], value)
        for event, value in device.counts.items():
            events.add_metric([*place, event], value)
    yield from (cycles, states, events)


def _operation_metrics(ranks: Iterable[Rank]) -> Iterator[Metric]:
    totals = [
        ([str(rank.number), kind, group], each)
        for rank in ranks
        for (kind, group), each in _bounded(rank).items()
    ]
    labels = ["rank", "collective", "group"]
    yield from _families(CounterMetricFamily, labels, _OPERATION_COUNTERS, totals)


def _bounded(rank: Rank) -> dict[tuple[str, str], OperationTotals]:
    """Return the rank's sums by kind and group; groups beyond the bound are one group."""
    names: dict[tuple[int, ...], str] = {}
    found: dict[tuple[str, str], OperationTotals] = {}
    for (members, kind), totals in rank.group_totals.items():
        if members not in names:
            names[members] = group_text(members) if len(names) < MOST_GROUPS else OTHER
        into = found.setdefault((kind, names[members]), OperationTotals())
        into.count += totals.count
        into.failed += totals.failed
        into.bytes += totals.bytes
        into.running_ns += totals.running_ns
        into.waited_ns += totals.waited_ns
    return found


def _link_metrics(
    links: dict[tuple[int, int, int], Link], episodes: list[Episode]
) -> Iterator[Metric]:
    own, rest = grouped_links(links)
    lasting = [episode for episode in episodes if episode.until_ns is None]
    down = {(e.source, e.target, e.rail) for e in lasting if e.condition.broken}
    yield from _volumes(own, rest)
    yield from _gauges(own, down | {(target, source, rail) for source, target, rail in down})
    places = dict.fromkeys(
        each
        for link in own
        for each in ((link.rank, link.peer, link.rail), (link.peer, link.rank, link.rail))
    )
    yield from _disturbances(places, episodes)


def _volumes(own: list[Link], rest: dict[int, list[Link]]) -> Iterator[Metric]:
    """Yield the counters of the rails; rails beyond the bound are summed up for each rank."""
    volume = CounterMetricFamily(
        "slackline_link_bytes",
        "Bytes that moved over the rail, as the rank at one end counts them.",
        labels=[*_RAIL, "direction"],
    )
    counted: list[tuple[list[str], list[Link]]] = []
    for link in own:
        place = _place(link)
        back = [place[0], place[1], f"{link.peer}>{link.rank}", place[3]]
        volume.add_metric([*place, "sent"], link.sent_bytes)
        volume.add_metric([*back, "received"], link.received_bytes)
        counted.append((place, [link]))
    for rank, links in rest.items():
        place = [str(rank), OTHER, OTHER, OTHER]
        volume.add_metric([*place, "sent"], sum(link.sent_bytes for link in links))
        volume.add_metric([*place, "received"], sum(link.received_bytes for link in links))
        counted.append((place, links))
    yield volume
    yield from _families(CounterMetricFamily, _RAIL, _RAIL_COUNTERS, counted)
    beyond = sum(len(links) for links in rest.values())
    yield GaugeMetricFamily(
        "slackline_link_rails_beyond_bound",
        'Rails without time series of their own, summed up with peer="other".',
        beyond,
    )


def _gauges(own: list[Link], down: set[tuple[int, int, int]]) -> Iterator[Metric]:
    """Yield the latest reports of the rails; those in `down` carry no data at present."""
    up: _Row[Link] = (
        "slackline_link_up",
        "1 if the rail carries data, 0 if it is suspect, silent or cut.",
        lambda link: link.latest.state == "up" and (link.rank, link.peer, link.rail) not in down,
    )
    found = [(_place(link), link) for link in own]
    yield from _families(GaugeMetricFamily, _RAIL, (*_RAIL_GAUGES, up), found)


def _disturbances(
    places: Iterable[tuple[int, int, int]], episodes: Iterable[Episode]
) -> Iterator[Metric]:
    """Yield the disturbances of each direction of a rail, by their present cause."""
    by_place: dict[tuple[int, int, int], list[Episode]] = {}
    for episode in episodes:
        place = episode.source, episode.target, episode.rail
        by_place.setdefault(place, []).append(episode)
    labels = ["link", "rail"]
    lasting = GaugeMetricFamily(
        "slackline_link_disturbed",
        "1 while this direction of the rail is disturbed in this way, else 0.",
        labels=[*labels, "cause"],
    )
    count = CounterMetricFamily(
        "slackline_link_disturbances", "Disturbances of the direction so far.", labels=labels
    )
    over = GaugeMetricFamily(
        "slackline_link_excess_delay_seconds",
        "Excess of the direction's latency over its usual value.",
        labels=labels,
    )
    for place in places:
        source, target, rail = place
        label = [f"{source}>{target}", str(rail)]
        here = by_place.get(place, [])
        now = {e.condition: e for e in here if e.until_ns is None}
        for cause in _CAUSES:
            lasting.add_metric([*label, str(cause)], cause in now)
        count.add_metric(label, len(here))
        over.add_metric(label, max((e.over_ns for e in now.values()), default=0) / 1e9)
    yield from (lasting, count, over)


def _decisions(job: Job) -> Metric:
    counter = CounterMetricFamily(
        "slackline_decisions", "Choices of the library.", labels=["rank", "subject"]
    )
    for (rank, subject), number in sorted(job.decision_counts.items()):
        counter.add_metric([str(rank), subject], number)
    return counter


def _causes(spells: Iterable[Spell]) -> Metric:
    """Return the causes of slow steps that were named, as in all other views."""
    metric = GaugeMetricFamily(
        "slackline_cause",
        "1 while this cause of slow steps holds, else 0.",
        labels=["kind", "name"],
    )
    holds: dict[tuple[str, str], bool] = {}
    for spell in spells:
        label = spell.cause.kind.value, spell.cause.name
        if label not in holds and len(holds) >= MOST_CAUSES:
            label = OTHER, OTHER
        holds[label] = holds.get(label, False) or spell.until_ns is None
    for label, now in holds.items():
        metric.add_metric(label, now)
    return metric


def _place(link: Link) -> list[str]:
    return [str(link.rank), str(link.peer), f"{link.rank}>{link.peer}", str(link.rail)]
