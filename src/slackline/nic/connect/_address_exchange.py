"""The exchange of addresses between the engines of a link, after one engine's addresses change.

The exchange is a handshake of its own, over any path to the peer's listener. Each end proves that
it knows the link's key and sends its present addresses with their ports.
"""

from __future__ import annotations

import json

from slackline.errors import LinkError
from slackline.nic.connect._addresses import Interface, from_rows
from slackline.nic.connect._handshake import call, fresh_nonce
from slackline.nic.connect._handshake_channel import HandshakeChannel, dial, run_handshake
from slackline.nic.connect._messages import Hello, TransportParameters
from slackline.nic.connect._paths import Attempt
from slackline.nic.connect._rail_handle import LocalContext, ParametersMaker

__all__ = ["exchange", "read_addresses"]

_CONNECT_S = 1.0
_HANDSHAKE_S = 3.0


async def exchange(
    context: LocalContext, peer: str, code: int, key: bytes, where: tuple[Attempt, ...]
) -> tuple[Interface, ...]:
    """Send this engine's addresses to the engine `peer` and return the peer's addresses.

    `code` and `key` are the code and the key of the link's handshakes. Raises LinkError, FrameError
    or OSError if the peer answers none of the connection attempts.
    """
    hello = Hello(
        engine=context.engine_name,
        peer=peer,
        rail=0,
        kind="news",
        nonce=fresh_nonce(),
        certificate=context.certificate.hex(),
    )
    channel = HandshakeChannel(await dial(where, _CONNECT_S), _HANDSHAKE_S)
    try:
        with ParametersMaker(context, "news", channel.sock) as parameters:
            session = await run_handshake(channel, call(hello, key, parameters.make), code)
    finally:
        channel.close()
    if session.theirs.refusal:
        raise LinkError(f"the peer has closed the link: {session.theirs.refusal}")
    return read_addresses(session.theirs)


def read_addresses(parameters: TransportParameters) -> tuple[Interface, ...]:
    """Return the addresses in the peer's part of an exchange; raise LinkError if they are wrong."""
    try:
        return from_rows(json.loads(parameters.interfaces))
    except (TypeError, ValueError, RecursionError) as error:
        raise LinkError(f"the peer's addresses are wrong: {error}") from error
