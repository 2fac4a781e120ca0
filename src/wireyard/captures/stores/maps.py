"""Maps in a store: destinations, subscriptions, properties, older transactions.

A record's data is one serialization stream of two objects, key and value, and room. Maps that are
mapped into memory may have data behind the value that changes without writing that anew: ``%CD``,
then of a transaction its state in one byte; zeros where there is none.

Of the broker's own classes only what identifies them is taken: ids, names, states. They are read
by the strict reader as text and numbers; none is looked up or made.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from wireyard.captures.stores.layout import TRANSACTION_STATES, XID_BYTES
from wireyard.captures.stores.record import Contents, Entry, Transaction
from wireyard.captures.stores.section import Section
from wireyard.errors import LimitExceeded, Malformed
from wireyard.formats.message_id import MESSAGE_ID_CODES, message_id_text
from wireyard.java.cursor import DEFAULT_LIMITS
from wireyard.java.grammar import ClassDesc
from wireyard.java.serial import Reader
from wireyard.java.shapes import Parts, Shape, ShapeError
from wireyard.java.values import JavaError, JavaValue, Opaque, plain

__all__ = ["MAX_VALUE_CHARACTERS", "read_entry", "read_transaction"]

MAX_VALUE_CHARACTERS: Final = 1 << 20
"""A value as JSON: references can make a kilobyte name more than anybody could print. The longest
a broker writes, a destination with its settings, has a thousand."""

_CLIENT_DATA: Final = b"%CD"


def read_entry(section: Section, contents: Contents) -> None:
    """Read key and value of a map's record into `contents`.

    Raises
    ------
    DecodeError
        No serialization stream of two objects, or one over a limit.
    """
    _objects(section, contents)


def read_transaction(section: Section, contents: Contents) -> None:
    """Read a record of the map of transactions into `contents`; raises as `read_entry` does."""
    key, state = _objects(section, contents)
    number, stated = (one.value if isinstance(one, JavaValue) else None for one in (key, state))
    if not isinstance(number, int):
        raise section.fault(Malformed, "key", 0, "is no transaction id", "bad_java")
    if section.left > len(_CLIENT_DATA) and section.take(len(_CLIENT_DATA), "mark") == _CLIENT_DATA:
        stated = section.integer(1, "state")
    name = TRANSACTION_STATES.get(stated, str(stated)) if isinstance(stated, int) else None
    contents.transaction = Transaction(number, name)


def _objects(section: Section, contents: Contents) -> tuple[Any, Any]:
    """Return key and value, and stand behind them."""
    try:
        reader = _Reader(section.data, DEFAULT_LIMITS)
        key, value = reader.top(), reader.top()
        section.take(reader.at, "entry")
        contents.entry = Entry(_text(section, key), _json(section, plain(value)))
    except JavaError as error:
        raise section.fault(
            Malformed, error.field, error.offset, error.problem, error.code
        ) from None
    return key, value


def _text(section: Section, key: Any) -> str:
    found = plain(key)
    return found if isinstance(found, str) else _json(section, found)


def _json(section: Section, value: Any) -> str:
    pieces, size = [], 0
    try:
        for piece in json.JSONEncoder(ensure_ascii=False, default=_shown).iterencode(value):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_VALUE_CHARACTERS:
                problem = f"has over {MAX_VALUE_CHARACTERS} characters"
                raise section.fault(LimitExceeded, "value", 0, problem)
    except TypeError:
        problem = "is a map whose keys are neither text nor numbers"
        raise section.fault(Malformed, "value", 0, problem, "bad_java") from None
    return "".join(pieces)


def _shown(value: Any) -> str:
    if isinstance(value, Opaque):
        return value.class_name
    return value.hex() if isinstance(value, bytes) else str(value)


class _Reader(Reader):
    """The strict reader, with the forms of the broker's classes."""

    def finish(self, desc: ClassDesc, codes: str, handle: int) -> None:
        super().finish(desc, codes, handle)
        desc.shape = desc.shape or _SHAPES.get(desc.name)


_CORE: Final = "com.sun.messaging.jmq.jmsserver.core."
_DATA: Final = "com.sun.messaging.jmq.jmsserver.data."
_INFO: Final = "com.sun.messaging.jmq.jmsserver.persist.api.TransactionInfo"
_STATE: Final = struct.Struct(f">{XID_BYTES}xi")
_UID: Final = struct.Struct(">q")
_MESSAGE_ID: Final = struct.Struct(f">{MESSAGE_ID_CODES}")


def _numbers(owner: str, form: struct.Struct, parts: Parts) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the numbers an externalized object of a class begins with, and what follows them."""
    written = parts[owner][1] if owner in parts else []
    if not written or not isinstance(written[0], bytes) or len(written[0]) != form.size:
        raise ShapeError(f"wrote no {form.size} bytes of primitive data")
    return form.unpack(written[0]), written[1:]


def _uid(owner: str) -> Shape:
    return Shape(None, lambda parts: JavaValue("long", _numbers(owner, _UID, parts)[0][0]))


def _state(parts: Parts) -> JavaValue:
    return JavaValue("integer", _numbers(f"{_DATA}TransactionState", _STATE, parts)[0][0])


def _info(parts: Parts) -> JavaValue:
    for one in parts[_INFO][1] if _INFO in parts else []:
        if isinstance(one, JavaValue) and one.type == "integer":
            return one
    raise ShapeError("has no state")


def _acknowledgement(parts: Parts) -> list[Any]:
    numbers, uids = _numbers(f"{_DATA}TransactionAcknowledgement", _MESSAGE_ID, parts)
    if len(uids) != 2:
        raise ShapeError(f"wrote {len(uids)} consumers, not 2")
    message_id = JavaValue("string", message_id_text(*numbers))
    return _named(("sys_message_id", "consumer_id", "stored_consumer_id"), [message_id, *uids])


def _subscription(parts: Parts) -> list[Any]:
    names = ("client_id", "durable_name", "destination", "selector", "no_local")
    fields = {**_fields(parts, "Consumer"), **_fields(parts, "Subscription")}
    wanted = ("clientID", "durableName", "dest", "selstr")
    no_local = JavaValue("boolean", fields.get("noLocal"))
    return _named(names, [*(fields.get(name) for name in wanted), no_local])


def _fields(parts: Parts, name: str) -> dict[str, Any]:
    return parts[_CORE + name][0] if _CORE + name in parts else {}


def _named(names: tuple[str, ...], values: list[Any]) -> list[Any]:
    return [(JavaValue("string", name), value) for name, value in zip(names, values, strict=True)]


def _name(parts: Parts) -> Any:
    return _fields(parts, "StringUID").get("str")


_SHAPES: Final = {
    f"{_CORE}ConsumerUID": _uid(f"{_CORE}ConsumerUID"),
    f"{_DATA}TransactionUID": _uid(f"{_DATA}TransactionUID"),
    f"{_DATA}TransactionState": Shape(None, _state),
    f"{_DATA}TransactionAcknowledgement": Shape("map", _acknowledgement),
    _INFO: Shape(None, _info),
    f"{_CORE}Subscription": Shape("map", _subscription),
    f"{_CORE}DestinationUID": Shape(None, _name),
}
"""Serial forms of the broker's classes, as brokers of version 6.5 write them."""
