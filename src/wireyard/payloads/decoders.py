"""Decoders of payloads by name: from the bytes of a message to plain values, within limits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, NoReturn
from uuid import UUID

import pyarrow as pa

from wireyard.errors import UsageError, WireError

MAX_PAYLOAD_BYTES: Final = 4 << 20
"""Largest payload that is decoded; brokers and sensors send far smaller ones."""
MAX_DEPTH: Final = 64
"""Deepest nesting of values; schemas in use stay below 20."""
MAX_VALUES: Final = 1 << 20
"""Most values of one payload; text and bytes count as one for each `_VALUE_BYTES`."""
_VALUE_BYTES: Final = 50
"""Bytes of a value as a Python object."""
_MAX_BIG_BYTES: Final = 1 << 10
_MOST_REASON: Final = 200
"""Most characters of a reason."""
_ENTRY_POINTS: Final = "wireyard.payloads"


class PayloadError(WireError):
    """A payload that its decoder rejects; the text is the reason."""


Function = Callable[[bytes, str], Any]
"""``(payload, destination)`` -> plain values. Any exception rejects the payload."""


@dataclass(frozen=True)
class Decoder:
    """A decoder of payloads."""

    name: str
    """Name in rows."""
    function: Function
    type: pa.DataType | None = None
    """The type of its values, None without a schema."""

    def decode(self, data: bytes, destination: str) -> Any:
        """Return a payload as plain values: None, bool, int, float, str, bytes, list, dict by str.

        Raises
        ------
        PayloadError
            The payload cannot be decoded, or is over a limit.
        """
        if len(data) > MAX_PAYLOAD_BYTES:
            raise PayloadError(f"has {len(data)} bytes, at most {MAX_PAYLOAD_BYTES} are decoded")
        try:
            return plain_value(self.function(data, destination))
        except KeyboardInterrupt:
            raise
        except PayloadError as error:
            raise PayloadError(reason_of(error)) from None
        except RecursionError:
            raise PayloadError(f"is over {MAX_DEPTH} levels deep") from None
        except MemoryError:
            raise PayloadError("needs more memory than there is") from None
        except BaseException as error:  # of libraries and users, which may raise anything
            raise PayloadError(f"is no {self.name}: {reason_of(error)}") from None


def reason_of(error: BaseException) -> str:
    """Return the text of any exception as one short line that can be encoded."""
    try:
        text = " ".join(str(error).split())[:_MOST_REASON]
    except Exception:
        text = ""
    return (text or type(error).__name__).encode(errors="backslashreplace").decode()


def plain_value(value: Any) -> Any:
    """Return a value converted to plain types.

    A PayloadError is raised if it is nested too deep, is too large, or has a value of a type
    without a plain form.
    """
    left = [MAX_VALUES]

    def plain(item: Any, depth: int) -> Any:
        is_text = isinstance(item, str | bytes | bytearray)
        left[0] -= 1 + (len(item) // _VALUE_BYTES if is_text else 0)
        if depth > MAX_DEPTH:
            raise PayloadError(f"is over {MAX_DEPTH} levels deep")
        if left[0] < 0:
            raise PayloadError(f"has over {MAX_VALUES} values")
        match item:
            case None | bool():
                return item
            case int():
                return _integer(item)
            case float():
                return float.__pos__(item)
            case str():
                return _unicode(item)
            case bytes() | bytearray() | memoryview():
                return bytes(item)
            case Mapping():
                return {_key(key): plain(inner, depth + 1) for key, inner in item.items()}
            case list() | tuple() | set() | frozenset():
                return [plain(inner, depth + 1) for inner in item]
            case datetime() | date() | time():
                return _unicode(item.isoformat().replace("+00:00", "Z"))
            case Decimal() | UUID():
                return _unicode(str(item))
        raise PayloadError(f"has a value of the kind {type(item).__name__}")

    return plain(value, 1)


def _key(key: Any) -> str:
    """Return the key of a map as text, as in JSON."""
    if isinstance(key, str):
        return _unicode(key)
    if isinstance(key, bool) or key is None:
        return json.dumps(key)
    if isinstance(key, bytes):
        return key.hex()
    if isinstance(key, int):
        return str(_integer(key))
    if isinstance(key, float):
        return str(float.__pos__(key))
    raise PayloadError(f"has a key of the kind {type(key).__name__}")


def _integer(value: int) -> int:
    """Return an integer that has a text, as none of an own type."""
    if int.bit_length(value) > 8 * _MAX_BIG_BYTES:
        raise PayloadError(f"has an integer of {int.bit_length(value) // 8} bytes")
    return int.__pos__(value)


def _unicode(value: str) -> str:
    """Return a text that can be encoded, as none of an own type."""
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PayloadError("has half of a surrogate pair, which is no character") from None
    return text


# --- without a schema -----------------------------------------------------------------------


def _constant(text: str) -> NoReturn:
    raise PayloadError(f"has {text}, which JSON does not")


def _json(data: bytes, destination: str) -> Any:
    return json.loads(data.decode("utf-8"), parse_constant=_constant, parse_float=_float)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise PayloadError(f"has the number {text[:40]}, which no float holds")
    return value


def _text(data: bytes, destination: str) -> str:
    return data.decode("utf-8")


def _cbor(data: bytes, destination: str) -> Any:
    cbor2 = need_library("cbor2", "cbor")
    _check_cbor(data)
    return cbor2.loads(data)


_CBOR_TAGS: Final = frozenset({0, 1, 2, 3, 37, 55799})
"""Tags of times, big integers, UUIDs and CBOR itself, whose values take no more than their bytes.
"""


def _check_cbor(data: bytes) -> None:
    """Reject data whose decoding may take more than its bytes: other tags, depth, wrong lengths."""
    at, open_items, big = 0, [1], False
    while open_items:
        if open_items[-1] == 0:
            open_items.pop()
            continue
        if at >= len(data):
            raise PayloadError("ends inside a value")
        major, minor = data[at] >> 5, data[at] & 31
        at += 1
        if open_items[-1] < 0 and (major, minor) == (7, 31):  # the end of an indefinite one
            open_items.pop()
            continue
        size = {24: 1, 25: 2, 26: 4, 27: 8}.get(minor, 0)
        if minor in (28, 29, 30) or at + size > len(data):
            raise PayloadError("is no CBOR: a head that is cut short or reserved")
        number = int.from_bytes(data[at : at + size], "big") if size else minor
        at += size
        if open_items[-1] > 0:
            open_items[-1] -= 1
        was_big, big = big, False
        indefinite = minor == 31
        if major in (2, 3):
            if indefinite:
                open_items.append(-1)
            elif number > len(data) - at:
                raise PayloadError("ends inside a value")
            elif was_big and number > _MAX_BIG_BYTES:
                raise PayloadError(f"has an integer of {number} bytes")
            else:
                at += number
        elif major in (4, 5):
            count = -1 if indefinite else number * (major - 3)
            if count > len(data) - at:
                raise PayloadError("is no CBOR: more items than bytes")
            open_items.append(count)
        elif major == 6:
            if number not in _CBOR_TAGS:
                raise PayloadError(f"has the tag {number}, which is not read")
            big = number in (2, 3)
            open_items.append(1)
        elif indefinite:
            raise PayloadError("is no CBOR: an end of nothing")
        if len(open_items) > MAX_DEPTH:
            raise PayloadError(f"is over {MAX_DEPTH} levels deep")
    if at != len(data):
        raise PayloadError(f"has {len(data) - at} bytes behind its value")


def _msgpack(data: bytes, destination: str) -> Any:
    msgpack = need_library("msgpack", "msgpack")

    def refuse(code: int, _: bytes) -> NoReturn:
        raise PayloadError(f"has the extension type {code}, which is not read")

    return msgpack.unpackb(
        data,
        strict_map_key=False,
        ext_hook=refuse,
        timestamp=3,
        max_array_len=min(len(data), MAX_VALUES),
        max_map_len=min(len(data), MAX_VALUES),
    )


def need_library(module: str, decoder: str) -> Any:
    """Return a library that a decoder needs.

    If it is not installed, a UsageError has the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError:
        raise UsageError(
            f"the decoder {decoder} needs {module.partition('.')[0]}:"
            " pip install 'wireyard[payloads]'"
        ) from None


