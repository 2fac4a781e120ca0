"""From the packets of captures to the rows of tables: the stages, each with its key.

1. ``senders``, key: source and stream. Messages put together, and rules that were broken.
2. ``conversations``, key: source, group and process. What a process asked, and what named it.

A process is called by where it sends from, as rings over UDP call their members. What nobody
captured has no endpoints, and so no conversations.

A request does not say how many replies it wants nor how long it waits, and a reply not whether it
was the last: a row says that there was one, and its status is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, dropwhile
from types import MappingProxyType
from typing import Final, NamedTuple

from wireyard.formats.base import Row
from wireyard.layers.endpoints import endpoint
from wireyard.layers.records import Position, Violation, violation_row
from wireyard.layers.rmp.messages import layer_name, message_row
from wireyard.layers.rmp.observer import Observer, Seen, observe
from wireyard.layers.rmp.packet_row import PacketRow, as_packet
from wireyard.layers.stages import Chain, Derived, Dropped, Fact, Found, Key, KeyedRecord, run_chain

__all__ = ["CHAIN", "derive_tables", "key_of"]

_CONVERSATIONS: Final = "conversations"
_PROTOCOL: Final = "rmp"
_NS_PER_MS: Final = 1_000_000


class ConversationMessage(NamedTuple):
    """A message that can be replied to, or that replies to one."""

    at: Position
    sender: str
    layer: int | None
    number: int | None
    """The number a reply would name; None in a message seen as a reply."""
    is_request: bool
    replies_to: int | None
    """The number it names; None in a message seen as a request."""


def key_of(row: Row) -> Key:
    """Return the partition key of packets: the sender and its group are one stream."""
    return row["source"], row["stream"]


def derive_tables(rows: Iterable[Row]) -> Derived[list[Row]]:
    """Return what follows from RMP packets: rows of `messages`, `conversations`, `violations`.

    Parameters
    ----------
    rows
        As they are read, those of a stream in order, with the columns ``observer.NEEDED``.
    """
    return run_chain(CHAIN, ((key_of(row), row) for row in rows))


# --- senders --------------------------------------------------------------------------------


def _senders(rows: Iterator[Row]) -> Iterator[Found]:
    """Put the packets of a sender together; what is known of its stream besides says nothing."""
    packets = dropwhile(lambda row: row.get("offset") is None, rows)
    first = next(packets, None)
    if first is None:
        return
    observer, stream = Observer(), as_packet(first)
    for found in observe(chain([first], packets), observer):
        if isinstance(found, Violation):
            yield Fact("violations", violation_row(_PROTOCOL, found))
            continue
        yield Fact("messages", message_row(found, stream))
        yield from _conversation_messages(found, stream)
    for bound, messages in observer.forgotten.items():
        yield Dropped(bound, messages)


def _conversation_messages(message: Seen, row: PacketRow) -> Iterator[KeyedRecord]:
    """Yield a message as one of its sender, as one for whom it replies to, or as both."""
    if row["src_addr"] is None:
        return
    fields, last = message.fields, message.packets[-1]
    sender = endpoint(row["src_addr"], row["src_port"])
    ring = row["source"], endpoint(row["dst_addr"], row["dst_port"])
    common = message.packets[0], sender, fields.layer
    if fields.message_number is not None:
        asked = ConversationMessage(*common, fields.message_number, fields.reply_requested, None)
        yield KeyedRecord(_CONVERSATIONS, (*ring, sender), last.order, asked)
    if fields.reply_message_number is not None:
        answer = ConversationMessage(*common, None, False, fields.reply_message_number)
        yield KeyedRecord(_CONVERSATIONS, (*ring, fields.reply_source), last.order, answer)


# --- conversations --------------------------------------------------------------------------


def _conversations(messages: Iterator[ConversationMessage]) -> Iterator[Found]:
    """Match replies with the latest message before them that has the number they name.

    Of a process 65,536 messages are known at a time at most: numbers have 16 bits.
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
"""RMP packets to `messages`, `conversations` and `violations`."""
