"""Captures of made-up MQTT conversations, each packet at a time of its own."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.captures.make import (
    ACK,
    BEGAN_NS,
    CLIENT,
    FIN,
    RST,
    SERVER,
    SYN,
    Packet,
    ethernet,
    ipv4,
    pcap,
    tcp,
)
from tests.formats.mqtt.make import (
    binary,
    block,
    connack,
    connect,
    packet,
    publish,
    subscribe,
    text,
)

__all__ = ["Talk", "ends_before", "puback"]

_BROKER = 1883


def puback(packet_id: int, code: bytes = b"") -> bytes:
    return packet(0x40, packet_id.to_bytes(2, "big") + code)


class _Said(NamedTuple):
    ms: float
    port: int
    up: bool
    data: bytes
    flags: int


class Talk:
    """Clients of one broker, and what was said; times are milliseconds since the capture began."""

    def __init__(self) -> None:
        self._said: list[_Said] = []

    def say(self, ms: float, port: int, data: bytes, *, up: bool) -> None:
        self._said.append(_Said(ms, port, up, data, ACK))

    def begin(self, ms: float, port: int) -> None:
        """Open a connection."""
        self._said.append(_Said(ms, port, True, b"", SYN))
        self._said.append(_Said(ms, port, False, b"", SYN | ACK))

    def login(
        self,
        ms: float,
        port: int,
        client: str,
        *,
        version: int = 4,
        will: tuple[str, bytes] | None = None,
        code: int = 0,
        properties: bytes = b"",
    ) -> None:
        """Connect, with topic and payload of a will; the broker answers 0.1 ms later."""
        flags = 2 if will is None else 6
        rest = b"" if will is None else block(version) + text(will[0]) + binary(will[1])
        self.begin(ms, port)
        login = connect(version, flags, rest, client=client, properties=properties)
        self.say(ms, port, login, up=True)
        self.say(ms + 0.1, port, connack(version, code=code), up=False)

    def subscribe(self, ms: float, port: int, topic: str, qos: int = 1, version: int = 4) -> None:
        """Subscribe; it is granted 0.1 ms later."""
        self.say(ms, port, subscribe(version, (topic, qos)), up=True)
        properties = b"\0" if version == 5 else b""
        self.say(ms + 0.1, port, packet(0x90, b"\0\x07" + properties + bytes([qos])), up=False)

    def publish(
        self, ms: float, port: int, topic: str, payload: bytes, packet_id: int, qos: int = 1
    ) -> None:
        """Publish; at QoS 1 the broker acknowledges 0.1 ms later."""
        self.say(ms, port, _publish(topic, payload, packet_id, qos), up=True)
        if qos:
            self.say(ms + 0.1, port, puback(packet_id), up=False)

    def deliver(
        self,
        ms: float,
        port: int,
        topic: str,
        payload: bytes,
        packet_id: int,
        qos: int = 1,
        acknowledged_ms: float | None = 0.2,
    ) -> None:
        """Hand a message to a client, who acknowledges so much later; never, if None."""
        self.say(ms, port, _publish(topic, payload, packet_id, qos), up=False)
        if qos and acknowledged_ms is not None:
            self.say(ms + acknowledged_ms, port, puback(packet_id), up=True)

    def end(self, ms: float, port: int, *, reset: bool = False, up: bool = True) -> None:
        """End a connection without a DISCONNECT."""
        self._said.append(_Said(ms, port, up, b"", RST if reset else FIN | ACK))

    def write(self, path: Path) -> Path:
        """Write the capture."""
        at: dict[tuple[int, bool], int] = {}
        records = []
        for said in sorted(self._said, key=lambda one: one.ms):
            ends = (said.port, _BROKER) if said.up else (_BROKER, said.port)
            hosts = (CLIENT, SERVER) if said.up else (SERVER, CLIENT)
            side, other = (said.port, said.up), (said.port, not said.up)
            seq = at.get(side, 99)
            segment = tcp(*ends, seq, said.data, said.flags, at.get(other, 0))
            at[side] = seq + len(said.data) + bool(said.flags & (SYN | FIN))
            data = ethernet(ipv4(segment, 6, *hosts))
            records.append(Packet(data, BEGAN_NS + round(said.ms * 1e6)))
        path.write_bytes(pcap(records))
        return path


def _publish(topic: str, payload: bytes, packet_id: int, qos: int) -> bytes:
    number = packet_id if qos else None
    return publish(4, 0x30 | qos << 1, topic, packet_id=number, payload=payload)


_SESSION_5_S, _WILL_5_S, _MESSAGE_5_S = (bytes([code, 0, 0, 0, 5]) for code in (0x11, 0x18, 2))


def ends_before(name: str) -> Talk:
    """Return a talk that ends before the deadline of a thing, 5 seconds later."""
    talk, subscribed = Talk(), packet(0x90, b"\0\x07\0\1")
    expiry = b"\x11\xff\xff\xff\xff" if name in ("message", "will") else _SESSION_5_S
    will = block(5, _WILL_5_S) + text("t") + b"\0\1x" if name == "will" else b""
    for ms, port, client in ((1, 5001, "sub"), (2, 5002, "pub")):
        flags, rest = (4, will) if will and client == "pub" else (0, b"")
        login = connect(5, flags, rest, client=client, properties=expiry)
        talk.begin(ms, port)
        talk.say(ms, port, login, up=True)
        talk.say(ms + 0.1, port, connack(5), up=False)
    talk.say(5, 5001, subscribe(5, ("t", 1)), up=True)
    talk.say(5.1, 5001, subscribed, up=False)
    message = publish(5, 0x32, "t", 1, b"x", _MESSAGE_5_S if name == "message" else b"")
    if name == "delivery":
        talk.say(10, 5002, message, up=True)
        talk.say(10.1, 5002, puback(1), up=False)
        talk.say(10.2, 5001, publish(5, 0x32, "t", 1, b"x"), up=False)
        talk.end(20, 5001)
    elif name == "will":
        talk.end(20, 5002, reset=True)
    else:
        talk.say(6, 5001, b"\xe0\0", up=True)
        talk.end(7, 5001)
        talk.say(10, 5002, message, up=True)
        talk.say(10.1, 5002, puback(1), up=False)
    return talk
