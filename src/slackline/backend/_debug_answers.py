"""The answers of this rank to torch's debug server, which asks each rank over HTTP.

torch keeps one table of handlers for the process. A rank answers from the import of the module that
creates its groups, which registers the handlers.
"""

import ctypes
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Protocol

from torch._C import _distributed_c10d as c10d

from slackline.errors import SlacklineError

__all__ = ["FLIGHT", "LINKS", "Answering", "links_of", "register_answers"]

LINKS = "slackline_links"
FLIGHT = "slackline_flight"


class Recording(Protocol):
    """The flight recorder's content, in the form in which torch reads it."""

    def contents(self) -> dict[str, Any]: ...


class Answering(Protocol):
    """The owner of a process's groups, to which the answers refer."""

    def open_groups(self) -> Iterable[Any]: ...
    def recorder(self) -> Recording: ...


def links_of(owner: Answering) -> dict[str, Any]:
    """Return the state of every rail of the owner's open groups; see `slackline.backend.links`."""
    groups: list[Any] = [group.nic for group in owner.open_groups()]  # all on the native engine
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


def register_answers(owner: Answering) -> None:
    """Have torch's debug server get the links and the flight recorder's content of `owner`.

    A process may call this once, because torch refuses a second handler of the same name.
    """
    _register(LINKS, lambda: links_of(owner))
    _register(FLIGHT, lambda: owner.recorder().contents())


def _register(name: str, content: Callable[[], dict[str, Any]]) -> None:
    def handler(request: Any, response: Any) -> None:
        try:
            text, kind, status = json.dumps(content()), "application/json", 200
        except SlacklineError as error:
            text, kind, status = f"{type(error).__name__}: {error}", "text/plain", 503
        response.set_content(text, kind)
        response.set_status(status)

    c10d._register_handler(name, handler)
    # torch's table drops its reference at the end of the process, without the interpreter's lock.
    # If it were the last reference, the process would abort, so one more reference is never freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))
