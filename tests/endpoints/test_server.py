"""The broker's side of a connection: bytes in, bytes out, by the rule that they keep or break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from _pytest.mark import ParameterSet

from wireyard import mqtt
from wireyard.endpoints import (
    Delivery,
    Ended,
    Event,
    Flows,
    Limits,
    Message,
    ServerEndpoint,
)
from wireyard.formats.mqtt.packet import decode
from wireyard.formats.mqtt.writing import encode

LIMITS = Limits(receive_maximum=2, topic_alias_maximum=1, max_packet_bytes=100)
CONNECT = {
    2: "10 0f 0006 4d5149706470 02 02 0000 0001 61",
    3: "10 0f 0006 4d5149736470 03 02 0000 0001 61",
    4: "10 0d 0004 4d515454 04 02 0000 0001 61",
    5: "10 0e 0004 4d515454 05 02 0000 00 0001 61",
}
CONNACK = {3: "20 02 00 00", 4: "20 02 00 00", 5: "20 0e 00 00 0b 21 0002 27 00000064 22 0001"}
ANY = (3, 4, 5)
PUBLISH = {
    2: "30 05 0001 61 6869",
    3: "30 05 0001 61 6869",
    4: "30 05 0001 61 6869",
    5: "30 06 0001 61 00 6869",
}


class Talk:
    """A client that writes bytes to a broker's endpoint, which accepts and acknowledges all."""

    def __init__(self, version: int, flows: Flows | None = None, *, present: bool = False) -> None:
        self.version, self.present = version, present
        self.endpoint = ServerEndpoint(replace(LIMITS, oldest_version=min(version, 3)))
        self.flows = flows or Flows()
        self.events: list[Event] = []

    def send(self, data: bytes | str) -> bytes:
        """Send bytes; return the answer."""
        raw = bytes.fromhex(data) if isinstance(data, str) else data
        events = self.endpoint.receive(raw, 0.0)
        while events:
            event = events.pop(0)
            self.events.append(event)
            if isinstance(event, mqtt.Connect):
                events += self.endpoint.accept(self.flows, self.present, {}, 0.0)
            elif isinstance(event, Message):
                self.endpoint.acknowledge(event)
            elif isinstance(event, mqtt.Subscribe):
                self.endpoint.suback(event, [one.qos or 0 for one in event.filters])
            elif isinstance(event, mqtt.Unsubscribe):
                self.endpoint.unsuback(event, [0 for _ in event.filters])
        return self.endpoint.take()

    def connect(self) -> bytes:
        return self.send(CONNECT[self.version])

    @property
    def ended(self) -> Ended | None:
        return self.endpoint.ended


