"""Tests of the addresses that a link's rails are connected to."""

import socket

import pytest

from slackline.errors import LinkError
from slackline.nic.connect._addresses import Interface
from slackline.nic.connect._paths import RailPlan, plan_rails
from slackline.nic.connect._rail_set import RailSet

WORKER, ELSEWHERE, NODE = "127.0.0.3", "127.0.0.2", "127.0.0.1"


def plans() -> tuple[RailPlan, ...]:
    """Return the rail from a worker, which names two addresses of its NIC, to a node."""
    named = [
        Interface(name="lo", address=address, prefix=8, port=9) for address in (ELSEWHERE, WORKER)
    ]
    node = Interface(name="lo", address=NODE, prefix=8, port=7)
    return plan_rails(named, [node], one_host=True, chosen=True, kinds=["tcp"], connections=1)


def derived(*, anywhere: bool) -> RailSet:
    rails = RailSet(plans, calls=False, anywhere=anywhere)
    rails.derive()
    return rails


def test_every_address_that_an_authenticated_peer_names_is_tried() -> None:
    rails = derived(anywhere=True)
    (rail,) = rails
    assert [each.address for each in rails.attempts(rail)] == [ELSEWHERE, WORKER]
    assert [each.address for each in rails.all_attempts()] == [ELSEWHERE, WORKER]


def test_without_anywhere_only_addresses_that_the_peer_has_connected_from_are_tried() -> None:
    rails = derived(anywhere=False)
    (rail,) = rails
    with pytest.raises(LinkError) as caught:
        rails.attempts(rail)
    assert str(caught.value) == (
        f"not connected to {ELSEWHERE}, {WORKER}: the peer has named the address, but not "
        "connected from it, and there is no key"
    )
    assert rails.all_attempts() == ()
    with socket.create_server((NODE, 0)) as listening:
        where = listening.getsockname()
        with socket.create_connection(where, source_address=(WORKER, 0)):
            accepted, _ = listening.accept()
            with accepted:
                rails.connected_from(accepted)
    assert [each.address for each in rails.attempts(rail)] == [WORKER]
    assert [each.address for each in rails.all_attempts()] == [WORKER]
