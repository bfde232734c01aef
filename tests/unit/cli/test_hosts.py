"""Tests of the list of machines that `slackline run --hosts` takes."""

import socket
from pathlib import Path

import pytest

from slackline.cli import main
from slackline.cli._job._hosts import Hosts, find_hosts
from slackline.errors import UsageError

ELSEWHERE = ("240.0.0.1", "240.0.0.2")
"""Addresses of a reserved range (240.0.0.0/4), which no machine has."""
PORT = 29500


@pytest.mark.parametrize("own", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("position", range(3))
def test_a_machine_finds_itself_among_the_hosts_by_its_addresses(own: str, position: int) -> None:
    names = [*ELSEWHERE]
    names.insert(position, own)
    assert find_hosts(" , ".join(names), PORT) == Hosts(names=tuple(names), own=position)


@pytest.mark.parametrize(
    ("own", "text", "position"),
    [
        ("b", "a.invalid,b.invalid", 1),
        ("b.invalid", "a,b", 1),
        ("b.invalid", "a.invalid,b.invalid", 1),
        # Another domain's b is another machine. A name with an empty label has no address, and no
        # name server is asked for it.
        ("b.invalid", "b..other,127.0.0.1", 1),
        # Two entries fit the name, and the addresses decide.
        ("b", "b..one,b..two,localhost", 2),
    ],
)
def test_a_machine_finds_itself_by_its_name_with_or_without_the_domain(
    own: str, text: str, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: own)
    assert find_hosts(text, PORT).own == position


@pytest.mark.parametrize(
    ("text", "port", "message"),
    [
        ("", PORT, "--hosts '' has an empty name"),
        ("localhost,", PORT, "--hosts 'localhost,' has an empty name"),
        (
            "4",
            PORT,
            "--hosts 4 is a number of hosts, which only a lab has: add --lab, or list host names, "
            "as --hosts a,b,c",
        ),
        ("localhost,localhost", PORT, "--hosts localhost,localhost names 'localhost' twice"),
        ("localhost", 0, "--port must be between 1 and 65535, not 0"),
        ("localhost", 65536, "--port must be between 1 and 65535, not 65536"),
        (
            "240.0.0.1,240.0.0.2",
            PORT,
            "--hosts 240.0.0.1,240.0.0.2: none of these is this machine, 'own'",
        ),
        (
            "240.0.0.1,a..b,c..d",
            PORT,
            "--hosts 240.0.0.1,a..b,c..d: none of these is this machine, 'own'; without an "
            "address here: 'a..b', 'c..d'",
        ),
        (
            "localhost,240.0.0.1,127.0.0.1",
            PORT,
            "--hosts localhost,240.0.0.1,127.0.0.1: 'localhost' and '127.0.0.1' are this machine; "
            "start one command on each host",
        ),
    ],
)
def test_a_wrong_list_of_hosts_is_refused_with_its_value(
    text: str, port: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "own")
    with pytest.raises(UsageError) as caught:
        find_hosts(text, port)
    assert str(caught.value) == message


def test_torchrun_gets_the_first_host_and_the_position_of_this_one() -> None:
    place = Hosts(names=("a", "b", "c"), own=1, port=7000).place(4)
    assert place.rendezvous == (
        "--nnodes=3",
        "--node-rank=1",
        "--master-addr=a",
        "--master-port=7000",
        "--rdzv-conf=timeout=300",
    )
    assert (place.first, place.world) == (4, 12)


def test_an_address_of_ipv6_is_put_in_brackets() -> None:
    place = Hosts(names=("fd00::1", "fd00::2"), own=1).place(1)
    assert "--master-addr=[fd00::1]" in place.rendezvous


@pytest.mark.parametrize(
    ("own", "ranks", "line"),
    [
        (0, 4, "host 0 of 2, a, has ranks 0 to 3"),
        (1, 4, "host 1 of 2, b, has ranks 4 to 7; a shows the output of rank 0"),
        (1, 1, "host 1 of 2, b, has rank 1; a shows the output of rank 0"),
    ],
)
def test_a_host_says_which_ranks_it_has(own: int, ranks: int, line: str) -> None:
    assert Hosts(names=("a", "b"), own=own).announcement(ranks) == line


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_that_is_taken_on_the_first_host_is_named(
    family: socket.AddressFamily, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with socket.create_server(
        ("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6
    ) as taken:
        port = taken.getsockname()[1]
        command = ["run", "--hosts", "localhost,240.0.0.1", "--port", str(port), str(script)]
        assert main(command) == 2
    assert capsys.readouterr().err == (
        f"slackline: --port {port} cannot be opened on this machine, which keeps the job's store: "
        "Address already in use; name another port in the command of every host\n"
    )


def test_the_port_matters_on_the_first_host_only() -> None:
    with socket.create_server(("", 0)) as taken:
        Hosts(names=("a", "b"), own=1, port=taken.getsockname()[1]).check_port()
