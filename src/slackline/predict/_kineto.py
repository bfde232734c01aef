"""The reader of a run from traces of torch.profiler (Kineto JSON), one file for each rank.

The profiler must have recorded shapes (`record_shapes=True`), and each step: by `profiler.step()`
or by the optimizer's own events. The traces give the times of all_reduces over gloo or slackline;
the time between them counts as computation.
"""

import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackline.errors import UsageError
from slackline.predict._run import Run
from slackline.predict._spans import Reduction, Trace, run_of_traces

__all__ = ["load_kineto"]

_REDUCTION = re.compile(r"(gloo|slackline):all_reduce")
_OTHER = re.compile(r"(?:nccl|ucc|xccl|mpi)\w*[:_]all_?reduce.*", re.IGNORECASE)
_STEPS = (re.compile(r"ProfilerStep#(\d+)"), re.compile(r"Optimizer\.step#.*"))
"""The names of events that tell steps apart, the first kind first."""
_ITEM_BYTES = {
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
    "short int": 2,
    "short unsigned int": 2,
    "int": 4,
    "unsigned int": 4,
    "long int": 8,
    "long unsigned int": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "float": 4,
    "double": 8,
    "c10::complex<c10::Half>": 4,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}
"""The bytes of an element by the profiler's names of types."""


def load_kineto(paths: Sequence[Path]) -> Run:
    """Read and calibrate the run of these traces, one for each rank.

    Raises UsageError that names the file, and the event, for a missing rank, for a trace without
    steps or sizes, for all_reduces of another library, and for clocks that disagree.
    """
    profiles = sorted((_read(path) for path in paths), key=lambda profile: profile.rank)
    ranks = [profile.rank for profile in profiles]
    world = max(profile.world for profile in profiles)
    for profile in profiles:
        if profile.world != world:
            raise UsageError(
                f"{profile.path} is of a run of {profile.world} ranks, and others are of {world}"
            )
        if ranks.count(profile.rank) > 1:
            raise UsageError(f"{profile.path}: several traces are of rank {profile.rank}")
    for rank in range(world):
        if rank not in ranks:
            raise UsageError(f"{paths[0].parent} has no trace of rank {rank} of {world}")
    return run_of_traces(str(paths[0].parent), [_trace(profile) for profile in profiles])


@dataclass(frozen=True)
class _Profile:
    """The events of one rank's trace."""

    path: Path
    rank: int
    world: int
    base_ns: int
    """The Unix time from which the times of events count."""
    events: tuple[Mapping[str, Any], ...]
    """The complete events (those with a duration), by their beginning."""


def _read(path: Path) -> _Profile:
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        given = json.loads(text)
    except (ValueError, EOFError, RecursionError, gzip.BadGzipFile):
        raise UsageError(f"{path} is not JSON, or it is cut") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    events = given.get("traceEvents") if isinstance(given, dict) else None
    if not isinstance(events, list):
        raise UsageError(f"{path} is no trace of torch.profiler: it has no traceEvents")
    place = given.get("distributedInfo")
    if not isinstance(place, dict):
        raise UsageError(
            f"{path} has no distributedInfo: the profiler ran before init_process_group"
        )
    base_ns = given.get("baseTimeNanoseconds", 0)
    numbers = (place.get("rank"), place.get("world_size"), base_ns)
    if any(type(value) is not int for value in numbers):
        raise UsageError(
            f"{path}: rank, world_size and baseTimeNanoseconds must be integers, not {numbers}"
        )
    complete = [_checked(path, number, event) for number, event in enumerate(events)]
    found = sorted((each for each in complete if each is not None), key=lambda each: each["ts"])
    return _Profile(path, place["rank"], place["world_size"], base_ns, tuple(found))


def _checked(path: Path, number: int, event: Any) -> Mapping[str, Any] | None:
    """Return a complete event; None for an event of another kind."""
    if not isinstance(event, dict):
        raise UsageError(f"{path}: event {number} must be an object, not {event!r}")
    if event.get("ph") != "X":
        return None
    for key in ("ts", "dur"):
        value = event.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise UsageError(
                f"{path}: {key} of event {number} ({event.get('name')!r}) must be a number from 0 "
                f"on, not {value!r}"
            )
    return event


