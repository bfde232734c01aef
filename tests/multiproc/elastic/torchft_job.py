"""Training with torchft over slackline: one replica, which is one process.

    torchft_job.py GROUP REPLICA DIARY      TORCHFT_LIGHTHOUSE has the lighthouse's address

GROUP is `wrapped`, a process group of torchft that makes a new group of slackline for every change
of the members, or `torch`, a group of torch whose members torchft changes in place. The replicas
train until they have been together, then one has been alone, and then they have been together
again. DIARY gets a line for each step that this process has committed:

    step 17 participants 2 at 41297836452        nanoseconds of time.monotonic_ns
    parameters 5d1f...                           at the end: a digest of parameters and optimizer
"""

import hashlib
import re
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torchft
from torch import distributed as dist
from torch import nn
from torchft.process_group import ProcessGroupWrapper

from slackline.backend import SlacklineGroup, open_group

LIMIT = timedelta(seconds=40)
OVER = re.compile("2{10}.*1{5}.*2{20}$")
"""The end of the training, told by the number of participants of every step."""


class ProcessGroupSlackline(ProcessGroupWrapper):
    """torchft's process group over slackline."""

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> SlacklineGroup:
        return open_group(store, rank, world_size, timeout=self._timeout)

    def getBackendName(self) -> str:  # noqa: N802
        return "torchft-slackline"


class DataParallel(torchft.DistributedDataParallel):
    """torchft's wrapper, with a hook that lets a step go on to its end after a failed reduction.

    The manager does not commit such a step. The hook of torchft 0.2.0 raises an error instead,
    whatever the process group.
    """

    @staticmethod
    def _comm_hook(
        state: torchft.Manager, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        state.allreduce(bucket.buffer()).wait()
        reduced: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        reduced.set_result(bucket.buffer())
        return reduced


class Training:
    """The state that all replicas share, and one replica's steps."""

    def __init__(self, group: dist.ProcessGroup, store: dist.TCPStore, replica: int) -> None:
        """Begin with parameters of this replica's own, which torchft makes equal."""
        self._replica = replica
        self.participants = ""
        """The number of participants of each committed step, as digits."""
        torch.manual_seed(replica)
        self._model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        self.manager = torchft.Manager(
            pg=group,
            load_state_dict=self._load,
            state_dict=self._state,
            min_replica_size=1,
            timeout=LIMIT,
            quorum_timeout=LIMIT,
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=store.port,
            replica_id=f"replica_{replica}",
        )
        wrapper = DataParallel if isinstance(group, ProcessGroupSlackline) else None
        self._parallel = (wrapper or torchft.DistributedDataParallel)(self.manager, self._model)
        self._optimizer = torchft.Optimizer(
            self.manager, torch.optim.AdamW(self._model.parameters())
        )

    def step(self) -> bool:
        """Take one step; return whether it was committed."""
        before = self.manager.current_step()
        draw = torch.Generator().manual_seed(2 * before + self._replica)
        x = torch.randn(16, 8, generator=draw)
        self._optimizer.zero_grad()
        nn.functional.mse_loss(self._parallel(x), x.sum(1, keepdim=True)).backward()
        self._optimizer.step()
        # A replica that comes new jumps to the step of the others.
        committed = self.manager.current_step() > before
        if committed:
            self.participants += str(self.manager.num_participants())
        return committed

    def digest(self) -> str:
        """Return a digest of the parameters and of the optimizer's moments."""
        state = self._optimizer.state_dict()["state"]
        moments = [value for each in state.values() for value in each.values()]
        tensors = [*self._model.parameters(), *moments]
        return hashlib.sha256(
            b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)
        ).hexdigest()

    def _state(self) -> dict[str, object]:
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "participants": self.participants,
        }

    def _load(self, state: dict) -> None:
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.participants = state["participants"]


def made(kind: str, store: dist.TCPStore) -> dist.ProcessGroup:
    """Return a process group that connects nobody yet."""
    if kind == "wrapped":
        return ProcessGroupSlackline(timeout=LIMIT)
    dist.init_process_group(
        "slackline", store=store, rank=0, world_size=1, timeout=LIMIT, enable_reconfigure=True
    )
    return dist.group.WORLD


def main() -> None:
    kind, replica, diary = sys.argv[1:]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    training = Training(made(kind, store), store, int(replica))
    with Path(diary).open("w", buffering=1) as lines:
        while not OVER.search(training.participants):
            if training.step():
                step, participants = training.manager.current_step(), training.participants[-1]
                lines.write(f"step {step} participants {participants} at {time.monotonic_ns()}\n")
        lines.write(f"parameters {training.digest()}\n")
    training.manager.shutdown()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
