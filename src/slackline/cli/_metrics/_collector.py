"""The metrics of a job, made from its state at each scrape.

Counters are sums over all records of the ranks' files, so an exporter that restarts goes on with
the same values. docs/how-to/metrics.md lists the metrics.
"""

import threading
import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from slackline.cli._metrics._labels import MOST_GROUPS, OTHER, group_text, grouped_links
from slackline.health import Condition, Episode
from slackline.monitor import Job, Link, OperationTotals, Rank, State

__all__ = ["metrics_text", "registry_of"]

_CAUSES = (Condition.SLOW, Condition.LOSING, Condition.SILENT, Condition.CUT)
_DOWN = (Condition.SILENT, Condition.CUT)
_RAIL = ("rank", "peer", "link", "rail")


class _JobCollector(Collector):
    """The metrics of one job; any thread may collect them."""

    def __init__(self, job: Job) -> None:
        """Create the collector; each `collect` updates `job`, which no other code may update."""
        self._job = job
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """Read the records that the ranks have added, and return all metrics."""
        with self._lock:
            self._job.update()
            job = self._job
            now_ns = time.time_ns()
            return [
                GaugeMetricFamily("slackline_ranks", "Ranks in the job.", job.world_size),
                *_rank_metrics(job.ranks.values(), now_ns),
                *_operation_metrics(job.ranks.values()),
                *_link_metrics(job.links, job.episodes),
                _decisions(job),
            ]


def registry_of(job: Job) -> CollectorRegistry:
    """Return a registry with the metrics of `job`, which no other code may update afterwards."""
    registry = CollectorRegistry()
    registry.register(_JobCollector(job))
    return registry


def metrics_text(job: Job) -> str:
    """Return the present metrics of `job` in the text format of Prometheus."""
    return generate_latest(registry_of(job)).decode()


def _rank_metrics(ranks: Iterable[Rank], now_ns: int) -> Iterator[Metric]:
    found = list(ranks)
    info = InfoMetricFamily("slackline_rank", "The host of each rank.", labels=["rank"])
    for rank in found:
        if rank.header is not None:
            info.add_metric([str(rank.number)], {"host": rank.header.host})
    yield info
    states = GaugeMetricFamily(
        "slackline_rank_running",
        "1 if the rank has written a record in the last five seconds and has not ended, else 0.",
        labels=["rank"],
    )
    ended = GaugeMetricFamily(
        "slackline_rank_ended", "1 if the rank has written its final record.", labels=["rank"]
    )
    seen = GaugeMetricFamily(
        "slackline_rank_last_record_timestamp_seconds",
        "Unix time of the rank's latest record, by the clock of its host.",
        labels=["rank"],
    )
    for rank in found:
        label = [str(rank.number)]
        states.add_metric(label, rank.state(now_ns) is State.RUNNING)
        ended.add_metric(label, rank.ended)
        seen.add_metric(label, rank.seen_ns / 1e9)
    yield from (states, ended, seen)
    for name, help_text, values in (
        (
            "slackline_processes",
            "Processes that have written for the rank.",
            [rank.processes for rank in found],
        ),
        (
            "slackline_lost_records",
            "Records and operations that are missing from the rank's file.",
            [rank.lost for rank in found],
        ),
        (
            "slackline_steps",
            "Steps of the first optimizer.",
            [rank.step_count for rank in found],
        ),
        (
            "slackline_step_seconds",
            "Duration of the steps of the first optimizer.",
            [rank.wall_ns / 1e9 for rank in found],
        ),
        (
            "slackline_exposed_seconds",
            "Time in which the training thread waited for communication.",
            [rank.exposed_ns / 1e9 for rank in found],
        ),
        (
            "slackline_hidden_seconds",
            "Time in which reductions ran behind the training thread, in steps with details.",
            [rank.hidden_ns / 1e9 for rank in found],
        ),
        (
            "slackline_reduced_bytes",
            "Bytes of gradients that the rank gave to reductions.",
            [rank.reduced_bytes for rank in found],
        ),
        (
            "slackline_pipeline_steps",
            "Steps of the pipeline.",
            [rank.pipeline_count for rank in found],
        ),
        (
            "slackline_pipeline_step_seconds",
            "Duration of the steps of the pipeline.",
            [rank.pipeline_wall_ns / 1e9 for rank in found],
        ),
        (
            "slackline_pipeline_computing_seconds",
            "Time of the pipeline's steps in which the rank computed.",
            [rank.pipeline_computing_ns / 1e9 for rank in found],
        ),
        (
            "slackline_pipeline_waiting_seconds",
            "Time of the pipeline's steps in which no instruction was ready.",
            [rank.pipeline_waiting_ns / 1e9 for rank in found],
        ),
    ):
        counter = CounterMetricFamily(name, help_text, labels=["rank"])
        for rank, value in zip(found, values, strict=True):
            counter.add_metric([str(rank.number)], value)
        yield counter


