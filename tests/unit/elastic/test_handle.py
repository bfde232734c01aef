"""Handles: what a process writes is read again, and nothing else is."""

import base64
import dataclasses
import hashlib
import ipaddress
import json
import os
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.elastic._handle import LONGEST_HANDLE, Handle, open_door
from slackline.errors import UsageError

ADDRESS = st.ip_addresses() | st.ip_addresses(network="127.0.0.0/8") | st.just("::1")
ADDRESSES = st.lists(ADDRESS.map(str), max_size=64, unique=True).map(tuple)
HEX = st.text("0123456789abcdef", min_size=16, max_size=32)
HANDLES = st.builds(
    Handle, name=HEX, addresses=ADDRESSES, port=st.integers(1, 65535), proof=HEX, host=HEX, job=HEX
)


@given(HANDLES)
def test_what_is_written_is_read_and_has_at_most_a_kibibyte(handle):
    text = handle.encode()
    read = Handle.decode(text)
    assert len(text.encode()) <= LONGEST_HANDLE
    assert handle.addresses[: len(read.addresses)] == read.addresses
    assert len(read.addresses) >= min(len(handle.addresses), 8)
    assert dataclasses.replace(handle, addresses=read.addresses) == read


@given(HANDLES, HANDLES)
def test_a_host_reaches_itself_by_its_loopback_first_and_others_by_no_loopback(one, other):
    near = {each for each in one.addresses if ipaddress.ip_address(each).is_loopback}
    here = one.reached_from(dataclasses.replace(other, host=one.host))
    assert sorted(here) == sorted(one.addresses)
    assert near.issuperset(here[: len(near)])
    versions = [ipaddress.ip_address(each).version for each in here[: len(near)]]
    assert versions == sorted(versions, reverse=True), "::1 is in hosts files"
    there = one.reached_from(dataclasses.replace(other, host=one.host + "0"))
    assert near.isdisjoint(there) or near.issuperset(one.addresses)
    assert set(there) | near == set(one.addresses)


@given(HANDLES, st.data())
def test_a_part_of_a_handle_is_refused(handle, data):
    text = handle.encode()
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    with pytest.raises(UsageError, match=r"cut short|is no handle|has version"):
        Handle.decode(cut)


@given(HANDLES, st.data())
def test_a_handle_with_another_letter_is_refused(handle, data):
    text = handle.encode()
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(codec="ascii").filter(lambda one: one != text[place]))
    with pytest.raises(UsageError, match=r"cut short|is no handle|has version"):
        Handle.decode(text[:place] + letter + text[place + 1 :])


WHOLE = ["name", ["10.0.0.1"], 7, "proof", "host", "job"]
WRONG = {
    "too few": WHOLE[:5],
    "too many": [*WHOLE, "more"],
    "no list": {"name": "x"},
    "a name that is none": [5, *WHOLE[1:]],
    "an address that is none": ["name", ["10.0.0.1", 4], *WHOLE[2:]],
    "a host's name": ["name", ["a.example"], *WHOLE[2:]],
    "no addresses": ["name", None, *WHOLE[2:]],
    "a port too large": ["name", ["10.0.0.1"], 65536, *WHOLE[3:]],
    "a negative port": ["name", ["10.0.0.1"], -1, *WHOLE[3:]],
    "a port in words": ["name", ["10.0.0.1"], "7", *WHOLE[3:]],
    "a job that is none": [*WHOLE[:5], None],
}


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_whole_handles_with_wrong_contents_are_refused(fields):
    with pytest.raises(UsageError, match="has wrong contents"):
        Handle.decode(sealed(json.dumps(fields)))
    assert Handle.decode(sealed(json.dumps(WHOLE))).port == 7


def sealed(contents):
    """Return a handle of the present version with these contents and the right check."""
    packed = base64.urlsafe_b64encode(contents.encode())
    check = hashlib.sha256(packed).hexdigest()[:8]
    return f"slackline-handle-2.{packed.decode()}.{check}"


def test_the_error_names_the_version_and_the_text():
    with pytest.raises(UsageError, match=r"'slackline-handle-7\.abc' has version '7'"):
        Handle.decode("slackline-handle-7.abc")
    with pytest.raises(UsageError, match=r"'tcp://10\.0\.0\.1:29500' is no handle"):
        Handle.decode("tcp://10.0.0.1:29500")


def test_a_process_has_one_door_and_proves_its_handle():
    door = open_door()
    assert open_door() is door
    handle = Handle.decode(door.handle.encode())
    assert handle == door.handle
    assert handle.proven_by(door.secret)
    assert not handle.proven_by(door.handle.proof)
    assert door.connections.meetings.get(handle.door_key()).decode() == door.secret


def test_a_forked_process_has_a_door_of_its_own_and_loopback_is_enough():
    code = (
        "import os\n"
        "from slackline.elastic import get_handle\n"
        "from slackline.elastic._handle import Handle\n"
        "handle = Handle.decode(get_handle())\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    other = Handle.decode(get_handle())\n"
        "    os._exit(3 if other.name == handle.name or other.port == handle.port else 4)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(*handle.addresses, handle.port, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"SLACKLINE_LISTEN": "loopback"},
    ) as process:
        assert process.stdout.readline() == "4\n"
        *addresses, port = process.stdout.readline().split()
        assert addresses
        assert all(each.startswith(("127.", "::1")) for each in addresses)
        socket.create_connection(("127.0.0.1", int(port)), 10).close()
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
