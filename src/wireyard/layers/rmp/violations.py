"""The rules whose violation a capture can show, and the text of each violation.

A capture does not show which layers and clients receivers had registered, which members a request
waited for and how long, and which members a ring had. A missing packet may have been lost before
the capture point, or never sent; the text of its violation describes only what was captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wireyard.formats.base import Row
from wireyard.formats.rmp.layout import FLAGS
from wireyard.layers.rmp.parsing import Fields

RULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        # --- a packet alone
        "malformed_packet": "a packet that breaks a rule of the format; receivers drop all of it",
        "cut_packet": "a packet of which the capture has only the beginning; it is not used",
        "later_fields": "a later packet of a message with fields that only the first should have",
        "reply_not_addressable": "a reply is requested, without a number that it could name",
        # --- a message of several packets
        "count_changed": "packets of a message that do not agree how many there are",
        "layer_changed": "packets of a message for different layers",
        "packet_changed": "the same packet of a message with other data",
        "restarted": "another message with the number of one that was unfinished",
        "incomplete": "a message of which packets are missing",
        # --- a bound
        "over_bound": "a message over a bound of receivers",
    }
)
"""The rules that a row of `violations` may have, and the text of a violation of each."""

_FIRST_ONLY: Final = sum(
    FLAGS[flag] for flag in ("domain", "client", "reply_to", "reply_requested")
)
CHECKED_FLAGS: Final = FLAGS["segmentation"] | FLAGS["reply_requested"]
"""Only messages with one of these flags need `violated_rules`."""


def violated_rules(row: Row, fields: Fields) -> list[str]:
    """Return the rules that a well-formed message violates by itself.

    There are none if its typing word has none of `CHECKED_FLAGS`.
    """
    rules: list[str] = []
    if fields.packet_number is None:
        if fields.reply_requested:
            rules.append("reply_not_addressable")
    elif fields.packet_number > 1 and row["typing"] & _FIRST_ONLY:
        rules.append("later_fields")
    return rules
