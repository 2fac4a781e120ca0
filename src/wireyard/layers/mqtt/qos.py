"""QoS 1 and 2: the flows of packet identifiers as two state tables.

Rules of this file:

1. A flow is one message in flight, identified by its packet identifier. Each side has a state
   table: `SENDER` is that of the side that publishes, `RECEIVER` that of the other.
2. The events are the packets of a flow, of either side, and a new connection, which resumes or
   discards the session. QoS 0 has no flow.
3. An event without a cell leaves the state unchanged and violates the rule that `UNASKED` has for
   it. A cell with a rule is a violation that takes effect.
4. An acknowledged flow is kept until the session has been resumed twice, because an acknowledgement
   on the wire was not necessarily read.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wireyard.layers.states import Cell, StateTable

EVENTS: Final = (
    "publish_1", "publish_2", "dup_1", "dup_2", "pubrel",
    "puback", "puback_error", "pubrec", "pubrec_error", "pubcomp",
    "resumed", "discarded",
)  # fmt: skip
"""``dup_1`` is a PUBLISH at QoS 1 with DUP; an error is a reason code of 128 or more."""

UNASKED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pubrel": "pubrel_unasked",
        "puback": "puback_unasked",
        "puback_error": "puback_unasked",
        "pubrec": "pubrec_unasked",
        "pubrec_error": "pubrec_unasked",
        "pubcomp": "pubcomp_unasked",
    }
)
"""The rule that an event violates if the current state has no cell for it."""

SENDER: Final[StateTable[str, str, str]] = StateTable(
    {
        "free": {
            "publish_1": Cell("published_1", "sent"),
            "publish_2": Cell("published_2", "sent"),
            "dup_1": Cell("published_1", "sent", "dup_first"),
            "dup_2": Cell("published_2", "sent", "dup_first"),
            "pubrel": Cell("released", None, "pubrel_unasked"),
            "pubrec": Cell("answering", None, "pubrec_unasked"),
            "resumed": Cell("free"),
            "discarded": Cell("free"),
        },
        # A PUBREC without a PUBLISH came; a PUBREL may still answer it.
        "answering": {
            "publish_1": Cell("published_1", "sent"),
            "publish_2": Cell("published_2", "sent"),
            "dup_1": Cell("published_1", "sent", "dup_first"),
            "dup_2": Cell("published_2", "sent", "dup_first"),
            "pubrel": Cell("released"),
            "resumed": Cell("free"),
            "discarded": Cell("free"),
        },
        # The session is older than the capture, so the state of the identifier is unknown.
        "unknown": {
            "publish_1": Cell("published_1", "sent"),
            "publish_2": Cell("published_2", "sent"),
            "dup_1": Cell("published_1", "repeated"),
            "dup_2": Cell("published_2", "repeated"),
            "pubrel": Cell("released"),
            "puback": Cell("acknowledged_1", "acknowledged"),
            "puback_error": Cell("acknowledged_1", "refused"),
            "pubrec": Cell("received", "received"),
            "pubrec_error": Cell("refused_2", "refused"),
            "pubcomp": Cell("acknowledged_2", "acknowledged"),
            "resumed": Cell("unknown"),
            "discarded": Cell("free"),
        },
        # QoS 1: waiting for PUBACK.
        "published_1": {
            "publish_1": Cell("published_1", "sent", "id_in_use"),
            "publish_2": Cell("published_2", "sent", "id_in_use"),
            "dup_1": Cell("published_1", "repeated", "resend_unasked"),
            "dup_2": Cell("published_2", "sent", "id_in_use"),
            "puback": Cell("acknowledged_1", "acknowledged"),
            "puback_error": Cell("acknowledged_1", "refused"),
            "resumed": Cell("resend_1"),
            "discarded": Cell("over"),
        },
        # The connection ended before PUBACK: the message has to be sent again.
        "resend_1": {
            "publish_1": Cell("published_1", "repeated", "dup_missing"),
            "publish_2": Cell("published_2", "sent", "id_in_use"),
            "dup_1": Cell("published_1", "repeated"),
            "dup_2": Cell("published_2", "sent", "id_in_use"),
            "resumed": Cell("resend_1"),
            "discarded": Cell("over"),
        },
        "acknowledged_1": {
            "publish_1": Cell("published_1", "sent"),
            "publish_2": Cell("published_2", "sent"),
            "dup_1": Cell("published_1", "repeated", "resend_unasked"),
            "dup_2": Cell("published_2", "sent", "dup_first"),
            "resumed": Cell("unread_1"),
            "discarded": Cell("over"),
        },
        # PUBACK was on the wire when the connection ended.
        "unread_1": {
            "publish_1": Cell("published_1", "sent"),
            "publish_2": Cell("published_2", "sent"),
            "dup_1": Cell("published_1", "lost_ack"),
            "dup_2": Cell("published_2", "sent", "dup_first"),
            "resumed": Cell("free"),
            "discarded": Cell("over"),
        },
        # QoS 2: waiting for PUBREC.
        "published_2": {
            "publish_1": Cell("published_1", "sent", "id_in_use"),
            "publish_2": Cell("published_2", "sent", "id_in_use"),
            "dup_1": Cell("published_1", "sent", "id_in_use"),
            "dup_2": Cell("published_2", "repeated", "resend_unasked"),
            "pubrel": Cell("released", "released", "pubrel_unasked"),
            "pubrec": Cell("received", "received"),
            "pubrec_error": Cell("refused_2", "refused"),
            "resumed": Cell("resend_2"),
            "discarded": Cell("over"),
        },
        # The connection ended before PUBREC: the message has to be sent again.
        "resend_2": {
            "publish_1": Cell("published_1", "sent", "id_in_use"),
            "publish_2": Cell("published_2", "repeated", "dup_missing"),
            "dup_1": Cell("published_1", "sent", "id_in_use"),
            "dup_2": Cell("published_2", "repeated"),
            "pubrel": Cell("released", "released", "pubrel_unasked"),
            "resumed": Cell("resend_2"),
            "discarded": Cell("over"),
        },
        # PUBREC was received: PUBREL has to be sent.
        "received": {
            "publish_1": Cell("published_1", "sent", "id_in_use"),
            "publish_2": Cell("published_2", "sent", "id_in_use"),
            "dup_1": Cell("published_1", "sent", "id_in_use"),
            "dup_2": Cell("published_2", "repeated", "resend_unasked"),
            "pubrel": Cell("released", "released"),
            "pubrec": Cell("received"),
            "pubrec_error": Cell("refused_2", "refused"),
            "resumed": Cell("unread_2"),
            "discarded": Cell("over"),
        },
        # PUBREC was on the wire when the connection ended: PUBREL follows, or PUBLISH if unread.
        "unread_2": {
            "publish_1": Cell("published_1", "sent", "id_in_use"),
            "publish_2": Cell("published_2", "lost_ack", "dup_missing"),
            "dup_1": Cell("published_1", "sent", "id_in_use"),
            "dup_2": Cell("published_2", "lost_ack"),
            "pubrel": Cell("released", "released"),
            "resumed": Cell("unread_2"),
            "discarded": Cell("over"),
        },
        # PUBREL was sent: waiting for PUBCOMP.
        "released": {
            "publish_1": Cell("published_1", "sent", "id_in_use"),
            "publish_2": Cell("published_2", "sent", "id_in_use"),
            "dup_1": Cell("published_1", "sent", "id_in_use"),
            "dup_2": Cell("published_2", "repeated", "resend_released"),
            "pubrel": Cell("released", "repeated", "resend_unasked"),
            "pubrec": Cell("released"),
            "pubcomp": Cell("acknowledged_2", "acknowledged"),
            "resumed": Cell("rerelease"),
            "discarded": Cell("over"),
        },
        # The connection ended before PUBCOMP: PUBREL has to be sent again.
        "rerelease": {
            "publish_1": Cell("published_1", "sent", "id_in_use"),
            "publish_2": Cell("published_2", "sent", "id_in_use"),
            "dup_1": Cell("published_1", "sent", "id_in_use"),
            "dup_2": Cell("published_2", "repeated", "resend_released"),
            "pubrel": Cell("released", "repeated"),
            "resumed": Cell("rerelease"),
            "discarded": Cell("over"),
        },
        "acknowledged_2": {
            "publish_1": Cell("published_1", "sent"),
            "publish_2": Cell("published_2", "sent"),
            "dup_1": Cell("published_1", "sent", "dup_first"),
            "dup_2": Cell("published_2", "repeated", "resend_released"),
            "pubrel": Cell("released", None, "pubrel_unasked"),
            "resumed": Cell("unread_3"),
            "discarded": Cell("over"),
        },
        # PUBCOMP was on the wire when the connection ended.
        "unread_3": {
            "publish_1": Cell("published_1", "sent"),
            "publish_2": Cell("published_2", "sent"),
            "dup_1": Cell("published_1", "sent", "dup_first"),
            "dup_2": Cell("published_2", "repeated", "resend_released"),
            "pubrel": Cell("released", "lost_ack"),
            "resumed": Cell("free"),
            "discarded": Cell("over"),
        },
        # PUBREC had an error code, which ends the flow. A PUBREL may still follow (erratum M30).
        "refused_2": {
            "publish_1": Cell("published_1", "sent"),
            "publish_2": Cell("published_2", "sent"),
            "dup_1": Cell("published_1", "sent", "dup_first"),
            "dup_2": Cell("published_2", "repeated", "resend_unasked"),
            "pubrel": Cell("released"),
            "resumed": Cell("free"),
            "discarded": Cell("over"),
        },
        # The session of the message has ended.
        "over": {
            "publish_1": Cell("published_1", "sent"),
            "publish_2": Cell("published_2", "sent"),
            "dup_1": Cell("published_1", "repeated", "session_over"),
            "dup_2": Cell("published_2", "repeated", "session_over"),
            "pubrel": Cell("released", "repeated", "session_over"),
            "resumed": Cell("free"),
            "discarded": Cell("free"),
        },
    },
    EVENTS,
    event_rules=UNASKED,
)
"""The flow as the side that publishes has it."""

RECEIVER: Final[StateTable[str, str, str]] = StateTable(
    {
        "free": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "delivered"),
            "dup_1": Cell("owes_puback", "delivered"),
            "dup_2": Cell("owes_pubrec", "delivered"),
            "pubrel": Cell("owes_pubcomp"),
            "resumed": Cell("free"),
            "discarded": Cell("free"),
        },
        # The session is older than the capture, so the state of the identifier is unknown.
        "unknown": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "delivered"),
            "dup_1": Cell("owes_puback", "delivered"),
            "dup_2": Cell("owes_pubrec", "delivered"),
            "pubrel": Cell("owes_pubcomp", "released"),
            "puback": Cell("answered_1", "acknowledged"),
            "puback_error": Cell("answered_1", "refused"),
            "pubrec": Cell("held", "received"),
            "pubrec_error": Cell("free", "refused"),
            "pubcomp": Cell("free", "acknowledged"),
            "resumed": Cell("unknown"),
            "discarded": Cell("free"),
        },
        "owes_puback": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "delivered"),
            "dup_1": Cell("owes_pubacks", "duplicate"),
            "dup_2": Cell("owes_pubrec", "delivered"),
            "puback": Cell("answered_1", "acknowledged"),
            "puback_error": Cell("answered_1", "refused"),
            "resumed": Cell("answered_1"),
            "discarded": Cell("free"),
        },
        # It was sent again before it was acknowledged: each copy may be acknowledged.
        "owes_pubacks": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "delivered"),
            "dup_1": Cell("owes_pubacks", "duplicate"),
            "dup_2": Cell("owes_pubrec", "delivered"),
            "puback": Cell("answered_again", "acknowledged"),
            "puback_error": Cell("answered_again", "refused"),
            "resumed": Cell("answered_1"),
            "discarded": Cell("free"),
        },
        "answered_again": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "delivered"),
            "dup_1": Cell("owes_pubacks", "duplicate"),
            "dup_2": Cell("owes_pubrec", "delivered"),
            "pubrel": Cell("owes_pubcomp"),
            "puback": Cell("answered_again"),
            "puback_error": Cell("answered_again"),
            "resumed": Cell("answered_1"),
            "discarded": Cell("free"),
        },
        # A receiver keeps no state of QoS 1: DUP shows only that this may be a second copy.
        "answered_1": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "delivered"),
            "dup_1": Cell("owes_puback", "duplicate"),
            "dup_2": Cell("owes_pubrec", "delivered"),
            "pubrel": Cell("owes_pubcomp"),
            "resumed": Cell("answered_1"),
            "discarded": Cell("free"),
        },
        # From the first PUBLISH to PUBREL the receiver recognises copies by the identifier.
        "owes_pubrec": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrecs", "duplicate"),
            "dup_1": Cell("owes_puback", "delivered"),
            "dup_2": Cell("owes_pubrecs", "duplicate"),
            "pubrel": Cell("owes_pubcomp", "released"),
            "pubrec": Cell("held", "received"),
            "pubrec_error": Cell("free", "refused"),
            "resumed": Cell("owes_pubrec"),
            "discarded": Cell("free"),
        },
        "owes_pubrecs": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrecs", "duplicate"),
            "dup_1": Cell("owes_puback", "delivered"),
            "dup_2": Cell("owes_pubrecs", "duplicate"),
            "pubrel": Cell("owes_pubcomp", "released"),
            "pubrec": Cell("held_again", "received"),
            "pubrec_error": Cell("free", "refused"),
            "resumed": Cell("owes_pubrec"),
            "discarded": Cell("free"),
        },
        "held": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "duplicate"),
            "dup_1": Cell("owes_puback", "delivered"),
            "dup_2": Cell("owes_pubrec", "duplicate"),
            "pubrel": Cell("owes_pubcomp", "released"),
            "resumed": Cell("held"),
            "discarded": Cell("free"),
        },
        "held_again": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "duplicate"),
            "dup_1": Cell("owes_puback", "delivered"),
            "dup_2": Cell("owes_pubrec", "duplicate"),
            "pubrel": Cell("owes_pubcomp", "released"),
            "pubrec": Cell("held_again"),
            "resumed": Cell("held"),
            "discarded": Cell("free"),
        },
        "owes_pubcomp": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "delivered"),
            "dup_1": Cell("owes_puback", "delivered"),
            "dup_2": Cell("owes_pubrec", "delivered"),
            "pubrel": Cell("owes_pubcomps"),
            "pubcomp": Cell("free", "acknowledged"),
            "resumed": Cell("owes_pubcomp"),
            "discarded": Cell("free"),
        },
        # PUBREL was sent again before it was answered: each copy may be answered.
        "owes_pubcomps": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "delivered"),
            "dup_1": Cell("owes_puback", "delivered"),
            "dup_2": Cell("owes_pubrec", "delivered"),
            "pubrel": Cell("owes_pubcomps"),
            "pubcomp": Cell("completed_again", "acknowledged"),
            "resumed": Cell("owes_pubcomp"),
            "discarded": Cell("free"),
        },
        "completed_again": {
            "publish_1": Cell("owes_puback", "delivered"),
            "publish_2": Cell("owes_pubrec", "delivered"),
            "dup_1": Cell("owes_puback", "delivered"),
            "dup_2": Cell("owes_pubrec", "delivered"),
            "pubrel": Cell("owes_pubcomp"),
            "pubcomp": Cell("completed_again"),
            "resumed": Cell("free"),
            "discarded": Cell("free"),
        },
    },
    EVENTS,
    event_rules=UNASKED,
)
"""The flow as the side that receives the message has it."""

FACTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sent": "a message is sent that was not sent before",
        "repeated": "a message, or the PUBREL of one, is sent again",
        "lost_ack": "the same after an acknowledgement that was on the wire and was not read",
        "delivered": "a message arrives that is to be delivered",
        "duplicate": "a message arrives again; at QoS 1 it is delivered again, at QoS 2 not",
        "received": "PUBREC: the other side has the message",
        "released": "PUBREL: the sender has discarded the message; only the receiver has it",
        "acknowledged": "PUBACK or PUBCOMP: the flow is complete",
        "refused": "PUBACK or PUBREC with an error code: the receiver refuses the message",
        "in_flight": "a connection, or the capture, ends before the flow does",
    }
)
"""The effects of a packet on a flow, at the sender or at the receiver."""

IN_FLIGHT: Final = frozenset(
    {"published_1", "resend_1", "published_2", "resend_2", "received", "unread_2"}
    | {"released", "rerelease", "owes_puback", "owes_pubacks", "owes_pubrec", "owes_pubrecs"}
    | {"held", "held_again", "owes_pubcomp", "owes_pubcomps"}
)
"""The states in which a message is in flight."""

MAX_IN_FLIGHT: Final = 65_535
"""Receive Maximum where there is none (MQTT 5.0, 3.1.2.11.3): there are no more identifiers."""