KEPT = [
    # rule, versions, bytes of the client, bytes of the broker
    ("MQTT-3.12.4-1", ANY, "c0 00", "d0 00"),
    ("MQTT-4.3.2-4", (3, 4), "32 06 0001 61 0007 68", "40 02 0007"),
    ("MQTT-4.3.2-4", (5,), "32 07 0001 61 0007 00 68", "40 02 0007"),
    ("MQTT-4.3.3-8", (3, 4), "34 06 0001 61 0007 68", "50 02 0007"),
    ("MQTT-4.3.3-8", (5,), "34 07 0001 61 0007 00 68", "50 02 0007"),
    # A second copy is not passed on, and is acknowledged too.
    ("MQTT-4.3.3-10", (4,), "34 06 0001 61 0007 68|3c 06 0001 61 0007 68", "50 02 0007 50 02 0007"),
    ("MQTT-4.3.3-11", (4,), "34 06 0001 61 0007 68|62 02 0007", "50 02 0007 70 02 0007"),
    ("MQTT-4.3.3-11", (4,), "62 02 0009", "70 02 0009"),
    ("3.7.2.1", (5,), "62 02 0009", "70 03 0009 92"),
    ("MQTT-3.8.4-1", (3, 4), "82 06 0007 0001 61 01", "90 03 0007 01"),
    ("MQTT-3.8.4-1", (5,), "82 07 0007 00 0001 61 01", "90 04 0007 00 01"),
    ("MQTT-3.10.4-4", (3, 4), "a2 05 0007 0001 61", "b0 02 0007"),
    ("MQTT-3.10.4-4", (5,), "a2 06 0007 00 0001 61", "b0 04 0007 00 00"),
    ("MQTT-3.14.4-2", ANY, "e0 00", ""),
    # The words of 1999 have their lower byte first, its text is Java's.
    ("PUBACK", (2,), "32 0b 0006 eda0bdedb880 0700 68", "40 02 0700"),
    ("PUBREC", (2,), "34 06 0001 61 0700 68|62 02 0700", "50 02 0700 70 02 0700"),
    ("PUBCOMP", (2,), "62 02 0700", "70 02 0700"),
    ("SUBACK", (2,), "82 06 0700 0001 61 01", "90 03 0700 01"),
    ("UNSUBACK", (2,), "a2 05 0700 0001 61", "b0 02 0700"),
]
BROKEN = [
    # rule, versions, bytes of the client, reason code of the DISCONNECT of 5.0
    ("MQTT-3.1.0-2", (3,), CONNECT[3], 130),
    ("MQTT-3.1.0-2", (4,), CONNECT[4], 130),
    ("MQTT-3.1.0-2", (5,), CONNECT[5], 130),
    ("2.1.2", ANY, "d0 00", 130),
    ("2.1.2", (3, 4), "20 02 00 00", 130),
    ("2.1.2", (5,), "20 03 00 00 00", 130),
    ("MQTT-3.3.1-4", (3, 4), "36 05 0001 61 6869", 129),
    ("MQTT-3.3.1-4", (5,), "36 06 0001 61 00 6869", 129),
    ("MQTT-3.3.1-2", (4,), "38 05 0001 61 6869", 129),
    ("MQTT-3.3.2-2", (4,), "30 03 0001 23", 144),
    ("MQTT-3.3.2-2", (5,), "30 04 0001 23 00", 144),
    ("MQTT-2.2.1-3", (5,), "32 06 0001 61 0000 00", 129),
    ("MQTT-2.3.1-1", (4,), "32 05 0001 61 0000", 129),
    ("MQTT-3.6.1-1", (4, 5), "60 02 0001", 129),
    ("MQTT-3.8.3-2", (5,), "82 03 0001 00", 130),
    ("MQTT-4.7.1-1", (5,), "82 0a 0001 00 0004 612f2362 00", 143),
    ("MQTT-1.5.4-1", (5,), "30 04 0001 ff 00", 129),
    ("MQTT-2.2.1-5", (5,), "40 02 0001", 130),
    ("MQTT-2.3.1-6", (3, 4), "40 02 0001", 130),
    ("MQTT-2.2.1-5", (5,), "50 02 0001", 130),
    ("3.7.2.1", ANY, "70 02 0001", 130),
    ("MQTT-3.3.4-6", (5,), "30 06 0001 61 02 0b01", 130),
    ("MQTT-3.3.2-9", (5,), "30 07 0001 61 03 230002", 148),
    ("3.3.2.3.4", (5,), "30 06 0000 03 230001", 130),
    ("MQTT-3.3.2-8", (5,), "30 07 0001 61 03 230000", 148),
    ("MQTT-3.2.2-15", (5,), "30 63", 149),
    # Other clients get what those of 1999 and 3.1 name.
    ("MQTT-1.5.3-2", (3,), "30 03 0001 00", 129),
    ("MQTT-1.5.3-2", (2,), "30 04 0002 c080", 129),
    ("MQTT-3.3.2-2", (2,), "30 03 0001 23", 129),
    ("MQTT-4.7.1-2", (2,), "82 08 0100 0003 2361 62 00", 129),
    ("1.5.5", ANY, "30 ff ff ff ff 01", 129),
    ("MQTT-4.12.0-5", (5,), "f0 05 19 03 15000161", 129),
]  # fmt: skip


def cases(table: Sequence[tuple[str, tuple[int, ...], str, str | int]]) -> list[ParameterSet]:
    """Return a case for each version of each row."""
    return [
        pytest.param(version, given, wanted, id=f"{rule}-{version}-{place}")
        for place, (rule, versions, given, wanted) in enumerate(table)
        for version in versions
    ]


@pytest.mark.parametrize("version", ANY)
def test_a_connection_is_accepted(version: int) -> None:
    talk = Talk(version)
    assert talk.connect() == bytes.fromhex(CONNACK[version])
    assert talk.send(PUBLISH[version]) == b""
    message = talk.events[-1]
    assert isinstance(message, Message)
    assert (message.topic, message.payload, message.qos) == ("a", b"hi", 0)


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("version", ANY)
def test_the_answer_does_not_depend_on_how_bytes_arrive(version: int, cut: int) -> None:
    packets = [row[2:] for row in KEPT if version in row[1] and row[3] and "|" not in row[2]]
    packets.append(("34 06 0001 61 0008 00 62 02 0008", "50 02 0008 70 02 0008"))
    given, wanted = ("".join(part) for part in zip(*packets, strict=True))
    data = bytes.fromhex(CONNECT[version] + PUBLISH[version] + given + PUBLISH[version])
    talk = Talk(version)
    answer = b"".join(talk.send(data[at : at + cut]) for at in range(0, len(data), cut))
    assert answer == bytes.fromhex(CONNACK[version] + wanted)
    assert talk.ended is None


