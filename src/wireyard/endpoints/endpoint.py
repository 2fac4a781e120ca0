"""Messages of one connection: what both sides do with PUBLISH and its acknowledgements.

The caller gives the time, and `Flows` are those of the session, over all of its connections.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from wireyard.endpoints.channel import Ended, Limits, Tap
from wireyard.endpoints.codes import NOT_FOUND, code_of_rule
from wireyard.endpoints.messages import MQIPDP, Delivery, Flows, Message, key_of, publish_packet
from wireyard.endpoints.packets import (
    ERROR,
    PLAIN_ACKS,
    Burst,
    Completed,
    Event,
    PacketEndpoint,
    Received,
    Released,
)
from wireyard.formats.mqtt.control import (
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from wireyard.formats.mqtt.layout import MAX_PACKET_BYTES
from wireyard.formats.mqtt.writing import encode
from wireyard.layers.mqtt.qos import MAX_IN_FLIGHT

_CLASSES = {"puback": PubAck, "pubrec": PubRec, "pubrel": PubRel, "pubcomp": PubComp}
_EVENTS: dict[type[Packet], str] = {packet: event for event, packet in _CLASSES.items()}
_HEADS = {event: bytes((first, 2)) for first, event in PLAIN_ACKS.items()}
_PUBLISH_EVENTS = ("", "publish_1", "publish_2")
_DUP_EVENTS = ("", "dup_1", "dup_2")
_DUP = 8


class Endpoint(PacketEndpoint):
    """One side of one connection."""

    receive_rule: ClassVar[str]
    alias_rule: ClassVar[str]

    def __init__(
        self,
        limits: Limits | None = None,
        known: dict[bytes, str] | None = None,
        tap: Tap | None = None,
    ) -> None:
        super().__init__(limits, known, tap)
        self.flows = Flows()
        self._window = self.limits.in_flight
        self._aliases_in: dict[int, str] = {}
        self._aliases_out: dict[str, int] = {}
        self._most_aliases = 0
        self._to_resend: list[int] = []

    def agree(self, announced: dict[str, Any]) -> None:
        """Respect the limits that the other side announces in CONNECT or CONNACK."""
        self._window = min(announced.get("receive_maximum", MAX_IN_FLIGHT), self.limits.in_flight)
        self.peer_max_packet = announced.get("maximum_packet_size", MAX_PACKET_BYTES)
        self._most_aliases = min(
            announced.get("topic_alias_maximum", 0), self.limits.topic_alias_maximum
        )

    @property
    def _word_order(self) -> Literal["little", "big"]:
        return "little" if self.version == MQIPDP else "big"

    # --- messages in ----------------------------------------------------------------------

    def take_packet(self, packet: Packet, now: float, events: list[Event]) -> None:
        """Act on a packet that either side may send."""
        if isinstance(packet, Publish):
            self._take_publish(packet, now, events)
        elif isinstance(packet, PubAck | PubRec | PubRel | PubComp):
            event, code = _EVENTS[type(packet)], packet.return_code or 0
            fails = code >= ERROR and event in ("puback", "pubrec")
            self.read_ack(f"{event}_error" if fails else event, packet.packet_id, code, events)
        elif isinstance(packet, Disconnect):
            self.ended = Ended("disconnected", packet.return_code or 0, packet)
            events.append(self.ended)

    def _take_publish(self, packet: Publish, now: float, events: list[Event]) -> None:
        topic = packet.topic
        properties: dict[str, Any] = dict(packet.properties)
        alias = properties.get("topic_alias")
        if "subscription_identifier" in properties and not self.is_client:
            self.break_rule("subscription_identifier", events)
            return
        if alias is not None:
            if alias > self.limits.topic_alias_maximum:
                self.break_rule(self.alias_rule, events)
                return
            if topic:
                self._aliases_in[alias] = topic
            elif alias not in self._aliases_in:
                self.break_rule("alias_unknown", events)
                return
            topic = self._aliases_in[alias]
        if not properties and self.version != MQIPDP:
            self.remember(packet)
        self.take_message(Message.of(packet, topic, now), events)

    def take_message(self, message: Message, events: list[Event]) -> None:
        """Begin or continue the flow of a message that arrived; its event is the message."""
        if not message.qos:
            events.append(message)
            return
        event = _DUP_EVENTS[message.qos] if message.dup else _PUBLISH_EVENTS[message.qos]
        cell = self.flows.received(message.packet_id, event)
        if len(self.flows.receiving) > self.limits.receive_maximum:
            self._refuse_more(events)
        elif cell.effect == "delivered" or message.qos == 1:
            events.append(message)
        elif cell.state == "owes_pubrec":
            self.acknowledge(message)

    def _refuse_more(self, events: list[Event]) -> None:
        """End a connection with too many messages in flight; before 5.0 no rule limits them."""
        if self.version == 5:
            self.break_rule(self.receive_rule, events)
        else:
            most = self.limits.receive_maximum
            code = code_of_rule(self.receive_rule)
            self.end_by(code, f"has more than {most} messages in flight", events)

    def acknowledge(self, message: Message, code: int = 0) -> None:
        """Acknowledge a message of QoS 1 or 2; do nothing for one of QoS 0.

        Where the connection is over the flow goes on all the same, and the acknowledgement follows
        when the message is sent again.
        """
        if not message.qos:
            return
        event = "puback" if message.qos == 1 else "pubrec"
        fails = code >= ERROR
        cell = self.flows.received(message.packet_id, f"{event}_error" if fails else event)
        if cell.rule is None and self.ended is None and self.state == "open":
            self._send_ack(event, message.packet_id, code)

    # --- messages out ---------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Messages of QoS 1 and 2 that may be sent before another one is acknowledged."""
        if self._to_resend or self.state != "open":
            return 0
        return self._window - len(self.flows.sending)

    def send(self, delivery: Delivery, now: float) -> bool:
        """Send a message; return False, and send nothing, if it is too large for the receiver.

        A message of QoS 1 or 2 needs `room`.
        """
        message, qos = delivery.message, delivery.qos
        alias, is_new = self._alias_of(message.topic) if self._most_aliases else (None, True)
        pieces = None
        if alias is None and not delivery.identifiers:
            pieces = message.encoded.get(key_of(self.version, qos, delivery.retain))
        before, after = pieces or publish_packet(delivery, self.version, now, alias, is_new)
        size = len(before) + len(after) + (2 if qos else 0)
        if size > self.peer_max_packet:
            return False
        if alias is not None:
            self._aliases_out[message.topic] = alias
        self.out.append(before)
        if qos:
            self.out.append(self.flows.begin(delivery).to_bytes(2, self._word_order))
            self.out.append(after)
        self.unsent_bytes += size
        return True

    def forward(self, message: Message, retain: bool) -> bool:
        """Send a message at QoS 0 in the form that other receivers were sent.

        Return False, and send nothing, if there is no form that fits this receiver; `send` makes
        it.
        """
        pieces = message.encoded.get(key_of(self.version, 0, retain))
        if pieces is None or self._most_aliases or len(pieces[0]) > self.peer_max_packet:
            return False
        self.out.append(pieces[0])
        self.unsent_bytes += len(pieces[0])
        return True

    def forward_burst(self, burst: Burst) -> bool:
        """Send packets as they came; return False, and send nothing, if they may not fit."""
        data = burst.data
        is_alike = burst.version == self.version and not self._most_aliases
        if not is_alike or len(data) > self.peer_max_packet:
            return False
        self.out.append(data)
        self.unsent_bytes += len(data)
        return True

    def _alias_of(self, topic: str) -> tuple[int | None, bool]:
        """Return the topic alias to send, and whether the topic has to be beside it."""
        alias = self._aliases_out.get(topic)
        if alias is not None:
            return alias, False
        free = len(self._aliases_out) + 1
        return (free if free <= self._most_aliases else None), True

    def resume(self, now: float) -> None:
        """Send again what the session had in flight when its last connection ended."""
        self.flows.resume()
        for packet_id in self.flows.to_release():
            self._send_ack("pubrel", packet_id)
        self._to_resend = self.flows.to_resend()[::-1]
        self._resend(now)

    def _resend(self, now: float) -> None:
        while self._to_resend and len(self.flows.sending) - len(self._to_resend) < self._window:
            packet_id = self._to_resend.pop()
            delivery = self.flows.resend(packet_id)
            before, after = publish_packet(delivery, self.version, now, None, True)
            flags = bytes((before[0] | _DUP,))
            number = packet_id.to_bytes(2, self._word_order)
            self.write(flags + before[1:] + number + after)

    # --- acknowledgements -----------------------------------------------------------------

    def read_ack(self, event: str, packet_id: int, code: int, events: list[Event]) -> None:
        """Continue a flow, and answer; the event of a message that was sent is `Completed`."""
        if event == "pubrel":
            cell = self.flows.received(packet_id, event)
            if cell.rule is None:
                self.flows.received(packet_id, "pubcomp")
                events.append(Released(packet_id))
                self._send_ack("pubcomp", packet_id, 0 if cell.effect else NOT_FOUND)
        else:
            delivery = self.flows.sending.get(packet_id)
            cell = self.flows.sent(packet_id, event)
            if cell.effect == "received" and delivery is not None:
                events.append(Received(delivery))
                self.flows.sent(packet_id, "pubrel")
                self._send_ack("pubrel", packet_id)
            elif cell.effect is not None and delivery is not None:
                # PUBCOMP has only one other code: the receiver had completed the flow before.
                events.append(Completed(delivery, 0 if event == "pubcomp" else code))
                self._resend(self.heard_at)
        if cell.rule is not None:
            self.break_rule(cell.rule, events)

    def _send_ack(self, event: str, packet_id: int, code: int = 0) -> None:
        is_new = self.version == 5
        if (code and is_new) or self.version == MQIPDP:
            reason = code if is_new else None
            packet = _CLASSES[event](
                packet_id=packet_id, return_code=reason, version_in_force=self.version
            )
            self.write(encode(packet))
        else:
            self.write(_HEADS[event] + packet_id.to_bytes(2, "big"))
