"""Tests of real training whose sums are computed by simulated circuits, and of mistakes that a user
may make."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ring_ranks import digests, digits, disagreeing, killed, late, many

from slackline.cli import main
from slackline.history import Job
from slackline.nic.offload._circuit_nic import Devices

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "train_digits.py"
_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
_REDUCE_FOR_EVER = """
import torch
from torch import distributed
distributed.init_process_group("slackline")
nic = distributed.group.WORLD._get_backend(torch.device("cpu")).nic
while True:
    total = torch.full((500,), distributed.get_rank() + 1.0)
    distributed.all_reduce(total)
    taken = nic.counters()["device_frames_taken"]
    print(total[-1].item(), "by circuits:", taken > 0, flush=True)
"""
_FEW_STEPS = ["--batch", "1436", "--epochs", "3"]
_NARROW = "lanes=1,slots=2,payload=128,operations=8"
"""The options of the ring NIC that tests/circuit also uses, so that it is compiled only once."""


@pytest.fixture(scope="session")
def compiled() -> None:
    """Compile the narrow ring NIC once for all tests and ranks."""
    Devices("circuit", sizes=_NARROW)


@pytest.fixture(scope="session")
def circuits(ring: Callable[..., list[Any]], compiled: None) -> Callable[..., list[Any]]:
    """Provide `ring` with narrow circuits, which have one adder."""

    def run(nics: list[str], function: Callable[..., Any], **more: Any) -> list[Any]:
        environment = {"SLACKLINE_CIRCUIT": _NARROW, **more.pop("environment", {})}
        return ring(nics, function, environment=environment, **more)

    return run


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_SLACKLINE, "run", *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def losses(*arguments: str, **environment: str) -> list[str]:
    """Run the example; return the bits of every step's loss and of the parameters at the end."""
    process = start(*arguments, str(EXAMPLE), "--bits", *_FEW_STEPS, **environment)
    out, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    return [line for line in out.splitlines() if line.startswith("PCCO over slackline: ")]


@pytest.mark.simulates
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_digits_train_through_circuits_with_the_losses_of_software(
    circuits, software, ranks, tmp_path
) -> None:
    expected = software(digits, ranks)
    assert len({parameters for _, parameters, _ in expected}) == 1
    environment = {"SLACKLINE_TELEMETRY": str(tmp_path)}
    found = circuits(["circuit"] * ranks, digits, seconds=200, environment=environment)
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    job = Job(tmp_path)
    job.update()
    for rank in range(ranks):
        device = job.ranks[rank].device
        assert device.counts["completed"] > 0
        assert 0 < device.busy + sum(device.stalls.values()) <= device.cycles


@pytest.mark.slow
@pytest.mark.simulates
@pytest.mark.timeout(600)
def test_the_command_trains_the_example_through_circuits_with_the_losses_of_software() -> None:
    expected = losses(SLACKLINE_ORDER="rank")
    assert len(expected) == 4
    assert losses("--nic", "twin") == expected
    assert losses("--nic", "circuit") == expected


@pytest.mark.slow
@pytest.mark.simulates
@pytest.mark.timeout(600)
def test_the_digits_train_through_a_rotating_ring_of_circuits_with_the_losses_of_software() -> None:
    assert losses("--nic", "circuit", SLACKLINE_PLAN="ring") == losses(SLACKLINE_PLAN="ring")


@pytest.mark.simulates
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "rails", ["shm,tcp", *(pytest.param(rails, marks=pytest.mark.slow) for rails in ("tcp", "udp"))]
)
def test_circuits_twins_and_software_agree_to_the_bit_around_one_ring(
    circuits, software, rails
) -> None:
    environment = {"SLACKLINE_RAILS": rails, "MOST": "700"}
    (expected,) = {each[0] for each in software(digests, MOST="700")}
    nics = ["circuit", "twin", "software", "circuit"]
    found = circuits(nics, digests, environment=environment)
    assert [each[0] for each in found] == [expected] * 4
    assert [each[2] for each in found] == [True, True, False, True]


@pytest.mark.simulates
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_digits_train_through_twins_with_the_losses_of_software(
    circuits, software, ranks
) -> None:
    found = circuits(["twin"] * ranks, digits, environment={"SLACKLINE_NIC_CHECK": "0"})
    assert [each[:2] for each in found] == [each[:2] for each in software(digits, ranks)]


