"""Tests of the limits of control groups, read from made trees of files and from this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackline.cli._job._limits import Limits, group_limits, usable_cores

V2 = "36 25 0:30 {above} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "40 36 0:34 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "41 36 0:35 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
PLAIN = "22 28 0:21 / /proc rw,nosuid - proc proc rw\n"


def made(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


GROUP = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "processors", "memory_bytes"),
    [
        ("0::/a/b\n", PLAIN + V2.format(above="/"), {}, None, None),
        (
            "0::/a/b\n",
            V2.format(above="/"),
            {f"{GROUP}/a/b/cpu.max": "max 100000\n", f"{GROUP}/a/b/memory.max": "max\n"},
            None,
            None,
        ),
        (
            "0::/a/b\n",
            PLAIN + V2.format(above="/"),
            {
                f"{GROUP}/a/b/cpu.max": "400000 100000\n",
                f"{GROUP}/a/cpu.max": "150000 100000\n",
                f"{GROUP}/a/b/memory.max": "1000000\n",
                f"{GROUP}/a/memory.max": "2000000\n",
            },
            1.5,
            1_000_000,
        ),
        (
            "0::/docker/x\n",
            V2.format(above="/docker/x"),
            {f"{GROUP}/cpu.max": "200000 100000\n", f"{GROUP}/memory.max": "5000\n"},
            2,
            5000,
        ),
        (
            "0::/../../else\n",
            V2.format(above="/"),
            {f"{GROUP}/cpu.max": "50000 100000\n"},
            0.5,
            None,
        ),
        (
            "5:cpu,cpuacct:/job/step\n4:memory:/job\n0::/\n",
            V1,
            {
                f"{GROUP}/cpu,cpuacct/job/step/cpu.cfs_quota_us": "-1\n",
                f"{GROUP}/cpu,cpuacct/job/step/cpu.cfs_period_us": "100000\n",
                f"{GROUP}/cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
                f"{GROUP}/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                f"{GROUP}/memory/job/memory.limit_in_bytes": "4096000\n",
                f"{GROUP}/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            3,
            4_096_000,
        ),
        ("nothing", "nothing\n", {}, None, None),
    ],
    ids=["no files", "no limit", "nested", "mounted below", "outside", "version 1", "damaged"],
)
def test_the_tightest_group_counts(
    tmp_path: Path,
    groups: str,
    mounts: str,
    files: dict[str, str],
    processors: float | None,
    memory_bytes: int | None,
) -> None:
    root = made(tmp_path, groups, mounts, files)
    assert group_limits(root) == Limits(processors=processors, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("quota", "cores"), [("50000 100000", 1), ("150000 100000", 1), ("99900000 100000", None)]
)
def test_cores_are_whole_and_at_least_one(tmp_path: Path, quota: str, cores: int | None) -> None:
    root = made(tmp_path, "0::/\n", V2.format(above="/"), {f"{GROUP}/cpu.max": quota})
    assert usable_cores(root) == (cores or len(os.sched_getaffinity(0)))


def test_without_files_the_affinity_counts(tmp_path: Path) -> None:
    assert group_limits(tmp_path) == Limits()
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


@pytest.fixture
def real_group() -> Iterator[Path]:
    """Make a control group that allows one processor and a half, of version 1 or 2."""
    for above, files in {
        "/sys/fs/cgroup/cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"},
        "/sys/fs/cgroup": {"cpu.max": "150000 100000"},
    }.items():
        group = Path(above) / f"slackline-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for name, value in files.items():
                (group / name).write_text(value)
        except OSError:
            group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no control group with a limit of processors may be made here")


def test_a_real_group_limits_the_processors(real_group: Path) -> None:
    asked = "from slackline.cli._job._limits import group_limits; print(group_limits().processors)"
    join = f'echo $$ > {real_group}/cgroup.procs && exec "$@"'
    command = ["sh", "-c", join, "sh", sys.executable, "-c", asked]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "1.5\n"
