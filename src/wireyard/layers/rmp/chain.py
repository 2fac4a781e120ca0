"""The chain of stages from RMP packets to the rows of tables, each with its key.

1. ``senders``, key: source and stream. Reassembled messages, and violations.
2. ``conversations``, key: source, group and process. The messages of a process, and replies to
   them.

A process is identified by the endpoint that it sends from, like the members of rings over UDP. A
raw stream has no endpoints, and so no conversations.

The wire does not show how many replies a request wants, how long it waits, or whether a reply was
the last one: a row shows that there was a reply, and its status is null.

The position in the row of a message is that of its first packet; `length` has the bytes of all its
packets, and the property `frames` their frames. A request and its replies have the same
`correlation_id`: the requesting process and the number of its message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, dropwhile
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wireyard.formats.base import Row
from wireyard.formats.rmp.layout import LAYERS
from wireyard.layers.endpoints import endpoint
from wireyard.layers.records import Position, Violation, violation_row
from wireyard.layers.rmp.limits import Drop
from wireyard.layers.rmp.observer import Observer, Seen, observe
from wireyard.layers.stages import Chain, Derived, Dropped, Fact, Found, Key, KeyedRecord, run_chain

_CONVERSATIONS: Final = "conversations"
_PROTOCOL: Final = "rmp"
_NS_PER_MS: Final = 1_000_000


class ConversationMessage(NamedTuple):
    """A message that a reply may name, or a reply."""

    at: Position
    sender: str
    layer: int | None
    number: int | None
    """The number by which replies name it; None in the record of a reply."""
    is_request: bool
    replies_to: int | None
    """The number of the message that it replies to; None in the record of another message."""


def key_of(row: Row) -> Key:
    """Return the partition key of packets: a sender's packets to a group are one stream."""
    return row["source"], row["stream"]


def derive_tables(rows: Iterable[Row]) -> Derived[list[Row]]:
    """Return the tables that follow from RMP packets: `messages`, `conversations`, `violations`.

    `rows` are rows of a reader with the columns ``observer.NEEDED``, those of a stream in order.
    """
    return run_chain(CHAIN, ((key_of(row), row) for row in rows))


# --- senders --------------------------------------------------------------------------------


def _senders(rows: Iterator[Row]) -> Iterator[Found]:
    """Reassemble the packets of a sender; rows about its stream are skipped."""
    packets = dropwhile(lambda row: row.get("offset") is None, rows)
    first = next(packets, None)
    if first is None:
        return
    observer, stream = Observer(), first
    for observed in observe(chain([first], packets), observer):
        if isinstance(observed, Violation):
            yield Fact("violations", violation_row(_PROTOCOL, observed))
            continue
        yield Fact("messages", message_row(observed, stream))
        yield from _conversation_messages(observed, stream)
    for bound, messages in observer.over_bound.items():
        yield Dropped(bound, messages)
    if repeats := observer.dropped[Drop.REPEAT]:
        yield Dropped("repeats", repeats)


def _conversation_messages(message: Seen, row: Row) -> Iterator[KeyedRecord]:
    """Yield records of a message for its sender, and for the process that it replies to."""
    if row["src_addr"] is None:
        return
    fields, order = message.fields, max(at.order for at in message.packets)
    sender = endpoint(row["src_addr"], row["src_port"])
    ring = row["source"], endpoint(row["dst_addr"], row["dst_port"])
    common = message.packets[0], sender, fields.layer
    if fields.message_number is not None:
        asked = ConversationMessage(*common, fields.message_number, fields.reply_requested, None)
        yield KeyedRecord(_CONVERSATIONS, (*ring, sender), order, asked)
    if fields.reply_message_number is not None:
        answer = ConversationMessage(*common, None, False, fields.reply_message_number)
        yield KeyedRecord(_CONVERSATIONS, (*ring, fields.reply_source), order, answer)


# --- messages -------------------------------------------------------------------------------


def message_row(message: Seen, packet: Row) -> Row:
    """Return a whole message as a row of `MESSAGES`.

    `packet` is any packet of its stream, for the addresses.
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


# --- conversations --------------------------------------------------------------------------


def _conversations(messages: Iterator[ConversationMessage]) -> Iterator[Found]:
    """Match replies with the latest earlier message that has the number they name.

    At most 65,536 messages of a process are held at a time: numbers have 16 bits.
    """
    open_: dict[int, ConversationMessage] = {}
    answered: set[int] = set()
    for message in messages:
        if message.replies_to is not None:
            if message.replies_to in open_:
                answered.add(message.replies_to)
                yield _conversation(open_[message.replies_to], message)
        elif message.number is not None:
            before = open_.get(message.number)
            if before is not None and before.is_request and message.number not in answered:
                yield _conversation(before, None)
            open_[message.number] = message
            answered.discard(message.number)
    for number, message in open_.items():
        if message.is_request and number not in answered:
            yield _conversation(message, None)


def _conversation(asked: ConversationMessage, reply: ConversationMessage | None) -> Fact:
    start, stop = asked.at.ns, reply.at.ns if reply else None
    latency_ms = None if start is None or stop is None else (stop - start) // _NS_PER_MS
    return Fact(
        "conversations",
        {
            "kind": _PROTOCOL,
            "request_key": asked.at.key,
            "reply_key": reply.at.key if reply else None,
            "requester": asked.sender,
            "responder": reply.sender if reply else None,
            "requested_ns": start,
            "replied_ns": stop,
            "latency_ms": latency_ms,
            "request": None if asked.layer is None else layer_name(asked.layer),
            "requested_frame": asked.at.frame,
            "replied_frame": reply.at.frame if reply else None,
            **asked.at.lead,
        },
    )


CHAIN: Final[Chain] = MappingProxyType({"senders": _senders, _CONVERSATIONS: _conversations})
"""The stages by name, in their order."""
