"""From the packets of captures to the rows of tables: the stages, each with its key.

1. ``connections``, key: source and connection. Logins, requests and replies, what consumers hold,
   pauses. The one stage that follows packets, with what `Walk` remembers.
2. ``transactions``, key: source, broker and transaction id. An XA transaction may be begun on one
   connection and ended on another. What was sent or acknowledged in it learns how it ended.
3. ``messages``, key: source and message. Its deliveries learn who sent it, and which broker brought
   it to their consumer.
4. ``conversations``, key: source and JMSReplyTo. Messages there, and those that ask for them.
5. ``numbers``, key: source, host and side. What a sender numbered and nobody saw.
6. ``hops`` and the stages of ``hops.py``, key: message, whatever the source. When it was where.

The records that a stage needs first stand first in its order, so none but the first and the
fourth remembers more than one thing of each kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, count
from types import MappingProxyType
from typing import Final

from wireyard.formats.base import Row
from wireyard.layers.endpoints import connection_of
from wireyard.layers.jmq.conversations import ConversationMessage, conversations, may_answer
from wireyard.layers.jmq.delivery import DELIVERY
from wireyard.layers.jmq.hops import HOP_STAGES, seen
from wireyard.layers.jmq.records import RULES, Delivery, Output, Relay, Run, Sending, Use
from wireyard.layers.jmq.requests import OK
from wireyard.layers.jmq.rows import (
    PROTOCOL,
    conversation_row,
    delivery_row,
    session_row,
    transaction_row,
)
from wireyard.layers.jmq.sequences import gaps
from wireyard.layers.jmq.transaction import TRANSACTION_OUTCOMES, Transaction
from wireyard.layers.jmq.walk import Walk
from wireyard.layers.records import Violation, violation_row
from wireyard.layers.stages import (
    Chain,
    Derived,
    Dropped,
    Fact,
    Found,
    KeyedRecord,
    fact_of,
    keyed_record,
    run_chain,
)
from wireyard.layers.tables import TABLES

__all__ = ["CHAIN", "derive_tables"]

_MANY = 1024
"""Packets after which what is final is taken away from a walk."""
_TRANSACTIONS, _MESSAGES, _CONVERSATIONS, _NUMBERS = (
    "transactions",
    "messages",
    "conversations",
    "numbers",
)
_UNDECIDED: Final = "in_transaction"
"""The state of a delivery that waits for the end of its transaction."""
_USED, _WAITING = range(2)
"""What happened to a transaction goes before what wants to know how it ended."""
_SENT, _DELIVERED = range(2)
_RELAYED, _RECEIVED = range(2)
"""Who sent a message goes first; then, consumer by consumer, what brought it and who took it."""
_REPLIES, _REQUESTS = range(2)
"""A message that is both does not answer itself."""


# --- connections ----------------------------------------------------------------------------


def _connections(rows: Iterator[Row]) -> Iterator[Found]:
    """Follow the packets of a connection; rows of its streams show whether they `ended`."""
    walk = Walk()
    ended = set()
    uses = count()
    for number, row in enumerate(rows):
        if row.get("offset") is None:
            if row["ended"]:
                ended.add((row["source"], row["stream"]))
            continue
        walk.observe(row)
        if number % _MANY == 0:
            yield from _flush(walk.output, uses)
    walk.finish(ended)
    yield from _flush(walk.output, uses)
    for cap, things in walk.output.dropped.items():
        yield Dropped(cap, things)


def _flush(output: Output, uses: Iterator[int]) -> Iterator[Found]:
    """Yield what is final, and what it is for; `uses` counts those of the connection."""
    for login in output.logins:
        yield Fact("sessions", session_row(login))
    for violation in output.violations:
        yield Fact("violations", violation_row(PROTOCOL, violation))
    for exchange in output.exchanges:
        yield fact_of(("conversations", conversation_row("control", exchange)))
    for use in output.uses:
        key = use.at.source, use.server, use.transaction_id
        yield keyed_record((_TRANSACTIONS, key, (_USED, *use.at.order, next(uses)), use))
    for sending in output.sendings:
        yield _sent(sending) if sending.transaction_id is None else _decided_later(sending)
    for delivery in output.deliveries:
        yield _decided_later(delivery) if delivery.state == _UNDECIDED else _received(delivery)
    for relay in output.relays:
        if relay.kind == "relayed":
            order = _DELIVERED, relay.consumer_id, _RELAYED, *relay.at.order
            yield KeyedRecord(_MESSAGES, (relay.at.source, relay.message_key), order, relay)
        yield seen(relay)
    for run in output.runs:
        sender = run.at.source, run.host, run.from_client
        yield KeyedRecord(_NUMBERS, sender, (run.start, run.kind, *run.at.order), run)
    output.clear()


def _decided_later(one: Sending | Delivery) -> KeyedRecord:
    key = one.at.source, one.server, one.transaction_id
    return keyed_record((_TRANSACTIONS, key, (_WAITING,), one))


def _sent(sending: Sending) -> KeyedRecord:
    key = sending.at.source, sending.message_key
    return keyed_record((_MESSAGES, key, (_SENT, *sending.at.order), sending))


def _received(delivery: Delivery) -> KeyedRecord:
    key = delivery.at.source, delivery.message_key
    order = _DELIVERED, delivery.consumer_id, _RECEIVED, *delivery.at.order
    return keyed_record((_MESSAGES, key, order, delivery))


# --- transactions ---------------------------------------------------------------------------


def _transactions(records: Iterator[Use | Sending | Delivery]) -> Iterator[Found]:
    """Follow a transaction; what was in it gets its end."""
    record = next(records, None)
    transaction: Transaction | None = None
    while isinstance(record, Use):
        transaction = transaction or Transaction(record)
        if not transaction.apply(record):
            yield Fact("violations", violation_row(PROTOCOL, _over(record)))
        record = next(records, None)
    if transaction is None:  # Nothing is in a transaction without a use of it.
        return
    yield Fact("transactions", transaction_row(transaction))
    outcome = TRANSACTION_OUTCOMES[transaction.state]
    while record is not None:
        if isinstance(record, Delivery):
            state = DELIVERY.lookup(record.state, outcome).state
            yield _received(replace(record, state=state))
        elif isinstance(record, Sending):
            yield _sent(replace(record, rolled_back=outcome == "rolled_back"))
        record = next(records, None)


def _over(use: Use) -> Violation:
    text = f"{use.event} of {use.transaction_id}: {RULES['transaction_over']}"
    # What happens to a transaction its client asked for, but the broker chooses its id.
    endpoint = use.server if use.event == "start" else use.client
    return Violation("transaction_over", text, use.at, endpoint, use.client_id)


# --- messages -------------------------------------------------------------------------------


def _messages(records: Iterator[Sending | Relay | Delivery]) -> Iterator[Found]:
    """Add the sender to a message's deliveries; pass it on to requests and replies.

    One that nobody was seen to send, such as those of brokers, counts from its first delivery.
    """
    sent: Sending | None = None
    relay: Relay | None = None
    first: Delivery | None = None
    for record in records:
        if not isinstance(record, Relay):
            yield seen(record)
        if isinstance(record, Sending):
            sent = sent or record
        elif isinstance(record, Relay):
            if relay is None or relay.consumer_id != record.consumer_id:
                relay = record
        else:
            brought = relay is not None and relay.consumer_id == record.consumer_id
            row = delivery_row(record, sent, relay if brought else None)
            yield fact_of(("deliveries", row))
            if first is None or record.at.order < first.at.order:
                first = record
    message = sent
    if message is None and first is not None:
        message = _as_sending(first)
    if message is not None and not message.rolled_back and message.status in (None, OK):
        yield from _conversation_messages(message)


def _as_sending(delivery: Delivery) -> Sending:
    return Sending(
        delivery.message_key,
        delivery.producer,
        delivery.server,
        None,
        delivery.destination,
        delivery.reply_to,
        delivery.correlation_id,
        delivery.message_id,
        None,
        delivery.at,
    )


def _conversation_messages(message: Sending) -> Iterator[Found]:
    source, order = message.at.source, message.at.order
    if may_answer(message):
        one = ConversationMessage(message, is_request=False)
        yield KeyedRecord(_CONVERSATIONS, (source, message.destination), (*order, _REPLIES), one)
    if message.reply_to is not None:
        one = ConversationMessage(message, is_request=True)
        yield KeyedRecord(_CONVERSATIONS, (source, message.reply_to), (*order, _REQUESTS), one)


# --- numbers --------------------------------------------------------------------------------


def _numbers(runs: Iterator[Run]) -> Iterator[Found]:
    """Return which numbers of a host are missing."""
    for gap in gaps(runs):
        numbers = f"{gap.start} to {gap.stop - 1}" if gap.stop > gap.start + 1 else gap.start
        text = f"numbers {numbers} of this sender are in no packet that was seen"
        violation = Violation("sequence_gap", text, gap.at, gap.sender)
        yield Fact("violations", violation_row(PROTOCOL, violation))


CHAIN: Final[Chain] = MappingProxyType(
    {
        "connections": _connections,
        _TRANSACTIONS: _transactions,
        _MESSAGES: _messages,
        _CONVERSATIONS: conversations,
        _NUMBERS: _numbers,
        **HOP_STAGES,
    }
)
"""What JMQ packets and GPackets say, stage by stage; the key of packets is their connection."""

_EMPTY = {
    table: dict.fromkeys(column.name for column in TABLES[table])
    for table in ("deliveries", "transactions", "hops", "conversations", "sessions", "violations")
}


def derive_tables(
    rows: Iterable[Row], ended: Collection[tuple[str, str]] = ()
) -> Derived[list[Row]]:
    """Return the tables that follow from the JMQ packets and GPackets of captures.

    Parameters
    ----------
    rows
        JMQ packets and GPackets, of both directions of each connection, in the order of time. Rows
        of other formats, and of what is no packet, may be among them.
    ended
        Source and name of the streams that end with a FIN or a reset. Without them nothing
        distinguishes a connection that was dropped from one that is there at the end.

    Returns
    -------
    derived
        Rows of `deliveries`, `transactions`, `hops`, `conversations`, `sessions` and `violations`,
        with the columns of ``wireyard.layers.tables``.
    """
    packets = [(connection_of(row), row) for row in rows]
    keys = {(row["source"], row["stream"]): key for key, row in packets}
    streams = [
        (key, {"source": stream[0], "stream": stream[1], "ended": True})
        for stream, key in keys.items()
        if stream in ended
    ]
    found, dropped = run_chain(CHAIN, chain(streams, packets))
    # All the columns of a table, in their order, whatever it has of them.
    tables = {
        table: [empty | row for row in found.get(table, ())] for table, empty in _EMPTY.items()
    }
    return Derived(tables, dropped)
