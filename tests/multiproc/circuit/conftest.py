"""Fixtures that run rings of ranks with software NICs, Python twins of NICs, or simulated
circuits."""

import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def ring(job: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Provide `ring(nics, function)`, which runs the function on one rank for each of the nics."""

    def run(nics: Iterable[str], function: Callable[..., Any], **more: Any) -> list[Any]:
        every = list(nics)
        environment = {
            "NICS": ",".join(every),
            "SLACKLINE_ORDER": "rank",
            "SLACKLINE_TIMEOUT": "30s",
            **more.pop("environment", {}),
        }
        return job(len(every), function, bare=True, environment=environment, **more)

    return run


@pytest.fixture(scope="session")
def software(ring: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Provide `software(function, ranks=4, NAME=VALUE)`, which returns the results of ranks with
    software NICs.

    Each result is computed once, because sums do not depend on the rails.
    """

    @cache
    def run(function: Callable[..., Any], ranks: int, settings: tuple[tuple[str, str], ...]) -> Any:
        return ring(["software"] * ranks, function, environment=dict(settings))

    def ask(function: Callable[..., Any], ranks: int = 4, **settings: str) -> Any:
        return run(function, ranks, tuple(sorted(settings.items())))

    return ask
