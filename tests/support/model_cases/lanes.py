"""Four ranks that stay and train drawn cases one after the other, each compared with one process.

The ranks of a job divide themselves into lanes, disjoint sets of ranks, which train at the same
time:

    round 1      ranks 0, 1, 2, 3              the cases of four ranks
    round 2      ranks 0, 1, 2; rank 3         the cases of three ranks; a share of those of one
    round 3      ranks 0, 1; ranks 2, 3        the cases of two ranks
    round 4      each rank                     the other cases of one rank

An error within a step ends the process groups of its lane on all ranks of the lane. The lane then
leaves its other cases to a later round, for which all ranks make new groups.
"""

import os
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from torch import distributed as dist

from model_cases.cases import Case
from model_cases.one_process import expected_results
from model_cases.pipeline import train_in_pipeline
from model_cases.replicas import ddp_difference, train_replica
from model_cases.results import difference
from slackline.backend import slackline_group
from slackline.errors import PeerError

__all__ = ["RANKS", "Found", "train_cases"]

RANKS = 4
LIMIT = timedelta(seconds=20)
"""The timeout of the lanes' groups, after which a case fails whose ranks wait for each other."""
_LANES = {
    4: ((0, 1, 2, 3),),
    3: ((0, 1, 2), (3,)),
    2: ((0, 1), (2, 3)),
    1: ((0,), (1,), (2,), (3,)),
}
"""The lanes of a round, by the most ranks that its cases have."""


@dataclass
class Found:
    """The cases that a rank has trained in a round."""

    troubles: dict[int, str]
    """The trouble of each case by the case's number, empty for none."""
    ended: int | None = None
    """The number of the case in which an error has ended the groups of the lane."""
    by_peer: bool = False
    """Whether that error only told of the error of another rank."""


class Groups:
    """The process groups of this rank, by the ranks that they have."""

    def __init__(self, rank: int) -> None:
        """Make the groups; all ranks of the job do so together."""
        wanted = {lane for lanes in _LANES.values() for lane in lanes}
        wanted |= {(0, 2), (1, 3)}
        self._rank = rank
        self._groups = {
            ranks: dist.new_group(list(ranks), timeout=LIMIT) for ranks in sorted(wanted)
        }

    def end(self, lane: tuple[int, ...], reason: str) -> None:
        """End the group of a lane, so that no rank of the lane waits for this rank."""
        slackline_group(self._groups[lane]).nic.abort(reason)

    def train(self, case: Case, lane: tuple[int, ...]) -> str:
        """Train the case in this rank's lane; return a text about the first difference."""
        place = lane.index(self._rank)
        replica, pipelines = place // case.ranks, lane
        expected = expected_results(case, replica)
        if case.wrapped:
            found = train_replica(case, self._groups[lane])
            beside = ddp_difference(case, self._groups[lane], expected[0])
            return difference(found, expected) or beside
        replicas = None
        if case.replicas > 1:
            pipelines = lane[replica * case.ranks : (replica + 1) * case.ranks]
            replicas = self._groups[lane[place % case.ranks :: case.ranks]]
        found = train_in_pipeline(case, self._groups[pipelines], replica=replica, replicas=replicas)
        return difference(found, expected)


def train_cases(cases: Sequence[Case], rank: int, size: int) -> list[str]:
    """Train the cases; return for each a text about what failed, empty if nothing did.

    All ranks of the job make the same call and return the same texts.
    """
    warnings.simplefilter("ignore")  # torch warns of rare uses of hooks and checkpoints
    left = dict(enumerate(cases))
    troubles = [""] * len(cases)
    while left:
        groups = Groups(rank)
        for most, lanes in _LANES.items():
            lane = next(lane for lane in lanes if rank in lane)
            found = _train(groups, lane, _share(left, most, lanes.index(lane)))
            gathered: list[Found] = [found] * size
            dist.all_gather_object(gathered, found)
            for each in lanes:
                for number, said in _merged([gathered[place] for place in each]).items():
                    del left[number]
                    troubles[number] = said
            if any(each.ended is not None for each in gathered):
                break
    return troubles


def _share(left: dict[int, Case], most: int, lane: int) -> dict[int, Case]:
    """Return the cases of a lane in a round; the lanes of a round share its cases evenly."""
    lanes = _LANES[most]
    size = len(lanes[lane])
    of_size = [(number, case) for number, case in left.items() if case.size == size]
    same = [place for place, each in enumerate(lanes) if len(each) == size]
    if size < most:  # a rank that is not needed takes its share of the cases of one rank
        return dict(of_size[: len(of_size) // RANKS])
    return dict(of_size[same.index(lane) :: len(same)])


def _merged(found: Sequence[Found]) -> dict[int, str]:
    """Return the troubles that the ranks of a lane have found, by the number of the case.

    After an error on one rank, the other ranks may already be at a later case, which fails there
    for no reason of its own. Such a case is left out, and so trained again.
    """
    ended = [each.ended for each in found if each.ended is not None]
    numbers = [each for each in found[0].troubles if not ended or each <= min(ended)]
    troubles = {}
    for number in numbers:
        said = [each for each in found if number in each.troubles]
        # The rank at fault tells more than the ranks that were told of its error.
        said.sort(key=lambda each: each.ended == number and each.by_peer)
        texts = [each.troubles[number] for each in said if each.troubles[number]]
        # Of the differences, the one of the earliest step tells most; the other ones may follow.
        troubles[number] = texts[0] if ended and number == min(ended) else min(texts, default="")
    return troubles


def _train(groups: Groups, lane: tuple[int, ...], share: dict[int, Case]) -> Found:
    found = Found({})
    for number, case in share.items():
        try:
            found.troubles[number] = groups.train(case, lane)
        except Exception as error:  # reported with the case, whatever it is
            found.troubles[number] = _told(error)
            found.ended, found.by_peer = number, isinstance(error, PeerError)
            groups.end(lane, str(error))
            break
    return found


def _told(error: BaseException) -> str:
    notes: Iterable[str] = getattr(error, "__notes__", ())
    frames = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frames.filename)}:{frames.lineno}"
    return f"{type(error).__name__}: {error} ({'; '.join([*notes, where])})"
