"""Pages of slackline in torch's debug server, which runs beside rank 0 and asks all ranks."""

import json
from typing import Any

from torch.distributed.debug._debug_handlers import FlightRecorderHandler
from torch.distributed.debug._frontend import (
    DebugHandler,
    NavLink,
    Route,
    fetch_all,
    format_fetch_summary,
)

from slackline.backend._debug_answers import FLIGHT, LINKS

__all__ = ["FlightPage", "LinksPage"]

_COLUMNS = (
    ("peer", "peer"),
    ("rail", "rail"),
    ("kind", "kind"),
    ("state", "state"),
    ("sent_bytes_per_s", "sent, bytes/s"),
    ("received_bytes_per_s", "received, bytes/s"),
    ("resent", "packets resent"),
    ("round_trip_ns", "round trip, ns"),
    ("unconfirmed_bytes", "unconfirmed bytes"),
    ("outward", "to the peer"),
    ("inward", "from the peer"),
)

_TEMPLATE = """
{% extends "base.html" %}
{% block header %}
    <h1>{% block title %}slackline: links{% endblock %}</h1>
{% endblock %}
{% block content %}
    {% for rank, address, error, rows in ranks %}
        <h2>Rank {{ rank }}: {{ address | e }}</h2>
        {% if error %}
            <pre>{{ error | e }}</pre>
        {% else %}
            <table border="1">
            <tr>{% for _, title in columns %}<th>{{ title }}</th>{% endfor %}</tr>
            {% for row in rows %}
                <tr>{% for name, _ in columns %}<td>{{ row[name] | e }}</td>{% endfor %}</tr>
            {% endfor %}
            </table>
        {% endif %}
    {% endfor %}
{% endblock %}
"""


class LinksPage(DebugHandler):
    """The page /slackline_links: a row for each rail of each rank, with its rates and health."""

    def routes(self) -> list[Any]:
        return [Route(f"/{LINKS}", self._show)]

    def nav_links(self) -> list[Any]:
        return [NavLink(f"/{LINKS}", "slackline: links")]

    def templates(self) -> dict[str, str]:
        return {"slackline_links.html": _TEMPLATE}

    def dump(self) -> str:
        """Return the answers of all ranks as text, for the server's periodic dumps."""
        addresses, answers = fetch_all(LINKS, timeout=self.fetch_timeout)
        summary = format_fetch_summary(addresses, answers)
        rows = [
            f"=== Rank {rank}: {address} ===\n{answer.text}"
            for rank, (address, answer) in enumerate(zip(addresses, answers, strict=True))
        ]
        return "\n".join([summary, *rows] if summary else rows)

    def dump_filename(self) -> str:
        return LINKS

    def _show(self, request: Any) -> bytes:
        addresses, answers = fetch_all(LINKS, timeout=self.fetch_timeout)
        ranks = []
        for rank, (address, answer) in enumerate(zip(addresses, answers, strict=True)):
            failed = answer.status_code != 200
            error = f"status {answer.status_code}: {answer.text}" if failed else ""
            rows = [] if failed else json.loads(answer.text)["links"]
            ranks.append((rank, address, error, rows))
        page: bytes = request.frontend.render_template(
            "slackline_links.html", ranks=ranks, columns=_COLUMNS
        )
        return page


class FlightPage(FlightRecorderHandler):
    """The page /slackline_flight: torch's tables of its flight recorder, made of slackline's."""

    def routes(self) -> list[Any]:
        return [Route(f"/{FLIGHT}", self._show)]

    def nav_links(self) -> list[Any]:
        return [NavLink(f"/{FLIGHT}", "slackline: flight recorder")]

    def dump(self) -> str:
        """Return the recorded operations of all ranks as text, for the server's periodic dumps."""
        addresses, answers = fetch_all(FLIGHT, timeout=self.fetch_timeout)
        return "\n".join(
            f"=== Rank {rank}: {address} ===\n{answer.text}"
            for rank, (address, answer) in enumerate(zip(addresses, answers, strict=True))
        )

    def dump_filename(self) -> str:
        return FLIGHT

    def _show(self, request: Any) -> bytes:
        addresses, answers = fetch_all(FLIGHT, timeout=self.fetch_timeout)
        page: bytes = self._render_tables(request.frontend, addresses, list(answers))
        return page
