"""JMQ clients of a broker's core, packet by packet, at times that a test sets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from tests.broker import talk
from wireyard import jmq
from wireyard.broker.jmq.connections import Connection
from wireyard.broker.jmq.core import JmqCore
from wireyard.broker.jmq.persistence import TABLES
from wireyard.endpoints import Tap
from wireyard.endpoints.jmq.packets import BLOCK
from wireyard.formats import get_format
from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES
from wireyard.formats.jmq.packet import encode
from wireyard.formats.jmq.router import RouterView
from wireyard.formats.jmq_names import PACKET_TYPES
from wireyard.formats.properties import Property
from wireyard.streams.decoder import Decoder

QUEUE, TOPIC = 1, 2
LONGS = ("JMQSessionID", "JMQConsumerID", "JMQProducerID", "JMQTransactionID")


class Broker(talk.Broker):
    """The same for JMQ."""

    _OF_CORE = JmqCore, TABLES
    core: JmqCore


class Peer:
    """A connection of a client.

    Parameters
    ----------
    tap, wire
        Get what passes: as the endpoint shows it for a record, and as its socket has it.
    """

    _ports = itertools.count(40_000)

    def __init__(
        self, broker: Broker, tap: Tap | None = None, wire: Tap = lambda arrived, data: None
    ) -> None:
        self.broker, self._wire = broker, wire
        self.port = next(self._ports)
        link = broker.core.open_link(f"127.0.0.1:{self.port}", tap)
        assert link is not None
        self.link: Connection = link
        self._decoder = Decoder(get_format("jmq"))
        self._ids, self._sequence = itertools.count(1), itertools.count(1)
        self.early: list[jmq.Packet] = []
        """What came together with the last reply."""
        self.raw = b""
        """The bytes that the broker has sent since they were looked at."""

    # --- packets --------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._wire(True, data)
        self.broker.core.receive(self.link, data, self.broker.now)

    def packet(
        self, kind: str, properties: Mapping[str, Any] | None = None, **fields: Any
    ) -> bytes:
        """Return a packet with the next id of this client."""
        typed = {
            name: Property("long", value) if name in LONGS else value
            for name, value in (properties or {}).items()
        }
        return encode(
            jmq.Packet(
                packet_type=kind,
                properties=typed or None,
                timestamp=int(self.broker.now * 1000),
                source_ip="127.0.0.1",
                source_port=self.port,
                sequence=next(self._sequence),
                **fields,
            )
        )

    def tell(self, kind: str, properties: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Send a packet that wants no reply."""
        self.write(self.packet(kind, properties, **fields))

    def ask(
        self, kind: str, properties: Mapping[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Send a request; return the values of its reply, with its body under ``body``."""
        number = next(self._ids)
        self.tell(kind, properties, bit_flags="A", consumer_id=number, **fields)
        self.early = self.received()
        for packet in self.early:
            name = packet.packet_type_name or ""
            if packet.consumer_id == number and packet.packet_type not in MESSAGE_TYPES:
                self.early.remove(packet)
                return values(packet) | {"body": packet.body or b"", "type": name}
        raise AssertionError(f"no reply to {kind}, but {self.early}")

    def received(self) -> list[jmq.Packet]:
        """Return the packets that the broker has sent since."""
        for _ in self.broker.core.take_dirty():
            pass
        data = self.link.endpoint.take()
        self._wire(False, data)
        self.raw += data
        self._decoder.receive_data(data)
        events = list(self._decoder.events())
        assert all(event.error is None for event in events)
        early, self.early = self.early, []
        return early + [event.packet for event in events]

    def messages(self) -> list[jmq.Packet]:
        return [one for one in self.received() if one.packet_type in MESSAGE_TYPES]

    def texts(self) -> list[str]:
        return [(one.body or b"").decode() for one in self.messages()]

    # --- what clients do ------------------------------------------------------------------

    def hello(self, size: int = 0, level: int = 500) -> dict[str, Any]:
        return self.ask("HELLO", {"JMQProtocolLevel": level, "JMQRBufferSize": size})

    def log_in(self, kind: str, user: str, secret: str) -> dict[str, Any]:
        body = b"".join(len(text).to_bytes(2, "big") + text.encode() for text in (user, secret))
        return self.ask("AUTHENTICATE", {"JMQAuthType": kind}, body=body)

    def session(self, ack_mode: int | None = 1) -> int:
        mode = {} if ack_mode is None else {"JMQAckMode": ack_mode}
        return int(self.ask("CREATE_SESSION", mode)["JMQSessionID"])

    def producer(self, name: str, kind: int = QUEUE) -> int:
        found = self.ask("ADD_PRODUCER", {"JMQDestination": name, "JMQDestType": kind})
        assert found["JMQStatus"] == 200
        return int(found["JMQProducerID"])

    def consume(self, session: int, name: str, kind: int = QUEUE, **more: Any) -> dict[str, Any]:
        """Ask for a consumer; `more` are properties without their JMQ."""
        asked = {"JMQDestination": name, "JMQDestType": kind, "JMQSessionID": session}
        asked |= {f"JMQ{key}": value for key, value in more.items()}
        return self.ask("ADD_CONSUMER", asked)

    def consumer(self, session: int, name: str, kind: int = QUEUE, **more: Any) -> int:
        found = self.consume(session, name, kind, **more)
        assert found["JMQStatus"] == 200, found
        return int(found["JMQConsumerID"])

    def send(self, producer: int, text: str, kind: int = QUEUE, **fields: Any) -> int:
        """Send a message; return its status."""
        fields = {"destination": "q", "bit_flags": "QA" if kind == QUEUE else "A"} | fields
        number = next(self._ids)
        packet = self.packet(
            "TEXT_MESSAGE", fields.pop("properties", None), producer_id=producer, body=text,
            consumer_id=number, **fields,
        )  # fmt: skip
        self.write(packet)
        self.early = self.received()
        for one in self.early:
            if one.packet_type_name == "SEND_REPLY" and one.consumer_id == number:
                self.early.remove(one)
                return int(values(one)["JMQStatus"])
        return 0

    def acknowledge(self, *messages: jmq.Packet, **more: Any) -> int:
        """Acknowledge messages; `more` are properties without their JMQ, or the transaction."""
        transaction = more.pop("transaction", None)
        found = self.ask(
            "ACKNOWLEDGE",
            {f"JMQ{key}": value for key, value in more.items()},
            body=blocks(messages),
            transaction_id=transaction,
        )
        return int(found["JMQStatus"])

    def lose(self) -> None:
        self.broker.core.lose(self.link)


def values(packet: jmq.Packet) -> dict[str, Any]:
    return {name: entry.value for name, entry in (packet.properties or {}).items()}


def key_of(message: jmq.Packet) -> bytes:
    return RouterView(encode(message)).message_key


def blocks(messages: Any) -> bytes:
    return b"".join(BLOCK.pack(one.consumer_id, key_of(one)) for one in messages)


def joined(broker: Broker, size: int = 0, client_id: str | None = None, **more: Any) -> Peer:
    """Return a client that is logged in, and whose connection is started."""
    peer = Peer(broker, **more)
    assert peer.hello(size)["JMQStatus"] == 200
    peer.early.clear()
    assert peer.log_in("digest", "guest", "0")["JMQStatus"] == 200
    if client_id is not None:
        assert peer.ask("SET_CLIENTID", {"JMQClientID": client_id})["JMQStatus"] == 200
    peer.tell("START")
    return peer


def has_flag(message: jmq.Packet, letter: str) -> bool:
    return bool(message.bit_flags & FLAGS[letter])


def names(packets: list[jmq.Packet]) -> list[str]:
    return [PACKET_TYPES[packet.packet_type] for packet in packets]
