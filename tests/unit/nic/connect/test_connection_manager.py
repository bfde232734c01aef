"""Tests that the connection manager keeps nothing alive once it has stopped."""

import asyncio
import gc
import socket
import threading
import weakref
from collections.abc import Iterator

import pytest

from slackline.nic.connect._connection_manager import ConnectionManager


class Engine:
    pass


@pytest.fixture
def closed() -> Iterator[tuple[str, int]]:
    """Provide an address that refuses connections."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def refused(where: tuple[str, int]) -> None:
    with socket.socket() as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, where)


def test_a_task_that_is_stopped_while_it_handles_an_error_of_the_loop_goes(
    closed: tuple[str, int],
) -> None:
    manager, engine, handles = ConnectionManager(), Engine(), threading.Event()
    lives = weakref.ref(engine)

    async def work(engine: Engine) -> None:
        try:
            await refused(closed)
        except ConnectionRefusedError:
            handles.set()
            await asyncio.sleep(60)

    async def spawn(engine: Engine) -> None:
        manager.spawn(work(engine))

    manager.start()
    manager.run(spawn(engine))
    assert handles.wait(60)
    del engine
    manager.stop()
    assert lives() is None


def test_a_call_that_fails_keeps_nothing(closed: tuple[str, int]) -> None:
    manager, engine = ConnectionManager(), Engine()
    lives = weakref.ref(engine)

    async def work(engine: Engine) -> None:
        await refused(closed)

    def call(engine: Engine) -> None:
        with pytest.raises(ConnectionRefusedError):
            manager.run(work(engine))

    manager.start()
    call(engine)
    del engine
    manager.stop()
    assert lives() is None
