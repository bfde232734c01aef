"""The exchange of addresses between two engines of a link, after those of one have changed.

The exchange is a handshake of its own, over any path to the peer's listener. Each end proves that
it knows the link's key and sends its present addresses with their ports.
"""

from __future__ import annotations

import asyncio
import json

from slackline.errors import LinkError
from slackline.nic._addresses import Interface, from_rows
from slackline.nic._carrier import Site, TermsMaker
from slackline.nic._handshake import call, fresh_nonce
from slackline.nic._line import Line, converse, dial
from slackline.nic._messages import Hello, Terms
from slackline.nic._paths import Attempt

__all__ = ["exchange", "read_news"]

_CONNECT_S = 1.0
_TALK_S = 3.0


async def exchange(
    site: Site, peer: str, code: int, key: bytes, where: tuple[Attempt, ...]
) -> tuple[Interface, ...]:
    """Send this engine's addresses to the engine `peer` and return the addresses of that one.

    `code` and `key` are those of the link's handshakes. Raises LinkError, FrameError or OSError if
    the peer does not answer by any of the attempts.
    """
    hello = Hello(
        engine=site.engine_name,
        peer=peer,
        rail=0,
        kind="news",
        nonce=fresh_nonce(),
        certificate=site.certificate.hex(),
    )
    line = Line(await dial(where, _CONNECT_S))
    try:
        async with asyncio.timeout(_TALK_S):
            with TermsMaker(site, "news", line.sock) as terms:
                session = await converse(line, call(hello, key, terms.make), code)
    except TimeoutError:
        raise LinkError("the handshake was not answered in time") from None
    finally:
        line.close()
    if session.theirs.refusal:
        raise LinkError(f"it has given the link up: {session.theirs.refusal}")
    return read_news(session.theirs)


def read_news(terms: Terms) -> tuple[Interface, ...]:
    """Return the addresses in the peer's part of an exchange; raise LinkError if they are wrong."""
    try:
        return from_rows(json.loads(terms.interfaces))
    except (TypeError, ValueError, RecursionError) as error:
        raise LinkError(f"the peer's addresses are wrong: {error}") from error
