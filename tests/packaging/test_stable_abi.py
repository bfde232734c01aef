"""Tests of the wheel for Python 3.12 and later, which has nanobind's stable ABI, without torch."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILDER = "3.12"
LATER = ("3.13", "3.14")
"""Later versions, which import the same wheel where they are installed."""
LIMIT_S = 1500
"""The limit for one command, by which a hang is found."""
SUM = """
import ctypes, sys, threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from slackline.nic import NativeNic, NicOptions
from slackline.wire import DType, ReduceOp

class Store(dict):
    def __init__(self):
        self.changed = threading.Condition()
    def set(self, key, value):
        with self.changed:
            self[key] = value.encode()
            self.changed.notify_all()
    def get(self, key):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self, 60), key
            return self[key]
    def check(self, keys):
        with self.changed:
            return all(key in self for key in keys)

def reduced(rank):
    nic = NativeNic(options)
    group = nic.open_group(store, rank, 3, timeout=timedelta(seconds=60))
    numbers = (ctypes.c_float * 5000)(*[2.0 ** rank] * 5000)
    at = ctypes.addressof(numbers)
    group.all_reduce(at, at, len(numbers), DType.FLOAT32, ReduceOp.SUM, blocking=True)
    group.close()
    nic.close()
    return list(numbers)

for rails in (("shm",), ("tcp",)):
    options, store = NicOptions(rails=rails, arena_bytes=64 << 20), Store()
    with ThreadPoolExecutor(3) as ranks:
        assert list(ranks.map(reduced, range(3))) == [[7.0] * 5000] * 3
assert "torch" not in sys.modules
print("%d.%d" % sys.version_info[:2], sys.modules["slackline._native"].__file__)
"""
"""A program that sums on the engines of three ranks, which are threads, without torch."""


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this version, from PATH or pyenv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = shutil.which(f"python{version}")
    known = [*([found] if found else []), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    for path in map(str, known):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        ended = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if ended.stdout.strip() == version:  # a shim of pyenv may stand for no interpreter
            return path
    return None


def run(*command: str, cwd: Path, packages: str) -> str:
    """Return the output of a command that succeeds and imports from `packages` too."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": packages,
    }
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def build(builder: str, folder: Path) -> Path:
    """Return the wheel that this Python builds, with the build tools of this environment.

    The tools are written in Python, so another version of Python runs them too.
    """
    tools = sysconfig.get_path("purelib")
    sources = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(folder)]
    run(*sources, str(ROOT), cwd=folder, packages=tools)
    (archive,) = folder.glob("*.tar.gz")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder)]
    run(builder, "-m", "pip", "wheel", *options, str(archive), cwd=folder, packages=tools)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 300)
def test_one_wheel_reduces_between_ranks_on_all_later_pythons(tmp_path: Path) -> None:
    builder = interpreter(BUILDER)
    if builder is None:
        pytest.skip(f"there is no python{BUILDER} in PATH or pyenv")
    wheel = build(builder, tmp_path)
    assert wheel.name.split("-", 2)[2] == "cp312-abi3-linux_x86_64.whl"
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    (extension,) = unpacked.rglob("*.so")
    assert extension == unpacked / "slackline" / "_native.abi3.so"
    for version in (BUILDER, *LATER):
        python = interpreter(version)
        if python is not None:
            said = run(python, "-c", SUM, cwd=unpacked, packages=str(unpacked))
            assert said.split() == [version, str(extension)]


def test_the_configured_wheels_are_those_of_the_page_on_hardware() -> None:
    """Look up each configured wheel and torch on the page, which calls them not built or not run.

    Mend the page with the configuration when a wheel has been built.
    """
    configured = PROJECT["tool"]["cibuildwheel"]
    assert configured["build"] == ["cp311-manylinux_*", "cp312-manylinux_*"]
    assert configured["linux"]["archs"] == ["x86_64", "aarch64"]
    assert PROJECT["tool"]["scikit-build"]["wheel"]["py-api"] == "cp312"
    installed = [each for each in configured["test-command"] if each.startswith("pip install")]
    assert installed == ["pip install 'torch==2.11.*'", "pip install --upgrade torch"]
    page = (ROOT / "docs" / "hardware.md").read_text().splitlines()
    states = {
        row[0].strip(): row[1] for row in (line.strip("|").split("|") for line in page) if row[1:]
    }
    (python,) = [
        state for name, state in states.items() if name.startswith("Python 3.12 and later")
    ]
    assert "with torch 2.13.0 the tests of backend, overlap and pipelines passed on 3.12" in python
    assert states["torch 2.12, and later than 2.15"].strip() == "not run"
    assert "not been built or tested there" in states["aarch64"]
