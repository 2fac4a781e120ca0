"""Redaction of logins: their bodies, and all text, because a body can get into any of it."""

from __future__ import annotations

from typing import Final

from wireyard import java
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import SECRET_BODIES

_LOGIN: Final = 12
SECRET_COLUMNS: Final = (
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
"""Everything behind the fixed header. If the sizes of the sections are wrong, each of these may be
the body; a login has nothing else that anybody needs."""
SECRET_TYPES: Final = dict.fromkeys(SECRET_BODIES, SECRET_COLUMNS)


def redact(row: Row) -> Row:
    """Return the row without secrets; the same row if it has none.

    `body_size` stays, so a null body with a size above 0 is a redacted one. Such a row cannot be
    encoded to its packet.
    """
    if row.get("packet_type") not in SECRET_BODIES:
        return row
    hidden = {name: None for name in SECRET_COLUMNS if row.get(name) is not None}
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
