"""OpenMPI as a contestant: a C program under mpirun, on this host or on the hosts of a lab."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _harness.programs import Programs, compile_program
from slackline.lab import Lab

SOURCE = Path(__file__).with_name("mpi_allreduce.c")
BYTE_TRANSFER = {"tcp": "self,tcp", "shm": "self,vader"}
"""The OpenMPI transports that correspond to slackline's rails; vader is OpenMPI's shared memory."""
POLITE = ["--mca", "mpi_yield_when_idle", "1"]


def missing() -> str | None:
    """Return the reason why OpenMPI cannot take part; None if it can."""
    for program in ("mpirun", "mpicc"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return None


@contextmanager
def on_this_host(
    size: int, rails: str, *, polite: bool = False, source: Path = SOURCE
) -> Iterator[Programs]:
    """Start `size` OpenMPI ranks of the program `source` on this host; call `greet` first.

    `rails` is "tcp" or "shm".

    OpenMPI waits by polling. `polite` ranks yield their cores while they wait. Other ranks yield
    their cores only if OpenMPI finds more ranks than cores.
    """
    with Programs("mpirun", size) as programs:
        options = ["--oversubscribe", "--mca", "btl_tcp_if_include", "lo"]
        options += POLITE if polite else []
        programs.start(_mpirun(programs.folder, size, rails, options, source))
        yield programs


@contextmanager
def on_hosts(lab: Lab) -> Iterator[Programs]:
    """Start an OpenMPI rank on each host of a lab, over TCP. Call `greet` on the result first.

    Ranks yield their cores while they wait, because OpenMPI does not know that the hosts share
    their cores.
    """
    size = lab.options.hosts
    with Programs("mpirun", size) as programs:
        agent = programs.folder / "agent"
        agent.write_text(_remote_shell(lab, programs.folder))
        agent.chmod(0o700)
        options = ["--host", ",".join(lab.address(host) for host in range(size))]
        options += ["--mca", "plm_rsh_agent", str(agent), *POLITE]
        for layer in ("oob", "btl"):
            options += ["--mca", f"{layer}_tcp_if_include", "eth0"]
        programs.start(lab.command(0, _mpirun(programs.folder, size, "tcp", options, SOURCE)))
        yield programs


def _mpirun(folder: Path, size: int, rails: str, options: list[str], source: Path) -> list[str]:
    program = folder / source.stem
    compile_program(["mpicc", "-O2"], source, program)
    return [
        *("mpirun", "--allow-run-as-root", "--bind-to", "none"),
        *("--mca", "btl", BYTE_TRANSFER[rails], *options),
        *("-n", str(size), str(program), str(folder)),
    ]


def _remote_shell(lab: Lab, folder: Path) -> str:
    """Return a shell script that mpirun calls, instead of ssh, as `agent ADDRESS COMMAND...`.

    Hosts share this machine's files, so each host gets a folder of its own for OpenMPI's sessions.
    """
    cases = []
    for host in range(lab.options.hosts):
        enter = shlex.join(lab.command(host, ["env", f"TMPDIR={folder}/host-{host}"]))
        (folder / f"host-{host}").mkdir()
        cases.append(f'{lab.address(host)}) exec {enter} sh -c "$*" ;;')
    lines = ["#!/bin/sh", "address=$1", "shift", 'case "$address" in', *cases, "esac"]
    return "\n".join([*lines, 'echo "no host has the address $address" >&2', "exit 1", ""])
