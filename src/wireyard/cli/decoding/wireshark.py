"""Display filters (``-Y``) and fields (``-e``) with Wireshark's names.

A display filter is translated to a condition: names of fields to columns, ``&& || !`` and
``eq ne lt le gt ge matches`` to their words there. Fields without a column, functions, slices and
the bare name of a field are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from wireyard.errors import UsageError

FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "frame.number": "frame",
        "frame.time_epoch": "captured_ns",
        "ip.src": "src_addr",
        "ip.dst": "dst_addr",
        "ipv6.src": "src_addr",
        "ipv6.dst": "dst_addr",
        "tcp.srcport": "src_port",
        "tcp.dstport": "dst_port",
        "mqtt.clientid": "client_id",
        "mqtt.conack.val": "return_code",
        "mqtt.dupflag": "dup",
        "mqtt.kalive": "keep_alive",
        "mqtt.len": "remaining_length",
        "mqtt.msg": "payload",
        "mqtt.msgid": "packet_id",
        "mqtt.msgtype": "packet_type",
        "mqtt.qos": "qos",
        "mqtt.retain": "retain",
        "mqtt.topic": "topic",
        "mqtt.username": "username",
        "mqtt.ver": "protocol_version",
        "mqtt.willtopic": "will_topic",
    }
)
"""Columns by Wireshark's names of fields."""

_WORDS: Final = {
    **{"&&": " AND ", "||": " OR ", "!": " NOT "},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "matches": "~"},
}
_TOKEN: Final = re.compile(
    r"""(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"|(?P<flag>mqtt\.(?:retain|dupflag))\s*(?P<sign>==|!=|\beq\b|\bne\b)\s*(?P<bit>[01]\b)"
    r"|(?P<name>\b(?:mqtt|frame|ip|ipv6|tcp)\.[a-z_.]+\b)(?=\s*(?:[=!<>~]|\w+\b))"
    r"|(?P<word>&&|\|\||!(?!=)|\b(?:eq|ne|lt|le|gt|ge|matches)\b)"
)


def column_of(field: str) -> str:
    """Return the column of a field by Wireshark's name, or by its own.

    A `UsageError` is raised for a name of Wireshark's that has no column.
    """
    if "." not in field:
        return field
    if field not in FIELDS:
        close = get_close_matches(field, FIELDS, 1)
        known = f"there is '{close[0]}'" if close else f"there are {', '.join(FIELDS)}"
        raise UsageError(f"'{field}' is no field that has a column; {known}")
    return FIELDS[field]


def condition_of(display_filter: str) -> str:
    """Return a display filter as a condition; raise `UsageError` if a field has no column."""

    def translated(token: re.Match[str]) -> str:
        if token["flag"]:
            sign, truth = token["sign"], "true" if token["bit"] == "1" else "false"
            return f"{column_of(token['flag'])} {_WORDS.get(sign, sign)} {truth}"
        if token["name"]:
            return column_of(token["name"])
        return _WORDS[token["word"]] if token["word"] else token[0]

    return _TOKEN.sub(translated, display_filter)
