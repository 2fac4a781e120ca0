"""RMP messages as rows of the table ``messages``.

The position in a row is that of the message's first packet; `length` has the bytes of all packets,
and the property `frames` their frames. A request and its replies have the same `correlation_id`:
the requesting process and the number of its message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wireyard.formats.base import Row
from wireyard.formats.rmp.layout import LAYERS
from wireyard.layers.endpoints import endpoint
from wireyard.layers.rmp.observer import Seen
from wireyard.layers.rmp.packet_row import PacketRow

__all__ = ["layer_name", "message_row"]


def message_row(message: Seen, packet: PacketRow) -> Row:
    """Return a whole message as a row of `MESSAGES`.

    Parameters
    ----------
    packet
        Any packet of its stream, for the addresses.
    """
    fields, data, packets, length = message
    first = packets[0]
    producer = group = None
    if packet["src_addr"] is not None:
        producer = endpoint(packet["src_addr"], packet["src_port"])
        group = endpoint(packet["dst_addr"], packet["dst_port"])
    asks = fields.reply_requested
    correlation = _correlation_id(fields.reply_source, fields.reply_message_number) or (
        _correlation_id(producer, fields.message_number) if asks else None
    )
    typed = {
        "layer": ("integer", fields.layer),
        "domain": ("integer", fields.domain),
        "message_number": ("integer", fields.message_number),
        "reply_requested": ("boolean", None if asks is None else str(asks).lower()),
        "packets": ("integer", len(packets)),
        "frames": ("string", _ranges(at.frame for at in packets if at.frame is not None)),
    }
    properties = {
        name: {"type": kind, "value": str(value)}
        for name, (kind, value) in typed.items()
        if value is not None
    }
    return {
        "message_key": first.key,
        "protocol": "rmp",
        "sent_ns": first.ns,
        "captured_ns": first.ns,
        "producer": producer,
        "client": producer,
        "producer_client_id": None if fields.client is None else str(fields.client),
        "destination": group,
        "destination_kind": group and "group",
        "correlation_id": correlation,
        "message_type": layer_name(fields.layer),
        "body_kind": "bytes",
        "body_size": len(data),
        "body": data,
        "properties": list(properties.items()),
        "first_seen": "sent",
        "frame": first.frame,
        **first.lead,
        "length": length,
    }


def layer_name(layer: int | None) -> str:
    """Return the name of a destination layer; None is another protocol."""
    return "foreign" if layer is None else LAYERS.get(layer, f"layer {layer}")


def _correlation_id(process: str | None, number: Any) -> str | None:
    """Return the identity of a message for replies as text; None if it has no number."""
    return None if process is None or number is None else f"{process}/{number}"


def _ranges(numbers: Iterable[int]) -> str | None:
    """Return numbers as text, consecutive ones as a range: 3-7, 9."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts) or None
