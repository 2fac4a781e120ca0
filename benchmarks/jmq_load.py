"""Generator of captures of a busy JMQ broker, of any size.

Producers and consumers have connections of their own; each client program and the broker count
their packets. Messages are sent with and without a reply, in transactions, to queues and to topics
with two consumers; acknowledged singly and in batches, with and without replies. There are requests
and replies over temporary destinations, and consumers that disconnect with unacknowledged messages,
which are redelivered to others.

    python -m benchmarks.jmq_load MESSAGES FILE
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

from wireyard.formats.jmq.layout import FLAGS, PACKET_TYPES
from wireyard.formats.jmq.packet import Packet, encode
from wireyard.formats.message_id import MESSAGE_ID_CODES

__all__ = ["write_load"]

PRODUCERS, CONSUMERS, QUEUES = 100, 40, 20
BODY_BYTES = 900
BATCH, SOME = 10, 4
_BROKER = ("10.0.0.1", 7676)
_START_NS, _STEP_NS = 1_790_000_000 * 10**9, 20_000
_TYPES = {name: code for code, name in PACKET_TYPES.items()}
_A, _R, _Q = FLAGS["A"], FLAGS["R"], FLAGS["Q"]
_MESSAGE = _TYPES["TEXT_MESSAGE"]
_FRAME = struct.Struct(">6s6sHBBHHHBBH4s4sHHIIBBHHH")
_RECORD = struct.Struct("<IIII")
_ID = struct.Struct(f">{MESSAGE_ID_CODES}")
_BLOCK = struct.Struct(f">q{MESSAGE_ID_CODES}")
_FLAGS, _CONSUMER, _TRANSACTION = ((62, ">H"), (64, ">q"), (76, ">q"))
"""Offset and struct format of fields that are set in a template; the first item is the
transaction."""


def _address(host: str) -> bytes:
    return bytes(map(int, host.split(".")))


def _ip(host: str) -> bytes:
    return bytes(10) + b"\xff\xff" + _address(host)


@lru_cache(1 << 10)
def _template(
    name: str, destination: str | None, reply_to: str | None,
    properties: tuple[tuple[str, int], ...], in_transaction: bool, delivered: bool, body_bytes: int,
) -> bytes:  # fmt: skip
    return encode(
        Packet(
            packet_type=_TYPES[name],
            transaction_id=1 if in_transaction else None,
            delivery_count=1 if delivered else None,
            destination=destination,
            reply_to=reply_to,
            properties=dict(properties) or None,
            body=bytes(body_bytes) or None,
        )
    )


@dataclass
class _Capture:
    """A pcap file, and its clock."""

    file: BinaryIO
    now_ns: int = _START_NS
    packets: int = 0

    def frame(self, src: tuple[str, int], dst: tuple[str, int], seq: int, ack: int, flags: int,
              data: bytes) -> None:  # fmt: skip
        self.now_ns += _STEP_NS
        size = 40 + len(data)
        head = _FRAME.pack(
            b"\2\0\0\0\0\2", b"\2\0\0\0\0\1", 0x0800, 0x45, 0, size, 0, 0x4000, 64, 6, 0,
            _address(src[0]), _address(dst[0]), src[1], dst[1], seq & 0xFFFFFFFF,
            ack & 0xFFFFFFFF, 0x50, flags, 64240, 0, 0,
        )  # fmt: skip
        length = len(head) + len(data)
        self.file.write(_RECORD.pack(*divmod(self.now_ns, 10**9), length, length) + head + data)


@dataclass
class _Connection:
    """A connection of a client; `numbers` counts the packets of all connections of its program."""

    capture: _Capture
    client: tuple[str, int]
    numbers: list[int]
    of_broker: list[int]
    sent: list[int] = field(default_factory=lambda: [1, 1])
    ack_id: int = 0

    def __post_init__(self) -> None:
        self.capture.frame(self.client, _BROKER, 0, 0, 2, b"")
        self.capture.frame(_BROKER, self.client, 0, 1, 18, b"")

    def write(self, from_client: bool, data: bytes) -> None:
        ends = (self.client, _BROKER) if from_client else (_BROKER, self.client)
        self.capture.frame(*ends, self.sent[from_client], self.sent[not from_client], 24, data)
        self.capture.packets += 1
        self.sent[from_client] += len(data)

    def packet(
        self, name: str, from_client: bool, *, flags: int = 0, consumer: int = 0,
        destination: str | None = None, reply_to: str | None = None, transaction: int = 0,
        body: bytes = b"", body_bytes: int = 0, **properties: int,
    ) -> bytes:  # fmt: skip
        """Write a packet with the sender's next number; return its message id."""
        template = _template(
            name, destination, reply_to, tuple(properties.items()), transaction != 0, False,
            body_bytes or len(body),
        )  # fmt: skip
        data = bytearray(template)
        numbers = self.numbers if from_client else self.of_broker
        numbers[0] += 1
        host, port = self.client if from_client else _BROKER
        identity = _ID.pack(self.capture.now_ns // 1_000_000, _ip(host), port, numbers[0])
        data[20:52] = identity
        struct.pack_into(_FLAGS[1], data, _FLAGS[0], flags)
        struct.pack_into(_CONSUMER[1], data, _CONSUMER[0], consumer)
        if transaction:
            struct.pack_into(_TRANSACTION[1], data, _TRANSACTION[0], transaction)
        if body:
            data[len(data) - len(body) :] = body
        self.write(from_client, bytes(data))
        return identity

    def request(self, name: str, reply: str, *, answer: Sequence[tuple[str, int]] = (),
                flags: int = 0, **values: Any) -> bytes:  # fmt: skip
        self.ack_id += 1
        identity = self.packet(name, True, flags=flags | _A, consumer=self.ack_id, **values)
        properties: dict[str, Any] = {"JMQStatus": 200, **dict(answer)}
        self.packet(reply, False, consumer=self.ack_id, **properties)
        return identity

    def login(self) -> None:
        self.request("HELLO", "HELLO_REPLY", JMQProtocolLevel=500)
        self.packet("AUTHENTICATE_REQUEST", False)
        self.request("AUTHENTICATE", "AUTHENTICATE_REPLY", body=b"\0\5guest\0\0")

    def deliver(self, identity: bytes, consumer: int, destination: str, again: bool) -> None:
        """Write a message to its consumer, with the message id of its sender."""
        data = bytearray(_template("TEXT_MESSAGE", destination, None, (), False, True, BODY_BYTES))
        data[20:52] = identity
        struct.pack_into(_FLAGS[1], data, _FLAGS[0], _R if again else 0)
        struct.pack_into(_CONSUMER[1], data, _CONSUMER[0], consumer)
        self.write(False, bytes(data))

    def acknowledge(self, consumer: int, identities: Sequence[bytes], wants_reply: bool) -> None:
        body = b"".join(struct.pack(">q", consumer) + identity for identity in identities)
        if wants_reply:
            self.request("ACKNOWLEDGE", "ACKNOWLEDGE_REPLY", body=body)
        else:
            self.packet("ACKNOWLEDGE", True, body=body)

    def close(self) -> None:
        self.request("GOODBYE", "GOODBYE_REPLY")
        for from_client in (True, False):
            ends = (self.client, _BROKER) if from_client else (_BROKER, self.client)
            self.capture.frame(*ends, self.sent[from_client], self.sent[not from_client], 17, b"")
            self.sent[from_client] += 1


class _Load:
    """All connections, and the consumers of each queue."""

    def __init__(self, capture: _Capture, seed: int) -> None:
        self.dice = Random(seed)
        self.capture = capture
        self.of_broker = [0]
        self.transactions = 0
        self.ports = 30_000
        self.producers = [self.connect(f"10.0.1.{number + 2}") for number in range(PRODUCERS)]
        self.consumers: list[tuple[_Connection, int, str]] = []
        self.held: dict[int, list[bytes]] = {}
        for number in range(CONSUMERS):
            self.add_consumer(number + 1)

    def connect(self, host: str) -> _Connection:
        self.ports += 1
        connection = _Connection(self.capture, (host, self.ports), [0], self.of_broker)
        connection.login()
        return connection

    def add_consumer(self, number: int) -> None:
        connection = self.connect(f"10.0.2.{number % 250 + 2}")
        destination = f"orders.{number % QUEUES}"
        connection.request(
            "ADD_CONSUMER", "ADD_CONSUMER_REPLY", answer=[("JMQConsumerID", number)],
            JMQSessionID=number, JMQAckMode=1,
        )  # fmt: skip
        self.consumers.append((connection, number, destination))
        self.held[number] = []

    def send(self) -> None:
        dice = self.dice
        producer = dice.choice(self.producers)
        place = dice.randrange(QUEUES)
        destination = f"orders.{place}"
        values: dict[str, Any] = {"destination": destination, "body_bytes": BODY_BYTES}
        chance = dice.random()
        if chance < 0.2:
            self.transactions += 1
            number = self.transactions
            producer.request(
                "START_TRANSACTION", "START_TRANSACTION_REPLY",
                answer=[("JMQTransactionID", number)],
            )  # fmt: skip
            sent = [
                producer.packet("TEXT_MESSAGE", True, flags=_Q, transaction=number, **values)
                for _ in range(SOME)
            ]
            end = "ROLLBACK" if dice.random() < 0.1 else "COMMIT"
            reply = "ROLLBACK_REPLY" if end == "ROLLBACK" else "COMMIT_TRANSACTION_REPLY"
            producer.request(f"{end}_TRANSACTION", reply, JMQTransactionID=number)
            sent = [] if end == "ROLLBACK" else sent
        elif chance < 0.6:
            sent = [producer.request("TEXT_MESSAGE", "SEND_REPLY", flags=_Q, **values)]
        else:
            reply_to = "temporary_destination://queue/10.0.1.2/1/1" if chance < 0.65 else None
            sent = [producer.packet("TEXT_MESSAGE", True, reply_to=reply_to, **values)]
        for identity in sent:
            for which in {place, place + QUEUES if place % 4 == 0 else place}:
                self.deliver(identity, which)

    def deliver(self, identity: bytes, place: int, again: bool = False) -> None:
        connection, consumer, destination = self.consumers[place]
        connection.deliver(identity, consumer, destination, again)
        held = self.held[consumer]
        held.append(identity)
        if place % 2 == 0:
            connection.acknowledge(consumer, [held.pop()], wants_reply=True)
        elif len(held) >= BATCH:
            connection.acknowledge(consumer, held, wants_reply=False)
            held.clear()

    def lose_consumer(self) -> None:
        """Close a connection, and redeliver its unacknowledged messages to its successor."""
        place = self.dice.randrange(len(self.consumers))
        connection, consumer, _ = self.consumers.pop(place)
        held = self.held.pop(consumer)
        connection.close()
        self.add_consumer(consumer + CONSUMERS)
        self.consumers.insert(place, self.consumers.pop())
        for identity in held:
            self.deliver(identity, place, again=True)


def write_load(path: Path, messages: int, seed: int = 1) -> int:
    """Write a capture of about so many messages; return its number of packets."""
    with path.with_suffix(".part").open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1))
        capture = _Capture(file)
        load = _Load(capture, seed)
        for number in range(messages * 5 // 8):  # a fifth of them send four messages
            load.send()
            if number % 20_000 == 19_999:
                load.lose_consumer()
        for connection in [*load.producers, *(consumer for consumer, _, _ in load.consumers)]:
            connection.close()
    path.with_suffix(".part").replace(path)
    return capture.packets


if __name__ == "__main__":
    print(f"{write_load(Path(sys.argv[2]), int(sys.argv[1])):,} packets")
