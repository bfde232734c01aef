"""The messages of Chakra execution traces that slackline reads and writes, and their framing.

The numbers of the fields are those of `schema/protobuf/et_def.proto` in mlcommons/chakra, schema
version 0.0.4. Fields that are not in the tables are skipped by the reader. A file is a sequence of
messages, each behind its length as a varint: one GlobalMetadata, then a Node for each operation.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from slackline._distribution import install
from slackline.errors import UsageError

__all__ = [
    "ALL_REDUCE",
    "COMM_COLL_NODE",
    "COMP_NODE",
    "VERSION",
    "message",
    "read_messages",
    "write_message",
]

VERSION = "0.0.4"
"""The version of the schema, as files state it in their first message."""
COMP_NODE, COMM_COLL_NODE = 4, 7
"""The values of NodeType for a computation and for a collective."""
ALL_REDUCE = 0
"""The value of CollectiveCommType for an all_reduce."""

_PACKAGE = "ChakraProtoMsg"
_MOST_BYTES = 1 << 26
"""The longest message that is read: 64 MiB."""

# Each field has its number, its type, and whether it is repeated.
_MESSAGES: dict[str, dict[str, tuple[int, str, bool]]] = {
    "AttributeProto": {
        "name": (1, "string", False),
        "double_val": (3, "double", False),
        "float_val": (5, "float", False),
        "int32_val": (7, "int32", False),
        "int64_val": (9, "int64", False),
        "uint32_val": (11, "uint32", False),
        "uint64_val": (13, "uint64", False),
        "bool_val": (27, "bool", False),
        "string_val": (29, "string", False),
    },
    "GlobalMetadata": {
        "version": (1, "string", False),
        "attr": (2, "AttributeProto", True),
    },
    "Node": {
        "id": (1, "uint64", False),
        "name": (2, "string", False),
        "type": (3, "int32", False),  # an enum in the schema, which has the same bytes
        "ctrl_deps": (4, "uint64", True),
        "data_deps": (5, "uint64", True),
        "start_time_micros": (6, "uint64", False),
        "duration_micros": (7, "uint64", False),
        "attr": (10, "AttributeProto", True),
    },
}
_VALUE = "value"
"""The name of the oneof that holds the value of an attribute."""


def message(name: str, /, **values: Any) -> Any:
    """Return a new message; raise UsageError if the library protobuf is not installed."""
    return _classes()[name](**values)


@cache
def _classes() -> dict[str, Any]:
    """Return the class of each message, made from the table."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ModuleNotFoundError:
        raise UsageError(f"Chakra traces need the library protobuf: {install('chakra')}") from None
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="slackline/et_def.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        if name == "AttributeProto":
            described.oneof_decl.add(name=_VALUE)
        for field, (number, kind, repeated) in fields.items():
            made = described.field.add(name=field, number=number)
            made.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind in _MESSAGES:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                made.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if field.endswith("_val"):
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def write_message(file: BinaryIO, made: Any) -> None:
    """Write a message behind its length."""
    body = made.SerializeToString(deterministic=True)
    length = len(body)
    while length > 0x7F:
        file.write(bytes((length & 0x7F | 0x80,)))
        length >>= 7
    file.write(bytes((length,)) + body)


def read_messages(path: Path) -> Iterator[Any]:
    """Yield the messages of a file: its GlobalMetadata, then its Nodes.

    Raises UsageError that names the file and the message that is cut, damaged or of another
    version.
    """
    from google.protobuf.message import DecodeError

    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    at = number = 0
    while at < len(data):
        length, at = _varint(data, at, path, number)
        if at + length > len(data):
            raise UsageError(f"{path}: message {number} is cut: the file is not complete")
        made = message("Node" if number else "GlobalMetadata")
        try:
            made.ParseFromString(data[at : at + length])
        except DecodeError:
            raise UsageError(f"{path}: message {number} is no message of Chakra") from None
        if not number and made.version != VERSION:
            raise UsageError(
                f"{path} has the version {made.version!r} of Chakra's schema, and slackline reads "
                f"{VERSION!r}"
            )
        yield made
        at += length
        number += 1
    if not number:
        raise UsageError(f"{path} is empty")


def _varint(data: bytes, at: int, path: Path, number: int) -> tuple[int, int]:
    """Return the length at a place of the file, and the place behind that length."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if value > _MOST_BYTES:
                break
            return value, at
        if shift > 28:
            break
    else:
        raise UsageError(f"{path}: message {number} is cut: the file is not complete")
    raise UsageError(f"{path}: message {number} is too long: the file is no trace of Chakra")
