"""The slow links of an experiment of one pipeline: constant delays, or delays that change.

Link i joins rank i and rank i + 1; with a schedule that goes round the ranks, a further link joins
the last rank to rank 0. `plan.pipeline.delayed_links` says which stages' messages cross a link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from slackline._toml import Table, duration_ps, integer, listed, text
from slackline.errors import UsageError
from slackline.plan import pipeline
from slackline.sim._network import Network
from slackline.sim.experiment._case import Setting
from slackline.sim.experiment._delays import Change, Drawn, Trace, drawn_of, trace_of
from slackline.sim.experiment._runtime import Runtime

__all__ = ["Delays", "Links", "networks_of"]

Delays = Mapping[int, tuple[int, int]]
"""For each slow link, the delay from rank i to rank i + 1, and that of the way back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Slow links: each has a constant delay, or all have delays that change over time."""

    delays_ps: tuple[tuple[int, tuple[int, int]], ...] = ()
    """(link, delay each way) from iteration `since` on."""
    since: int = 0
    drawn: tuple[tuple[int, Drawn], ...] = ()
    trace: Trace | None = field(default=None, hash=False)
    delegates: int | None = None
    """The delegates of each link and direction, in place of the runtime's number."""

    @property
    def slow(self) -> bool:
        """Whether a link has a delay at any time."""
        return bool(self.drawn or self.trace) or any(any(each) for _, each in self.delays_ps)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The links that may be slow."""
        traced = self.trace.links if self.trace is not None else ()
        return (*(link for link, _ in (*self.delays_ps, *self.drawn)), *traced)

    @property
    def changing(self) -> bool:
        """Whether delays change with the time, and not only from one iteration to the next."""
        return bool(self.drawn) or (self.trace is not None and not self.trace.by_iteration)

    def usual(self) -> Delays:
        """Return the delays that a plan expects that is made once: the means of those that change.

        Of a trace these are the means of the lines.
        """
        found = dict(self.delays_ps)
        found |= {link: (each.mean_ps, each.mean_ps) for link, each in self.drawn}
        if self.trace is not None:
            count = len(self.trace.lines)
            for link in self.trace.links:
                total = sum(dict(delays).get(link, 0) for _, delays in self.trace.lines)
                found[link] = (total // count, total // count)
        return MappingProxyType(found)

    def at(self, iteration: int, start_ps: int) -> Delays:
        """Return the delays at the start of an iteration, `start_ps` after the first one's."""
        found = dict(self.delays_ps) if iteration >= self.since else {}
        for link, each in self.drawn:
            delay_ps = each.changes(link, start_ps)[-1][1]
            found[link] = (delay_ps, delay_ps)
        if self.trace is not None:
            time = iteration if self.trace.by_iteration else start_ps
            found |= {link: (delay, delay) for link, delay in self.trace.at(time).items()}
        return MappingProxyType(found)

    def changes(self, start_ps: int, ahead_ps: int) -> dict[int, list[Change]]:
        """Return the changes of each link for `ahead_ps` from `start_ps` on, at times after it."""
        found = {link: each.changes(link, start_ps + ahead_ps) for link, each in self.drawn}
        if self.trace is not None and not self.trace.by_iteration:
            found |= {link: self.trace.changes(link) for link in self.trace.links}
        shifted = {}
        for link, changes in found.items():
            past = [delay for at, delay in changes if at <= start_ps]
            later = [(at - start_ps, delay) for at, delay in changes if at > start_ps]
            shifted[link] = [(0, past[-1]), *later]
        return shifted

    def network(self, runtime: Runtime, iteration: int, start_ps: int, ahead_ps: int) -> Network:
        """Return the network of an iteration, with delays as they change, and its sends.

        Drawn delays change for `ahead_ps`; the network is wrong for an iteration that lasts longer.
        """
        known = runtime.delayed(self.at(iteration, start_ps))
        found = Network.of(known)
        if runtime.delegation is None:
            found = found.sending(runtime.sends)
        else:
            number = self.delegates or runtime.delegation.delegates
            found = replace(
                found,
                message_bytes=runtime.message_bytes,
                delegation=replace(runtime.delegation, delegates=number),
            )
        states = self._states(runtime, start_ps, ahead_ps)
        for boundary in range(len(found.forward) if states else 0):
            down = [(at, state.forward_delay_ps[boundary]) for at, state in states]
            up = [(at, state.backward_delay_ps[boundary]) for at, state in states]
            found = found.changing(boundary, down, "forward").changing(boundary, up, "backward")
        return found

    def _states(
        self, runtime: Runtime, start_ps: int, ahead_ps: int
    ) -> list[tuple[int, pipeline.Scenario]]:
        """Return the scenario after each change, with the times from `start_ps` on."""
        moments: dict[int, dict[int, int]] = {}
        for link, changes in self.changes(start_ps, ahead_ps).items():
            for at, delay_ps in changes:
                moments.setdefault(at, {})[link] = delay_ps
        now: dict[int, tuple[int, int]] = {}
        found = []
        for at in sorted(moments):
            now |= {link: (delay_ps, delay_ps) for link, delay_ps in moments[at].items()}
            found.append((at, runtime.delayed(now)))
        return found


