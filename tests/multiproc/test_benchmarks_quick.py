"""Every benchmark's --quick --json ends in time and says what a benchmark has to say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*/main.py"))
QUICK_SECONDS = 50


def run(main: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(main), "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=QUICK_SECONDS,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
@pytest.mark.timeout(QUICK_SECONDS + 10)
@pytest.mark.parametrize("main", BENCHMARKS, ids=lambda main: main.parent.name)
def test_a_quick_run_ends_in_time_with_one_json_object(main: Path) -> None:
    result = run(main)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert {"machine", "commit", "rows", "targets"} <= set(report)
    assert {"cpu", "cores", "kernel", "python", "torch", "date"} <= set(report["machine"])
    assert report["rows"]
    assert report["targets"]
    for target in report["targets"]:
        assert {"name", "target", "measured", "met"} <= set(target)
        assert (target["met"] is None) == (target["measured"] is None), target["name"]


@pytest.mark.timeout(QUICK_SECONDS + 10)
def test_a_failing_rank_ends_the_allreduce_benchmark_with_its_error() -> None:
    main = next(main for main in BENCHMARKS if main.parent.name == "allreduce-latency-bandwidth")
    result = run(main, SLACKLINE_ORDER="sideways")
    assert result.returncode != 0
    assert result.stdout == ""
    assert "an order must be one of auto, rank, any, not 'sideways'" in result.stderr
