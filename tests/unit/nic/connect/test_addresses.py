"""Tests of the addresses of a host, and of the texts in which users name them."""

import json
import subprocess

import pytest

from slackline.errors import UsageError
from slackline.nic._host_port import parse_address, show_address
from slackline.nic.connect._addresses import (
    Interface,
    devices,
    from_rows,
    local_interfaces,
    still_there,
    to_rows,
)

LO = Interface(name="lo", address="127.0.0.1", prefix=8, index=1, cable="lo")


def test_devices_and_addresses_are_those_that_iproute2_lists() -> None:
    told = subprocess.run(["ip", "-j", "address"], check=True, capture_output=True, timeout=30)
    wanted = {
        each["ifname"]: (
            each["ifindex"],
            each["mtu"],
            {f"{its['local']}/{its['prefixlen']}" for its in each["addr_info"]},
        )
        for each in json.loads(told.stdout)
        if not any("temporary" in its or "tentative" in its for its in each["addr_info"])
    }
    found = {
        each.name: (each.index, each.mtu, {f"{a.text}/{a.prefix}" for a in each.addresses})
        for each in devices()
    }
    assert wanted
    assert {name: found[name] for name in wanted} == wanted


def test_an_address_with_its_prefix_stands_for_an_interface() -> None:
    assert local_interfaces(("127.0.1.1/24",)) == (
        Interface(name="127.0.1.1/24", address="127.0.1.1", prefix=24, cable="127.0.1.1/24"),
    )


def test_the_loopback_interface_is_found_by_its_name() -> None:
    assert local_interfaces(("lo",))[0] == LO


def test_all_interfaces_that_are_up_are_found_loopback_last() -> None:
    found = local_interfaces(())
    assert LO in found
    assert [each.is_loopback for each in found] == sorted(each.is_loopback for each in found)


def test_an_address_that_is_gone_is_noticed() -> None:
    gone = Interface(name="eth9", address="203.0.113.77", prefix=24, index=9)
    assert still_there((LO, gone)) == (LO,)


def test_interfaces_are_read_from_json_as_they_were_written() -> None:
    all_fields = Interface(
        name="v", address="fe80::1", prefix=64, port=7, index=3, cable="eth0", overlay=True
    )
    assert from_rows(json.loads(json.dumps(to_rows([LO, all_fields])))) == (LO, all_fields)
    assert (all_fields.scope, all_fields.nic, LO.scope) == (3, "eth0", 0)


@pytest.mark.parametrize(
    "rows",
    [
        {},
        [[]],
        [["lo", "127.0.0.1", 8, 1, 1, "lo"]],
        [["lo", "127.0.0.1", "8", 1, 1, "lo", False]],
        [["lo", "127.0.0", 8, 1, 1, "lo", False]],
        [["lo", "127.0.0.1", 33, 1, 1, "lo", False]],
        [["lo", "127.0.0.1", 8, 65536, 1, "lo", False]],
    ],
)
def test_wrong_rows_are_refused(rows: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        from_rows(rows)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("10.0.0.9:7000", "10.0.0.9", 7000), ("[fd00::9]:7", "fd00::9", 7), ("node:0", "node", 0)],
)
def test_addresses_are_read_and_shown(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)
    assert show_address(host, port) == text


@pytest.mark.parametrize("text", ["10.0.0.9", "fd00::9:7000", ":7000", "a:70000", "[]:7000", "a:b"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"^an address must be like 10\.0\.0\.9:7000 or \[fd00::9\]:7000, not "
    ):
        parse_address(text)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("none0", r"interface 'none0' has no address; interfaces with an address: .*lo.*"),
        (
            "10.0.0/24",
            r"an interface must be a name or an IPv4 or IPv6 address with its prefix length, "
            r"as 10\.0\.0\.1/24, not '10\.0\.0/24'",
        ),
        ("203.0.113.77/24", r"203\.0\.113\.77 is not an address of this host: .+"),
        ("2001:db8::77/64", r"2001:db8::77 is not an address of this host: .+"),
    ],
)
def test_what_is_not_there_is_named(word: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"^{text}$"):
        local_interfaces((word,))
