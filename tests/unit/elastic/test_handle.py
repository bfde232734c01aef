"""Handles: what a process writes is read again, and nothing else is."""

import os
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.elastic._handle import LONGEST_HANDLE, Handle, open_door
from slackline.errors import UsageError

ADDRESSES = st.lists(st.ip_addresses().map(str), max_size=64).map(tuple)
HEX = st.text("0123456789abcdef", min_size=16, max_size=32)
HANDLES = st.builds(
    Handle, name=HEX, addresses=ADDRESSES, port=st.integers(1, 65535), proof=HEX, job=HEX
)


@given(HANDLES)
def test_what_is_written_is_read_and_has_at_most_a_kibibyte(handle):
    text = handle.encode()
    read = Handle.decode(text)
    assert len(text.encode()) <= LONGEST_HANDLE
    assert handle.addresses[: len(read.addresses)] == read.addresses
    assert len(read.addresses) >= min(len(handle.addresses), 8)
    assert (read.name, read.port, read.proof, read.job) == (
        handle.name,
        handle.port,
        handle.proof,
        handle.job,
    )


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
    assert door.store.get(handle.door_key()).decode() == door.secret


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
