"""Tests of the wheel and of the source distribution: metadata, contents, a first collective."""

import email
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import slackline

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FIRST_COLLECTIVE_SECONDS = 60
"""The limit from the end of `pip install` to the end of the first collective."""
OFFLINE = ["unshare", "--map-root-user", "--net"]
"""The beginning of a command that runs without a network."""


def run(*command: str, cwd: Path = ROOT, seconds: float = 900) -> str:
    """Return the output of a command that succeeds."""
    result = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def metadata_of(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def check_metadata(metadata: Message) -> None:
    assert metadata["Name"] == "slackline-torch"
    assert metadata["Version"] == slackline.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == set(PROJECT["project"]["optional-dependencies"])
    required = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    names = sorted(re.split(r"[^\w-]", each)[0] for each in required)
    assert names == ["msgspec", "pydantic", "rich", "torch", "typer", "xxhash"]


def test_the_metadata_are_the_project_s(tmp_path: Path) -> None:
    code = (
        "from scikit_build_core.build import prepare_metadata_for_build_wheel as prepare; "
        f"print(prepare({str(tmp_path)!r}))"
    )
    run(sys.executable, "-c", code)
    (file,) = tmp_path.glob("*.dist-info/METADATA")
    check_metadata(email.message_from_bytes(file.read_bytes()))


def page_files() -> list[str]:
    """Return the names of the files of the dashboard's page, with the licence of its charts."""
    folder = ROOT / "src" / "slackline" / "views" / "page" / "static"
    names = [path.name for path in folder.iterdir()]
    assert {"index.html", "app.js", "uPlot.iife.min.js", "uPlot-LICENSE.txt"} <= set(names)
    return names


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the source distribution, without a network."""
    folder = tmp_path_factory.mktemp("sources")
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(folder)]
    run(*OFFLINE, *build, str(ROOT))
    (archive,) = folder.glob("*.tar.gz")
    return archive


def test_the_source_distribution_holds_the_sources_alone(sources: Path) -> None:
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.partition("/")[0] for name in names if name}
    assert {"src", "native", "pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md"} <= tops
    assert {f"src/slackline/views/page/static/{name}" for name in page_files()} <= names
    assert tops & {".ci", ".venv", "benchmarks", "build", "docs", "tests", "website"} == set()


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source distribution, without a network, and repair it."""
    plain_folder = tmp_path_factory.mktemp("plain")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    ]
    run(*OFFLINE, *build, "--wheel-dir", str(plain_folder), str(sources))
    folder = tmp_path_factory.mktemp("repaired")
    (plain,) = plain_folder.glob("*.whl")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(folder), str(plain)]
    run("env", f"PATH={path}", *repair)
    (repaired,) = folder.glob("*.whl")
    return repaired


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_is_a_manylinux_wheel_of_the_package_alone(wheel: Path) -> None:
    assert "-manylinux_" in wheel.name
    assert wheel.name.endswith("_x86_64.whl")
    check_metadata(metadata_of(wheel))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    information = f"slackline_torch-{slackline.__version__}.dist-info"
    assert tops == {"slackline", "slackline_entry.py", information}
    (extension,) = [name for name in names if name.endswith(".so")]
    assert extension.startswith("slackline/_native.")
    source = ROOT / "src" / "slackline" / "reproduce"
    tables = {f"slackline/reproduce/{path.relative_to(source)}" for path in source.rglob("*.toml")}
    assert tables
    assert tables <= set(names)
    assert {f"slackline/views/page/static/{name}" for name in page_files()} <= set(names)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_installed_wheel_does_its_first_collective_within_a_minute(
    wheel: Path, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "venv", str(tmp_path / "env"))
    python = tmp_path / "env" / "bin" / "python"
    # torch and the other requirements are those of this environment: only slackline is fresh.
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    site = run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "requirements.pth").write_text(f"{Path(torch.origin).parents[1]}\n")
    run(str(python), "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", str(wheel))
    place = run(str(python), "-c", "import slackline; print(slackline.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(site)
    command = [str(python.with_name("slackline")), "run", "--ranks", "2"]
    script = ROOT / "examples" / "first_collective.py"
    printed = run(*command, str(script), cwd=tmp_path, seconds=FIRST_COLLECTIVE_SECONDS)
    assert "sum over 2 ranks: [3.0, 3.0, 3.0, 3.0]" in printed.splitlines()
