"""Training state that survives the loss of a rank: complete steps, equal on all ranks.

    step 7 ── optimizer.step() ── commit ── step 8 ── ... a rank dies ...
                                     └ the state is complete from here to the next step()

When a step fails, some ranks may have completed the step, and the others have not begun to apply
it. The survivors agree on the latest step that any survivor has completed, and continue from there.
No step is lost, and no step is taken twice.
"""

import io
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from slackline.backend import SlacklineGroup, create, failure_of
from slackline.elastic._shrink import shrink
from slackline.elastic._step_files import saved_steps, write_step
from slackline.errors import LinkError, PeerError, UsageError

__all__ = ["ElasticState", "Stateful"]

Result = TypeVar("Result")


class Stateful(Protocol):
    """A part of the training state: a module, an optimizer, a scheduler, or the like."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class ElasticState:
    """The state of a training run: the given parts, and the number of committed steps.

        state = ElasticState(model=model, optimizer=optimizer)

    The parts must be plain modules and optimizers, not wrapped ones, and equal on all ranks, as
    data-parallel training keeps them. With this state, the optimizers take complete steps only:
    slackline.overlap.DataParallel waits for all gradients before the first parameter changes. Only
    one thread may use the state.
    """

    def __init__(self, **parts: Stateful) -> None:
        if not parts:
            raise UsageError("a state needs parts, such as model=model and optimizer=optimizer")
        self.step = 0
        """The number of committed steps."""
        self._parts = parts
        self._whole = True
        self._ending: int | None = None
        for part in parts.values():
            if isinstance(part, Optimizer):
                # With a step hook, DataParallel takes the whole step at once, not each parameter's
                # step later.
                part.register_step_pre_hook(self._changing)
        self._buffers = self._copy_buffers()

    def commit(self) -> None:
        """Record that a training step is complete; call this method after `optimizer.step()`.

        The program must not communicate between the two calls. Raises SystemExit within `saving` if
        SIGTERM has come since `optimizer.step()`.
        """
        self.step += 1
        self._buffers = self._copy_buffers()
        self._whole = True
        if self._ending is not None:
            raise SystemExit(128 + self._ending)

    def sync(self) -> None:
        """Copy the latest complete step that any rank holds to every rank of the default group.

        Blocks until every rank has made the call. Gradients, and changes by a step in progress, are
        discarded. Raises UsageError on all ranks if no rank holds a complete step.
        """
        self._rewind()
        mine = torch.tensor([self.step, self._whole], dtype=torch.int64, device="cpu")
        told = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(told, mine)
        steps = [step if whole else -1 for step, whole in (pair.tolist() for pair in told)]
        latest = max(steps)
        if latest < 0:
            raise UsageError(
                "no rank holds a complete step: on every rank an error came between "
                "optimizer.step() and commit()"
            )
        if any(step != latest for step in steps):
            self._follow(steps.index(latest), here=steps[dist.get_rank()] == latest)

    def run(
        self,
        train: Callable[[], Result],
        *,
        timeout: timedelta = timedelta(seconds=30),
        min_ranks: int = 1,
    ) -> Result:
        """Call `train` and return its result; after a loss of ranks, shrink and call `train` again.

        `train` must wrap the model, continue from `step` and commit each step. Wrap the model by
        `with slackline.overlap.DataParallel(...)`, since the wrapper must not outlive the call of
        `train`. `timeout`, `min_ranks` and the errors are as in `slackline.elastic.shrink`.
        """
        while True:
            try:
                self.sync()
                result = train()
                dist.barrier()  # A rank that is done stays, since another rank may still be lost.
            except Exception as error:
                if not isinstance(failure_of(error), PeerError | LinkError):
                    raise
            else:
                return result
            shrink(timeout=timeout, min_ranks=min_ranks)

    def save(self, folder: str | Path) -> Path:
        """Write the training state to a new file in `folder`, atomically; return its path.

        The two latest files are kept. Raises UsageError between `optimizer.step()` and `commit`.
        """
        if not self._whole:
            raise UsageError(f"step {self.step + 1} is not complete: save after commit()")
        self._rewind()
        return write_step(Path(folder), self.step, self._pack())

    def load(self, folder: str | Path) -> bool:
        """Load the training state of the latest step in `folder`; return False if no step exists.

        Ranks with disks of their own may find different steps, so call `sync` afterwards.
        """
        found = saved_steps(Path(folder))
        if not found:
            return False
        self._unpack(found[max(found)].read_bytes())
        return True

    @contextmanager
    def saving(self, folder: str | Path) -> Iterator[None]:
        """Save the latest committed step in `folder` if the body ends with an exception.

        In the main thread, SIGTERM becomes SystemExit, since torchrun ends the remaining ranks by
        SIGTERM. SystemExit is raised at once, or by `commit` after `optimizer.step()`. Nothing is
        saved if another exception comes between these two calls.
        """
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, self._end) if main else None
        try:
            yield
        except BaseException:
            asked, self._ending = self._ending, signal.SIGTERM  # a further SIGTERM is ignored
            group = dist.group.WORLD
            if asked is not None and isinstance(group, SlacklineGroup):
                group.abort()  # the other ranks must not wait for this rank
            if self._whole:
                self._rewind()
                if self.step > max(saved_steps(Path(folder)), default=0):
                    self.save(folder)
            raise
        finally:
            self._ending = None
            if main:
                signal.signal(signal.SIGTERM, before)

    def _end(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM, which may come between any two instructions of the interpreter."""
        if self._ending is None:
            self._ending = number
            if self._whole:
                raise SystemExit(128 + number)

    def _changing(self, *_: object) -> None:
        # Gradients on an accelerator may have failed after the backward; then no step must begin.
        create.settle()
        self._whole = False

    def _rewind(self) -> None:
        """Undo the part of a training step that precedes `optimizer.step()`.

        Restore the modules' buffers and clear all gradients.
        """
        with torch.no_grad():
            for name, buffer in self._named_buffers():
                if name in self._buffers:
                    buffer.copy_(self._buffers[name])
        for part in self._parts.values():
            if isinstance(part, Optimizer):
                part.zero_grad()

    def _named_buffers(self) -> Iterator[tuple[tuple[str, str], Tensor]]:
        for name, part in self._parts.items():
            if isinstance(part, nn.Module):
                for path, buffer in part.named_buffers():
                    yield (name, path), buffer

    def _copy_buffers(self) -> dict[tuple[str, str], Tensor]:
        """Return copies of the modules' buffers; a forward pass changes buffers."""
        return {name: buffer.detach().clone() for name, buffer in self._named_buffers()}

    def _follow(self, source: int, *, here: bool) -> None:
        packed = self._pack() if dist.get_rank() == source else b""
        length = torch.tensor([len(packed)], dtype=torch.int64, device="cpu")
        dist.broadcast(length, source)
        if packed:
            data = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        else:
            data = torch.empty(int(length), dtype=torch.uint8, device="cpu")
        dist.broadcast(data, source)
        if not here:
            self._unpack(data.numpy().tobytes())

    def _pack(self) -> bytes:
        file = io.BytesIO()
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        torch.save({"step": self.step, "parts": parts}, file)
        return file.getvalue()

    def _unpack(self, data: bytes) -> None:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if found["parts"].keys() != self._parts.keys():
            theirs, mine = (", ".join(sorted(parts)) for parts in (found["parts"], self._parts))
            raise UsageError(f"the state that was saved has the parts {theirs}, not {mine}")
        self._whole = False
        for name, part in self._parts.items():
            part.load_state_dict(found["parts"][name])
        self.step = found["step"]
        self._buffers = self._copy_buffers()
        self._whole = True
