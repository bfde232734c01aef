"""The table [….delegation]: messages that helper processes carry through the hosts' memory."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from slackline._toml import Table, boolean, duration_ps, integer, listed, one_of, rate, size
from slackline.errors import UsageError
from slackline.sim._delegation import Delegation
from slackline.sim.experiment._case import each_value

__all__ = ["delegation_of", "message_bytes_of"]

_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def _bytes_per_second(value: Any) -> int:
    """Return the bytes a second of a rate like "100Gbit"."""
    return rate(value) // 8


_FIELDS: Mapping[str, tuple[str, Callable[[Any], int]]] = MappingProxyType(
    {
        "delegates": ("delegates", integer),
        "copy_bytes_per_second": ("copy_bytes_per_second", size),
        "copy": ("copy_ps", duration_ps),
        "send_bytes_per_second": ("send_bytes_per_second", size),
        "handling": ("handling_ps", duration_ps),
        "memory_bytes_per_second": ("memory_bytes_per_second", size),
        "nic": ("nic_bytes_per_second", _bytes_per_second),
        "cores": ("cores", integer),
        "ranks_alike": ("ranks_alike", integer),
    }
)
"""The keys of the table: the field of `Delegation`, and the function that reads the value."""


def delegation_of(table: Table, ranks: int) -> Delegation:
    """Return the delegation that a table describes; without the table, one without limits."""
    values: dict[str, Any] = {
        field: value
        for key, (field, read) in _FIELDS.items()
        if (value := table.take_if_there(key, read)) is not None
    }
    values["holds_delay"] = table.take("holds_delay", boolean, False)
    values["hosts"] = tuple(table.take_if_there("hosts", listed(integer)) or ())
    if values["hosts"] and len(values["hosts"]) != ranks:
        message = f"hosts must have {ranks} hosts, not {len(values['hosts'])}"
        raise table.wrong(UsageError(message))
    try:
        found = Delegation(**values)
    except UsageError as error:
        raise table.wrong(error) from None
    table.end()
    return found


def message_bytes_of(table: Table, links: int) -> tuple[int, ...]:
    """Return the size of a message on each link: `message`, or the shape in [….model].

    A message has microbatch * sequence * hidden elements. Without both keys every size is 0.
    """
    if "model" not in table:
        table.table("model")
        return each_value(table, "message", links, size) if "message" in table else (0,) * links
    if "message" in table:
        raise table.wrong(UsageError("message and [….model] exclude each other: give one of them"))
    model = table.table("model")
    nbytes = 1
    for key in ("microbatch", "sequence", "hidden"):
        nbytes *= model.take(key, integer)
    nbytes *= _ITEM_BYTES[model.take("type", one_of(*_ITEM_BYTES), "float16")]
    model.end()
    return (nbytes,) * links
