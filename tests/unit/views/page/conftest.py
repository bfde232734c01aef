"""An import path for the modules beside this file, and the fixtures of the tests in Chromium."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_pages import opened_browser

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Provide a browser for the tests of a file."""
    with opened_browser() as browser:
        yield browser


@pytest.fixture
def url(job: Path) -> Iterator[str]:
    """Serve the page of the fixture `job`, a directory of telemetry; provide its address."""
    from slackline.history import Job
    from slackline.views.page import Dashboard

    with Dashboard(port=0) as page:
        page.start(Job(job))
        yield page.url
    assert page.error is None
