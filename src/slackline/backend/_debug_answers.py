"""The answers of this rank to torch's debug server, which asks each rank over HTTP.

torch keeps one table of handlers for the process, so the import of this module registers them, as
torch.distributed.debug does with its own.
"""

import ctypes
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch._C import _distributed_c10d as c10d

from slackline.backend._context import create
from slackline.errors import SlacklineError

__all__ = ["FLIGHT", "LINKS", "links"]

LINKS = "slackline_links"
FLIGHT = "slackline_flight"


def links() -> dict[str, Any]:
    """Return the state of every rail of this process's open groups, for JSON.

    "links" has a dictionary for each rail: the fields of `slackline.telemetry.LinkReport`, and the
    rates "sent_bytes_per_s" and "received_bytes_per_s" since the previous call. "outward" and
    "inward" are the sentences of the health monitor; they are empty for shared memory.
    """
    groups: list[Any] = [group.nic for group in create.open_groups()]  # all on the native engine
    reports = [each for group in groups for each in group.link_reports()]
    return {
        "links": [
            {
                **asdict(report),
                "sent_bytes_per_s": _per_second(report.sent_bytes, report.interval_ns),
                "received_bytes_per_s": _per_second(report.received_bytes, report.interval_ns),
            }
            for report in reports
        ]
    }


def _per_second(nbytes: int, interval_ns: int) -> float:
    return nbytes * 1e9 / interval_ns if interval_ns else 0.0


def answer_links(request: Any, response: Any) -> None:
    """Answer a request of torch's debug server with `links()` as JSON."""
    _answer(links, response)


def answer_flight(request: Any, response: Any) -> None:
    """Answer a request of torch's debug server with the flight recorder's content as JSON."""
    _answer(lambda: create.recorder().contents(), response)


def _answer(content: Callable[[], dict[str, Any]], response: Any) -> None:
    try:
        text, kind, status = json.dumps(content()), "application/json", 200
    except SlacklineError as error:
        text, kind, status = f"{type(error).__name__}: {error}", "text/plain", 503
    response.set_content(text, kind)
    response.set_status(status)


def _register(name: str, handler: Callable[[Any, Any], None]) -> None:
    c10d._register_handler(name, handler)
    # torch's table drops its reference at the end of the process, without the interpreter's lock.
    # If it were the last reference, the process would abort, so one more reference is never freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))


_register(LINKS, answer_links)
_register(FLIGHT, answer_flight)