@pytest.mark.parametrize(("version", "given", "wanted"), cases(KEPT))
def test_what_a_rule_asks_for(version: int, given: str, wanted: str) -> None:
    talk = Talk(version)
    talk.connect()
    assert b"".join(map(talk.send, given.split("|"))) == bytes.fromhex(wanted)


@pytest.mark.parametrize(("version", "given", "code"), cases(BROKEN))
def test_what_breaks_a_rule_ends_the_connection(version: int, given: str, code: int) -> None:
    talk = Talk(version)
    talk.connect()
    answer = talk.send(given + PUBLISH[version])
    assert talk.ended is not None and talk.ended.text and talk.ended.code == code
    assert "against" not in talk.ended.text  # which belongs to sentences about captures
    if version == 5:
        packet = decode(answer, 5)
        assert isinstance(packet, mqtt.Disconnect) and packet.return_code == code
        said = str(dict(packet.properties or ())["reason_string"])
        first, cut, last = said.partition("…")
        assert talk.ended.text.startswith(first) and talk.ended.text.endswith(last)
        assert len(said.encode()) < 125 and bool(cut) == (said != talk.ended.text)
    else:
        assert answer == b""
    assert not any(isinstance(event, Message) for event in talk.events)


REFUSED = [
    ("MQTT-3.1.2-2", "10 0d 0004 4d515454 06 02 0000 0001 61", "20 03 00 84 00"),
    ("MQTT-3.1.3-8", "10 0c 0004 4d515454 04 00 0000 0000", "20 02 00 02"),
    ("MQTT-3.1.2-3", "10 0d 0004 4d515454 04 03 0000 0001 61", ""),
    ("MQTT-3.1.0-1", "c0 00", ""),
    ("1999", CONNECT[2], "20 02 00 01"),
    ("MQTT-4.7.1-1", "10 14 0006 4d5149736470 03 06 0000 0001 61 0001 23 0000", ""),
]


@pytest.mark.parametrize(("rule", "given", "wanted"), REFUSED)
def test_what_is_no_connect_is_refused(rule: str, given: str, wanted: str) -> None:
    talk = Talk(4)
    assert talk.send(given) == bytes.fromhex(wanted)
    assert talk.ended is not None, rule


def test_more_than_the_receive_maximum_ends_the_connection() -> None:
    """MQTT-3.3.4-7."""
    endpoint = ServerEndpoint(LIMITS)
    endpoint.receive(bytes.fromhex(CONNECT[5]), 0.0)
    endpoint.accept(Flows(), False, {}, 0.0)
    endpoint.take()
    publishes = bytes.fromhex("34 06 0001 61 0001 00 34 06 0001 61 0002 00 34 06 0001 61 0003 00")
    events = endpoint.receive(publishes, 0.0)
    assert [type(event) for event in events] == [Message, Message, Ended]
    assert endpoint.take()[2] == 147


def test_what_is_in_flight_is_sent_again_with_dup() -> None:
    """MQTT-4.4.0-1: PUBLISH with DUP, and PUBREL, with the old identifiers and in order."""
    flows = Flows()
    talk = Talk(4, flows)
    talk.connect()
    for qos, payload in ((1, b"1"), (2, b"2"), (2, b"3")):
        assert talk.endpoint.send(Delivery(Message("a", payload, qos), qos), 0.0)
    sent = bytes.fromhex("32 06 0001 61 0001 31 34 06 0001 61 0002 32 34 06 0001 61 0003 33")
    assert talk.endpoint.take() == sent
    assert talk.send("50 02 0002") == bytes.fromhex("62 02 0002")
    again = Talk(4, flows, present=True)
    wanted = "20 02 01 00 62 02 0002 3a 06 0001 61 0001 31 3c 06 0001 61 0003 33"
    assert again.connect() == bytes.fromhex(wanted)
    again.send("70 02 0002 40 02 0001 50 02 0003")
    again.send("70 02 0003")
    assert not flows.sending and again.ended is None


def test_passwords_do_not_reach_the_tap() -> None:
    taped: list[bytes] = []
    endpoint = ServerEndpoint(tap=lambda arrived, data: taped.append(data))
    login = mqtt.Connect(client_id="till", username="ann", password="sesame" * 40)
    data = encode(login)
    for at in range(0, len(data), 7):
        endpoint.receive(data[at : at + 7], 0.0)
    assert b"".join(taped) == data.replace(b"sesame" * 40, b"*" * 240)
    broken = ServerEndpoint(tap=lambda arrived, data: taped.append(data))
    taped.clear()
    broken.receive(data[:-1] + b"\xff" + data, 0.0)
    broken.receive(bytes.fromhex("10 05 0004 4d51 54") + b"sesame", 0.0)
    assert b"sesame" not in b"".join(taped[1:])
