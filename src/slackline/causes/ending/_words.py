"""The explanation of a job's end, and the names of ranks, operations and times in its sentences."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from slackline.records.failures import OperationState
from slackline.units import show_bytes

__all__ = ["Explanation", "capital", "operation_name", "ranks_named", "time_of"]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Three sentences on the end of a job, and the facts in them."""

    kind: str
    """The rule that explains the end: "crash", "exception", "memory", "exit", "disagreement",
    "killed", "left", "aborted", "link", "late", "stuck", "interrupted", "thread", "terminated",
    "consequence", "running", "unfinished", "unreadable" or "clean"."""
    cause: str
    """The sentence on the cause: the rank that was late or gone, or the link that failed."""
    wait: str
    """The sentence on the ranks that waited."""
    advice: str
    """The sentence on the thing to look at next."""
    ranks: tuple[int, ...] = ()
    """The ranks that caused the end."""
    waiting: tuple[int, ...] = ()
    """The ranks that waited for them."""
    operation: OperationState | None = None
    """The operation that the ranks waited in."""

    @property
    def sentences(self) -> tuple[str, str, str]:
        """The three sentences in their order."""
        return self.cause, self.wait, self.advice


def ranks_named(ranks: Collection[int]) -> str:
    """Return ranks in words: "rank 1", "ranks 0 and 2", "ranks 0, 1 and 2", "7 ranks (0, 1, …)"."""
    given = [str(rank) for rank in sorted(ranks)]
    if len(given) == 1:
        return f"rank {given[0]}"
    if len(given) > 8:
        return f"{len(given)} ranks ({', '.join(given[:4])}, …)"
    return f"ranks {', '.join(given[:-1])} and {given[-1]}"


def capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def operation_name(operation: OperationState) -> str:
    """Return an operation in words: "all_reduce number 7 (3.91 KiB, plan ring)"."""
    tag = f" tag {operation.tag}" if operation.tag >= 0 else ""
    details = [] if operation.kind == "barrier" else [show_bytes(operation.bytes)]
    if operation.plan and operation.kind != "barrier":
        details.append(f"plan {operation.plan}")
    if operation.members and operation.members != tuple(range(len(operation.members))):
        details.append(f"group of {ranks_named(operation.members)}")
    inside = f" ({', '.join(details)})" if details else ""
    return f"{operation.kind}{tag} number {operation.sequence}{inside}"


def time_of(time_ns: int) -> str:
    """Return a Unix time in words: "12:03:04 UTC"."""
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%H:%M:%S UTC")