# --- by name --------------------------------------------------------------------------------

_PLAIN: dict[str, tuple[Function, str | None]] = {
    "json": (_json, None),
    "text": (_text, None),
    "cbor": (_cbor, "cbor2"),
    "msgpack": (_msgpack, "msgpack"),
}
"""Decoders without a schema, each with the library that it needs."""
_WITH_SCHEMA = ("protobuf", "avro", "avro-confluent", "sparkplug")
_REGISTERED: dict[str, Decoder] = {}


def register(name: str, function: Function, type: pa.DataType | None = None) -> None:
    """Register a function as the decoder `name`, called with a payload and its destination.

    Parameters
    ----------
    type
        The Arrow type of the returned values; None for JSON text.

    Examples
    --------
    >>> from wireyard import payloads
    >>> payloads.register("celsius", lambda data, topic: {"celsius": data[0] / 2})
    """
    _REGISTERED[name] = Decoder(name, function, type)


def get_decoder(spec: str | Function | Decoder) -> Decoder:
    """Return the decoder of a rule.

    Parameters
    ----------
    spec
        ``json``, ``text``, ``cbor``, ``msgpack``, ``sparkplug``, ``protobuf:FILE#MESSAGE``,
        ``avro:FILE``, ``avro-confluent:FILE``; the name of a registered decoder, or of an entry
        point of the group ``wireyard.payloads``; ``module:function``; or a function.

    Raises
    ------
    UsageError
        There is no such decoder, its library is not installed, or its schema cannot be read.
    """
    if isinstance(spec, Decoder):
        return spec
    if callable(spec):
        return Decoder(getattr(spec, "__name__", "function"), spec)
    name, _, rest = spec.partition(":")
    if spec in _REGISTERED:
        return _REGISTERED[spec]
    if spec in _PLAIN:
        function, library = _PLAIN[spec]
        if library is not None:
            need_library(library, spec)  # to raise before the first payload
        return Decoder(spec, function)
    if name in _WITH_SCHEMA:
        from wireyard.payloads.schemas import decoder_of  # imported when needed, with libraries

        return decoder_of(name, rest)
    for point in entry_points(group=_ENTRY_POINTS, name=spec):
        return _loaded(spec, point.load)
    if rest:
        return _loaded(spec, lambda: getattr(import_module(name), rest))
    known = ", ".join([*_PLAIN, *_WITH_SCHEMA, *_REGISTERED])
    raise UsageError(f"no payload decoder '{spec}'; there are {known}, and module:function")


def _loaded(spec: str, load: Callable[[], Any]) -> Decoder:
    try:
        loaded = load()
    except Exception as error:
        raise UsageError(f"payload decoder {spec}: cannot be loaded ({error})") from None
    if isinstance(loaded, Decoder):
        return loaded
    if not callable(loaded):
        raise UsageError(f"payload decoder {spec}: is no function")
    return Decoder(spec, loaded)
