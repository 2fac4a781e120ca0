"""The client's side of a connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from wireyard.endpoints.channel import Ended
from wireyard.endpoints.endpoint import Endpoint
from wireyard.endpoints.flows import Flows
from wireyard.endpoints.packets import Event
from wireyard.formats.mqtt.control import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from wireyard.formats.mqtt.filters import Filter
from wireyard.formats.mqtt.properties import PlainProperties
from wireyard.layers.mqtt.connection import CONNECTION
from wireyard.layers.mqtt.reasons import REASONS

_ANSWERS = {SubAck: ("suback_unasked", Subscribe), UnsubAck: ("unsuback_unasked", Unsubscribe)}


class ClientEndpoint(Endpoint):
    """The client's side of one connection.

    CONNACK, SUBACK, UNSUBACK and AUTH are events; a CONNACK that refuses is followed by `Ended`.
    """

    is_client: ClassVar = True
    receive_rule: ClassVar = "receive_maximum_broker"
    alias_rule: ClassVar = "alias_maximum_broker"
    size_rule: ClassVar = "packet_size_broker"

    keep_alive = 0
    """Seconds; in 5.0 the broker may have another one than was asked for."""

    has_session = False
    """Whether the broker continues the session; 3.1 does not say it."""

    def open(self, packet: Connect, flows: Flows) -> None:
        """Send CONNECT; `flows` are those of the session, if the broker has it still."""
        self.version = packet.version_in_force or 4
        self.context = self.version
        self.flows = flows
        self.keep_alive = packet.keep_alive
        self._is_clean = packet.clean_start
        self._pings = 0
        self._requests: dict[int, Packet] = {}
        self.flows.requests.clear()
        self.write_packet(packet)
        self.state = CONNECTION.lookup(self.state, "connect").state

    def take_packet(self, packet: Packet, now: float, events: list[Event]) -> None:
        """Act on a packet."""
        if isinstance(packet, ConnAck):
            self._take_connack(packet, now, events)
        elif isinstance(packet, PingResp):
            if not self._pings:
                self.break_rule("pingresp_unasked", events)
            self._pings = 0
        elif isinstance(packet, SubAck | UnsubAck):
            rule, asked_by = _ANSWERS[type(packet)]
            asked = self._requests.pop(packet.packet_id, None)
            self.flows.requests.discard(packet.packet_id)
            if not isinstance(asked, asked_by) or self._differs(asked, packet):
                self.break_rule(rule, events)
            else:
                events.append(packet)
        elif isinstance(packet, Auth):
            events.append(packet)
        else:
            super().take_packet(packet, now, events)

    def _differs(self, asked: Packet, packet: SubAck | UnsubAck) -> bool:
        has_codes = isinstance(packet, SubAck) or self.version == 5
        assert isinstance(asked, Subscribe | Unsubscribe)
        return has_codes and len(asked.filters) != len(packet.return_codes)

    def _take_connack(self, packet: ConnAck, now: float, events: list[Event]) -> None:
        events.append(packet)
        if packet.return_code:
            text = REASONS.get(packet.return_code, f"return code {packet.return_code}")
            self.ended = Ended(text, packet.return_code)
            events.append(self.ended)
            return
        properties: dict[str, Any] = dict(packet.properties)
        self.agree(properties)
        self.keep_alive = properties.get("server_keep_alive", self.keep_alive)
        self.has_session = packet.session_present or (self.version <= 3 and not self._is_clean)
        if self.has_session:
            self.resume(now)

    def subscribe(self, filters: Sequence[Filter], properties: PlainProperties = ()) -> int:
        """Send SUBSCRIBE; return its packet identifier."""
        packet_id = self.flows.free_id()
        return self._ask(
            Subscribe(
                packet_id=packet_id,
                filters=filters,
                properties=properties,
                version_in_force=self.version,
            ),
            packet_id,
        )

    def unsubscribe(self, filters: Sequence[str]) -> int:
        """Send UNSUBSCRIBE; return its packet identifier."""
        packet_id = self.flows.free_id()
        packet = Unsubscribe(packet_id=packet_id, filters=filters, version_in_force=self.version)
        return self._ask(packet, packet_id)

    def _ask(self, packet: Packet, packet_id: int) -> int:
        self._requests[packet_id] = packet
        self.flows.requests.add(packet_id)
        self.write_packet(packet)
        return packet_id

    def ping(self) -> None:
        """Send PINGREQ."""
        self._pings += 1
        self.write_packet(PingReq(version_in_force=self.version))

    @property
    def waits_for_ping(self) -> bool:
        """Whether a PINGREQ has no answer yet."""
        return self._pings > 0

    def authenticate(self, code: int, properties: PlainProperties) -> None:
        """Send AUTH: the next step of an enhanced authentication."""
        self.write_packet(Auth(return_code=code, properties=properties))

    def disconnect(self, *, keeps_session: bool) -> None:
        """Send DISCONNECT; in 5.0 it decides whether the broker keeps the session."""
        self.ended = Ended("disconnected")
        if self.state == "open":
            five = self.version == 5 and not keeps_session
            properties = {"session_expiry_interval": 0} if five else None
            self.write_packet(Disconnect(properties=properties, version_in_force=self.version))
