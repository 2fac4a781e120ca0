"""The kinds of files in a store, and their detection by name, folder or content."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from wireyard.captures.stores import config, message, single, txnlog, vrfile, work
from wireyard.captures.stores.layout import CONFIG_MAGIC, FILE_MAGIC, INCOMPLETE_FOLDER
from wireyard.captures.stores.maps import read_entry, read_transaction
from wireyard.captures.stores.record import Contents, Record
from wireyard.captures.stores.section import ReadData, Section
from wireyard.formats import get_format

HEAD_BYTES: Final = 48
"""First bytes of a file that are enough to detect a file of a store."""


class _Reading(NamedTuple):
    title: str
    format: str
    packets: str | None
    read: Callable[[bytes], list[Record]]


def _vrfile(title: str, packets: str | None, read_data: ReadData) -> _Reading:
    return _Reading(title, vrfile.FORMAT, packets, partial(vrfile.read_vrfile, read_data=read_data))


def _single(title: str, packets: str, read_data: ReadData, read_attachment: ReadData) -> _Reading:
    read = partial(single.read_single, read_data=read_data, read_attachment=read_attachment)
    return _Reading(title, single.FORMAT, packets, read)


def _read_nothing(section: Section, contents: Contents) -> None:
    pass


class Kind(Enum):
    """A kind of file: its title, the format of its records and of their packets, and its reader."""

    MESSAGES = _vrfile("messages", "jmq", message.read_message)
    MESSAGE = _single("message", "jmq", message.read_packet, message.read_states)
    LOG = _Reading("log", txnlog.FORMAT, "jmq", txnlog.read_txnlog)
    INCOMPLETE = _vrfile("incomplete transactions", "jmq", work.read_incomplete)
    PREPARED = _single("incomplete transaction", "jmq", work.read_prepared, _read_nothing)
    TRANSACTIONS = _vrfile("transactions", None, read_transaction)
    MAP = _vrfile("map", None, read_entry)
    CONFIG = _Reading("configuration", config.FORMAT, "gpacket", config.read_configrecord)


_NAMES: Final = {
    "txnlog": Kind.LOG,
    "txnlogmsg": Kind.LOG,
    "txnlogack": Kind.LOG,
    "txn": Kind.TRANSACTIONS,
    "txnack": Kind.MAP,
    "destination": Kind.MAP,
    "interest": Kind.MAP,
    "property": Kind.MAP,
    "configrecord": Kind.CONFIG,
}
_MAGICS: Final = (FILE_MAGIC, CONFIG_MAGIC)
_SERIALIZED: Final = b"\xac\xed"
_SIZE_BYTES: Final = 4
"""Bytes of the size before the packet of a message record."""
_DATA_AT: Final = 14
"""Offset of the data in a file of one record."""


def is_store_file(head: bytes) -> bool:
    """Return whether a file's first `HEAD_BYTES` are those of a file of a store."""
    return int.from_bytes(head[:4], "big") in _MAGICS or single.begins_single(head)


def kind_of_place(folder: str, name: str) -> Kind | None:
    """Return the kind of a file by its name and its folder's name; None if they do not show it."""
    if name == "vrfile":
        return Kind.INCOMPLETE if folder == INCOMPLETE_FOLDER else Kind.MESSAGES
    if name.isdecimal():
        return Kind.PREPARED if folder == INCOMPLETE_FOLDER else Kind.MESSAGE
    return _NAMES.get(name)


def kind_of(data: bytes) -> Kind:
    """Return the kind of a file by its content, which has to be that of a file of a store."""
    if int.from_bytes(data[:4], "big") == CONFIG_MAGIC:
        return Kind.CONFIG
    if single.begins_single(data):
        return Kind.MESSAGE if _begins_packet(data, _DATA_AT) else Kind.PREPARED
    if txnlog.begins_log(data):
        return Kind.LOG
    return _kind_of_records(data)


def _kind_of_records(data: bytes) -> Kind:
    """Return the kind of a file of variable records, by its first record."""
    kinds: list[Kind] = []

    def add_kind(section: Section, contents: Contents) -> None:
        begins = _begins_packet(section.data, _SIZE_BYTES)
        serialized = section.data.startswith(_SERIALIZED)
        kinds.append(Kind.MAP if serialized else Kind.MESSAGES if begins else Kind.INCOMPLETE)

    vrfile.read_vrfile(data, add_kind)
    return kinds[0] if kinds else Kind.MESSAGES


def _begins_packet(data: bytes, at: int) -> bool:
    return get_format("jmq").evidence.begins(data[at : at + HEAD_BYTES])
