"""Maps in a store: destinations, subscriptions, properties, older transactions.

A record's data is one serialization stream of two objects, key and value, and unused space. In
memory-mapped files, the value may be followed by data that can change without rewriting it:
``%CD``, then for transactions the state in one byte; zeros if there is none.

From objects of the broker's own classes only ids, names and states are read, by the strict reader,
as text and numbers; no class is loaded and no object created.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Final

from wireyard.captures.stores.layout import TRANSACTION_STATES, XID_BYTES
from wireyard.captures.stores.record import Contents, Entry, Transaction
from wireyard.captures.stores.section import Section
from wireyard.errors import LimitExceeded, Malformed
from wireyard.formats.message_id import MESSAGE_ID_CODES, message_id_text
from wireyard.java.grammar import ClassDesc
from wireyard.java.serial import Reader
from wireyard.java.shapes import Parts, Shape, ShapeError
from wireyard.java.text import double_text
from wireyard.java.values import JavaError, JavaValue, Opaque, plain

MAX_VALUE_CHARACTERS: Final = 1 << 20
"""Longest value as JSON. References can make a kilobyte expand to more than memory holds; the
longest that a broker writes, a destination with its properties, has a thousand characters."""

_CLIENT_DATA: Final = b"%CD"


def read_entry(section: Section, contents: Contents) -> None:
    """Read key and value of a map's record into `contents`.

    `DecodeError` is raised if the section is no serialization stream of two objects, or exceeds a
    limit.
    """
    _objects(section, contents)


def read_transaction(section: Section, contents: Contents) -> None:
    """Read a record of the map of transactions into `contents`; raises like `read_entry`."""
    key, value = _objects(section, contents)
    number, state = (each.value if isinstance(each, JavaValue) else None for each in (key, value))
    if not isinstance(number, int):
        raise section.fault(Malformed, "key", 0, "is no transaction id", "bad_java")
    if section.left > len(_CLIENT_DATA) and section.take(len(_CLIENT_DATA), "mark") == _CLIENT_DATA:
        state = section.integer(1, "state")
    name = TRANSACTION_STATES.get(state, str(state)) if isinstance(state, int) else None
    contents.transaction = Transaction(number, name)


def _objects(section: Section, contents: Contents) -> tuple[Any, Any]:
    """Read key and value; return them as Java objects."""
    try:
        reader = _Reader(section.data)
        key, value = reader.top(), reader.top()
        section.take(reader.at, "entry")
        contents.entry = Entry(_text(section, key), _json(section, plain(value)))
    except JavaError as error:
        raise section.fault(
            Malformed, error.field, error.offset, error.problem, error.code
        ) from None
    return key, value


def _text(section: Section, key: Any) -> str:
    value = plain(key)
    return value if isinstance(value, str) else _json(section, value)


def _json(section: Section, value: Any) -> str:
    pieces, size = [], 0
    try:
        encoder = json.JSONEncoder(ensure_ascii=False, default=_shown)
        for piece in encoder.iterencode(_finite(value)):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_VALUE_CHARACTERS:
                problem = f"has over {MAX_VALUE_CHARACTERS} characters"
                raise section.fault(LimitExceeded, "value", 0, problem)
    except TypeError:
        problem = "is a map whose keys are neither text nor numbers"
        raise section.fault(Malformed, "value", 0, problem, "bad_java") from None
    return "".join(pieces)


def _finite(value: Any) -> Any:
    """Return a plain value with text in the place of NaN and infinities, which JSON lacks."""
    match value:
        case float() if not math.isfinite(value):
            return double_text(value)
        case list():
            return [_finite(item) for item in value]
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case _:
            return value


def _shown(value: Any) -> str:
    if isinstance(value, Opaque):
        return value.class_name
    return value.hex() if isinstance(value, bytes) else str(value)


class _Reader(Reader):
    """The strict reader, with the serial forms of the broker's classes."""

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
    """Return the numbers at the beginning of an externalized object, and the objects after them."""
    written = parts[owner][1] if owner in parts else []
    if not written or not isinstance(written[0], bytes) or len(written[0]) != form.size:
        raise ShapeError(f"wrote no {form.size} bytes of primitive data")
    return form.unpack(written[0]), written[1:]


def _uid(owner: str) -> Shape:
    return Shape(None, lambda parts: JavaValue("long", _numbers(owner, _UID, parts)[0][0]))


def _state(parts: Parts) -> JavaValue:
    return JavaValue("integer", _numbers(f"{_DATA}TransactionState", _STATE, parts)[0][0])


def _info(parts: Parts) -> JavaValue:
    for value in parts[_INFO][1] if _INFO in parts else []:
        if isinstance(value, JavaValue) and value.type == "integer":
            return value
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
