"""Open MQ's file store as tables: headers, states, kinds of transaction records; no logic.

All numbers are big-endian; Java integers are signed. This is version 370 of the store, as the
shipped classes write it.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from wireyard.layout import Field, Layout

__all__ = [
    "ACKNOWLEDGE",
    "CAPACITY_STATES",
    "CLEAN",
    "CONFIG_HEADER",
    "CONFIG_MAGIC",
    "CONSUME",
    "CONSUMER_STATES",
    "ENTRY_HEADER",
    "FILE_MAGIC",
    "FREED",
    "GROUP",
    "HELD",
    "INCOMPLETE_FOLDER",
    "LOG_HEADER",
    "LOG_RECORD",
    "LOG_TYPES",
    "LOG_VERSION",
    "MESSAGES_FOLDER",
    "PRODUCE",
    "RECORD_MAGIC",
    "REMOVE",
    "ROOTS",
    "SEND",
    "SINGLE_TAGS",
    "SUMMED_BYTES",
    "TAG_BYTES",
    "TRANSACTION_STATES",
    "VR_HEADERS",
    "VR_PENDING",
    "VR_RECORD",
    "WORK_KINDS",
    "XID_BYTES",
    "State",
]

ROOTS: Final = ("fs370", "fs350", "filestore")
"""Names of a store's folder inside its broker's folder, the newest version first."""
MESSAGES_FOLDER: Final = "message"
INCOMPLETE_FOLDER: Final = "incompleteTxnStore"

FILE_MAGIC: Final = 0x5555AAAA
RECORD_MAGIC: Final = 0xAAAA5555
CONFIG_MAGIC: Final = 0x12345678


class State(StrEnum):
    """The state of a record's bytes for the broker."""

    HEADER = "header"
    ALLOCATED = "allocated"
    """A record that is in use."""
    FREE = "free"
    """A record that was freed; it keeps its old bytes until it is used again."""
    PENDING = "pending"
    """A record that was being written; a broker that finds one frees it."""
    PROPERTIES = "properties"
    LAST = "last"
    """The marker after the last record."""
    LIVE = "live"
    """A record of a log that a broker would replay."""
    STALE = "stale"
    """A record of a log, or the rest of one, that is obsolete: it was written before the last
    checkpoint, or before a clean shutdown."""
    UNREACHED = "unreached"
    """A record that would be live without a damaged one before it."""
    UNUSED = "unused"
    """Space for further records."""
    UNKNOWN = "unknown"
    """Bytes that are no record."""


HELD: Final = frozenset((State.ALLOCATED, State.LIVE, State.UNREACHED))
"""States of records whose packets are in the stream of their file."""
FREED: Final = frozenset((State.FREE, State.PENDING, State.STALE, State.UNUSED))

_KINDS = {"i16": 2, "i32": 4, "u32": 4, "i64": 8}


def _header(name: str, *fields: tuple[str, str, str]) -> Layout:
    placed, position = [], 0
    for field, kind, doc in fields:
        placed.append(Field(field, position, _KINDS[kind], kind, doc, f"Open MQ store, {name}"))
        position += _KINDS[kind]
    return Layout(name, tuple(placed))


_VR_FIRST = (
    ("magic", "u32", "55 55 AA AA"),
    ("version", "i16", "1 or 2"),
    ("reserved", "i16", "0"),
    ("application_cookie", "i64", "set by the user of the file"),
)
VR_HEADERS: Final = MappingProxyType(
    {
        1: _header("vrfile header", *_VR_FIRST),
        2: _header("vrfile header", *_VR_FIRST, ("reserved_2", "i64", "0")),
    }
)
"""Header of a file of variable records, by version."""
VR_RECORD: Final = _header(
    "vrfile record",
    ("magic", "u32", "AA AA 55 55"),
    ("capacity", "i32", "bytes to the next record, this header included; 0 in the last"),
    ("state", "i16", "free, allocated, last, properties"),
    ("cookie", "i16", "0, or -1 while it is written"),
)
CAPACITY_STATES: Final = MappingProxyType(
    {
        1: MappingProxyType({0: State.LAST, 1: State.FREE, 2: State.ALLOCATED}),
        2: MappingProxyType(
            {1: State.FREE, 2: State.ALLOCATED, 3: State.LAST, 4: State.PROPERTIES}
        ),
    }
)
"""States by their number in a record, by version of the file."""
VR_PENDING: Final = -1

CONSUMER_STATES: Final = MappingProxyType({0: "routed", 1: "delivered", 2: "acknowledged"})
"""States of a message for one consumer."""

SINGLE_TAGS: Final = MappingProxyType(
    {b"GOOD": State.ALLOCATED, b"FREE": State.FREE, b"....": State.PENDING}
)
TAG_BYTES: Final = 6
"""Size of the tag of a file of one record, with its length in two bytes."""

LOG_HEADER: Final = _header(
    "txnlog header",
    ("magic", "u32", "55 55 AA AA"),
    ("version", "i16", "1"),
    ("status", "i16", "created, clean shutdown, backup, checkpoint, reset"),
    ("checkpoint_position", "i64", "where replay begins"),
    ("timestamp", "i64", "ms since epoch"),
    ("checkpoint_sequence", "i64", "of the records that are replayed"),
    ("checksum", "i64", "Adler-32 of the 32 bytes before it"),
    ("application_cookie", "i64", "not in the sum"),
)
SUMMED_BYTES: Final = LOG_HEADER["checksum"].offset
LOG_VERSION: Final = 1
CLEAN: Final = 1
"""The status after a clean shutdown: there is nothing to replay."""
LOG_RECORD: Final = _header(
    "txnlog record",
    ("magic", "u32", "AA AA 55 55"),
    ("type", "i32", "-1; in older logs the kind of record"),
    ("size", "i32", "bytes of the body"),
    ("timestamp", "i64", "ms since epoch"),
    ("sequence", "i64", "from 0 after each checkpoint"),
    ("checkpoint_sequence", "i64", "that of the header when it was written"),
    ("checksum", "i64", "Adler-32 of the body"),
    ("reserved", "i32", "0"),
)

PRODUCE, CONSUME, GROUP = 1, 2, 8
LOG_TYPES: Final = MappingProxyType(
    {-1: "event", 1: "produce", 2: "consume", 4: "produce and consume", 8: "group"}
)
"""Types of log records; the first two bytes of an event have its kind and step."""

SEND, ACKNOWLEDGE, REMOVE = (4, 0), (5, 0), (6, 0)
WORK_KINDS: Final = MappingProxyType(
    {
        (1, 0): "local one-phase",
        (1, 1): "local prepare",
        (1, 2): "local complete",
        (2, 1): "remote prepare",
        (2, 2): "remote complete",
        (3, 1): "cluster prepare",
        (3, 2): "cluster complete",
        SEND: "send",
        ACKNOWLEDGE: "acknowledge",
        REMOVE: "remove",
    }
)
"""Names of events by their kind and step."""
XID_BYTES: Final = 136

TRANSACTION_STATES: Final = MappingProxyType(
    {
        0: "created",
        1: "started",
        2: "failed",
        3: "incomplete",
        4: "complete",
        5: "prepared",
        6: "committed",
        7: "rolled back",
        8: "timed out",
    }
)

CONFIG_HEADER: Final = _header("configrecord header", ("magic", "u32", "12 34 56 78"))
ENTRY_HEADER: Final = _header(
    "configrecord entry", ("timestamp", "i64", "ms since epoch"), ("size", "i32", "of the GPacket")
)
