"""Records of connections as rows of tables."""

from __future__ import annotations

from typing import Final

from tests.reference.jmq_chain.records import ConnectionRecord, Exchange
from tests.reference.jmq_chain.transaction import Transaction
from wireyard.formats.base import Row
from wireyard.layers.jmq.records import Delivery, Relay, Sending
from wireyard.layers.jmq.states import OUTCOMES, TRANSACTION_OUTCOMES

__all__ = ["PROTOCOL", "conversation_row", "delivery_row", "session_row", "transaction_row"]

PROTOCOL: Final = "jms"
_NS_PER_MS = 1_000_000


def delivery_row(delivery: Delivery, sending: Sending | None, relay: Relay | None) -> Row:
    """Return the row of a delivery, with the sending and the relay of its message if captured."""
    at, acknowledged = delivery.at, delivery.acknowledged
    sent = sending.at if sending else None
    accepted = sending.accepted if sending else None
    return {
        "message_key": delivery.message_key,
        "protocol": PROTOCOL,
        "producer": sending.producer if sending else delivery.producer,
        "producer_client_id": sending.client_id if sending else None,
        "destination": delivery.destination,
        "consumer": delivery.consumer,
        "server": delivery.server,
        "consumer_id": delivery.consumer_id,
        "consumer_client_id": delivery.client_id,
        "subscription": delivery.subscription,
        "sent_ns": sent.ns if sent else None,
        "delivered_ns": at.ns,
        "acknowledged_ns": acknowledged.ns if acknowledged else None,
        "redelivered": delivery.redelivered,
        "delivery_count": delivery.delivery_count,
        "outcome": OUTCOMES[delivery.state],
        "verdict": delivery.state,
        "dead_reason": delivery.dead_reason,
        "transaction_id": delivery.transaction_id,
        "via_broker": relay.broker if relay else None,
        "sent_frame": sent.frame if sent else None,
        "accepted_frame": accepted.frame if accepted else None,
        "relayed_frame": relay.at.frame if relay else None,
        "delivered_frame": at.frame,
        "acknowledged_frame": acknowledged.frame if acknowledged else None,
        **at.lead,
    }


def transaction_row(transaction: Transaction) -> Row:
    """Return the row of a transaction."""
    first = transaction.first
    begun, ended = transaction.begun, transaction.ended
    return {
        "begun_ns": begun and begun.ns,
        "begun_frame": begun and begun.frame,
        "ended_ns": ended and ended.ns,
        "ended_frame": ended and ended.frame,
        "transaction_id": first.transaction_id,
        "server": first.server,
        "client": first.client,
        "client_id": first.client_id,
        "outcome": TRANSACTION_OUTCOMES[transaction.state],
        "sent": transaction.sent,
        "acknowledged": transaction.acknowledged,
        **first.at.lead,
    }


def conversation_row(kind: str, exchange: Exchange) -> Row:
    """Return the row of a request and its reply; `kind` is a column of the table."""
    requested, replied = exchange.requested, exchange.replied
    latency_ms = None
    if replied is not None and replied.ns is not None and requested.ns is not None:
        latency_ms = (replied.ns - requested.ns) // _NS_PER_MS
    return {
        "requested_ns": requested.ns,
        "requested_frame": requested.frame,
        "replied_ns": replied and replied.ns,
        "replied_frame": replied and replied.frame,
        "kind": kind,
        "request_key": exchange.request_message or requested.key,
        "reply_key": exchange.reply_message or (replied.key if replied else None),
        "requester": exchange.requester or None,
        "responder": exchange.responder or None,
        "latency_ms": latency_ms,
        "status": exchange.status,
        "request": exchange.request,
        **requested.lead,
    }


def session_row(login: ConnectionRecord) -> Row:
    """Return the row of a connection."""
    opened = login.opened if login.known else None
    closed = login.last if login.ended_by != "open" else None
    counts = ("in_flight_sent", "in_flight_received", "pauses", "paused_ns")
    return {
        "opened_ns": opened and opened.ns,
        "opened_frame": opened and opened.frame,
        "closed_ns": closed and closed.ns,
        "closed_frame": closed and closed.frame,
        "protocol": PROTOCOL,
        "client": login.client or None,
        "server": login.server or None,
        "client_id": login.client_id,
        "user": login.user,
        "status": login.status,
        "ended_by": login.ended_by,
        "packets": login.packets,
        "bytes": login.size_bytes,
        "version": login.protocol_level,
        **{name: None if login.has_gap else getattr(login, name) for name in counts},
        **login.opened.lead,
    }
