"""Tests of the page in headless Chromium: panels, keyboard, narrow windows, hostile text."""

from pathlib import Path
from typing import Any

import pytest
from browser_pages import open_page
from job_records import ended, nic_of_rank_2, operations, pipeline_step, report, step, verdict
from made_records import MS_NS, SECOND_NS, START_NS, header, write

pytest.importorskip("aiohttp", reason="the page needs slackline-torch[dashboard]")

from slackline.history import Job
from slackline.records import Decision, Promise
from slackline.views.page import Dashboard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SLOW = "link 0>1 is slow since 3.0 s: 30 ms over its usual 200 us"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


CLOCK = "seconds => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false })"
"""A script of the browser that returns the time of day of a Unix time in seconds."""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Write the telemetry of four ranks in a ring, one slow link and a pipeline's step."""
    for rank in range(4):
        steps = [step(rank, number, exposed_ms=20 + number % 7) for number in range(60)]
        rows = [(100 * k + 10, 100 * k + 60, 25) for k in range(60)]
        reports = [report(rank, (rank + 1) % 4, at, packets=100, resent=2) for at in range(1, 7)]
        shown = pipeline_step(rank, 7, (f"{rank}F0", 10 * rank, 10 * rank + 20))
        write(tmp_path, rank, header(rank), *steps, operations(rank, *rows), *reports, shown)
    write(tmp_path, 0, verdict(0, 0, 1, 3, "slow", SLOW))
    chosen = Decision(
        rank=0, time_ns=START_NS, subject="plan", choice="ring", reason=f"measured {HOSTILE}"
    )
    promised = Promise(
        rank=0, time_ns=START_NS, source="groups", choice=HOSTILE, wall_ns=80 * MS_NS
    )
    write(tmp_path, 0, chosen, promised, step(0, 60))
    return tmp_path


def test_every_panel_is_shown_without_an_error(browser: Any, url: str) -> None:
    page, errors = open_page(browser, url)
    cell = page.get_by_role("gridcell", name="rank 0 to rank 1: slow, 100 Mbit/s")
    cell.wait_for()
    assert page.locator("#links td.cell").count() == 8
    assert page.locator("#links td.slow").count() == 1
    assert cell.get_attribute("title") == SLOW
    page.locator("#findings").get_by_text(SLOW, exact=True).wait_for()
    assert page.locator("#timeline svg rect.wait").count() >= 4
    assert page.locator("#timeline svg rect.operation").count() >= 12
    assert page.locator("#pipeline svg rect.forward").count() == 4
    assert page.locator("#pipeline svg rect.bubble").count() == 7
    assert page.locator("#steps canvas").count() == 2
    assert page.locator("#ranks tbody tr").count() == 4
    (row,) = page.locator("#promises tbody tr").all()
    assert row.locator("td").all_inner_texts()[1:] == [
        "0",
        "trial of groups of gradients",
        HOSTILE,
        "80 ms",
        "100 ms",
        "1.25",
        "1",
    ]
    label = page.locator("#steps .chart").first.get_attribute("aria-label")
    assert label == (
        "step time on an axis up to 140 ms, latest: median 100 ms, 25th percentile 100 ms, "
        "75th percentile 100 ms, longest step 100 ms"
    )
    assert errors == []


def test_text_from_records_is_text(browser: Any, url: str) -> None:
    page, errors = open_page(browser, url)
    page.locator("#decisions").get_by_text(HOSTILE).wait_for()
    page.locator("#promises").get_by_text(HOSTILE, exact=True).wait_for()
    assert page.title() == "Slackline"
    assert page.locator("main img, main script").count() == 0
    assert errors == []


