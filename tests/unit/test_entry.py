"""Tests of slackline's entry points: torch's import survives a broken slackline, groups do not."""

import ast
import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

import slackline
import slackline_entry

PROGRAM = """
import sys
import torch
from torch import distributed as dist

early = sorted(name for name in sys.modules if name.partition(".")[0] == "slackline")
asked, store = sys.argv[1], dist.HashStore()
try:
    dist.init_process_group(asked, store=store, rank=0, world_size=1)
except Exception as error:
    print(type(error).__name__, error, sep=": ")
else:
    print(dist.get_backend(), dist.group.WORLD.name(), sep=": ")
print(len(early))
"""
"""A program that opens the group sys.argv[1], then prints what came of it, and how many modules of
slackline `import torch` had loaded."""
LOADED_LATE = hasattr(dist.Backend, "_ensure_backend_registered")


def installed(folder: Path) -> Path:
    """Make a folder with the names of an installed slackline; return the package's place in it."""
    entries = distribution("slackline-torch").read_text("entry_points.txt")
    assert entries is not None
    information = folder / "slackline_torch-0.1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: slackline\nVersion: 0\n")
    (information / "entry_points.txt").write_text(entries)
    shutil.copy(slackline_entry.__file__, folder)
    return folder / "slackline"


def copied(place: Path) -> None:
    """Copy the package's modules, without the compiled one."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(Path(slackline.__file__).parent, place, ignore=ignored)


def without_engine(place: Path) -> None:
    copied(place)
    (place / "_native.so").write_bytes(b"\x7fELF and no more")


def without_a_module(place: Path) -> None:
    copied(place)
    (place / "units.py").unlink()


def without_a_package(place: Path) -> None:
    """Leave no package at all, as after half of an uninstall."""


BREAKAGES = {
    without_engine: "_native.so",
    without_a_module: "No module named 'slackline.units'",
}
"""What each breakage's error names."""


def program(folder: Path, backend: str, **variables: str) -> list[str]:
    """Return what PROGRAM prints; slackline comes from `folder`, and not from this environment."""
    places = [folder, Path(torch.__file__).parents[1]]
    environment = {name: text for name, text in os.environ.items() if "SLACKLINE" not in name}
    ended = subprocess.run(
        # Without the module site, which would put an editable installation before PYTHONPATH.
        [sys.executable, "-S", "-c", PROGRAM, backend],
        env=environment | {"PYTHONPATH": os.pathsep.join(map(str, places))} | variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize(
    ("broken", "backend", "served", "said"),
    [
        (without_engine, "slackline", "", "ImportError: "),
        (without_a_module, "gloo", "gloo", "ModuleNotFoundError: "),
        pytest.param(
            *(without_a_package, "slackline", "", "ModuleNotFoundError: "),
            marks=pytest.mark.slow,
        ),
        pytest.param(without_a_package, "gloo", "", "gloo: gloo", marks=pytest.mark.slow),
        pytest.param(
            *(copied, "gloo", "nccl", "UsageError: SLACKLINE_AS: slackline serves groups of gloo"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_broken_slackline_breaks_its_own_groups_and_not_the_import_of_torch(
    broken, backend, served, said, tmp_path
):
    broken(installed(tmp_path))
    told, early = program(tmp_path, backend, SLACKLINE_AS=served)
    assert told.startswith(said)
    if broken in BREAKAGES:
        assert BREAKAGES[broken] in told
    if LOADED_LATE and not served:
        assert early == "0"


def test_the_module_of_the_entry_points_imports_nothing_at_its_top():
    source = ast.parse(Path(slackline_entry.__file__).read_text())
    assert not [node for node in source.body if isinstance(node, ast.Import | ast.ImportFrom)]
    entries = {(each.group, each.value) for each in distribution("slackline-torch").entry_points}
    assert ("torch.backends", "slackline_entry:on_torch_import") in entries
    assert ("torch.distributed.backends", "slackline_entry:on_request") in entries
