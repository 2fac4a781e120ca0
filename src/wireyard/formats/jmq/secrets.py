"""Redaction of JMQ packets: the bodies of logins, and all text of a login that is malformed."""

from __future__ import annotations

from wireyard import java
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import SECRET_BODIES

__all__ = ["SECRET_COLUMNS", "SECRET_TYPES", "is_exact", "login_user", "redact"]

_LOGIN = 12

SECRET_TYPES = dict.fromkeys(SECRET_BODIES, ("body", "raw_header", "raw_properties"))
SECRET_COLUMNS = (
    "destination",
    "destination_class",
    "message_id",
    "correlation_id",
    "reply_to",
    "reply_to_class",
    "message_type",
    "unknown_items",
    "properties",
    "body",
    "raw_header",
    "raw_properties",
)
"""The columns that a body can get into if the sections of a packet are not where they should be."""


def is_exact(row: Row) -> bool:
    """Return whether a packet is well-formed, and its sections are written as usual."""
    is_ok = row.get("status") in (None, "ok")
    return is_ok and row.get("raw_header") is None and row.get("raw_properties") is None


def redact(row: Row) -> Row:
    """Return the row without secrets; the same row if it has none.

    `body_size` stays, so a null body with a size above 0 is a redacted one. Such a row cannot be
    encoded to its packet.
    """
    if row.get("packet_type") not in SECRET_BODIES:
        return row
    names = ("body",) if is_exact(row) else SECRET_COLUMNS
    hidden = {name: None for name in names if row.get(name) is not None}
    return {**row, **hidden} if hidden else row


def login_user(row: Row) -> str | None:
    """Return the user of a login, None unless its body is exactly a user and a password."""
    body = row.get("body") or b""
    stop = 2 + int.from_bytes(body[:2], "big")
    rest = 2 + int.from_bytes(body[stop : stop + 2], "big")
    if row.get("packet_type") != _LOGIN or len(body) != stop + rest:
        return None
    try:
        return java.decode_text(body[2:stop])
    except ValueError:
        return None
