"""A headless Chromium that opens pages of the dashboard and collects their errors."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
"""Chromium's sandbox does not run as root."""


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Start Chromium; skip the test, with the reason, where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs the program chromium (Debian's package chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Any, url: str, *, script: str = "", **options: Any) -> tuple[Any, list[str]]:
    """Open an address in a new window; return the page and the list of its errors, which grows.

    `script` runs before the scripts of the page.
    """
    page = browser.new_context(**options).new_page()
    page.add_init_script(script)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.goto(url)
    return page, errors
