"""The chain of stages from JMQ packets and GPackets to the rows of tables, each with its key.

1. ``connections``, key: source and connection. Logins, requests and replies, messages that
   consumers hold, pauses. The only stage whose input is packets; its state is `Observer`.
2. ``transactions``, key: source, broker and transaction id. An XA transaction may be begun on one
   connection and ended on another. Messages and acknowledgements in it get its outcome.
3. ``messages``, key: source and message. Its deliveries get the sender, and the broker that relayed
   the message to their consumer.
4. ``conversations``, key: source and JMSReplyTo. Requests with this JMSReplyTo, and the messages
   sent there.
5. ``numbers``, key: source, host and side. Sequence numbers that are missing.
6. ``hops`` and the stages of ``hops.py``, key: message, across all sources. The hops of a message.

The order of records puts those first that later ones depend on, so all stages but the first and the
fourth hold no more than one record of each kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, count
from types import MappingProxyType
from typing import Final

from tests.reference.jmq_chain.conversations import ConversationMessage, conversations, may_answer
from tests.reference.jmq_chain.observer import Observer
from tests.reference.jmq_chain.records import Output, Run, Use
from tests.reference.jmq_chain.rows import (
    PROTOCOL,
    conversation_row,
    delivery_row,
    session_row,
    transaction_row,
)
from tests.reference.jmq_chain.sequences import gaps
from tests.reference.jmq_chain.transaction import Transaction
from wireyard.formats.base import Row
from wireyard.layers.endpoints import connection_of
from wireyard.layers.jmq.hops import HOP_STAGES, hop_record
from wireyard.layers.jmq.records import Delivery, Relay, Sending
from wireyard.layers.jmq.rules import OK, RULES
from wireyard.layers.jmq.states import DELIVERY, TRANSACTION_OUTCOMES
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

_FLUSH_PACKETS = 1024
"""The number of packets after which final records are passed on."""
_TRANSACTIONS, _MESSAGES, _CONVERSATIONS, _NUMBERS = (
    "transactions",
    "messages",
    "conversations",
    "numbers",
)
_UNDECIDED: Final = "in_transaction"
"""The state of a delivery that waits for the end of its transaction."""
_USED, _WAITING = range(2)
"""Order in ``transactions``: the events of a transaction, then records that need its outcome."""
_SENT, _DELIVERED = range(2)
_RELAYED, _RECEIVED = range(2)
"""Order in ``messages``: the sender, then for each consumer the relay and the deliveries."""
_REPLIES, _REQUESTS = range(2)
"""Order in ``conversations``, so that a message that is both is not its own reply."""


# --- connections ----------------------------------------------------------------------------


def _connections(rows: Iterator[Row]) -> Iterator[Found]:
    """Observe the packets of a connection; rows of its streams have whether they `ended`."""
    observer = Observer()
    ended = set()
    uses = count()
    for number, row in enumerate(rows):
        if row.get("offset") is None:
            if row["ended"]:
                ended.add((row["source"], row["stream"]))
            continue
        observer.observe(row)
        if number % _FLUSH_PACKETS == 0:
            yield from _flush(observer.output, uses)
    observer.finish(ended)
    yield from _flush(observer.output, uses)
    for cap, things in observer.output.dropped.items():
        yield Dropped(cap, things)


def _flush(output: Output, uses: Iterator[int]) -> Iterator[Found]:
    """Yield and clear the output; `uses` numbers the transaction events of the connection."""
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
        yield _sending_record(sending) if sending.transaction_id is None else _waiting(sending)
    for delivery in output.deliveries:
        yield _waiting(delivery) if delivery.state == _UNDECIDED else _delivery_record(delivery)
    for relay in output.relays:
        if relay.kind == "relayed":
            order = _DELIVERED, relay.consumer_id, _RELAYED, *relay.at.order
            yield KeyedRecord(_MESSAGES, (relay.at.source, relay.message_key), order, relay)
        yield hop_record(relay)
    for run in output.runs:
        sender = run.at.source, run.host, run.from_client
        yield KeyedRecord(_NUMBERS, sender, (run.start, run.kind, *run.at.order), run)
    output.clear()


def _waiting(record: Sending | Delivery) -> KeyedRecord:
    key = record.at.source, record.server, record.transaction_id
    return keyed_record((_TRANSACTIONS, key, (_WAITING,), record))


def _sending_record(sending: Sending) -> KeyedRecord:
    key = sending.at.source, sending.message_key
    return keyed_record((_MESSAGES, key, (_SENT, *sending.at.order), sending))


def _delivery_record(delivery: Delivery) -> KeyedRecord:
    key = delivery.at.source, delivery.message_key
    order = _DELIVERED, delivery.consumer_id, _RECEIVED, *delivery.at.order
    return keyed_record((_MESSAGES, key, order, delivery))


# --- transactions ---------------------------------------------------------------------------


def _transactions(records: Iterator[Use | Sending | Delivery]) -> Iterator[Found]:
    """Track a transaction; records of messages and acknowledgements in it get its outcome."""
    record = next(records, None)
    transaction: Transaction | None = None
    while isinstance(record, Use):
        transaction = transaction or Transaction(record)
        if not transaction.apply(record):
            yield Fact("violations", violation_row(PROTOCOL, _violation(record)))
        record = next(records, None)
    if transaction is None:  # Every record in a transaction comes with an event of it.
        return
    yield Fact("transactions", transaction_row(transaction))
    outcome = TRANSACTION_OUTCOMES[transaction.state]
    while record is not None:
        if isinstance(record, Delivery):
            state = DELIVERY.lookup(record.state, outcome).state
            yield _delivery_record(replace(record, state=state))
        elif isinstance(record, Sending):
            yield _sending_record(replace(record, rolled_back=outcome == "rolled_back"))
        record = next(records, None)


def _violation(use: Use) -> Violation:
    text = f"{use.event} of {use.transaction_id}: {RULES['transaction_over']}"
    # The client causes all events but the start: there the broker chooses the id.
    endpoint = use.server if use.event == "start" else use.client
    return Violation("transaction_over", text, use.at, endpoint, use.client_id)


# --- messages -------------------------------------------------------------------------------


def _messages(records: Iterator[Sending | Relay | Delivery]) -> Iterator[Found]:
    """Add the sender to a message's deliveries; pass the message on to ``conversations``.

    A message whose sending was not captured, such as those of brokers, counts from its first
    delivery.
    """
    sent: Sending | None = None
    relay: Relay | None = None
    first: Delivery | None = None
    for record in records:
        if not isinstance(record, Relay):
            yield hop_record(record)
        if isinstance(record, Sending):
            sent = sent or record
        elif isinstance(record, Relay):
            if relay is None or relay.consumer_id != record.consumer_id:
                relay = record
        else:
            was_relayed = relay is not None and relay.consumer_id == record.consumer_id
            row = delivery_row(record, sent, relay if was_relayed else None)
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
        reply = ConversationMessage(message, is_request=False)
        yield KeyedRecord(_CONVERSATIONS, (source, message.destination), (*order, _REPLIES), reply)
    if message.reply_to is not None:
        request = ConversationMessage(message, is_request=True)
        yield KeyedRecord(_CONVERSATIONS, (source, message.reply_to), (*order, _REQUESTS), request)


# --- numbers --------------------------------------------------------------------------------


def _numbers(runs: Iterator[Run]) -> Iterator[Found]:
    """Yield a violation for each gap in the sequence numbers of a host."""
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
"""The stages by name, in their order; the key of packets is their connection."""

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
        JMQ packets and GPackets of both directions of each connection, in the order of time. Rows
        of other formats, and rows that are no packets, are skipped.
    ended
        Source and name of the streams that end with a FIN or a reset. Without them a dropped
        connection cannot be distinguished from one that is open at the end of the capture.

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
    facts, dropped = run_chain(CHAIN, chain(streams, packets))
    # Every row has all columns of its table, in their order.
    tables = {
        table: [empty | row for row in facts.get(table, ())] for table, empty in _EMPTY.items()
    }
    return Derived(tables, dropped)