def _trace(profile: _Profile) -> Trace:
    """Return the all_reduces of a trace, step by step."""
    begins = _steps(profile)
    steps: list[list[Reduction]] = [[] for _ in begins]
    for reduction in _reductions(profile):
        number = sum(begin_ns <= reduction.start_ns for begin_ns in begins) - 1
        if number >= 0:  # Earlier reductions belong to a step whose beginning is not in the trace.
            steps[number].append(reduction)
    # A step without all_reduces, such as one that only accumulates gradients, is computation of the
    # next step that has some.
    kept = [sorted(step) for step in steps if step]
    if len(kept) < 2:
        raise UsageError(f"{profile.path} has {len(kept)} steps with all_reduces; 2 are needed")
    ends = [reduction.end_ns for reduction in kept[0]]
    # The first step has no predecessor whose end is known.
    return Trace(name=str(profile.path), begin_ns=max(ends), steps=tuple(map(tuple, kept[1:])))


def _steps(profile: _Profile) -> list[int]:
    """Return the times at which the steps begin."""
    for pattern in _STEPS:
        found = [event for event in profile.events if pattern.fullmatch(str(event.get("name")))]
        # Kineto shows a user annotation of the host once more for each device.
        found = [event for event in found if not str(event.get("cat")).startswith("gpu")]
        if not found:
            continue
        if pattern is _STEPS[0]:
            return [_start_ns(profile, event) for event in found]
        return [_end_ns(profile, event) for event in found]
    raise UsageError(
        f"{profile.path} tells no steps apart: call profiler.step() after each step, or use an "
        "optimizer of torch.optim"
    )


def _reductions(profile: _Profile) -> list[Reduction]:
    """Return the all_reduces of a trace in the order of their posts."""
    named = [event for event in profile.events if _REDUCTION.fullmatch(str(event.get("name")))]
    posts = [
        event for event in profile.events if event.get("name") == "slackline:all_reduce posted"
    ]
    if not named:
        others = {str(event.get("name")) for event in profile.events}
        foreign = sorted(name for name in others if _OTHER.fullmatch(name))
        said = f"; it has {foreign[0]!r}" if foreign else ""
        raise UsageError(
            f"{profile.path} has no all_reduce of gloo or slackline, which alone show when a rank "
            f"posts an all_reduce{said}"
        )
    found = []
    for event in named:
        start_ns, end_ns = _start_ns(profile, event), _end_ns(profile, event)
        inside = [
            post
            for post in posts
            if start_ns <= _start_ns(profile, post) and _end_ns(profile, post) <= end_ns
        ]
        nbytes = _nbytes(profile, (inside[:1] or [event])[0])
        if nbytes:  # An empty tensor costs the network nothing.
            found.append(Reduction(start_ns, end_ns, nbytes))
        if inside:
            posts.remove(inside[0])
    return found


def _nbytes(profile: _Profile, event: Mapping[str, Any]) -> int:
    """Return the bytes of an all_reduce from its event; raise UsageError if they are missing."""
    facts = event.get("args")
    facts = facts if isinstance(facts, dict) else {}
    nbytes = facts.get("bytes")
    if type(nbytes) is int and nbytes >= 0:
        return nbytes
    dims, kinds = facts.get("Input Dims"), facts.get("Input type")
    shapes = [
        (shape, kind)
        for shape, kind in zip(_list(dims), _list(kinds), strict=False)
        if isinstance(shape, list) and kind in _ITEM_BYTES
    ]
    if not shapes or any(type(size) is not int for shape, _ in shapes for size in shape):
        raise UsageError(
            f"{profile.path}: {event.get('name')!r} at {event['ts']} us has no size (Input Dims "
            f"{dims!r}, Input type {kinds!r}): record with record_shapes=True"
        )
    return sum(math.prod(shape) * _ITEM_BYTES[kind] for shape, kind in shapes)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _start_ns(profile: _Profile, event: Mapping[str, Any]) -> int:
    return profile.base_ns + round(1000 * float(event["ts"]))


def _end_ns(profile: _Profile, event: Mapping[str, Any]) -> int:
    return profile.base_ns + round(1000 * (float(event["ts"]) + float(event["dur"])))
