"""Groups that a group makes: a part of its ranks, or its ranks together with those of others."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch

from slackline.backend._torch import BackendOptions, GroupOptions, PrefixStore, Store, time_limit
from slackline.errors import UsageError

__all__ = ["Parent", "merged", "split"]

_MERGING_RANK = "mergeGroupRank"
"""torch's key in the store: the number of processes that have come to the merged group."""


class Parent(Protocol):
    """A process group that can open others."""

    job_ranks: Sequence[int]

    @property
    def group_name(self) -> str: ...
    @property
    def group_desc(self) -> str: ...
    @property
    def default_timeout(self) -> timedelta: ...
    def rank(self) -> int: ...
    def size(self) -> int: ...
    def get_group_store(self) -> Store: ...
    def _get_backend(self, device: torch.device) -> Any: ...
    def opened_beside(self, opts: BackendOptions, options: Any) -> Any:
        """Open a group on the same engine from torch's `opts` and the user's `options`."""


def split(
    parent: Parent,
    ranks: Sequence[int],
    *,
    timeout: timedelta | None,
    options: Any,
    name: str | None,
    description: str | None,
    devices: Sequence[torch.device] | None,
) -> Any:
    """Return a new group of some of a group's ranks; None at a rank that is not among them.

    Blocks until all of `ranks` have made the call, or raises TimeoutError. Raises UsageError for
    ranks that the parent has not.
    """
    members = sorted(ranks)
    if not members or len(set(members)) != len(members):
        raise UsageError(f"the ranks of a split must be different, and at least one, not {ranks}")
    if members[0] < 0 or members[-1] >= parent.size():
        raise UsageError(f"the ranks of a split must be in 0..{parent.size() - 1}, not {ranks}")
    for device in devices or ():
        parent._get_backend(device)
    if parent.rank() not in members:
        return None
    name = f"{parent.group_name}:split:{members}" if name is None else name
    made = parent.opened_beside(
        _options(
            PrefixStore(f"{name}/", parent.get_group_store()),
            members.index(parent.rank()),
            len(members),
            parent.default_timeout if timeout is None else timeout,
            [parent.job_ranks[rank] for rank in members],
        ),
        None if isinstance(options, GroupOptions) else options,
    )
    _name(made, name, f"{parent.group_desc}:split" if description is None else description)
    return made


def merged(
    parent: Parent,
    store: Store,
    size: int,
    *,
    timeout: timedelta,
    name: str | None,
    description: str | None,
) -> Any:
    """Return a new group of `size` processes that meet in `store`, whichever groups they are in.

    A process has its rank by the order of arrival. Blocks until all processes have come, or raises
    TimeoutError. Raises UsageError for a store that has served for a merged group before.
    """
    untyped: Any = store  # torch's stubs take no key of this type.
    rank = int(untyped.add(_MERGING_RANK, 1)) - 1
    if rank >= size:
        raise UsageError(
            f"{rank + 1} processes have come to a merged group of {size}: a store serves for one "
            "merged group, so give the next one a PrefixStore of its own"
        )
    made = parent.opened_beside(
        _options(PrefixStore("slackline/merged", store), rank, size, timeout, []), None
    )
    _name(
        made,
        f"{parent.group_name}:merge" if name is None else name,
        parent.group_desc if description is None else description,
    )
    return made


def _options(
    store: Store, rank: int, size: int, timeout: timedelta, job_ranks: list[int]
) -> BackendOptions:
    options = BackendOptions()
    options.store = store
    options.group_rank = rank
    options.group_size = size
    options.timeout = time_limit(timeout)
    options.global_ranks_in_group = job_ranks
    return options


def _name(group: Any, name: str, description: str) -> None:
    group._set_group_name(name)
    group._set_group_desc(description)
