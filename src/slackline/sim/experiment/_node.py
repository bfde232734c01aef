"""Experiments of an aggregation node whose workers send at their own pace.

[node]                      each message with each onset and each kind of senders
workers = 4
rate = "10Gbit"
payload = "1480B"           of a frame; overhead is the rest of it on a wire
overhead = "58B"
message = ["64KiB", "1MiB"]
onset = [1, 0]              0 is the whole message: store-and-forward

[[node.senders]]            frames one after the other, where there is no such table
name = "bursts of 8"
pattern = "bursty"
burst = 8
rate = "5Gbit"
"""

from dataclasses import replace
from functools import partial
from typing import Any, cast, get_args

from slackline._toml import Table, duration_ps, integer, listed, one_of, rate, size, text
from slackline.errors import UsageError
from slackline.sim._aggregation import Aggregation, Pattern, Senders, simulate_aggregation
from slackline.sim.experiment._case import Case, Figures, Setting

__all__ = ["node_cases"]


def node_cases(table: Table, setting: Setting) -> list[Case]:
    """Return a case for each message, each onset and each kind of senders."""
    messages = table.take("message", listed(_message))
    onsets = table.take("onset", listed(integer), [1])
    values: dict[str, Any] = {
        "workers": table.take("workers", integer),
        "rate_bps": table.take("rate", rate),
        "payload_bytes": table.take("payload", size),
        "overhead_bytes": table.take("overhead", size),
        "latency_ps": table.take("latency", duration_ps, 0),
        "inside_ps": table.take("inside", duration_ps, 0),
    }
    try:
        node = Aggregation(**values)
    except UsageError as error:
        raise table.wrong(error) from None
    kinds = [_senders(each, node, setting.run) for each in table.tables("senders")] or [("", node)]

    def figures(paced: Aggregation, nbytes: int, onset: int) -> Figures:
        run = simulate_aggregation(paced, nbytes, onset=onset)
        return {
            "first_ps": run.first_ps,
            "last_ps": run.last_ps,
            "starved_ps": run.starved_ps,
            "bits_per_second": nbytes * 8 * 10**12 // run.last_ps,
            "frames": run.frames,
            "most_buffered": run.most_buffered,
        }

    return [
        Case(
            ", ".join(filter(None, (shown, f"onset {onset}", name))),
            partial(figures, paced, nbytes, onset),
        )
        for name, paced in kinds
        for shown, nbytes in messages
        for onset in onsets
    ]


def _message(value: Any) -> tuple[str, int]:
    """Return the text and the bytes of a message's size, of at least one byte."""
    nbytes = size(value)
    if not nbytes:
        raise UsageError("a message must have at least one byte, not 0")
    return text(value), nbytes


def _senders(table: Table, node: Aggregation, run: int) -> tuple[str, Aggregation]:
    name = table.take("name", text)
    pattern = table.take("pattern", one_of(*get_args(Pattern)))
    rate_bps = table.take_if_there("rate", rate)
    burst, seed = table.take("burst", integer, 1), table.take("seed", integer, 0)
    try:
        senders = Senders(
            pattern=cast(Pattern, pattern), rate_bps=rate_bps, burst=burst, seed=seed + run
        )
        found = replace(node, senders=senders)
    except UsageError as error:
        raise table.wrong(error) from None
    table.end()
    return name, found
