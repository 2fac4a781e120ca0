"""Rows of the tables in `wireyard.layers.tables`, made from records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wireyard.layers.mqtt.records import (
    Attempt,
    ConnectionRecord,
    Message,
    Subscribed,
    ValueChange,
)

if TYPE_CHECKING:
    from wireyard.layers.mqtt.retained import Value

__all__ = [
    "PROTOCOL",
    "conversation_row",
    "delivery_row",
    "retained_row",
]

PROTOCOL: Final = "mqtt"
_Row = dict[str, Any]
_NS_PER_MS: Final = 1_000_000


def retained_row(value: Value, setter: ValueChange) -> _Row:
    """Return a row of `RETAINED`."""
    timed = setter.sent.ns is not None
    return {
        "topic": value.topic,
        "from_ns": value.since if timed else None,
        "to_ns": value.until if timed else None,
        "payload": value.payload,
        "qos": value.qos,
        "message_key": value.key,
        "producer_client_id": setter.client.client_id,
        "ended_by": value.ended_by,
        "from_frame": setter.sent.frame,
        **setter.sent.lead,
    }


def conversation_row(request: Message, reply: Message | None) -> _Row:
    """Return a row of `CONVERSATIONS`."""
    row: _Row = {
        "kind": "mqtt5",
        "request_key": request.key,
        "requester": request.client.endpoint,
        "requested_ns": request.sent.ns,
        "request": request.topic,
        "requested_frame": request.sent.frame,
        **request.sent.lead,
    }
    if reply is None:
        return row
    latency_ms = None
    if reply.sent.ns is not None and request.sent.ns is not None:
        latency_ms = (reply.sent.ns - request.sent.ns) // _NS_PER_MS
    return row | {
        "reply_key": reply.key,
        "responder": reply.client.endpoint,
        "replied_ns": reply.sent.ns,
        "latency_ms": latency_ms,
        "replied_frame": reply.sent.frame,
    }


def delivery_row(
    message: Message | None,
    attempt: Attempt | None,
    subscribed: Subscribed | None,
    verdict: str,
    connection: ConnectionRecord | None = None,
) -> _Row:
    """Return a row of `DELIVERIES`.

    Parameters
    ----------
    message
        None if its PUBLISH was not captured.
    attempt
        Its delivery attempt; None if there is none.
    connection
        The connection on which its delivery is missing.
    """
    receiver = attempt or connection or subscribed
    proof = attempt.at if attempt else message.sent if message else None
    topic = message.topic if message else attempt.topic if attempt else None
    assert proof is not None
    row: _Row = {
        "message_key": message.key if message else None,
        "protocol": PROTOCOL,
        "origin": message.origin if message else "broker",
        "destination": topic,
        "consumer": receiver.client.endpoint if receiver else None,
        "consumer_client_id": receiver.client.client_id if receiver else None,
        "consumer_id": subscribed.identifier if subscribed else None,
        "subscription": subscribed.filter if subscribed else None,
        "subscribed_frame": subscribed.granted.frame if subscribed else None,
        "verdict": verdict,
        **proof.lead,
    }
    if message is not None:
        row |= {
            "producer": message.client.endpoint,
            "producer_client_id": message.client.client_id,
            "sent_ns": message.sent.ns,
            "sent_frame": message.sent.frame,
            "accepted_frame": message.accepted.frame if message.accepted else None,
        }
    if attempt is not None:
        done = attempt.acknowledged
        row |= {
            "qos": attempt.qos,
            "retained": None if attempt.may_be_live else not attempt.is_live,
            "delivered_ns": attempt.at.ns,
            "delivered_frame": attempt.at.frame,
            "acknowledged_ns": done.ns if done else None,
            "acknowledged_frame": done.frame if done else None,
            "redelivered": attempt.redelivered or (None if attempt.untraced else False),
            "delivery_count": attempt.count,
            "outcome": _outcome(attempt),
        }
    elif verdict == "expired":
        row["outcome"] = "expired"
    return row


def _outcome(attempt: Attempt) -> str | None:
    if not attempt.qos:
        return "no_ack_wanted"
    if attempt.acknowledged:
        return "acknowledged"
    return None if attempt.untraced else "unacknowledged"
