"""The columns of JMQ packets that kernels fill, and the index of each among those of its kind."""

from __future__ import annotations

from typing import Final

from wireyard.formats import property_kernels
from wireyard.formats.jmq.layout import COLUMNS, ITEMS
from wireyard.formats.property_kernels import PROPERTY_TEXTS

I32_FIELDS: Final = tuple(column.name for column in COLUMNS if column.kind == "int32")
I64_FIELDS: Final = tuple(column.name for column in COLUMNS if column.kind == "int64")
ROW_TEXTS: Final = (
    "packet_type_name",
    "source_ip_text",
    "flags",
    "sys_message_id",
    *(ITEMS[code].name for code in range(1, 8)),
)
TEXTS: Final = (*ROW_TEXTS, *PROPERTY_TEXTS)
"""The regions of text."""
BITS: Final = (
    "packet_type_name",
    *(ITEMS[code].name for code in range(1, 12)),
    "properties",
    "body",
)
"""Columns that can be null, each a validity bitmap; the places 1 to 11 are item types."""
WANT: Final = {**property_kernels.WANT, "ids": 8, "items": 16, "hashes": 32}
"""Groups of columns with a pass of their own, as bits."""

# i32
(
    VERSION, PACKET_TYPE, SOURCE_PORT, SEQUENCE, PRIORITY, ENCRYPTION, BIT_FLAGS, DELIVERY_COUNT,
) = map(
    I32_FIELDS.index,
    (
        "version", "packet_type", "source_port", "sequence", "priority", "encryption",
        "bit_flags", "delivery_count",
    ),
)  # fmt: skip
# i64
(
    SIZE, EXPIRATION, TIMESTAMP, PROPERTY_OFFSET, PROPERTY_SIZE, CONSUMER_ID, TRANSACTION_ID,
    PRODUCER_ID, DESTINATION_HASH, BODY_SIZE,
) = map(
    I64_FIELDS.index,
    (
        "size", "expiration", "timestamp", "property_offset", "property_size", "consumer_id",
        "transaction_id", "producer_id", "destination_hash", "body_size",
    ),
)  # fmt: skip
# Texts
TYPE_NAME, ADDRESS, LETTERS, MESSAGE_ID, DESTINATION = map(
    TEXTS.index, ("packet_type_name", "source_ip_text", "flags", "sys_message_id", "destination")
)
FIRST_ITEM: Final = TEXTS.index(ITEMS[1].name)