def test_a_cause_is_shown_with_its_times_and_the_findings_that_it_explains(
    browser: Any, tmp_path: Path
) -> None:
    for rank in range(4):
        host = HOSTILE if rank == 2 else f"host{rank}"
        write(tmp_path, rank, header(rank, host=host), *nic_of_rank_2()[f"rank{rank}"])
    with Dashboard(port=0) as server:
        server.start(Job(tmp_path))
        page, errors = open_page(browser, server.url)
        lasting = page.locator("#causes > li.lasting")
        lasting.wait_for()
        said = lasting.locator("> span").inner_text()
        assert said.startswith(f"NIC 0 of host {HOSTILE}: all 3 links in use over it are silent")
        assert page.locator("#findings li").count() == 0
        assert page.locator("#links td.silent").count() == 6
        lasting.get_by_text("3 findings explained", exact=True).click()
        assert lasting.locator("details li").count() == 3
        for rank in range(4):
            peers = {0, 1, 2, 3} - {rank} if rank == 2 else {2}
            back = [verdict(rank, rank, peer, 27, "back", f"link {rank}>{peer}") for peer in peers]
            write(tmp_path, rank, *back, ended(rank, 31))
        over = page.locator("#causes > li.over")
        over.wait_for()
        over.get_by_text("6 findings explained", exact=True).wait_for()
        assert over.locator("details[open] li").count() == 6
        first, last = (page.evaluate(CLOCK, (START_NS + at * SECOND_NS) / 1e9) for at in (10, 27))
        assert over.locator("> time").inner_text() == f"{first} to {last}"
        assert page.locator("#links td.silent").count() == 0
        assert page.title() == "Slackline"
        assert page.locator("main img, main script").count() == 0
        assert errors == []


def test_the_matrix_is_used_by_keyboard(browser: Any, url: str) -> None:
    page, errors = open_page(browser, url)
    page.locator("#links td.slow").wait_for()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('#links td')"):
            break
    focus = "document.activeElement.dataset.link"
    assert page.evaluate(focus) == "0>1"
    style = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(style) == "solid"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focus) == "0>3"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focus) == "2>3"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focus) == "2>1"
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focus) == "0>1"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Link 0>1").wait_for()
    page.locator("#link canvas").first.wait_for()
    assert page.locator("#link li").inner_text().endswith(SLOW)
    assert page.locator("#links td[aria-selected=true]").count() == 1
    assert errors == []


@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_its_window(browser: Any, url: str, width: int, scheme: str) -> None:
    viewport = {"width": width, "height": 800}
    page, errors = open_page(browser, url, viewport=viewport, color_scheme=scheme)
    page.locator("#links td.slow").click()
    page.locator("#link canvas").first.wait_for()
    page.locator("#timeline svg").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth <= 360")
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(245, 246, 248)", "dark": "rgb(18, 21, 26)"}[scheme]
    assert errors == []


def test_everything_that_takes_the_focus_has_a_name(browser: Any, url: str) -> None:
    page, _ = open_page(browser, url)
    page.locator("#links td.slow").wait_for()
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, a, [tabindex], [role=img], table, section')]
        .filter((each) => !each.hidden && !each.getAttribute('aria-label')
          && !document.getElementById(each.getAttribute('aria-labelledby') ?? '')
          && !(each.tagName === 'BUTTON' && each.textContent)
          && !(each.tagName === 'TABLE' && each.closest('[aria-labelledby]')))
        .map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert nameless == []


def test_the_page_follows_the_job_and_can_be_held(browser: Any, url: str, job: Path) -> None:
    page, errors = open_page(browser, url)
    page.locator("#links td.slow").wait_for()
    back = "link 0>1 is back at 9.0 s: 0.2 ms one way, after 6.0 s"
    write(job, 0, verdict(0, 0, 1, 9, "back", back))
    page.get_by_text(back, exact=True).wait_for()
    assert page.locator("#links td.slow").count() == 0
    page.get_by_role("button", name="Pause").click()
    again = "link 2>3 is slow since 10.0 s: 30 ms over its usual 200 us"
    write(job, 2, verdict(2, 2, 3, 10, "slow", again))
    with page.expect_response("**/links/2/3") as answer:
        page.locator("#links td[data-link='2>3']").click()
    assert answer.value.ok
    assert page.locator("#links td.slow").count() == 0
    page.get_by_role("button", name="Continue").click()
    page.locator("#links td.slow").wait_for()
    assert errors == []


def test_the_end_of_the_server_is_told(browser: Any, job: Path) -> None:
    with Dashboard(port=0) as server:
        server.start(Job(job))
        page, errors = open_page(browser, server.url)
        page.locator("#links td.slow").wait_for()
    page.get_by_text("the server has ended; the page shows the last state").wait_for()
    assert errors == []


def test_a_token_opens_the_page_and_leaves_the_address(browser: Any, job: Path) -> None:
    with Dashboard(host="0.0.0.0", port=0) as server:
        server.start(Job(job))
        local = f"http://127.0.0.1:{server.port}/"
        page, errors = open_page(browser, f"{local}?token={server.token}")
        page.locator("#links td.slow").wait_for()
        assert page.url == local
        assert errors == []
        page.reload()
        page.locator("#links td.slow").wait_for()
        refused, _ = open_page(browser, local)
        assert "the token is missing or wrong" in refused.content()
