"""Fixtures that run ranks as threads; each rank has a SlacklineGroup on a loopback fabric."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from torch import distributed as dist
from torch._subclasses import FakeTensorMode

from slackline.backend import SlacklineGroup
from slackline.testing import LoopbackFabric

LIMIT = timedelta(seconds=20)

RankFunction = Callable[..., Any]


def run_ranks(
    size: int, function: RankFunction, *, groups: int = 1, timeout: timedelta = LIMIT
) -> list[Any]:
    """Run `function(*groups)` as every rank. Return the results, or raise the error of one rank."""
    fabrics = [LoopbackFabric(size, timeout=timeout) for _ in range(groups)]
    store = dist.HashStore()
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        mine = [SlacklineGroup(fabric.groups[rank], store, lambda: None) for fabric in fabrics]
        try:
            results[rank] = function(*mine)
        except BaseException as error:  # raised again below, in the test's thread
            errors.append(error)
            for fabric in fabrics:
                fabric.groups[rank].abort(f"the test failed: {error}")

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.fixture(autouse=True, scope="session")
def fake_tensors_of_the_main_thread() -> None:
    """Enter torch's mode for tensors without memory once in the thread that lives longest.

    A CUDA build of torch 2.11 on a machine without CUDA devices keeps an object in the thread that
    enters the mode first, and uses the object in all threads, after that thread's end too.
    """
    with FakeTensorMode():
        pass


@pytest.fixture
def ranks() -> Callable[..., list[Any]]:
    return run_ranks
