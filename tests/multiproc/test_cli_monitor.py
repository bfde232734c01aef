"""Tests that a running job can be followed: `slackline top`, metrics, Prometheus and the board."""

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
_ROOT = Path(__file__).parents[2]
_ADDRESS = r"metrics for Prometheus at (http://127\.0\.0\.1:\d+/metrics)$"
_LISTENING = r"msg=\"Listening on\" address=(127\.0\.0\.1:\d+)$"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_WRITER = """
import os
from pathlib import Path
from slackline.records import StepSummary, Writer
writer = Writer(Path(os.environ["SLACKLINE_TELEMETRY"]), 0)
writer.write(
    StepSummary(
        rank=0, step=0, time_ns=1, wall_ns=20_000_000, exposed_ns=0, reduced_bytes=7, parameters=1,
        waited=0,
    )
)
writer.flush()
print("written", flush=True)
open("go").read()  # a pipe, which blocks until the test has looked
writer.close()
"""


def _environment(directory: Path) -> dict[str, str]:
    """Return an environment in which jobs are announced within `directory`."""
    return {**os.environ, "TMPDIR": str(directory), "XDG_RUNTIME_DIR": ""}


@contextlib.contextmanager
def _running(
    *command: object, directory: Path, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command, whose output goes to the files out and err; end it with the context."""
    with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=directory,
            env=_environment(directory) | variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _said(file: Path, pattern: str) -> str:
    """Wait until a line of a file matches `pattern`; return the first group of the match."""
    search = re.compile(pattern, re.MULTILINE).search
    until(lambda: search(file.read_text()) is not None, lambda: f"{pattern}: {file.read_text()}")
    found = search(file.read_text())
    assert found is not None
    return found[1]


def _get(url: str) -> str:
    with _DIRECT.open(url, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_a_running_job_is_found_and_serves_its_metrics(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_WRITER)
    os.mkfifo(tmp_path / "go")
    asked = ("run", "--ranks", 1, "--metrics-listen", "127.0.0.1:0", "script.py")
    with _running(*_SLACKLINE, *asked, directory=tmp_path) as process:
        url = _said(tmp_path / "err", _ADDRESS)
        _said(tmp_path / "out", "^(written)$")
        assert 'slackline_reduced_bytes_total{rank="0"} 7.0\n' in _get(url)
        (announced,) = tmp_path.glob("slackline-*/jobs/*.json")
        said = json.loads(announced.read_text())
        assert (said["pid"], said["program"], said["ranks"]) == (process.pid, "script.py", 1)
        assert Path(said["directory"]).parent == tmp_path
        top = subprocess.run(
            [*_SLACKLINE, "top", "--json"],
            env=_environment(tmp_path),
            capture_output=True,
            text=True,
            check=True,
        )
        (rank,) = json.loads(top.stdout)["ranks"]
        assert (rank["step"], rank["steps_per_second"]) == (1, 50.0)
        (tmp_path / "go").write_text("")
        assert process.wait(110) == 0
        assert not announced.exists()


@pytest.fixture(scope="module")
def prometheus() -> str:
    """Return the path of Prometheus, or skip the test."""
    found = shutil.which("prometheus")
    if found is None or shutil.which("promtool") is None:
        pytest.skip("prometheus and promtool are not installed (apt install prometheus)")
    return found


@pytest.mark.slow
def test_promtool_finds_no_fault_in_the_metrics(prometheus: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_WRITER)
    os.mkfifo(tmp_path / "go")
    asked = ("run", "--ranks", 1, "--metrics-listen", "127.0.0.1:0", "script.py")
    with _running(*_SLACKLINE, *asked, directory=tmp_path):
        url = _said(tmp_path / "err", _ADDRESS)
        _said(tmp_path / "out", "^(written)$")
        checked = subprocess.run(
            ["promtool", "check", "metrics"],
            input=_get(url),
            capture_output=True,
            text=True,
            check=False,
        )
        (tmp_path / "go").write_text("")
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.slow
def test_the_example_s_configuration_is_valid(prometheus: str) -> None:
    file = _ROOT / "examples" / "monitoring" / "prometheus.yml"
    subprocess.run(["promtool", "check", "config", "--syntax-only", file], check=True)


@contextlib.contextmanager
def _scraping(prometheus: str, directory: Path, targets: dict[str, str]) -> Iterator[str]:
    """Start a Prometheus that scrapes the targets, by job, each half second; yield its address."""
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [urllib.parse.urlparse(url).netloc]}]}
        for job, url in targets.items()
    ]
    rules = {"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"}}
    file = directory / "prometheus.yml"
    file.write_text(json.dumps({**rules, "scrape_configs": jobs}))  # JSON is YAML
    storage = f"--storage.tsdb.path={directory / 'data'}"
    command = (prometheus, f"--config.file={file}", storage, "--web.listen-address=127.0.0.1:0")
    with _running(*command, directory=directory):
        yield f"http://{_said(directory / 'err', _LISTENING)}"


def _queries() -> dict[tuple[str, str], str]:
    """Return the queries of the board, by panel and letter, with values for its variables."""
    board = json.loads((_ROOT / "examples" / "monitoring" / "grafana.json").read_text())
    values = {"$__rate_interval": "10s", "$job": ".*", "$rank": ".*"}
    found = {}
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in values.items():
                query = query.replace(name, value)
            found[panel["title"], target["refId"]] = query
    return found


def _values(server: str, query: str) -> list[float]:
    """Return the present value of each time series of a query."""
    said = json.loads(_get(f"{server}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
    assert said["status"] == "success", (query, said)
    return [float(series["value"][1]) for series in said["data"]["result"]]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_query_of_the_board_has_data_of_a_real_job(prometheus: str, tmp_path: Path) -> None:
    examples = _ROOT / "examples"
    scripts: dict[str, tuple[object, ...]] = {
        "overlap": (examples / "train_digits.py", "--epochs", 100_000),
        "pipeline": (examples / "pipeline_gpt.py", "--steps", 100_000),
    }
    with contextlib.ExitStack() as stack:
        targets = {}
        for name, script in scripts.items():
            (tmp_path / name).mkdir()
            asked = ("run", "--ranks", 2, "--metrics-listen", "127.0.0.1:0", *script)
            job = _running(*_SLACKLINE, *asked, directory=tmp_path / name, SLACKLINE_RAILS="tcp")
            stack.enter_context(job)
            targets[name] = _said(tmp_path / name / "err", _ADDRESS)
        server = stack.enter_context(_scraping(prometheus, tmp_path, targets))
        missing = _queries()

        def all_have_data() -> bool:
            for place, query in list(missing.items()):
                if any(math.isfinite(value) for value in _values(server, query)):
                    del missing[place]
            return not missing

        until(all_have_data, lambda: f"no data: {missing}")
        for job_name in targets:
            assert _values(server, f'slackline_ranks{{job="{job_name}"}}') == [2]