@pytest.mark.simulates
@pytest.mark.timeout(300)
def test_the_digits_train_through_twins_that_circuits_check(circuits, software) -> None:
    checked = circuits(["twin"] * 2, digits, environment={"SLACKLINE_NIC_CHECK": "1"}, seconds=200)
    assert [each[:2] for each in checked] == [each[:2] for each in software(digits, 2)]
    assert [each[2] > 0 for each in checked] == [True] * 2


@pytest.mark.simulates
@pytest.mark.timeout(300)
def test_a_twin_and_a_circuit_that_disagree_end_the_job_on_every_rank(circuits) -> None:
    for name, words in circuits(
        ["twin"] * 3, disagreeing, environment={"SLACKLINE_NIC_CHECK": "1"}
    ):
        assert name == "InternalError"
        assert words.startswith(
            "the device of rank 1 (twin) failed: the NIC that checks rank 1 sends another frame of "
            "chunk 0 of operation 0x"
        )
        assert " at offset 0" in words


@pytest.mark.simulates
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "nics",
    [
        ["circuit", "twin", "software", "circuit"],
        pytest.param(["circuit"] * 4, marks=pytest.mark.slow),
    ],
    ids=["mixed", "circuits"],
)
def test_a_rotating_ring_of_circuits_twins_and_software_has_the_bits_of_software(
    circuits, software, nics
) -> None:
    environment = {"SLACKLINE_PLAN": "ring", "SLACKLINE_ORDER": "auto", "MOST": "700"}
    (expected,) = {each[0] for each in software(digests, **environment)}
    found = circuits(nics, digests, environment=environment)
    assert [each[0] for each in found] == [expected] * 4
    assert [each[1:] for each in found] == [["ring", nic != "software"] for nic in nics]


@pytest.mark.simulates
@pytest.mark.timeout(300)
def test_a_rank_that_is_killed_is_named_by_all_others(circuits) -> None:
    results = circuits(["circuit"] * 3, killed, dying=(2,), environment={"COUNT": "3000"})
    assert results[:2] == [["PeerError", 2]] * 2


@pytest.mark.simulates
@pytest.mark.timeout(300)
def test_more_chunks_than_there_is_room_for_go_round_circuits_and_software(
    circuits, software
) -> None:
    environment = {"SLACKLINE_PLAN": "ring", "SLACKLINE_ORDER": "auto"}
    environment["TENSORS"] = "10"  # each is four chunks, and the narrow circuit has room for 8
    expected = software(many, **environment)
    assert (
        circuits(["circuit", "software"] * 2, many, environment=environment, seconds=200)
        == expected
    )


@pytest.mark.slow
@pytest.mark.simulates
@pytest.mark.timeout(300)
def test_after_a_timeout_circuits_go_on_and_their_memory_is_free_again(circuits) -> None:
    first, second = circuits(["circuit"] * 2, late)
    assert first == [["TimeoutError", *[[1.0]] * 69], 0]
    assert second == [[[1.0]] * 69, 0]


@pytest.mark.slow
@pytest.mark.simulates
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("compiled")
def test_ctrl_c_ends_a_job_of_circuits(tmp_path: Path) -> None:
    script = tmp_path / "reduce.py"
    script.write_text(_REDUCE_FOR_EVER)
    process = start("--ranks", "2", "--nic", "circuit", "--circuit", _NARROW, str(script))
    assert process.stdout is not None
    assert process.stdout.readline() == "3.0 by circuits: True\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=110)
    assert process.returncode == 130
    assert "ended by SIGINT; all ranks have left" in errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--nic circut", "a nic must be one of software, twin, circuit, not 'circut'"),
        (
            "--circuit lane=4",
            "a circuit's sizes are lanes, slots, payload, operations, each named once, "
            "not 'lane=4'",
        ),
        ("--nic twin --circuit lanes=3", "lanes must be one of 1, 2, 4, 8, 16, not 3"),
        ("--nic-check few", "a number of operations must be an integer of at least 0, not 'few'"),
        ("--nic-check 5", "a check needs a twin (a model in Python) as NIC; add --nic twin"),
        (
            "--nic twin --nic-check 5",
            "the twin cannot be checked by a circuit here: Verilator is not installed "
            "(Debian: apt install verilator)",
        ),
        (
            "--nic circuit",
            "the nic 'circuit' cannot be simulated here: Verilator is not installed "
            "(Debian: apt install verilator)",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line_before_any_rank_starts(
    options: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["run", *options.split(), str(EXAMPLE)]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    told = errors.splitlines()[-1]
    assert told in (f"slackline: {words}", f"slackline: {options}: {words}")
