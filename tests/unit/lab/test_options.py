"""Tests of the options of a lab, and of the errors for wrong ones."""

import re

import pytest

from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions
from slackline.lab import _names as names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hosts": 0}, "hosts must be between 1 and 250, not 0"),
        ({"nics": 17}, "nics must be between 1 and 16, not 17"),
        ({"mtu": 100}, "mtu must be between 576 and 9000, not 100"),
        ({"rate": 9600}, "a rate must be at least 1Mbit, not 9600bit"),
        ({"switch": "smart"}, "a switch must be one of auto, kernel, user, not 'smart'"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        LabOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "-a", "A", "a/b", "a" * 33])
def test_a_name_that_no_namespace_could_bear_is_refused(name: str) -> None:
    message = (
        f"the name of a lab must be up to 32 lower-case letters, digits and hyphens, not {name!r}"
    )
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        Lab(LabOptions(), name=name)


def test_hosts_and_nics_beyond_the_lab_are_refused() -> None:
    lab = Lab(LabOptions(hosts=2, nics=1), name="small")
    with pytest.raises(UsageError, match=r"^a host must be between 0 and 1 in this lab, not 2$"):
        lab.command(2, ["true"])
    with pytest.raises(UsageError, match=r"^a NIC must be between 0 and 0 in this lab, not 1$"):
        lab.address(0, 1)


def test_a_host_knows_all_hosts_and_itself_by_name() -> None:
    assert names.hosts_file(2, 1, "machine") == (
        "127.0.0.1 localhost\n"
        "::1 localhost\n"
        "10.77.0.1 host0\n"
        "::ffff:10.77.0.1 host0.mapped\n"
        "10.77.0.2 host1 machine\n"
        "::ffff:10.77.0.2 host1.mapped\n"
    )
