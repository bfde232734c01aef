"""Data for virtual ranks: the sampler of a DataLoader, and one loader of a stream each.

    data with indices    PartSampler    ── batches of indices ──▶ DataLoader ─▶ next(batches)
    random transforms    PartDataset    the same numbers in any worker of a DataLoader
    streams              PartLoaders    loader of virtual rank 0 ─▶ next(part)
                                        loader of virtual rank 1, and so on

They give a virtual rank the same samples on any number of ranks. Samplers and loaders can be saved
after a step and loaded by another number of ranks.
"""

import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset, Sampler

from slackline.errors import UsageError
from slackline.overlap._data_parallel import DataParallel
from slackline.overlap._hooked_parts import HookedParts
from slackline.overlap._virtual_ranks import random_numbers, seed_of

if TYPE_CHECKING:
    from slackline.overlap._virtual_ranks import VirtualRank, VirtualRanks

__all__ = ["PartDataset", "PartLoaders", "PartSampler"]


class PartSampler(Sampler[list[int]]):
    """The indices of this rank's virtual ranks, one step after the other, for a DataLoader.

        sampler = PartSampler(parallel, len(data), batch=256)
        batches = iter(DataLoader(data, batch_sampler=sampler, num_workers=2))
        for step in range(sampler.step, steps):
            for part in parallel.parts(step):
                with part:
                    x, y = next(batches)
                    loss(parallel(x), y).backward()

    A batch has the indices that `part.indices(length, batch=batch)` returns. The sampler has no
    end: the loop over steps ends the training.
    """

    def __init__(self, parallel: DataParallel | HookedParts, length: int, *, batch: int) -> None:
        """Sample from `length` samples, of which each step has `batch` on all ranks together.

        Raises UsageError as `part.indices` does, and for a model without virtual ranks.
        """
        self._ranks = _ranks_of(parallel)
        self._length, self._batch = length, batch
        self._ranks.indices(0, 0, length, batch)  # checks the arguments

    @property
    def step(self) -> int:
        """The step of the first indices of the next iterator: the one after the latest step."""
        return self._ranks.next_step

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of each virtual rank of this rank, from the step `step` on.

        Those of virtual rank 0 come first if the next step begins with a probe.
        """
        step = self.step
        if self._ranks.probes:
            yield self._indices(step, 0)
        while True:
            for number in self._ranks.run:
                yield self._indices(step, number)
            step += 1

    def _indices(self, step: int, number: int) -> "_Indices":
        found = _Indices(self._ranks.indices(step, number, self._length, self._batch).tolist())
        found.seed = seed_of("batch", self._ranks.seed, step, number)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the next step, with the values on which the samples of a step depend.

        Batches that a DataLoader has fetched in advance do not matter: the state is that of the
        parts whose `with` statements have ended.
        """
        return {"step": self.step, **self._facts()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with the step of a saved state; iterators that exist already are not changed.

        Raises UsageError if the state is of other data, another batch, another number of virtual
        ranks or another seed.
        """
        for name, mine in self._facts().items():
            if state_dict[name] != mine:
                raise UsageError(
                    f"the saved sampler has {name}={state_dict[name]}, this one {name}={mine}: its "
                    "steps have other samples"
                )
        self._ranks.next_step = state_dict["step"]

    def _facts(self) -> dict[str, int]:
        ranks = self._ranks
        return {
            "virtual_ranks": ranks.count,
            "seed": ranks.seed,
            "length": self._length,
            "batch": self._batch,
        }


class _Indices(list[int]):
    """The indices of a virtual rank's samples, with the seed of their random transforms."""

    seed = 0


class PartDataset(Dataset[Any]):
    """A data set whose random transforms are those of the virtual rank, in any process.

        sampler = PartSampler(parallel, len(data), batch=256)
        loader = DataLoader(PartDataset(data), batch_sampler=sampler, num_workers=2)

    While the samples of a virtual rank are loaded, torch's random numbers on the CPU and those of
    Python's `random` depend on the seed, the step and the virtual rank alone. They are restored
    afterwards. NumPy's are left as they are.
    """

    def __init__(self, data: Any) -> None:
        """Load samples from `data`, a data set with indices."""
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self._data[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the samples of a virtual rank; raise UsageError for indices of another sampler."""
        if not isinstance(indices, _Indices):
            raise UsageError(
                "load a PartDataset by DataLoader(data, batch_sampler=PartSampler(...)): its "
                "indices know their virtual rank"
            )
        with random_numbers(indices.seed), _python_numbers(indices.seed):
            if hasattr(self._data, "__getitems__"):
                return self._data.__getitems__(indices)
            return [self._data[index] for index in indices]


class PartLoaders:
    """The loaders of streams, which have no indices: one loader for each virtual rank.

        loaders = PartLoaders(parallel, lambda number: StatefulDataLoader(Stream(number, of=8)))
        for step in range(loaders.step, steps):
            for part in parallel.parts(step):
                with part:
                    x = loaders.next(part)

    A loader is any object that can be iterated over, such as a DataLoader of an IterableDataset. If
    it is saved, it also needs `state_dict` and `load_state_dict`, as torchdata's StatefulDataLoader
    and many streaming data sets have them.
    """

    def __init__(
        self, parallel: DataParallel | HookedParts, make: Callable[[int], Iterable[Any]]
    ) -> None:
        """Load from `make(number)`, the loader of a virtual rank, which this rank makes if needed.

        The loaders of two virtual ranks must give different samples. Raises UsageError for a model
        without virtual ranks.
        """
        self._ranks = _ranks_of(parallel)
        self._make = make
        self._loaders: dict[int, Any] = {}
        self._iterators: dict[int, Iterator[Any]] = {}
        self._first: Any = None
        """The state from which the loader of virtual rank 0 has begun; None for its beginning."""

    @property
    def step(self) -> int:
        """The next step: the one after the latest step."""
        return self._ranks.next_step

    def next(self, part: "VirtualRank") -> Any:
        """Return the next batch of a virtual rank's loader.

        Random numbers that the loader draws in this process, or from which it seeds its workers,
        depend on the seed, the virtual rank and the step of the draw, and are restored. Raises
        UsageError at the end of the loader.
        """
        seed, number = self._ranks.seed, part.number
        if part.probe:
            return self._probed(part)
        if number not in self._iterators:
            with random_numbers(seed_of("workers", seed, number)):
                self._iterators[number] = iter(self._loader(number))
        return self._drawn(part, self._iterators[number])

    def state_dict(self) -> dict[str, Any]:
        """Return the next step and the state of each virtual rank's loader, from all ranks.

        All ranks make the call, between two steps, and get the same result. Blocks. Raises
        UsageError for a loader without `state_dict`.
        """
        mine = {number: self._stateful(number).state_dict() for number in self._ranks.run}
        every = [pickle.loads(each) for each in self._ranks.share(pickle.dumps(mine))]
        states = {number: state for each in every for number, state in each.items()}
        return {"step": self.step, "loaders": [states[number] for number in sorted(states)]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make this rank's loaders anew, and let them go on from a state of `state_dict`.

        The state may be of any number of ranks. Raises UsageError for another number of virtual
        ranks, and for a loader without `load_state_dict`.
        """
        states, count = state_dict["loaders"], self._ranks.count
        if len(states) != count:
            raise UsageError(
                f"the saved state has loaders of {len(states)} virtual ranks, not of {count}"
            )
        self._loaders.clear()
        self._iterators.clear()
        self._first = states[0]
        for number in self._ranks.run:
            self._stateful(number).load_state_dict(states[number])
        self._ranks.next_step = state_dict["step"]

    def _probed(self, part: "VirtualRank") -> Any:
        """Return the next batch of virtual rank 0 from a loader that no part uses."""
        loader: Any = self._make(part.number)
        if self._first is not None:
            loader.load_state_dict(self._first)
        with random_numbers(seed_of("workers", self._ranks.seed, part.number)):
            batches = iter(loader)
        return self._drawn(part, batches)

    def _drawn(self, part: "VirtualRank", batches: Iterator[Any]) -> Any:
        """Return the next batch for a virtual rank."""
        with random_numbers(seed_of("batch", self._ranks.seed, part.step, part.number)):
            try:
                return next(batches)
            except StopIteration:
                raise UsageError(
                    f"the loader of virtual rank {part.number} ended before step {part.step}: let "
                    "it begin again, or train fewer steps"
                ) from None

    def _loader(self, number: int) -> Any:
        if number not in self._loaders:
            self._loaders[number] = self._make(number)
        return self._loaders[number]

    def _stateful(self, number: int) -> Any:
        """Return a virtual rank's loader; raise UsageError if its state cannot be saved."""
        loader = self._loader(number)
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            raise UsageError(
                f"the loader of virtual rank {number} is a {type(loader).__name__} without "
                "state_dict and load_state_dict: use torchdata's StatefulDataLoader, or a data set "
                "that has them"
            )
        return loader


@contextmanager
def _python_numbers(seed: int) -> Iterator[None]:
    """Let the random numbers of Python's `random` begin with a seed; restore their state."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def _ranks_of(parallel: DataParallel | HookedParts) -> "VirtualRanks":
    if isinstance(parallel, DataParallel) and parallel._options.virtual_ranks is None:
        raise UsageError("the model has no virtual ranks: DataParallel(virtual_ranks=8)")
    return parallel._virtual
