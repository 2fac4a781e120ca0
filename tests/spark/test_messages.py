"""The tables above bronze: which packets are messages, and what a message says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.make import item, items, long_item, packet, section
from tests.spark.lakes import (
    HELLO,
    HELLO_REPLY,
    NOON_MS,
    message,
    rows,
    run,
    table,
)

MINUTE_MS = 60_000


def messages_of(tmp_path: Path, **streams: bytes) -> list[dict[str, Any]]:
    """Return the messages in streams, in the order they were sent."""
    for name, data in streams.items():
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.jmq").write_bytes(data)
    run(tmp_path / "lake", None, tmp_path / "in")
    found: list[dict[str, Any]] = table(tmp_path / "lake", "messages").to_pylist()
    return sorted(found, key=lambda row: (row["sent_ms"], row["stream"]))


def client_id(name: str | None) -> bytes:
    properties = section(*((("JMQClientID", 8, name),) if name else ()))
    return packet(packet_type=50, properties=properties)


def test_which_packets_are_messages(tmp_path: Path) -> None:
    delivered = items(item(11, (1).to_bytes(4, "big")), item(1, "orders"))
    resent = message(2, bit_flags=0x0007)  # flag R
    found = messages_of(
        tmp_path,
        client=HELLO + resent + message(1) + message(2) + message(2, bit_flags=0x0805),
        broker=HELLO_REPLY + message(1, items=delivered) * 2 + message(8) + message(8),
        unknown=message(20) + message(21, items=delivered),
        both=HELLO + HELLO_REPLY + message(30) + message(31, items=delivered),
        broken=HELLO + message(40, properties=b"\xff" * 9),
    )
    by_number = {row["sent_ms"] - NOON_MS: row for row in found}
    assert len(by_number) == len(found)
    assert {number: row["first_seen"] for number, row in by_number.items()} == {
        1: "sent",
        2: "sent",
        8: "delivered",  # sent where nobody listened
        20: "delivered",
        21: "delivered",  # a stream has one side, and a delivery count is of a broker
        30: "sent",
        31: "sent",
    }
    assert by_number[2]["offset"] == len(HELLO + resent + message(1))
    assert by_number[8]["offset"] == len(HELLO_REPLY + message(1, items=delivered) * 2)


def test_what_a_message_says(tmp_path: Path) -> None:
    mac = bytes.fromhex("ff000000 ad1c83d091ae ffff 7f000001")
    temporary = "temporary_destination://topic/127.0.0.1/4711/1"
    every = items(
        long_item(8, 77),
        long_item(9, 7),
        long_item(10, NOON_MS + 5000),
        item(1, temporary),
        item(3, "why"),
        item(4, "answers"),
        item(5, "kind"),
    )
    first, second, third = messages_of(
        tmp_path,
        client=HELLO
        + message(1, source_ip=bytes.fromhex("20010db8") + bytes(11) + b"\x01", sequence=-1)
        + client_id("shop")
        + message(
            2,
            packet_type=3,
            items=every,
            properties=section(("a", 4, 7)),
            bit_flags=0x0400,  # compressed, a topic, not persistent
            expiration=NOON_MS + 9000,
            priority=9,
            source_ip=mac,
        )
        + client_id(None)
        + message(3, items=b""),
    )
    assert first["message_key"] == f"-1-2001:db8:0:0:0:0:0:1-49152-{NOON_MS + 1}"
    assert first["producer"] == "[2001:db8:0:0:0:0:0:1]:49152"
    assert (first["producer_client_id"], first["expiration_ms"], first["expiration_at"]) == (
        None,
        0,
        None,
    )
    assert (first["destination_kind"], first["persistent"]) == ("queue", True)
    assert {name: second[name] for name in second if not name.endswith("_at")} == {
        "message_key": f"2-127.0.0.1(ad:1c:83:d0:91:ae)-49152-{NOON_MS + 2}",
        "protocol": "jms",
        "sent_ms": NOON_MS + 2,
        "sent_ns": None,
        "captured_ns": None,
        "producer": "127.0.0.1:49152",
        "client": None,
        "user": None,
        "producer_client_id": "shop",
        "destination": temporary,
        "destination_kind": "temporary_topic",
        "persistent": False,
        "qos": None,
        "priority": 9,
        "retained": None,
        "expiration_ms": NOON_MS + 9000,
        "delivery_time_ms": NOON_MS + 5000,
        "correlation_id": "why",
        "reply_to": "answers",
        "message_type": "kind",
        "transaction_id": 77,
        "body_kind": "map",
        "body_size": 6,
        "body": b"body 2",
        "properties": [("a", {"type": "integer", "value": "7"})],
        "compressed": True,
        "producer_id": 7,
        "first_seen": "sent",
        "file": str(tmp_path / "in" / "client.jmq"),
        "file_frame": None,
        "frame": None,
        "source": str(tmp_path / "in" / "client.jmq"),
        "stream": str(tmp_path / "in" / "client.jmq"),
        "offset": second["offset"],
        "length": second["length"],
    }
    at = {k: v.timestamp() * 1000 for k, v in second.items() if k.endswith("_at") and v}
    assert at == {
        "sent_at": NOON_MS + 2,
        "expiration_at": NOON_MS + 9000,
        "delivery_time_at": NOON_MS + 5000,
    }
    assert (third["producer_client_id"], third["destination"], third["destination_kind"]) == (
        None,
    ) * 3


def test_times_that_no_calendar_has(tmp_path: Path) -> None:
    ends = (-(2**63), -1, 2**63 - 1)
    found = messages_of(
        tmp_path, client=HELLO + b"".join(message(n, timestamp=ends[n]) for n in range(3))
    )
    assert [row["sent_ms"] for row in found] == list(ends)
    assert [row["sent_at"] is None for row in found] == [True, False, True]
    minutes = {minute for (minute,) in rows(tmp_path / "lake", "destinations", "minute_ms")}
    assert minutes == {None, -MINUTE_MS, (2**63 - 1) // MINUTE_MS * MINUTE_MS}
