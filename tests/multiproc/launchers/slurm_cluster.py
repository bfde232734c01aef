"""A cluster of Slurm on one machine: a controller and two nodes, which are hosts of a lab."""

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from slackline.lab import Lab, LabOptions

NODES = 2
CORES = 2
"""The processors that each node pretends to have."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "sinfo")
PATIENCE_S = 120

CONFIGURATION = """
ClusterName=lab
SlurmctldHost=host0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort=6817
SlurmdPort=6818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SlurmdParameters=config_overrides
MailProg=/bin/true
NodeName=host[0-{last}] CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """A running cluster; its daemons and jobs end with the context."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for name in ("state", *(f"spool-host{node}" for node in range(NODES))):
            (self._folder / name).mkdir(parents=True)
        # munged refuses a folder for its socket that others can write to or cannot search.
        self._folder.chmod(0o755)
        settings = self._folder / "slurm.conf"
        settings.write_text(CONFIGURATION.format(folder=self._folder, last=NODES - 1, cores=CORES))
        # Without this setting the daemons look for a cgroup hierarchy, which a container may lack.
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        with ExitStack() as stack:
            self._lab = stack.enter_context(Lab(LabOptions(hosts=NODES)))
            stack.callback(self._stop)
            self._start("munged", ["munged", "--foreground", "--force", *self._munge()])
            self._start("slurmctld", self._on(0, ["slurmctld", "-D", "-f", str(settings)]))
            for node in range(NODES):
                command = self._on(node, ["slurmd", "-D", "-f", str(settings)])
                self._start(f"slurmd-{node}", command)
            self._wait_for_nodes()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, *command: str, seconds: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run a command on the first node, as a user of the cluster does."""
        return subprocess.run(
            self._on(0, command),
            cwd=self._folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; fail if it does not hold within PATIENCE_S."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline_s:
                state = self.run("sh", "-c", "sinfo --Node; scontrol show jobs").stdout
                raise AssertionError(f"{condition.__name__} does not come:\n{state}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        """Return the logs of all daemons."""
        return "\n".join(
            f"{path.name}:\n{path.read_text()}" for path in sorted(self._folder.glob("*.log"))
        )

    def _munge(self) -> list[str]:
        """Return options that keep all files of the authentication daemon in the folder."""
        names = {
            "key-file": "munge.key",
            "socket": "munge.socket",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munged.seed",
        }
        return [f"--{option}={self._folder / name}" for option, name in names.items()]

    def _on(self, node: int, command: tuple[str, ...] | list[str]) -> list[str]:
        """Return the command line that runs a command on a node, under the node's own name."""
        named = f'hostname host{node} && exec "$@"'
        return self._lab.command(node, ["unshare", "--uts", "sh", "-c", named, "sh", *command])

    def _environment(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self._folder / "slurm.conf")}

    def _start(self, name: str, command: list[str]) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _wait_for_nodes(self) -> None:
        """Wait until all nodes can take jobs; fail if a daemon ends before that."""

        def idle() -> bool:
            for name, daemon in self._daemons.items():
                assert daemon.poll() is None, f"{name} ended:\n{self.logs()}"
            found = self.run("sinfo", "--noheader", "--Node", "--format=%T")
            return found.stdout.split() == ["idle"] * NODES

        self.wait_until(idle)

    def _stop(self) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
