"""The sizes of a nic's tables, for tests that nothing grows."""

from slackline.nic import NativeNic

__all__ = ["table_sizes"]


def table_sizes(nic: NativeNic) -> list[int]:
    """Return the sizes of all tables of a nic that could grow with groups or peers."""
    links = nic._network._links
    assert links is not None
    assert nic._running is not None
    counters = nic._running.engine.counters()
    return [
        len(nic._groups),
        len(nic._epochs._reserved),
        len(nic._monitors._open),
        0 if nic._records is None else len(nic._records._peers),
        len(links._peers),
        len(links._by_link),
        len(links._by_rendezvous),
        len(links._context.manager._tasks),
        *(counters[name] for name in ("arena_bytes", "ring_bytes", "slots")),
    ]
