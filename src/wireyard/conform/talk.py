"""A small conversation of clients with a broker: what they send, and what has to come."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from wireyard.formats.mqtt import control as mqtt
from wireyard.formats.mqtt.control import Packet
from wireyard.replay.script import (
    Came,
    End,
    Key,
    Pause,
    Recorded,
    Script,
    Send,
    Step,
    acknowledging,
)

_ACKS: tuple[type[Packet] | None, ...] = (None, mqtt.PubAck, mqtt.PubRec)


class Wanted(NamedTuple):
    """A packet that has to come, and fields that it has to have."""

    key: Key
    about: str
    fields: dict[str, Any]


class Talk:
    """A conversation, for a replay.

    All clients have the same `version`. Client ids and topics begin with `name`, so that no two
    conversations share any. Of its attributes, `script` is what happens, `wanted` what has to come,
    and `unwanted` what must not come, by its key and in words. Packets in `ordered` have to come in
    this order.
    """

    def __init__(self, version: int, name: str) -> None:
        self.version, self.name = version, name
        self.script = Script()
        self.wanted: list[Wanted] = []
        self.unwanted: list[tuple[Key, str]] = []
        self.ordered: list[Key] = []
        self.ends: list[Recorded] = []
        """The connections that the broker has to end."""
        self._open: dict[str, Recorded] = {}
        self._count = 0
        self._ids: Counter[str] = Counter()
        self._came: Counter[Key] = Counter()

    def topic(self, name: str) -> str:
        """Return a topic, or a filter, of this conversation alone."""
        return name if self.name in name else f"{self.name}/{name}"

    # --- what clients do ------------------------------------------------------------------

    def open(self, client: str) -> None:
        """Begin a connection with the next packet."""
        self._count += 1
        self._open[client] = Recorded(self._count, f"{self.name}{client}", self.version)

    def connect(self, client: str, *, present: bool = False, **fields: Any) -> None:
        """Connect, and be accepted."""
        self.open(client)
        self.send(client, mqtt.Connect, **{"client_id": self._open[client].client} | fields)
        accepted = {"return_code": 0, "session_present": present}
        self.came(client, "CONNACK", mqtt.ConnAck, **accepted)

    def resume(self, client: str, *, expiry: int = 600, **fields: Any) -> None:
        """Connect to a session that outlives its connections."""
        if self.version == 5:
            properties = dict(fields.pop("properties", {}))
            fields["properties"] = {"session_expiry_interval": expiry} | properties
        self.connect(client, clean_start=False, **fields)

    def send(
        self, client: str, kind: type[Packet], message: Key | None = None, **fields: Any
    ) -> None:
        """Send a packet."""
        packet = kind(version_in_force=self.version, **fields)
        what = Send(packet) if message is None else acknowledging(packet, message)
        self._step(client, what)

    def send_bytes(self, client: str, data: bytes) -> None:
        """Send bytes that are a packet, or none."""
        self._step(client, Send(data))

    def subscribe(self, client: str, *filters: tuple[str, int], **fields: Any) -> None:
        """Subscribe to filters, each with its options; the QoS is granted."""
        self._ids[client] += 1
        named = [(self.topic(name), options) for name, options in filters]
        self.send(client, mqtt.Subscribe, packet_id=self._ids[client], filters=named, **fields)
        granted = tuple(options & 3 for _, options in filters)
        self.came(client, "SUBACK", mqtt.SubAck, self._ids[client], return_codes=granted)

    def publish(
        self, client: str, topic: str, payload: bytes = b"x", qos: int = 0, **fields: Any
    ) -> None:
        """Publish a message, and complete its flow."""
        topic = self.topic(topic)
        number: int | None = None
        if qos:
            self._ids[client] += 1
            number = self._ids[client]
        self.send(
            client, mqtt.Publish, topic=topic, payload=payload, qos=qos, packet_id=number, **fields
        )  # fmt: skip
        if qos == 1:
            self.came(client, "PUBACK", mqtt.PubAck, number)
        elif qos:
            self.came(client, "PUBREC", mqtt.PubRec, number)
            self.send(client, mqtt.PubRel, packet_id=number)
            self.came(client, "PUBCOMP", mqtt.PubComp, number)

    def pair(self, *filters: tuple[str, int], **fields: Any) -> None:
        """Connect a subscriber and a publisher, ``sub`` and ``pub``."""
        self.connect("sub", **fields)
        self.subscribe("sub", *filters)
        self.connect("pub")

    def ping(self, client: str) -> None:
        """Wait until the broker has read all that was sent."""
        self.send(client, mqtt.PingReq)
        self.came(client, "PINGRESP", mqtt.PingResp)

    def leave(self, client: str, *, by_reset: bool = False, **fields: Any) -> None:
        """End a connection, by DISCONNECT unless by a reset."""
        if not by_reset:
            self.send(client, mqtt.Disconnect, **fields)
        self._step(client, End(True, by_reset))

    def pause(self, seconds: float) -> None:
        """Wait."""
        self._step(next(iter(self._open)), Pause(seconds))

    # --- what the broker does -------------------------------------------------------------

    def came(
        self, client: str, text: str, kind: type[Packet], *about: object, **fields: Any
    ) -> Key:
        """Have a packet come, with these fields; return its key."""
        key = self._key(client, kind, *about)
        self._came[key[:-1]] += 1
        self._step(client, Came(key))
        self.wanted.append(Wanted(key, f"{text} to {client}", fields))
        return key

    def gets(
        self, client: str, topic: str, payload: bytes = b"x", qos: int = 0, *, ack: bool = True,
        **fields: Any,
    ) -> Key:  # fmt: skip
        """Have a message come, and complete its flow, unless it is not acknowledged."""
        topic = self.topic(topic)
        text = f"PUBLISH on {topic}"
        key = self.came(client, text, mqtt.Publish, topic, payload, qos=qos, **fields)
        kind = _ACKS[qos]
        if kind is not None and ack:
            self.send(client, kind, key, packet_id=1)
            if qos == 2:
                self.came(client, "PUBREL", mqtt.PubRel, *key)
                self.send(client, mqtt.PubComp, key, packet_id=1)
        return key

    def gets_not(self, client: str, topic: str, payload: bytes = b"x") -> None:
        """Have no, or no other, message come, as far as the broker's answer to a PINGREQ shows."""
        self.ping(client)
        topic = self.topic(topic)
        key = self._key(client, mqtt.Publish, topic, payload)
        self.unwanted.append((key, f"PUBLISH on {topic} to {client}"))

    def is_ended(self, client: str) -> None:
        """Have the broker end a connection."""
        self.ends.append(self._open[client])
        self._step(client, End(False, False))

    def _key(self, client: str, kind: type[Packet], *about: object) -> Key:
        key = self._open[client].number, kind, *about
        return *key, self._came[key] + 1

    def _step(self, client: str, what: Send | Came | Pause | End) -> None:
        self.script.steps.append(Step(0, 0, self._open[client], what))
