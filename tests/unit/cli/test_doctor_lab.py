"""Tests of what `slackline doctor` and `slackline lab` say where no lab can be made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slackline.cli._doctor._container import container
from slackline.cli._doctor._lab import kernel_parts, permissions
from slackline.lab import lacking_capabilities

_ABLE = os.geteuid() == 0 and not lacking_capabilities()
needs_capabilities = pytest.mark.skipif(not _ABLE, reason="there are no capabilities to give up")
_ASKED = "from slackline.cli._doctor._lab import lab_findings; print(lab_findings('')[0].value)"


def without(capabilities: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command without capabilities, "-net_admin,-sys_admin"."""
    command = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}", *argv]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@needs_capabilities
@pytest.mark.parametrize(
    ("capabilities", "named"),
    [
        ("-net_admin", "CAP_NET_ADMIN"),
        ("-net_admin,-sys_admin", "CAP_NET_ADMIN and CAP_SYS_ADMIN"),
    ],
)
def test_doctor_names_the_capabilities_that_root_lacks(capabilities: str, named: str) -> None:
    found = without(capabilities, sys.executable, "-c", _ASKED)
    assert found.stdout == f"root, without {named}\n"


@needs_capabilities
def test_a_lab_without_its_capability_is_refused_in_one_sentence() -> None:
    up = "from slackline.cli import main; raise SystemExit(main(['lab', 'up', '--hosts', '2']))"
    found = without("-net_admin", sys.executable, "-c", up)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == (
        "slackline: a lab makes network namespaces and needs CAP_NET_ADMIN, which this process "
        "does not have: start the container, or the service, with this capability\n"
    )


@pytest.mark.parametrize(
    ("file", "text", "environment", "engine"),
    [
        (".dockerenv", "", {}, "docker"),
        ("run/.containerenv", "", {}, "podman"),
        ("proc/1/environ", "PATH=/bin\0container=lxc\0", {}, "lxc"),
        ("proc/1/environ", "PATH=/bin\0", {"container": "oci"}, "oci"),
        ("proc/1/cgroup", "4:cpu:/kubepods/besteffort/pod1/ab\n", {}, "Kubernetes"),
        ("proc/1/cgroup", "0::/init.scope\n", {"KUBERNETES_SERVICE_HOST": "1"}, "Kubernetes"),
        ("proc/1/cgroup", "0::/init.scope\n", {}, ""),
        ("etc/hostname", "box", {}, ""),
    ],
)
def test_a_container_is_recognized_by_the_signs_of_its_engine(
    tmp_path: Path, file: str, text: str, environment: dict[str, str], engine: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert container(environment, tmp_path) == engine


def test_no_module_is_to_be_loaded_in_a_container() -> None:
    tun = permissions(
        root=True, missing_tools=[], lacking=[], failed="", tun=False, container="docker"
    )
    assert tun.value == "root, no /dev/net/tun in a container (docker)"
    assert tun.command == "docker run --device /dev/net/tun ..."
    tbf = kernel_parts({"tbf": False, "netem": False}, "docker")
    assert tbf.advice == (
        "without tbf a lab cannot limit rates: load the module sch_tbf on the container's host"
    )
    assert tbf.command == ""


def test_the_capabilities_to_add_to_a_container_are_those_it_lacks() -> None:
    lacking = ["CAP_SYS_ADMIN"]
    found = permissions(
        root=True, missing_tools=[], lacking=lacking, failed="", tun=True, container="podman"
    )
    assert found.command == "docker run --cap-add SYS_ADMIN ..."
