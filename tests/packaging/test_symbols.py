"""Tests of the versions of system libraries that the built extension needs."""

import json
import platform
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import slackline._native as native

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)` \|", re.MULTILINE)


def needed() -> set[str]:
    """Return the versions of symbols that the extension needs: {"GLIBC_2.34", ...}."""
    elffile = pytest.importorskip("elftools.elf.elffile", reason="no pyelftools")
    with Path(native.__file__).open("rb") as file:
        section = elffile.ELFFile(file).get_section_by_name(".gnu.version_r")
        return {each.name for _, versions in section.iter_versions() for each in versions}


def allowed(policy: str) -> set[str]:
    """Return the versions of symbols that a wheel of a policy of auditwheel may need."""
    spec = find_spec("auditwheel")
    if spec is None or spec.origin is None:
        pytest.skip("auditwheel is missing")
    file = Path(spec.origin).parent / "policy" / "manylinux-policy.json"
    (found,) = [each for each in json.loads(file.read_text()) if each["name"] == policy]
    versions = found["symbol_versions"][platform.machine()]
    return {f"{library}_{version}" for library in versions for version in versions[library]}


def test_the_page_has_the_versions_that_keep_the_wheel_from_manylinux_2_28() -> None:
    above = needed() - allowed("manylinux_2_28")
    told = set(ROW.findall((ROOT / "docs" / "install.md").read_text()))
    # A newer compiler or C library may bind more; none binds what manylinux_2_34 lacks.
    assert above & allowed("manylinux_2_34") <= told
    assert "GLIBC_2.34" in told


@pytest.mark.skipif(platform.libc_ver()[1] != "2.36", reason="the wheel is that of Debian 12")
def test_a_wheel_of_debian_12_runs_where_the_c_library_is_2_34() -> None:
    assert needed() - allowed("manylinux_2_34") == set()
    assert needed() - allowed("manylinux_2_28") == set(
        ROW.findall((ROOT / "docs" / "install.md").read_text())
    )
