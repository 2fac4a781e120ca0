"""From the packets of captures to the rows of tables.

Five steps, each with a key. Only the first two have a state to carry from packet to packet; whoever
has many cores deals packets by the key, and gives each pile to the step in the order of time. The
others are joins.

1. `Connection`, key: the connection. Logins, requests and replies, what consumers hold, pauses.
2. `Transaction`, key: broker and transaction id. An XA transaction may be begun on one connection
   and ended on another.
3. Deliveries and transactions, key: broker and transaction id. An acknowledgement in a transaction
   counts when that is committed.
4. Deliveries and messages, key: message. Deliveries and relays, key: message and consumer. Messages
   and their replies, key: JMSReplyTo and JMSCorrelationID.
5. `Sequences`, key: host and side. What a sender numbered and nobody saw.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from wireyard.formats.base import Row
from wireyard.layers.jmq.conversations import conversations
from wireyard.layers.jmq.delivery import DELIVERY, OUTCOMES
from wireyard.layers.jmq.facts import (
    RULES,
    Delivery,
    Exchange,
    Facts,
    Login,
    Place,
    Sending,
    Use,
    Violation,
)
from wireyard.layers.jmq.relays import Relay
from wireyard.layers.jmq.requests import OK
from wireyard.layers.jmq.transaction import TRANSACTION_OUTCOMES, Transaction
from wireyard.layers.jmq.walk import Walk
from wireyard.layers.tables import TABLES

__all__ = ["tables", "tables_of"]

Rows = list[Row]
_Transactions = Mapping[tuple[str, int], Transaction]

_PROTOCOL = "jms"
_NS_PER_MS = 1_000_000
_EMPTY = {
    table: dict.fromkeys(column.name for column in columns) for table, columns in TABLES.items()
}


def tables(rows: Iterable[Row], ended: Collection[tuple[str, str]] = ()) -> dict[str, Rows]:
    """Return what the packets of captures say, table by table.

    Parameters
    ----------
    rows
        JMQ packets and GPackets, of both directions of each connection, in the order of time. Rows
        of other formats, and of what is no packet, may be among them.
    ended
        Source and name of the streams that end with a FIN or a reset. Without them nothing tells a
        connection that was dropped from one that was there when the capture ended.

    Returns
    -------
    tables
        Rows of `deliveries`, `transactions`, `conversations`, `sessions` and `violations`, with
        the columns of ``wireyard.layers.tables``. What caps made it forget, only a `Walk` tells.
    """
    walk = Walk()
    for row in rows:
        walk.take(row)
    walk.finish(ended)
    return tables_of(walk.facts, walk.relays)


def tables_of(facts: Facts, relayed: Iterable[Relay]) -> dict[str, Rows]:
    """Return the tables of what the walks of connections found: the steps that are joins."""
    transactions, over = _transactions(facts.uses)
    sent: dict[str, Sending] = {}
    for sending in facts.sendings:
        sent.setdefault(sending.message_key, sending)
    unsent = _unsent(facts.deliveries, sent)
    went = (one for one in sent.values() if _went(one, transactions))
    messages = sorted((*went, *unsent.values()), key=lambda one: _time(one.place))
    via: dict[tuple[str, int], Relay] = {}
    for relay in relayed:
        via.setdefault((relay.message_key, relay.consumer_id), relay)
    exchanges = [("control", one) for one in facts.exchanges]
    exchanges += [("jms", one) for one in conversations(messages)]
    found = {
        "deliveries": [
            _delivery(one, sent.get(one.message_key), via, transactions) for one in facts.deliveries
        ],
        "transactions": [_transaction(one) for one in transactions.values()],
        "conversations": [_conversation(kind, one) for kind, one in exchanges],
        "sessions": [_session(one) for one in facts.logins],
        "violations": [_violation(one) for one in (*facts.violations, *over)],
    }
    # All the columns of a table, in their order, whatever it has of them.
    return {table: [_EMPTY[table] | row for row in rows] for table, rows in found.items()}


def _transactions(uses: Iterable[Use]) -> tuple[_Transactions, list[Violation]]:
    """Return the transactions, and what was done with them when they were over."""
    found: dict[tuple[str, int], Transaction] = {}
    over = []
    # Uses of one connection are in order already; those of several are by their times.
    for use in sorted(uses, key=lambda use: _time(use.place)):
        key = use.server, use.transaction_id
        transaction = found.get(key)
        if transaction is None:
            transaction = found[key] = Transaction(use)
        if not transaction.take(use):
            told = f"{use.event} of {use.transaction_id}: {RULES['transaction_over']}"
            over.append(
                Violation("transaction_over", use.client, use.client_id, None, told, use.place)
            )
    return found, over


def _unsent(deliveries: Iterable[Delivery], sent: Mapping[str, Sending]) -> dict[str, Sending]:
    """Return the messages that nobody was seen to send, such as those of brokers."""
    found: dict[str, Sending] = {}
    for one in deliveries:
        known = found.get(one.message_key)
        if one.message_key in sent or (known and _time(known.place) <= _time(one.place)):
            continue
        found[one.message_key] = Sending(
            one.message_key,
            one.producer,
            one.server,
            None,
            one.destination,
            one.reply_to,
            one.correlation_id,
            one.message_id,
            None,
            one.place,
        )
    return found


def _went(sending: Sending, transactions: _Transactions) -> bool:
    """Tell whether a message left its producer, as far as was seen."""
    if sending.transaction_id is not None:
        transaction = transactions[sending.server, sending.transaction_id]
        if TRANSACTION_OUTCOMES[transaction.state] == "rolled_back":
            return False
    return sending.status in (None, OK)


def _time(place: Place) -> tuple[int, int]:
    return place.ns or 0, place.frame or 0


# --- rows -----------------------------------------------------------------------------------


def _delivery(
    delivery: Delivery,
    sending: Sending | None,
    via: Mapping[tuple[str, int], Relay],
    transactions: _Transactions,
) -> Row:
    state = delivery.state
    if state == "in_transaction" and delivery.transaction_id is not None:
        transaction = transactions[delivery.server, delivery.transaction_id]
        outcome = TRANSACTION_OUTCOMES[transaction.state]
        state = DELIVERY[state].get(outcome, state)
    relay = via.get((delivery.message_key, delivery.consumer_id))
    return {
        **_ends("delivered", delivery.place),
        **_ends("acknowledged", delivery.acknowledged),
        **_ends("sent", sending.place if sending else None),
        "message_key": delivery.message_key,
        "protocol": _PROTOCOL,
        "producer": sending.producer if sending else delivery.producer,
        "producer_client_id": sending and sending.client_id,
        "destination": delivery.destination,
        "consumer": delivery.consumer,
        "server": delivery.server,
        "consumer_id": delivery.consumer_id,
        "client_id": delivery.client_id,
        "subscription": delivery.subscription,
        "redelivered": delivery.redelivered,
        "delivery_count": delivery.delivery_count,
        "outcome": OUTCOMES[state],
        "verdict": state,
        "dead_reason": delivery.dead_reason,
        "transaction_id": delivery.transaction_id,
        "accepted_frame": sending.accepted.frame if sending and sending.accepted else None,
        "via_broker": relay and relay.broker,
        "relayed_frame": relay and relay.place.frame,
        **_lead(delivery.place),
    }


def _transaction(transaction: Transaction) -> Row:
    first = transaction.first
    return {
        **_ends("begun", transaction.begun),
        **_ends("ended", transaction.ended),
        "transaction_id": first.transaction_id,
        "server": first.server,
        "client": first.client,
        "client_id": first.client_id,
        "outcome": TRANSACTION_OUTCOMES[transaction.state],
        "sent": transaction.sent,
        "acknowledged": transaction.acknowledged,
        **_lead(first.place),
    }


def _conversation(kind: str, exchange: Exchange) -> Row:
    asked, answered = exchange.asked, exchange.answered
    latency_ms = None
    if answered is not None and answered.ns is not None and asked.ns is not None:
        latency_ms = (answered.ns - asked.ns) // _NS_PER_MS
    return {
        **_ends("requested", asked),
        **_ends("replied", answered),
        "kind": kind,
        "request_key": exchange.request_message or asked.key,
        "reply_key": exchange.reply_message or (answered.key if answered else None),
        "requester": exchange.requester or None,
        "responder": exchange.responder or None,
        "latency_ms": latency_ms,
        "status": exchange.status,
        "request": exchange.request,
        **_lead(asked),
    }


def _session(login: Login) -> Row:
    return {
        **_ends("opened", login.opened if login.known else None),
        **_ends("closed", login.last if login.ended_by != "open" else None),
        "protocol": _PROTOCOL,
        "client": login.client or None,
        "server": login.server or None,
        "client_id": login.client_id,
        "user": login.user,
        "status": login.status,
        "ended_by": login.ended_by,
        "packets": login.packets,
        "bytes": login.size_bytes,
        "version": login.protocol_level,
        "in_flight_sent": login.in_flight_sent,
        "in_flight_received": login.in_flight_received,
        "pauses": login.pauses,
        "paused_ns": login.paused_ns,
        **_lead(login.opened),
    }


def _violation(violation: Violation) -> Row:
    return {
        "protocol": _PROTOCOL,
        "rule": violation.rule,
        "client": violation.client or None,
        "message_key": violation.message_key,
        "text": violation.text,
        "client_id": violation.client_id,
        "captured_ns": violation.place.ns,
        "frame": violation.place.frame,
        **_lead(violation.place),
    }


def _lead(place: Place) -> Row:
    return {"source": place.source, "stream": place.stream, "offset": place.offset}


def _ends(name: str, place: Place | None) -> Row:
    return {f"{name}_ns": place and place.ns, f"{name}_frame": place and place.frame}
