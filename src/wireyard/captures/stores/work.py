"""Contents of transaction log records: messages and acknowledgments, with or without transaction.

There are two formats. In older logs (``txnlogmsg``, ``txnlogack``) the type of a record is its
kind: messages produced, messages consumed, or both. In the newer log (``txnlog``) the type is -1,
and the first two bytes of the body are kind and step. The store of incomplete transactions has
prepared transactions after their length and without these two bytes; there the details begin with
the kind. A group contains several records of either format.
"""

from __future__ import annotations

from typing import Final

from wireyard.captures.stores.layout import (
    ACKNOWLEDGE,
    CONSUME,
    GROUP,
    LOG_TYPES,
    PRODUCE,
    REMOVE,
    SEND,
    TRANSACTION_STATES,
    WORK_KINDS,
    XID_BYTES,
)
from wireyard.captures.stores.record import Acknowledgment, Contents, Transaction
from wireyard.captures.stores.section import Section
from wireyard.errors import Malformed

_EVENT: Final = -1
_PREPARE: Final = 1
"""The step number of a prepare."""
_OLDER: Final = LOG_TYPES.keys() - {_EVENT, GROUP}
_LEAST_MESSAGE_BYTES: Final = 76
"""Size of a packet without properties and body, and a count."""
_LEAST_ACKNOWLEDGMENT_BYTES: Final = 42
"""Size of an empty destination name, a message id and a consumer id."""
_LEAST_PACKET_BYTES: Final = 72
_WITH_WORK: Final = frozenset(((1, 0), (1, 1), (3, 1)))
_WITH_STATE: Final = frozenset(((1, 1),))
_WITH_MORE: Final = frozenset(((2, 1), (3, 1)))
"""Kinds with serialized objects at their end, which only brokers need."""


def read_incomplete(section: Section, contents: Contents) -> None:
    """Read a record of the store of incomplete transactions; raises like `read_work`."""
    read_prepared(section.part(section.size("size"), "transaction"), contents)


def read_prepared(section: Section, contents: Contents) -> None:
    """Read a prepared transaction that fills the section; raises like `read_work`."""
    _read_kind(section, (int.from_bytes(section.data[:1], "big"), _PREPARE), contents)


def read_work(section: Section, type: int, contents: Contents) -> None:
    """Read the body of a log record, except a group, into `contents`.

    `DecodeError` is raised if the body is malformed; `contents` has what precedes the error.
    """
    contents.kind = LOG_TYPES.get(type, str(type))
    if type == _EVENT:
        kind = section.integer(1, "kind"), section.integer(1, "step")
        _read_kind(section, kind, contents)
    elif type in _OLDER:
        _read_old(section, type, contents)
    else:
        raise section.fault(Malformed, "type", 0, f"is {type}", "bad_type")


def _read_kind(section: Section, kind: tuple[int, int], contents: Contents) -> None:
    contents.kind = WORK_KINDS.get(kind)
    if contents.kind is None:
        raise section.fault(Malformed, "kind", 0, f"is {kind[0]}/{kind[1]}", "bad_kind")
    if kind == SEND:
        _message(section, contents)
    elif kind == ACKNOWLEDGE:
        _acknowledgment(section, contents)
    elif kind == REMOVE:
        destination = section.text("destination")
        removed = Acknowledgment(destination, section.message_id(), None)
        contents.acknowledgments.append(removed)
    else:
        _details(section, contents)
        if kind in _WITH_WORK:
            _work(section, contents)
        if kind in _WITH_STATE:
            section.take(section.size("size of the serialized state"), "serialized state")
    if kind in _WITH_MORE:
        section.take(section.left, "serialized objects")
    section.end()


def _details(section: Section, contents: Contents) -> None:
    section.take(1, "kind of transaction")
    number = section.integer(8, "transaction id")
    state = section.integer(4, "transaction state")
    contents.transaction = Transaction(number, TRANSACTION_STATES.get(state, str(state)))
    section.take(4, "complete")
    if section.integer(1, "has xid"):
        section.take(XID_BYTES, "xid")


def _work(section: Section, contents: Contents) -> None:
    for _ in range(section.count("message count", _LEAST_MESSAGE_BYTES)):
        _message(section, contents)
    for _ in range(section.count("acknowledgment count", _LEAST_ACKNOWLEDGMENT_BYTES)):
        _acknowledgment(section, contents)


def _message(section: Section, contents: Contents) -> None:
    packet = section.packet()
    contents.packets.append(packet)
    contents.packets[-1] = packet._replace(consumers=section.consumers())


def _acknowledgment(section: Section, contents: Contents) -> None:
    destination = section.text("destination")
    message_id = section.message_id()
    consumer = section.integer(8, "consumer id")
    contents.acknowledgments.append(Acknowledgment(destination, message_id, consumer))


def _read_old(section: Section, type: int, contents: Contents) -> None:
    number = section.integer(8, "transaction id")
    if number > 0:
        contents.transaction = Transaction(number, None)
    if type != CONSUME:
        for _ in range(section.count("message count", _LEAST_PACKET_BYTES)):
            contents.packets.append(section.packet())
    if type != PRODUCE:
        for _ in range(section.count("acknowledgment count", _LEAST_ACKNOWLEDGMENT_BYTES)):
            _acknowledgment(section, contents)
    section.end()
