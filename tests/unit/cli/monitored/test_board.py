"""Tests of the Grafana board without Prometheus: metrics, labels and data sources."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_records import START_NS, write
from monitored_files import write_job
from prometheus_client.parser import text_string_to_metric_families

from slackline.causes import Watch
from slackline.cli._serving import METRICS_ADDRESS
from slackline.records import DeviceReport
from slackline.views.metrics import metrics_text

ROOT = Path(__file__).parents[4]
MONITORING = ROOT / "examples" / "monitoring"


@pytest.fixture
def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "grafana.json").read_text())
    return found


@pytest.fixture
def labels(tmp_path: Path) -> dict[str, set[str]]:
    """Return the labels of each metric of a job."""
    write_job(tmp_path)
    counters = {"cycles": 9, "busy": 3, "accepted": 1}
    write(tmp_path, 0, DeviceReport.of(0, START_NS, "circuit", counters))
    text = metrics_text(Watch.recorded(tmp_path, 2**62))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_queries_name_metrics_and_labels_that_there_are(
    board: dict[str, Any], labels: dict[str, set[str]]
) -> None:
    known = set().union(*labels.values()) | {"job"}  # Prometheus itself adds the label job
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for name, selected in re.findall(r"(slackline_\w+)\{([^}]*)\}", query):
                assert name in labels, panel["title"]
                asked = set(re.findall(r"(\w+)=~?", selected))
                assert asked <= labels[name] | {"job"}, query
            grouped = re.findall(r"by \(([^)]*)\)", query)
            assert {word for by in grouped for word in by.split(", ")} <= known, query
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, target


def test_panels_lie_side_by_side_and_take_the_board_s_data_source(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {each["uid"] for each in sources} == {"${datasource}"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "job", "rank"]


def test_the_page_lists_every_metric_with_its_labels(labels: dict[str, set[str]]) -> None:
    page = (ROOT / "docs" / "how-to" / "top.md").read_text()
    rows = re.findall(r"^\| `(slackline_\w+)` \|([^|]*)\|", page, re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows} == labels


def test_prometheus_is_told_the_default_address() -> None:
    told = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (training,) = told["scrape_configs"]
    assert training["static_configs"] == [{"targets": [METRICS_ADDRESS]}]
