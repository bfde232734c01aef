"""Rings of ranks with software NICs, twins and circuits."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def ring(job: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """`ring(nics, function)`: the function on a rank for each of the nics."""

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
