"""Packets of a conversation made by hand, as rows."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from tests.layers.jmq.judge import derive
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import FLAGS, HEADERS, PACKET_TYPES
from wireyard.formats.message_id import MESSAGE_ID_CODES, address_text, sys_message_id_text
from wireyard.formats.properties import Properties, Property

CLIENT, BROKER = ("10.0.0.9", 50000), ("10.0.0.1", 7677)
TYPES = {name: code for code, name in PACKET_TYPES.items()}
OK = 200
MS = 1_000_000


def typed(value: Any) -> Property:
    """Return a property of the type that brokers and clients give such a value."""
    if isinstance(value, bool):
        return Property("boolean", value)
    if isinstance(value, int):
        return Property("long" if abs(value) >= 1 << 31 else "integer", value)
    return Property("string", value)


def address_bytes(host: str) -> bytes:
    return bytes(10) + b"\xff\xff" + bytes(int(part) for part in host.split("."))


@dataclass
class Talk:
    """One connection; each packet comes one millisecond after the one before."""

    client: tuple[str, int] = CLIENT
    broker: tuple[str, int] = BROKER
    source: str = "made.pcap"
    rows: list[Row] = field(default_factory=list)
    now_ms: int = 1_000
    sequence: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    offset: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    ack_id: int = 0

    def stream(self, from_client: bool) -> str:
        src, dst = (self.client, self.broker) if from_client else (self.broker, self.client)
        return f"{src[0]}:{src[1]}>{dst[0]}:{dst[1]}"

    def packet(self, name: str, from_client: bool, **values: Any) -> Row:
        """Add a packet; what is no column is a property."""
        src, dst = (self.client, self.broker) if from_client else (self.broker, self.client)
        self.now_ms += 1
        self.sequence[from_client] += 1
        flags = values.pop("flags", "")
        row: Row = {
            "source": self.source,
            "stream": self.stream(from_client),
            "offset": self.offset[from_client],
            "length": 100,
            "format": "jmq",
            "status": "ok",
            "captured_ns": self.now_ms * MS,
            "frame": len(self.rows) + 1,
            "src_addr": src[0],
            "src_port": src[1],
            "dst_addr": dst[0],
            "dst_port": dst[1],
            "version": 301,
            "packet_type": TYPES.get(name, 99),
            "packet_type_name": name if name in TYPES else None,
            "size": 100,
            "timestamp": self.now_ms,
            "source_ip": address_bytes(src[0]),
            "source_port": src[1],
            "sequence": self.sequence[from_client],
            "property_offset": 72,
            "property_size": 0,
            "bit_flags": sum(FLAGS[letter] for letter in flags),
            "consumer_id": 0,
            "body": None,
        }
        columns = {
            "version", "timestamp", "source_ip", "source_port", "sequence", "consumer_id", "body",
            "transaction_id", "producer_id", "delivery_count", "destination", "reply_to",
            "correlation_id", "message_id", "status", "parent_offset", "format", "delivery_time",
        }  # fmt: skip
        row |= {name: value for name, value in values.items() if name in columns}
        found = {name: typed(value) for name, value in values.items() if name not in columns}
        row["properties"] = Properties(found) if found else None
        row["source_ip_text"] = address_text(row["source_ip"])
        row["sys_message_id"] = sys_message_id_text(
            row["sequence"], row["source_ip_text"], row["source_port"], row["timestamp"]
        )
        self.offset[from_client] += 100
        self.rows.append(row)
        return row

    def tell(self, name: str, **values: Any) -> Row:
        """Add a packet of the client that wants no reply."""
        return self.packet(name, True, **values)

    def ask(self, name: str, **values: Any) -> Row:
        """Add a request of the client."""
        self.ack_id += 1
        flags = "A" + values.pop("flags", "")
        return self.packet(name, True, flags=flags, consumer_id=self.ack_id, **values)

    def reply(self, name: str, status: int = OK, ack_id: int | None = None, **values: Any) -> Row:
        """Add a reply of the broker, to the latest request if nothing else is said."""
        consumer_id = self.ack_id if ack_id is None else ack_id
        return self.packet(name, False, consumer_id=consumer_id, JMQStatus=status, **values)

    def request(self, name: str, status: int = OK, reply: str = "", **values: Any) -> Row:
        """Add a request and its reply; keywords that begin with ``re_`` are the reply's."""
        theirs = {key[3:]: values.pop(key) for key in list(values) if key.startswith("re_")}
        asked = self.ask(name, **values)
        self.reply(reply or f"{name}_REPLY", status, **theirs)
        return asked

    def login(self) -> Talk:
        """Add what every connection begins with."""
        self.ask("HELLO", JMQProtocolLevel=500)
        self.reply("HELLO_REPLY")
        self.reply("AUTHENTICATE_REQUEST", JMQAuthType="basic", JMQChallenge=True)
        self.request("AUTHENTICATE", body=struct.pack(">H5s", 5, b"guest") + bytes(2))
        return self

    def consumer(self, consumer_id: int, ack_mode: int | None = 1, **values: Any) -> None:
        """Add a consumer."""
        mode: dict[str, Any] = {} if ack_mode is None else {"JMQAckMode": ack_mode}
        self.request("ADD_CONSUMER", re_JMQConsumerID=consumer_id, **mode, **values)

    def send(self, **values: Any) -> Row:
        """Add a message that the client sends without wanting a reply."""
        return self.tell("TEXT_MESSAGE", **{"destination": "q", **values})

    def deliver(
        self, message: Row, consumer_id: int, flags: str = "", count: int | None = 1
    ) -> Row:
        """Add the delivery of a message."""
        self.sequence[False] -= 1
        names = ("timestamp", "source_ip", "source_port", "sequence", "destination", "reply_to",
                 "correlation_id", "message_id")  # fmt: skip
        same = {name: message.get(name) for name in names}
        return self.packet(
            "TEXT_MESSAGE",
            False,
            consumer_id=consumer_id,
            flags=flags,
            delivery_count=count,
            **same,
        )

    def acknowledge(self, *deliveries: Row, status: int | None = OK, **values: Any) -> Row:
        """Add an acknowledgement; with None for a status it wants no reply."""
        body = b"".join(block(row) for row in deliveries)
        if status is None:
            return self.tell("ACKNOWLEDGE", body=body, **values)
        return self.request("ACKNOWLEDGE", status, body=body, **values)

    def goodbye(self) -> Talk:
        """Add how a connection ends."""
        self.request("GOODBYE")
        return self

    def tables(self, dropped: bool = False) -> dict[str, list[Row]]:
        """Return what the packets say, by columns and model."""
        end = self.now_ms * MS, len(self.rows)
        ended = {(self.source, self.stream(True)): end} if dropped else {}
        return derive(self.rows, ended)


def lose(*rows: Row) -> None:
    """Leave packets out: in their place is a gap."""
    for row in rows:
        row |= {"status": "gap", "captured_ns": None, "frame": None}


def message_id(row: Row) -> bytes:
    """Return the 32 bytes of a SysMessageID."""
    names = ("timestamp", "source_ip", "source_port", "sequence")
    return struct.pack(f">{MESSAGE_ID_CODES}", *(row[name] for name in names))


def block(delivery: Row) -> bytes:
    """Return the acknowledgement of a delivery."""
    code = HEADERS[delivery["version"]]["consumer_id"].code
    return struct.pack(f">{code}", delivery["consumer_id"]) + message_id(delivery)


def held(ack_mode: int | None = 1, **values: Any) -> tuple[Talk, list[Row]]:
    """Return a conversation in which a consumer holds three messages."""
    talk = Talk().login()
    talk.consumer(7, ack_mode, JMQSessionID=70, **values)
    return talk, [talk.deliver(talk.send(), 7) for _ in range(3)]
