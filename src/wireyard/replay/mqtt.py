"""What the MQTT clients of a recording say to another broker.

In a script that `takes_all`, a message that the recording does not show is acknowledged at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Final

from wireyard.formats.mqtt.control import ConnAck, Connect, Packet, PubComp, Publish, PubRel
from wireyard.formats.mqtt.writing import encode
from wireyard.layers.mqtt.reasons import REASONS
from wireyard.replay.script import (
    ACKNOWLEDGED_BY,
    Acknowledgement,
    Arrivals,
    Came,
    Deliveries,
    Key,
    Login,
    Recorded,
    Script,
    Send,
    Talk,
)

_DIALECTS: Final = {2: "mqipdp", 3: "3.1", 4: "3.1.1", 5: "5.0"}


class MqttTalks:
    """What all connections of a replay have in common."""

    def __init__(self, script: Script, logins: Mapping[str, Login]) -> None:
        self.logins = logins
        self.deliveries: defaultdict[str, Deliveries] = defaultdict(Deliveries)
        self.expected: Set[Key] | None = None
        """What the broker sends in the script, if all else is acknowledged at once."""
        if script.takes_all:
            came = (step.what for step in script.steps)
            self.expected = {what.key for what in came if isinstance(what, Came)}

    def __call__(self, recorded: Recorded) -> Talk:
        """Return what is said on a connection."""
        return _Talk(self, recorded)


class _Talk:
    """One connection of a client."""

    service: str | None = None

    def __init__(self, all: MqttTalks, recorded: Recorded) -> None:
        self.format = f"mqtt/{_DIALECTS[recorded.version]}"
        deliveries = all.deliveries[recorded.client]
        self.known: Mapping[Key, object] = deliveries.ids
        self._ids = deliveries.ids
        self._client, self._logins, self._expected = recorded.client, all.logins, all.expected
        self._arrivals = Arrivals(recorded.number, deliveries)

    def add(self, packet: Packet) -> Key:
        """Take note of the next packet of the broker; return its key."""
        return self._arrivals.add(packet)

    def answer(self, key: Key, packet: Packet) -> bytes | None:
        """Return the acknowledgement of a message that the recording does not show."""
        if self._expected is None or key in self._expected:
            return None
        if not isinstance(packet, Publish | PubRel):
            return None
        kind = ACKNOWLEDGED_BY[packet.qos] if isinstance(packet, Publish) else PubComp
        if kind is None:
            return None
        return encode(
            kind(packet_id=packet.packet_id or 0, version_in_force=packet.version_in_force)
        )

    def refusal(self, packet: Packet) -> str | None:
        """Return why the broker refuses the connection, if the packet does."""
        if not isinstance(packet, ConnAck) or not packet.return_code:
            return None
        return REASONS.get(packet.return_code, f"return code {packet.return_code}")

    def send(self, what: Send) -> bytes:
        """Return the bytes of a packet, with the login and the packet identifier of today."""
        packet = what.packet
        if isinstance(packet, bytes):
            return packet
        assert isinstance(packet, Packet)
        if isinstance(packet, Connect):
            login = self._logins.get(self._client) or self._logins.get(packet.username or "")
            packet = packet if login is None else replace(packet, **login._asdict())
        elif isinstance(packet, Acknowledgement) and what.awaits:
            packet = replace(packet, packet_id=self._ids[what.awaits[0]])
        return encode(packet)
