"""The slow links of an experiment of one pipeline: constant delays, or delays that change."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from slackline._toml import Table, duration_ps, integer, listed, text
from slackline.errors import UsageError
from slackline.plan import pipeline
from slackline.sim._network import Network
from slackline.sim.experiment._runtime import SENDS, Runtime

__all__ = ["Links", "networks_of"]

_MS = pipeline.PS_PER_MS
_REDRAWN_FOR_PS = 30_000 * _MS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Redrawn:
    """Delays that change at random, as steps of whole milliseconds."""

    most_ps: int
    step_ps: int
    shortest_ps: int
    longest_ps: int
    seed: int

    def changes(self, link: int) -> list[tuple[int, int]]:
        """Draw a link's delays for 30 s; return the (start, delay) of each, in picoseconds."""
        random = Random(1000 * self.seed + link)
        found, now_ps = [], 0
        while now_ps < _REDRAWN_FOR_PS:
            found.append(
                (now_ps, self.step_ps * random.randrange(self.most_ps // self.step_ps + 1))
            )
            choices = (self.longest_ps - self.shortest_ps) // _MS + 1
            now_ps += self.shortest_ps + _MS * random.randrange(choices)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Slow links: each has a constant delay, or all have delays that change at random."""

    delays_ps: tuple[tuple[int, int], ...] = ()
    """(link, delay in each direction)."""
    redrawn: tuple[tuple[int, _Redrawn], ...] = ()
    delegates: int | None = None
    """The delegates of each link and direction, in place of the runtime's number."""

    @property
    def slow(self) -> bool:
        """Whether a link has a delay at any time."""
        return bool(self.redrawn) or any(delay_ps for _, delay_ps in self.delays_ps)

    def expected(self, runtime: Runtime) -> pipeline.Scenario:
        """Return the scenario of a runtime (a schedule's executor) with these delays.

        A random delay is replaced by its average.
        """
        means = ((link, each.most_ps // 2) for link, each in self.redrawn)
        found = runtime.healthy
        forward, backward = list(found.forward_delay_ps), list(found.backward_delay_ps)
        for link, delay_ps in (*self.delays_ps, *means):
            if delay_ps:
                forward[link] += delay_ps + runtime.late_ps
                for each in runtime.late_gradients.get(link, (link,)):
                    backward[each] += delay_ps + runtime.late_ps
        return replace(found, forward_delay_ps=tuple(forward), backward_delay_ps=tuple(backward))

    def network(self, runtime: Runtime) -> Network:
        """Return the network with these delays, as they change over time, and its sends."""
        found = replace(Network.of(self.expected(runtime)), **SENDS[runtime.sends])
        if runtime.delegation is not None:
            number = self.delegates or runtime.delegation.delegates
            found = replace(
                found,
                message_bytes=runtime.message_bytes,
                delegation=replace(runtime.delegation, delegates=number),
            )
        for link, each in self.redrawn:
            usual_ps = runtime.healthy.forward_delay_ps[link]
            steps = [
                (at, usual_ps + (delay + runtime.late_ps if delay else 0))
                for at, delay in each.changes(link)
            ]
            found = found.changing(link, steps, "forward")
            for back in runtime.late_gradients.get(link, (link,)):
                found = found.changing(back, steps, "backward")
        return found


def networks_of(table: Table, stages: int, *, named: bool = True) -> list[tuple[str, Links]]:
    """Return the name and the network of each delay in a table."""
    name = table.take("name", text) if named else ""
    numbers = table.take("links", listed(integer))
    for link in numbers:
        if link >= stages - 1:
            message = f"links: there is no link {link}: {stages} stages have {stages - 1} links"
            raise table.wrong(UsageError(message))
    if len(set(numbers)) < len(numbers):
        raise table.wrong(UsageError(f"links must differ, not {numbers}"))
    delegates = table.take_if_there("delegates", integer)
    found = []
    if "redrawn" in table:
        redrawn = _redrawn(table.table("redrawn"))
        found.append(
            (name, Links(redrawn=tuple((link, redrawn) for link in numbers), delegates=delegates))
        )
    else:
        for delay in table.take("delay", listed(_delay)):
            links = Links(delays_ps=_each_link(table, numbers, delay), delegates=delegates)
            found.append((f"{name} {' '.join(shown for shown, _ in delay)}".strip(), links))
    table.end()
    if not named and len(found) != 1:
        raise table.wrong(UsageError(f"a phase must have one delay, not {len(found)}"))
    return found


def _delay(value: Any) -> list[tuple[str, int]]:
    """Return the text and the picoseconds of a delay, or of a list with one for each link."""
    return [(text(each), duration_ps(each)) for each in listed(text)(value)]


def _each_link(
    table: Table, numbers: Sequence[int], delay: Sequence[tuple[str, int]]
) -> tuple[tuple[int, int], ...]:
    if len(delay) not in (1, len(numbers)):
        message = f"delay must have one value or {len(numbers)} for the links, not {len(delay)}"
        raise table.wrong(UsageError(message))
    values = [delay_ps for _, delay_ps in delay] * (len(numbers) // len(delay))
    return tuple(zip(numbers, values, strict=True))


def _redrawn(table: Table) -> _Redrawn:
    found = _Redrawn(
        most_ps=table.take("most", duration_ps),
        step_ps=table.take("step", duration_ps),
        shortest_ps=table.take("shortest", duration_ps),
        longest_ps=table.take("longest", duration_ps),
        seed=table.take("seed", integer, 0),
    )
    table.end()
    if not found.step_ps:
        raise table.wrong(UsageError("step must be positive"))
    if not _MS <= found.shortest_ps <= found.longest_ps:
        raise table.wrong(UsageError("shortest must be at least 1ms, and at most longest"))
    return found
