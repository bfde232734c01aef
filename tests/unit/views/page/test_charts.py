"""Tests of the charts in headless Chromium: scale, faults, figures and their help."""

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from browser_pages import open_page
from job_records import ended, operations, report, step, verdict
from made_records import SECOND_NS, START_NS, header, write

pytest.importorskip("aiohttp", reason="the page needs slackline-torch[dashboard]")

from slackline.records import GroupOpened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SLOW = "link 0>1 is slow since 3.0 s: 30 ms over its usual 0.2 ms"
BACK = "link 0>1 is back at 7.0 s: 0.2 ms one way, after 4.0 s"
CHART = "#steps .chart"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Write 10 s of two ranks: each tenth step takes 2 s, and a link is slow from 3 s to 7 s."""
    for rank in range(2):
        opened = GroupOpened(rank=rank, time_ns=START_NS, size=2, epoch=1, members=(0, 1))
        steps = [step(rank, n, wall_ms=2000 if n % 10 == 9 else 100) for n in range(100)]
        rows = operations(rank, *((100 * n, 100 * n + 50, 25) for n in range(100)))
        reports = [report(rank, 1 - rank, at_s) for at_s in range(1, 11)]
        write(tmp_path, rank, header(rank), opened, *steps, rows, *reports)
    write(tmp_path, 0, verdict(0, 0, 1, 3, "slow", SLOW), verdict(0, 0, 1, 7, "back", BACK))
    return tmp_path


def reddish(page: Any, chart: int, share: float) -> int:
    """Return the number of red pixels in a column of a chart, at a share of the plot's width."""
    script = """([chart, share]) => {
        const place = document.querySelectorAll('#steps .chart')[chart];
        const canvas = place.querySelector('canvas');
        const over = place.querySelector('.u-over').getBoundingClientRect();
        const scale = canvas.width / canvas.getBoundingClientRect().width;
        const x = Math.round((over.left - canvas.getBoundingClientRect().left
          + share * over.width) * scale);
        const data = canvas.getContext('2d').getImageData(x, 0, 1, canvas.height).data;
        return Array.from({length: canvas.height}, (_, y) => data.slice(4 * y, 4 * y + 4))
          .filter(([red, green, blue]) => red > 150 && green < 70 && blue < 70).length;
    }"""
    found: int = page.evaluate(script, [chart, share])
    return found


def hover(page: Any, share: float) -> str:
    """Move the pointer over the chart of step times; return the sentence below the chart."""
    box = page.locator(f"{CHART} .u-over").first.bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    said: str = page.locator(f"{CHART} .caption").first.inner_text()
    return said


def test_rare_long_steps_do_not_flatten_the_chart(browser: Any, url: str) -> None:
    page, errors = open_page(browser, url)
    label = page.locator(CHART).first
    page.locator(f"{CHART} canvas").first.wait_for()
    assert label.get_attribute("aria-label") == (
        "step time on an axis up to 140 ms, latest: median 100 ms, 25th percentile 100 ms, "
        "75th percentile 100 ms, longest step 2 s"
    )
    # The entry at 5 s is the 50th step, which took 2 s.
    said = hover(page, (5.0 - 0.1) / 9.9)
    assert said.startswith("a step of 2 s, above the scale; ")
    legend = page.locator(f"{CHART} .u-legend").first.inner_text()
    assert "2 s" in legend
    assert errors == []


def test_a_fault_is_shaded_for_as_long_as_it_lasts(browser: Any, url: str) -> None:
    page, errors = open_page(browser, url)
    page.locator(f"{CHART} canvas").first.wait_for()
    page.locator("#findings").get_by_text(BACK, exact=True).wait_for()
    assert page.locator(f"{CHART} .caption").first.inner_text() == (
        "Shaded: times in which a fault lasted, each with a bar above; move the pointer there for "
        "the reasons."
    )
    assert SLOW in hover(page, (4.45 - 0.1) / 9.9)
    assert hover(page, (8.45 - 0.1) / 9.9) == ""
    for chart in (0, 1):
        during, after = (reddish(page, chart, (at - 0.1) / 9.9) for at in (4.55, 8.55))
        assert during > 50
        assert after == 0
    page.locator("#links td[data-link='0>1']").click()
    page.locator("#link canvas").first.wait_for()
    first, last = (
        page.evaluate(
            "at => new Date(at * 1000).toLocaleTimeString([], {hour12: false})",
            (START_NS + at * SECOND_NS) / 1e9,
        )
        for at in (3, 7)
    )
    assert page.locator("#link li").inner_text() == f"{first} to {last} {SLOW}"
    assert "a fault lasted" in page.locator("#link .caption").first.inner_text()
    assert errors == []