def _operation_metrics(ranks: Iterable[Rank]) -> Iterator[Metric]:
    labels = ["rank", "collective", "group"]
    count = CounterMetricFamily(
        "slackline_operations", "Operations that have ended.", labels=labels
    )
    failed = CounterMetricFamily(
        "slackline_operation_failures", "Operations that have failed.", labels=labels
    )
    volume = CounterMetricFamily(
        "slackline_operation_bytes", "Bytes of the operations' whole buffers.", labels=labels
    )
    running = CounterMetricFamily(
        "slackline_operation_seconds", "Time from each operation's post to its end.", labels=labels
    )
    waited = CounterMetricFamily(
        "slackline_operation_waited_seconds",
        "Time for which a thread was blocked until an operation's end.",
        labels=labels,
    )
    for rank in ranks:
        for (kind, group), totals in _bounded(rank).items():
            label = [str(rank.number), kind, group]
            count.add_metric(label, totals.count)
            failed.add_metric(label, totals.failed)
            volume.add_metric(label, totals.bytes)
            running.add_metric(label, totals.running_ns / 1e9)
            waited.add_metric(label, totals.waited_ns / 1e9)
    yield from (count, failed, volume, running, waited)


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
    down = {(e.source, e.target, e.rail) for e in lasting if e.condition in _DOWN}
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
    packets = CounterMetricFamily(
        "slackline_link_packets",
        "Packets that the rank sent over a UDP rail, without repetitions.",
        labels=_RAIL,
    )
    resent = CounterMetricFamily(
        "slackline_link_resent_packets", "Packets that the rank sent again.", labels=_RAIL
    )
    for link in own:
        place = _place(link)
        back = [place[0], place[1], f"{link.peer}>{link.rank}", place[3]]
        volume.add_metric([*place, "sent"], link.sent_bytes)
        volume.add_metric([*back, "received"], link.received_bytes)
        packets.add_metric(place, link.packets)
        resent.add_metric(place, link.resent)
    for rank, links in rest.items():
        place = [str(rank), OTHER, OTHER, OTHER]
        volume.add_metric([*place, "sent"], sum(link.sent_bytes for link in links))
        volume.add_metric([*place, "received"], sum(link.received_bytes for link in links))
        packets.add_metric(place, sum(link.packets for link in links))
        resent.add_metric(place, sum(link.resent for link in links))
    yield from (volume, packets, resent)
    beyond = sum(len(links) for links in rest.values())
    yield GaugeMetricFamily(
        "slackline_link_rails_beyond_bound",
        'Rails without time series of their own, summed up with peer="other".',
        beyond,
    )


def _gauges(own: list[Link], down: set[tuple[int, int, int]]) -> Iterator[Metric]:
    """Yield the latest reports of the rails; those in `down` carry no data at present."""
    trip = GaugeMetricFamily(
        "slackline_link_round_trip_seconds", "Smoothed round trip of the rail.", labels=_RAIL
    )
    queued = GaugeMetricFamily(
        "slackline_link_queued_bytes", "Bytes that are queued in the engine.", labels=_RAIL
    )
    unconfirmed = GaugeMetricFamily(
        "slackline_link_unconfirmed_bytes", "Bytes that are queued or in flight.", labels=_RAIL
    )
    up = GaugeMetricFamily(
        "slackline_link_up",
        "1 if the rail carries data, 0 if it is suspect, silent or cut.",
        labels=_RAIL,
    )
    for link in own:
        place, report = _place(link), link.latest
        if report.round_trip_ns:
            trip.add_metric(place, report.round_trip_ns / 1e9)
        queued.add_metric(place, report.queued_bytes)
        unconfirmed.add_metric(place, report.unconfirmed_bytes)
        up.add_metric(place, report.state == "up" and (link.rank, link.peer, link.rail) not in down)
    yield from (trip, queued, unconfirmed, up)


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


def _place(link: Link) -> list[str]:
    return [str(link.rank), str(link.peer), f"{link.rank}>{link.peer}", str(link.rail)]
