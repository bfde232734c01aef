"""Tests of jobs over several machines, which are hosts of a lab: the commands of the pages."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from slackline.lab import Lab, LabOptions

SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

HOSTS = 2
SLOW = pytest.mark.slow
SUM = """
import os, socket, torch
from torch import distributed
distributed.init_process_group("slackline")
total = torch.tensor([2.0 ** distributed.get_rank()])
distributed.all_reduce(total)
nodes = [None] * distributed.get_world_size()
mine = os.environ["GROUP_RANK"], socket.gethostbyname(socket.gethostname())
distributed.all_gather_object(nodes, mine)
distributed.destroy_process_group()
print(total.item(), nodes)
"""
FAIL = """
import signal, sys, torch
from torch import distributed
distributed.init_process_group("slackline")
rank = distributed.get_rank()
if rank == 3:
    sys.exit(7)
if rank in (1, 2):
    signal.pause()
distributed.all_reduce(torch.ones(1))
"""
"""A script in which rank 3 fails on one host, which makes rank 0 fail on the other host.

The other rank of each host waits for the signal of the host's torchrun.
"""
PIECES = """
import torch
from torch import distributed, nn
import slackline
distributed.init_process_group("slackline")
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with slackline.overlap.DataParallel(model, optimizer) as parallel:
    for _ in range(3):
        parallel(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
distributed.destroy_process_group()
"""

Said = list[tuple[int, str, str]]
Everywhere = Callable[[Callable[[int], Sequence[str]]], Said]


@pytest.fixture
def everywhere(tmp_path: Path) -> Iterator[Everywhere]:
    """Provide a function that runs a command on each host and returns the exit codes and outputs.

    The command of host i is `command(i)`. The hosts are named host0 and host1.
    """
    with Lab(LabOptions(hosts=HOSTS)) as lab:
        processes: list[subprocess.Popen[str]] = []

        def run(command: Callable[[int], Sequence[str]]) -> Said:
            for host in range(HOSTS):
                folder = tmp_path / f"host{host}"
                folder.mkdir()
                processes.append(
                    subprocess.Popen(
                        lab.command(host, command(host)),
                        cwd=folder,
                        env=os.environ | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            texts = [process.communicate(timeout=100) for process in processes]
            return [
                (process.returncode, out, err)
                for process, (out, err) in zip(processes, texts, strict=True)
            ]

        yield run
        for process in processes:
            process.kill()
            process.communicate()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(body: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(body)
        return str(path)

    return write


def summed(ranks: int) -> str:
    """Return the line that each rank prints if each host has `ranks` ranks."""
    nodes = [(str(host), f"10.77.0.{host + 1}") for host in range(HOSTS) for _ in range(ranks)]
    return f"{2.0 ** len(nodes) - 1} {nodes}\n"


@pytest.mark.parametrize(
    ("ranks", "first_has", "second_has"),
    [(1, "rank 0", "rank 1"), pytest.param(2, "ranks 0 to 1", "ranks 2 to 3", marks=SLOW)],
)
def test_one_command_on_each_host_is_one_job(
    everywhere: Everywhere,
    script: Callable[[str], str],
    ranks: int,
    first_has: str,
    second_has: str,
) -> None:
    run = [*SLACKLINE, "run", "--hosts", "host0,host1", "--ranks", str(ranks), script(SUM)]
    first, second = everywhere(lambda host: run)
    assert first[:2] == (0, summed(ranks)), first[2]
    assert second[:2] == (0, ""), second[2]
    assert f"slackline run: host 0 of 2, host0, has {first_has}\n" in first[2]
    end = "; host0 shows the output of rank 0\n"
    assert f"slackline run: host 1 of 2, host1, has {second_has}{end}" in second[2]


@SLOW
def test_a_rank_that_fails_on_one_host_ends_the_job_on_all(
    everywhere: Everywhere, script: Callable[[str], str]
) -> None:
    run = [*SLACKLINE, "run", "--hosts", "host0,host1", "--ranks", "2", script(FAIL)]
    first, second = everywhere(lambda host: run)
    assert (first[0], second[0]) == (1, 7), first[2] + second[2]
    assert "rank 3 exited with code 7\n" in second[2]
    # Rank 3 has left by itself and rank 2 by the signal; either may be found missing first.
    assert re.search(r"PeerError: .*\brank [23]\b", first[2]), first[2]


@SLOW
def test_each_host_has_the_table_of_its_ranks(
    everywhere: Everywhere, script: Callable[[str], str]
) -> None:
    run = [*SLACKLINE, "run", "--hosts", "host0,host1", "--ranks", "2", script(PIECES)]
    said = everywhere(lambda host: run)
    for host, (code, _, err) in enumerate(said):
        assert code == 0, err
        rows = [line.split() for line in err.splitlines() if line.split()[3:4] == ["3"]]
        assert [row[1] for row in rows] == [str(2 * host), str(2 * host + 1)]


@SLOW
def test_torchrun_on_each_host_is_one_job(
    everywhere: Everywhere, script: Callable[[str], str]
) -> None:
    path = script(SUM)
    rendezvous = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=host0", "--master-port=29500"]
    said = everywhere(lambda host: [*TORCHRUN, *rendezvous, f"--node-rank={host}", path])
    for code, out, err in said:
        assert (code, out) == (0, 2 * summed(2)), err