@pytest.mark.parametrize(("width", "rows"), [(1280, 5), (1920, 3), (2560, 3), (390, 6)])
def test_the_cards_fill_each_row(browser: Any, url: str, width: int, rows: int) -> None:
    page, errors = open_page(browser, url, viewport={"width": width, "height": 1000})
    page.locator("#ranks tbody tr").first.wait_for()
    page.locator("#timeline svg").wait_for()
    ends = page.evaluate(
        """[...document.querySelectorAll('main > section')].filter((each) => !each.hidden)
        .map((each) => each.getBoundingClientRect())
        .map((box) => [Math.round(box.top), box.right])"""
    )
    widest: dict[int, float] = {}
    for top, right in ends:
        widest[top] = max(widest.get(top, 0), right)
    assert len(widest) == rows
    inner = page.evaluate("document.querySelector('main').clientWidth")
    assert all(inner - right <= 17 for right in widest.values()), (inner, widest)
    assert errors == []


def test_cards_columns_and_figures_have_help(browser: Any, url: str) -> None:
    page, errors = open_page(browser, url)
    page.locator("#ranks tbody tr").first.wait_for()
    tip = page.get_by_role("tooltip")
    titles = page.locator("main div.title:visible")
    assert titles.count() == page.locator("main h2:visible").count()
    for title in titles.all():
        title.locator("button.help").focus()
        assert tip.is_visible()
        assert len(tip.inner_text()) > 20
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    for part in page.locator("#ranks th, #figures dt").all():
        part.hover()
        assert tip.inner_text() == part.get_attribute("data-help")
    assert page.locator("#ranks th:not([data-help]), #figures dt:not([data-help])").count() == 0
    assert page.locator("#zone").inner_text().startswith("times of day: UTC")
    assert errors == []


def test_times_of_day_are_those_of_the_time_zone_that_is_stated(browser: Any, url: str) -> None:
    page, _ = open_page(browser, url, timezone_id="Asia/Kolkata")
    page.locator("#findings time").first.wait_for()
    assert page.locator("#zone").inner_text() == "times of day: UTC+05:30"
    told = page.request.get(f"{url}panels/messages").json()["messages"]
    assert page.locator("#findings time").all_inner_texts() == [
        f"{datetime.fromtimestamp(each['time_s'], ZoneInfo('Asia/Kolkata')):%H:%M:%S}"
        for each in told
    ]


def test_the_end_of_the_job_is_told(browser: Any, url: str, job: Path) -> None:
    page, errors = open_page(browser, url, timezone_id="UTC")
    page.get_by_text("no rank has written since 22:13:30", exact=True).wait_for()
    for rank in range(2):
        write(job, rank, ended(rank, 12))
    page.get_by_text("the job has ended at 22:13:32", exact=True).wait_for(timeout=3000)
    assert page.locator("#ranks tbody td:nth-child(3)").all_inner_texts() == ["ended", "ended"]
    assert errors == []


def test_figures_have_three_digits_and_a_unit(browser: Any, url: str) -> None:
    page, _ = open_page(browser, url)
    script = """async ([name, values]) => {
        const text = await import('/static/text.js');
        return values.map((value) => text[name](value));
    }"""
    for name, shown in {
        "number": {0: "0", 0.01234: "0.0123", 9.996: "10", 12.34: "12.3", 1234.6: "1235"},
        "milliseconds": {
            0.00085: "850 ns",
            0.01234: "12.3 us",
            0.9999: "1 ms",
            1.5: "1.5 ms",
            999.9: "1 s",
            90_000: "90 s",
            1_200_000: "20 min",
            36_000_000: "10 h",
        },
        "rate": {9.4e8: "940 Mbit/s", 1.291e10: "12.9 Gbit/s", 0: "0 bit/s", 8540: "8.54 kbit/s"},
        "bytes": {512: "512 B", 1 << 16: "64 KiB", 6_687_648: "6.38 MiB", 3 << 30: "3 GiB"},
        "percent": {0.1234: "12.3%", 0: "0%", 1: "100%", 0.00469: "0.469%"},
    }.items():
        assert page.evaluate(script, [name, list(shown)]) == list(shown.values())
    assert page.evaluate(script, ["milliseconds", [None]]) == ["\N{EN DASH}"]
