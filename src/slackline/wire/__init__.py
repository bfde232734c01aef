"""The frame: one table of header fields, its codec, and the C++ header generated from the table.

`FIELDS` is the only place that defines the layout. `python -m slackline.wire` prints
native/include/slackline/wire.h, and a test compares the two.
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.wire._codec import Header, decode, encode
    from slackline.wire._codes import Collective, DType, FrameFlag, FrameKind, ReduceOp
    from slackline.wire._crc32c import crc32c
    from slackline.wire._fields import FIELDS, HEADER_BYTES, MAGIC, VERSION, Field
    from slackline.wire._generate import cpp_header
    from slackline.wire._sequence import (
        FIRST_SEQUENCE,
        LAST_SEQUENCE,
        next_sequence,
        sequences_behind,
    )
else:
    __getattr__ = lazily(
        __name__,
        {
            "_codec": "Header decode encode",
            "_codes": "Collective DType FrameFlag FrameKind ReduceOp",
            "_crc32c": "crc32c",
            "_fields": "FIELDS HEADER_BYTES MAGIC VERSION Field",
            "_generate": "cpp_header",
            "_sequence": "FIRST_SEQUENCE LAST_SEQUENCE next_sequence sequences_behind",
        },
    )

__all__ = [
    "FIELDS",
    "FIRST_SEQUENCE",
    "HEADER_BYTES",
    "LAST_SEQUENCE",
    "MAGIC",
    "VERSION",
    "Collective",
    "DType",
    "Field",
    "FrameFlag",
    "FrameKind",
    "Header",
    "ReduceOp",
    "cpp_header",
    "crc32c",
    "decode",
    "encode",
    "next_sequence",
    "sequences_behind",
]
