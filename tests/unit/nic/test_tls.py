"""Tests of the certificates that engines show each other."""

import pytest

from slackline.errors import LinkError
from slackline.nic.connect._tls import Identity


@pytest.mark.parametrize("server", [True, False])
def test_an_empty_certificate_of_a_peer_is_an_error_of_the_link(server: bool) -> None:
    with pytest.raises(LinkError) as raised:
        Identity("engine").context(b"", server=server)
    assert str(raised.value) == "the peer's certificate cannot be read: Empty certificate data"


def test_a_certificate_without_its_end_is_an_error_of_the_link() -> None:
    identity = Identity("engine")
    with pytest.raises(LinkError, match=r"^the peer's certificate cannot be read: "):
        identity.context(identity.certificate[:-1], server=True)
