"""The two sides of a connection.

CONNECT, SUBSCRIBE, UNSUBSCRIBE and AUTH are events of the broker's side that its caller answers:
with `accept`, `suback`, `unsuback`, `challenge`, or `end`. From CONNECT or AUTH to the answer
nothing is read. Their answers are events of the client's side; a CONNACK that refuses is followed
by `Ended`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from wireyard.endpoints.channel import Ended
from wireyard.endpoints.codes import CONNACK_3, PROTOCOL_ERROR, UNKNOWN_VERSION, code_of_error
from wireyard.endpoints.endpoint import Endpoint
from wireyard.endpoints.messages import MQIPDP, Flows
from wireyard.endpoints.packets import ERROR, Event
from wireyard.errors import DecodeError
from wireyard.formats.mqtt.control import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from wireyard.formats.mqtt.filters import Filter
from wireyard.formats.mqtt.layout import PROTOCOLS, SPECS, VERSION_BITS
from wireyard.formats.mqtt.packet import decode
from wireyard.formats.mqtt.properties import PlainProperties
from wireyard.formats.mqtt.writing import encode
from wireyard.layers.mqtt.connection import CONNECTION
from wireyard.layers.mqtt.reasons import REASONS

_ANSWERS = {SubAck: ("suback_unasked", Subscribe), UnsubAck: ("unsuback_unasked", Unsubscribe)}
_STRICT = 4
"""The first version with Session Present, and with rules for all that topics may be."""
_LOGIN_REFUSED = (4, 5)
"""Return codes that 1999, which has no logins, does not have."""
_NAME, _HEAD_BYTES = PROTOCOLS[5].encode(), 16
_PATIENCE = 1.5
"""Times its keep-alive that a client may be silent (MQTT-3.1.2-22 of 5.0)."""


class ClientEndpoint(Endpoint):
    """The client's side of one connection."""

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


class ServerEndpoint(Endpoint):
    """The broker's side of one connection; an MQTT client of any version is the other."""

    is_client: ClassVar = False
    receive_rule: ClassVar = "receive_maximum_client"
    alias_rule: ClassVar = "alias_maximum_client"
    size_rule: ClassVar = "packet_size_client"

    connect: Connect | None = None
    """The client's CONNECT, once it has arrived."""
    keep_alive = 0

    @property
    def keep_alive_until(self) -> float | None:
        """When the client has been silent for too long; None if it may be."""
        return self.heard_at + _PATIENCE * self.keep_alive if self.keep_alive else None

    def take_packet(self, packet: Packet, now: float, events: list[Event]) -> None:
        """Act on a packet."""
        if self.version < _STRICT and self._breaks_later_rule(packet, events):
            return
        if isinstance(packet, PingReq):
            self.write_packet(PingResp(version_in_force=self.version))
        elif isinstance(packet, Connect):
            if self.version < self.limits.oldest_version:
                self.end_by(UNKNOWN_VERSION, f"speaks {SPECS[self.version]}", events)
                return
            self.connect = packet
            self.agree(dict(packet.properties))
            self.is_paused = True
            events.append(packet)
        elif isinstance(packet, Auth):
            asked = dict(self.connect.properties) if self.connect is not None else {}
            method = dict(packet.properties or ()).get("authentication_method")
            if method is None or method != asked.get("authentication_method"):
                text = "sends AUTH with another method than CONNECT [MQTT-4.12.0-5]"
                self.end_by(PROTOCOL_ERROR, text, events)
                return
            self.is_paused = True
            events.append(packet)
        elif isinstance(packet, Subscribe | Unsubscribe):
            events.append(packet)
        else:
            super().take_packet(packet, now, events)

    def _breaks_later_rule(self, packet: Packet, events: list[Event]) -> bool:
        """End the connection because of a topic or filter that 3.1.1 forbids; say whether.

        1999 and 3.1 allow more in them, but clients of any version get the messages.
        """
        later: Packet
        match packet:
            case Publish(topic=str(topic)) | Connect(will_topic=str(topic)):
                later = Publish(topic=topic)
            case Subscribe(filters=filters) | Unsubscribe(filters=filters) if filters:
                later = Unsubscribe(packet_id=1, filters=[one.filter or "" for one in filters])
            case _:
                return False
        try:
            decode(encode(later), _STRICT)
        except DecodeError as error:
            self.break_packet(error, b"", events)
            return True
        return False

    # --- answers --------------------------------------------------------------------------

    def accept(
        self, flows: Flows, is_present: bool, properties: Mapping[str, Any], now: float
    ) -> list[Event]:
        """Accept the CONNECT; send what is in flight again, and read on.

        Parameters
        ----------
        flows
            Those of the session.
        is_present
            Whether the broker had the session.
        properties
            Those of CONNACK in 5.0 that do not follow from the limits.
        """
        self.state = CONNECTION.lookup(self.state, "connack").state
        self.flows = flows
        announced = {
            "receive_maximum": self.limits.receive_maximum,
            "maximum_packet_size": self.limits.max_packet_bytes,
            "topic_alias_maximum": self.limits.topic_alias_maximum,
        }
        packet = ConnAck(
            session_present=is_present and self.version >= _STRICT,
            properties={**announced, **properties} if self.version == 5 else (),
            version_in_force=self.version,
        )
        self.write_packet(packet)
        self.resume(now)
        return self.read_on(now)

    def end(self, code: int, text: str, *, by_client: bool = False) -> Ended | None:
        """End the connection: by CONNACK before it is accepted, in 5.0 else by DISCONNECT."""
        if self.ended is None and self.state == "asked" and not by_client:
            self._refuse(code)
        return super().end(code, text, by_client=by_client)

    def _refuse(self, code: int) -> None:
        return_code = code if self.version == 5 else CONNACK_3.get(code)
        if self.version == MQIPDP and return_code in _LOGIN_REFUSED:
            return_code = None
        if return_code is not None:
            self.write_packet(ConnAck(return_code=return_code, version_in_force=self.version))
            self.state = CONNECTION.lookup(self.state, "refusal").state

    def break_packet(self, error: DecodeError, data: bytes, events: list[Event]) -> None:
        """End the connection; a CONNECT is refused by CONNACK, where a return code says why.

        A client of a version that is not known reads the CONNACK of 5.0, if it is no older one.
        """
        version = self.context & VERSION_BITS
        code = code_of_error(error, version)
        if self.state == "new" and code in (UNKNOWN_VERSION, 133):
            self.version = version or (5 if _NAME in data[:_HEAD_BYTES] else 3)
            self._refuse(code)
        super().break_packet(error, data, events)

    def suback(self, packet: Subscribe, codes: Sequence[int]) -> None:
        """Answer a SUBSCRIBE with a reason code of 5.0 for each filter."""
        known = codes if self.version == 5 else [min(code, ERROR) for code in codes]
        self.write_packet(
            SubAck(packet_id=packet.packet_id, return_codes=known, version_in_force=self.version)
        )

    def unsuback(self, packet: Unsubscribe, codes: Sequence[int]) -> None:
        """Answer an UNSUBSCRIBE, in 5.0 with a reason code for each filter."""
        known = codes if self.version == 5 else ()
        self.write_packet(
            UnsubAck(packet_id=packet.packet_id, return_codes=known, version_in_force=self.version)
        )

    def challenge(self, code: int, properties: Mapping[str, Any], now: float) -> list[Event]:
        """Send AUTH: the next step of an enhanced authentication, or its end; read on."""
        self.write_packet(Auth(return_code=code, properties=properties))
        return self.read_on(now)
