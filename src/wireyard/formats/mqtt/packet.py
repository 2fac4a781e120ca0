"""Decoding of MQTT control packets to frozen values and to rows, and packets from rows.

`decode` returns a packet or raises. `read_row` never raises: it returns the values that could be
read, and the first broken rule. Both run the same code, so `decode` raises exactly if the row has a
verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from wireyard.errors import DecodeError, EncodeError, Truncated
from wireyard.formats.base import Row, View
from wireyard.formats.fields import whole
from wireyard.formats.mqtt.control import CONTROL_PACKETS, Packet
from wireyard.formats.mqtt.cursor import Cursor
from wireyard.formats.mqtt.filters import Filter
from wireyard.formats.mqtt.framing import next_context
from wireyard.formats.mqtt.layout import (
    AUTH,
    DISCONNECT,
    FIXED_FLAGS,
    MSB_FIRST,
    PACKET_TYPES,
    PROTOCOLS,
    PUBLISH,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    VERSION_BITS,
)
from wireyard.formats.mqtt.properties import properties_of, property_rows
from wireyard.formats.mqtt.reading import READERS
from wireyard.formats.mqtt.rules import RULES

_WITH_QOS_1 = (PUBREL, SUBSCRIBE, UNSUBSCRIBE)
"""Packet types whose flags before 3.1.1 are QoS 1, and perhaps DUP."""
_FLAG_RULES = {
    PUBREL: "pubrel_flags",
    SUBSCRIBE: "subscribe_flags",
    UNSUBSCRIBE: "unsubscribe_flags",
    DISCONNECT: "disconnect_flags",
    AUTH: "auth_flags",
}


_FIELDS = {
    code: tuple(item.name for item in fields(packet)) for code, packet in CONTROL_PACKETS.items()
}
_REQUIRED = {
    code: tuple(item.name for item in fields(packet) if item.default is MISSING)
    for code, packet in CONTROL_PACKETS.items()
}
_ALL_FIELDS = frozenset().union(*_FIELDS.values())
_OPTIONS = ("no_local", "retain_as_published", "retain_handling")
_ALSO_SHOWN = ("flags", "qos")
"""Columns of every row, also of packet types without such a field, where others determine them."""


def type_name(packet_type: int, version: int) -> str | None:
    """Return the name of a packet type in a version: 15 is reserved before 5.0 (errata M24)."""
    return "reserved" if packet_type == AUTH and version != 5 else PACKET_TYPES.get(packet_type)


def decode(view: View, context: int = 0) -> Packet:
    """Decode one whole packet.

    Raises
    ------
    DecodeError
        The first rule that the packet breaks.
    """
    values, cursor = read_packet(view, context)
    if cursor.faults:
        raise cursor.faults[0]
    kind = values["packet_type"]
    return CONTROL_PACKETS[kind](**{n: values[n] for n in _FIELDS[kind] if n in values})


def read_row(view: View, context: int = 0) -> tuple[Row, DecodeError | None]:
    """Read one packet into its row; the error is None for a whole and well-formed one.

    Values that could not be read are None.
    """
    values, cursor = read_packet(view, context, may_be_cut=True)
    error = cursor.faults[0] if cursor.faults else None
    version = values["version_in_force"]
    values["packet_type_name"] = type_name(values.get("packet_type", 0), version or 0)
    values["verdict"] = error.code if error else None
    for name in ("properties", "will_properties"):
        if name in values:
            values[name] = property_rows(values[name])
    if "filters" in values:
        values["filters"] = [_filter_row(filter, version) for filter in values["filters"]]
    del values["msb_first"]
    return values, error


def _filter_row(filter: Filter, version: int | None) -> Row:
    row: Row = {"filter": filter.filter, "qos": filter.qos}
    row |= dict.fromkeys((*_OPTIONS, "ignored_bits"))
    if filter.options is None:
        return row
    if version != 5:
        row["ignored_bits"] = filter.options & ~3 or None
    else:
        row["no_local"] = bool(filter.options & 4)
        row["retain_as_published"] = bool(filter.options & 8)
        row["retain_handling"] = filter.options >> 4 & 3
    return row


def read_packet(
    view: View, context: int, traced: bool = False, may_be_cut: bool = False
) -> tuple[Row, Cursor]:
    """Read as much of a packet as possible; the cursor has the faults.

    `view` is one whole packet; a CONNECT declares its own version. With `traced`, the cursor also
    records a mark for each field. With `may_be_cut`, a packet that goes on behind the view is read,
    except for its payload.
    """
    context = next_context(view, context)
    cursor = Cursor(view, context, traced)
    values: Row = {
        "version_in_force": cursor.version or None,
        "msb_first": cursor.version == 2 and bool(context & MSB_FIRST),
    }
    try:
        _read_fixed_header(cursor, values, may_be_cut)
        READERS[values["packet_type"]](cursor, values)
        cursor.end()
    except DecodeError as error:
        cursor.note(error)
    return values, cursor


def _read_fixed_header(cursor: Cursor, values: Row, may_be_cut: bool) -> None:
    first = cursor.byte("packet type and flags")
    kind, flags = first >> 4, first & 15
    values.update(packet_type=kind, flags=flags)
    start = cursor.at
    length = values["remaining_length"] = cursor.variable("Remaining Length", "remaining_length")
    values["remaining_length_bytes"] = cursor.at - start
    if length > cursor.left:
        where = RULES["truncated"].spec(cursor.version)
        error = Truncated("mqtt", "packet", 0, cursor.at + length, cursor.stop, where)
        if not may_be_cut or cursor.version not in (0, *PROTOCOLS):
            raise error
        cursor.note(error)
        cursor.is_cut = True
    if length < cursor.left:
        problem = f"is {length}, {cursor.left} bytes were given"
        cursor.fault("trailing_bytes", "Remaining Length", 1, problem)
        raise cursor.faults[-1]
    if kind not in PACKET_TYPES or (kind == AUTH and cursor.version != 5):
        cursor.fault("packet_type", "packet type", 0, f"is {kind}")
        raise cursor.faults[-1]
    if kind == PUBLISH or (kind in _WITH_QOS_1 and cursor.version in (2, 3)):
        values.update(dup=bool(flags & 8), qos=flags >> 1 & 3)
    if kind == PUBLISH:
        values["retain"] = bool(flags & 1)
        if values["qos"] == 3:
            cursor.fault("qos_3", "QoS", 0, "is 3")
        if values["dup"] and not values["qos"]:
            cursor.fault("dup_qos_0", "DUP", 0, "is set at QoS 0")
    elif flags != FIXED_FLAGS[kind]:
        rule = _FLAG_RULES.get(kind, "fixed_flags")
        cursor.fault(rule, "flags", 0, f"are {flags}, not {FIXED_FLAGS[kind]}")


def packet_of(row: Mapping[str, Any], context: int = 0) -> Packet:
    """Return the packet of a row, whose lists may be those of rows or of columns.

    An EncodeError is raised for a missing packet type or required field, a field that the type does
    not have, a redacted password, or a list that is none.
    """
    kind = row.get("packet_type")
    if kind is None:
        raise EncodeError("packet_type", None, "every packet has a type")
    if whole("packet_type", kind) not in CONTROL_PACKETS:
        raise EncodeError("packet_type", kind, f"one of {', '.join(map(str, CONTROL_PACKETS))}")
    if row.get("has_password") and row.get("password") is None:
        raise EncodeError("password", None, "has_password is true; was it taken out?")
    values = {name: row[name] for name in _ALL_FIELDS if row.get(name) is not None}
    if others := sorted(values.keys() - {*_FIELDS[kind], *_ALSO_SHOWN}):
        raise EncodeError(others[0], values[others[0]], f"{PACKET_TYPES[kind]} has none")
    values = {name: value for name, value in values.items() if name in _FIELDS[kind]}
    values.setdefault("version_in_force", row.get("protocol_version") or _version(context))
    values["msb_first"] = values["version_in_force"] == 2 and bool(context & MSB_FIRST)
    for name in ("properties", "will_properties"):
        if name in values:
            values[name] = properties_of(name, values[name])
    if "filters" in values:
        version = values["version_in_force"]
        values["filters"] = tuple(_filter_of(entry, version) for entry in values["filters"])
    if missing := [name for name in _REQUIRED[kind] if name not in values]:
        raise EncodeError(missing[0], None, f"{PACKET_TYPES[kind]} needs one")
    return CONTROL_PACKETS[kind](**values)


def row_context(row: Mapping[str, Any], context: int) -> int:
    """Return the context to decode the packet of a row with: the version in the row."""
    return (row.get("version_in_force") or context & VERSION_BITS) | context & MSB_FIRST


def _version(context: int) -> int | None:
    return context & VERSION_BITS or None


def _filter_of(row: Any, version: Any) -> Filter:
    if not isinstance(row, Mapping) or not isinstance(row.get("filter"), str):
        raise EncodeError("filters", row, "each has a text as filter")
    if row.get("qos") is None:
        return Filter(row["filter"])
    options = {name: row[name] for name in _OPTIONS if row.get(name) is not None}
    filter = Filter.of(row["filter"], row["qos"], **options)
    ignored = whole("ignored_bits", row.get("ignored_bits") or 0)
    if ignored & ~0xFC or (ignored and version == 5):
        raise EncodeError("ignored_bits", ignored, "5.0 has none, others six bits above the QoS")
    return filter._replace(options=ignored | (filter.options or 0))
