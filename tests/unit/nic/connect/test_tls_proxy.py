"""Tests that an error in the TLS proxy ends one connection, with a reason, and no other."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

pytest.importorskip("cryptography", reason="TLS needs the package cryptography")

from slackline.nic.connect._tls import Identity
from slackline.nic.connect._tls_proxy import TlsProxy, _ProxiedConnection

PATIENCE_S = 20.0
ERRORS = (OSError, ValueError, MemoryError, RuntimeError, AssertionError)


class Pair:
    """A connection through two proxies: what is written at one end is read at the other."""

    def __init__(self, proxies: tuple[TlsProxy, TlsProxy]) -> None:
        names = Identity("ours"), Identity("theirs")
        with socket.create_server(("127.0.0.1", 0)) as server:
            first = socket.create_connection(server.getsockname())
            second, _ = server.accept()
        self.reasons: SimpleQueue[str] = SimpleQueue()
        served: list[socket.socket] = []

        def serve() -> None:
            context = names[1].context(names[0].certificate, server=True)
            served.append(context.wrap_socket(second, server_side=True))

        thread = threading.Thread(target=serve)
        thread.start()
        context = names[0].context(names[1].certificate, server=False)
        both = [context.wrap_socket(first)]
        thread.join(PATIENCE_S)
        both += served  # type: ignore[arg-type]
        self.ends = []
        for proxy, tls in zip(proxies, both, strict=True):
            tls.setblocking(False)
            self.ends.append(proxy.add(tls, self._broken))
            self.ends[-1].settimeout(PATIENCE_S)

    def _broken(self, reason: str) -> None:
        self.reasons.put(reason)

    def ends_with(self, words: str) -> bool:
        """Wait until one of the proxies has ended the connection for a reason with these words.

        The other proxy may have told its own reason before, that TLS has failed.
        """
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.reasons.get(timeout=deadline - time.monotonic()):
            pass
        return True

    def works(self) -> bool:
        """Send a byte each way; return whether both arrive."""
        try:
            for one, other in (self.ends, self.ends[::-1]):
                one.sendall(b"x")
                if other.recv(1) != b"x":
                    return False
        except OSError:
            return False
        return True

    def close(self) -> None:
        for end in self.ends:
            end.close()


@pytest.fixture
def proxies() -> Iterator[tuple[TlsProxy, TlsProxy]]:
    both = TlsProxy(), TlsProxy()
    yield both
    for proxy in both:
        proxy.stop()


@pytest.mark.parametrize("seed", range(4))
def test_an_error_ends_one_connection_and_the_proxy_goes_on(
    proxies: tuple[TlsProxy, TlsProxy], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Check errors of drawn types in drawn methods, each in one drawn connection of several."""
    rng = random.Random(seed)
    pairs = [Pair(proxies) for _ in range(3)]
    try:
        assert all(pair.works() for pair in pairs)
        for error in rng.sample(ERRORS, 3):
            victim = pairs.pop(rng.randrange(len(pairs)))
            method = rng.choice(("run", "wants"))
            original = getattr(_ProxiedConnection, method)

            def fail(
                connection: _ProxiedConnection,
                victim: Pair = victim,
                error: type[Exception] = error,
                original: object = original,
            ) -> object:
                if connection.broken == victim._broken:
                    raise error("a planted fault")
                return original(connection)  # type: ignore[operator]

            with monkeypatch.context() as patch:
                patch.setattr(_ProxiedConnection, method, fail)
                victim.works()  # the bytes let the proxies meet the fault, before or after passing
                assert victim.ends_with("a planted fault")
                assert not victim.works()
            victim.close()
            pairs.append(Pair(proxies))
            assert all(pair.works() for pair in pairs)
    finally:
        for pair in pairs:
            pair.close()


def test_an_error_of_the_proxy_itself_ends_its_connections_and_later_ones_work(
    proxies: tuple[TlsProxy, TlsProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Pair(proxies)
    assert first.works()
    with monkeypatch.context() as patch:
        patch.setattr(TlsProxy, "_advance", lambda *_: 1 / 0)
        assert not first.works()
        assert first.ends_with("the TLS proxy failed: ZeroDivisionError(")
    first.close()
    second = Pair(proxies)
    assert second.works()
    second.close()