def networks_of(
    table: Table, runtimes: Sequence[Runtime], setting: Setting, *, named: bool = True
) -> list[tuple[str, Links]]:
    """Return the name and the network of each delay in a table."""
    name = table.take("name", text) if named else ""
    delegates = table.take_if_there("delegates", integer)
    found = []
    if "trace" in table:
        file = table.take("trace", text)
        found.append((name, Links(trace=trace_of(setting.text_of(file), file))))
        if found[0][1].trace.crash is not None:  # type: ignore[union-attr]
            raise table.wrong(UsageError(f"{file} has a crash, which only a [job] can have"))
    else:
        numbers = table.take("links", listed(integer))
        if len(set(numbers)) < len(numbers):
            raise table.wrong(UsageError(f"links must differ, not {numbers}"))
        since = table.take("from", integer, 0) if named else 0
        if "drawn" in table:
            drawn = drawn_of(table.table("drawn"), setting.run)
            found.append((name, Links(drawn=tuple((link, drawn) for link in numbers))))
        else:
            for delay in table.take("delay", listed(_delay)):
                links = Links(delays_ps=_each_link(table, numbers, delay), since=since)
                found.append((f"{name} {' '.join(shown for shown, _ in delay)}".strip(), links))
    table.end()
    if not named and len(found) != 1:
        raise table.wrong(UsageError(f"a phase must have one delay, not {len(found)}"))
    found = [(label, replace(links, delegates=delegates)) for label, links in found]
    for runtime in runtimes:
        for _, links in found:
            try:
                runtime.delayed(dict.fromkeys(links.numbers, (0, 0)))
            except UsageError as error:
                raise table.wrong(UsageError(f'links of "{runtime.name}": {error}')) from None
    return found


def _delay(value: Any) -> list[tuple[str, tuple[int, int]]]:
    """Return the text and the picoseconds of a delay, or of a list with one for each link.

    "30ms/10ms" has 30 ms from rank i to rank i + 1, and 10 ms on the way back.
    """
    return [(text(each), _each_way(text(each))) for each in listed(text)(value)]


def _each_way(shown: str) -> tuple[int, int]:
    down, slash, up = shown.partition("/")
    there = duration_ps(down)
    return there, duration_ps(up) if slash else there


def _each_link(
    table: Table, numbers: Sequence[int], delay: Sequence[tuple[str, tuple[int, int]]]
) -> tuple[tuple[int, tuple[int, int]], ...]:
    if len(delay) not in (1, len(numbers)):
        message = f"delay must have one value or {len(numbers)} for the links, not {len(delay)}"
        raise table.wrong(UsageError(message))
    values = [delay_ps for _, delay_ps in delay] * (len(numbers) // len(delay))
    return tuple(zip(numbers, values, strict=True))
