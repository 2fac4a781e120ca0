"""Control packets from plain Python, judged by others: mosquitto on loopback, and tshark."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import wireyard
from tests.captures.make import one_way
from wireyard import mqtt
from wireyard.formats import get_format
from wireyard.streams.decoder import Decoder, Need

pytestmark = pytest.mark.peer

LABELS = {3: "mqtt/3.1", 4: "mqtt/3.1.1", 5: "mqtt/5.0"}
SECONDS = 10.0
Kind = TypeVar("Kind", bound=mqtt.Packet)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start mosquitto on a free port of loopback; return the port."""
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("mosquitto is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    config = tmp_path_factory.mktemp("mosquitto") / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n")
    with subprocess.Popen(
        [program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until = time.monotonic() + SECONDS
            while process.poll() is None and time.monotonic() < until:
                try:
                    socket.create_connection(("127.0.0.1", port), SECONDS).close()
                    break
                except ConnectionRefusedError:
                    time.sleep(0.02)
            assert process.poll() is None, "mosquitto does not start"
            yield port
        finally:
            process.terminate()


class Client:
    """One connection: sends packets, and receives the broker's, each of the class expected."""

    def __init__(self, port: int, version: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.decoder = Decoder(get_format(LABELS[version]))
        self.version = version

    def send(self, packet_class: type[mqtt.Packet], **fields: Any) -> None:
        packet = packet_class(version_in_force=self.version, **fields)
        self.socket.sendall(wireyard.encode(packet))

    def receive(self, packet_class: type[Kind]) -> Kind:
        while isinstance(event := self.decoder.next_event(), Need):
            data = self.socket.recv(65536)
            assert data, "the broker closed the connection"
            self.decoder.receive_data(data)
        assert isinstance(event.packet, packet_class), event
        return event.packet


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_conversation_with_mosquitto(broker: int, version: int) -> None:
    five = version == 5
    client = Client(broker, version)
    client.send(
        mqtt.Connect, client_id=f"till-{version}", keep_alive=60, will_topic=f"gone/{version}",
        will_payload="é", will_qos=1, username="ann", password="sesame",
        properties={"receive_maximum": 5, "user_property": {"k": "v"}} if five else (),
        will_properties={"content_type": "text/plain"} if five else (),
    )  # fmt: skip
    assert client.receive(mqtt.ConnAck).return_code == 0

    options = mqtt.Filter.of(f"shop/{version}/#", 2, retain_handling=1 if five else 0)
    client.send(
        mqtt.Subscribe, packet_id=1, filters=[f"a/{version}", (f"b/{version}/+", 1), options]
    )
    granted = client.receive(mqtt.SubAck)
    assert (granted.packet_id, granted.return_codes) == (1, (0, 1, 2))

    said = {"response_topic": "answers", "correlation_data": b"\0\xff", "user_property": {"k": "é"}}
    client.send(
        mqtt.Publish, topic=f"shop/{version}/tea", payload="two, please", qos=2, packet_id=2,
        properties=said if five else (),
    )  # fmt: skip
    assert client.receive(mqtt.PubRec).packet_id == 2
    client.send(mqtt.PubRel, packet_id=2)
    # The broker completes the one delivery and begins the other in an order of its own.
    first, second = client.receive(mqtt.Packet), client.receive(mqtt.Packet)
    if isinstance(first, mqtt.PubComp):
        first, second = second, first
    assert isinstance(second, mqtt.PubComp) and second.packet_id == 2
    assert isinstance(first, mqtt.Publish)
    assert (first.topic, first.payload, first.qos) == (f"shop/{version}/tea", b"two, please", 2)
    if five:
        assert dict(first.properties) == said | {"user_property": ("k", "é")}
    client.send(mqtt.PubRec, packet_id=first.packet_id)
    assert client.receive(mqtt.PubRel).packet_id == first.packet_id
    client.send(mqtt.PubComp, packet_id=first.packet_id)

    client.send(mqtt.Publish, topic=f"b/{version}/x", payload=b"\0", qos=1, packet_id=3)
    answers = [client.receive(mqtt.Packet) for _ in range(2)]
    assert {type(one) for one in answers} == {mqtt.PubAck, mqtt.Publish}
    (news,) = (one for one in answers if isinstance(one, mqtt.Publish))
    client.send(mqtt.PubAck, packet_id=news.packet_id)

    client.send(mqtt.Unsubscribe, packet_id=4, filters=[f"a/{version}"])
    removed = client.receive(mqtt.UnsubAck)
    assert (removed.packet_id, removed.return_codes) == (4, (0,) if five else ())
    client.send(mqtt.PingReq)
    client.receive(mqtt.PingResp)
    client.send(mqtt.Disconnect)
    assert client.socket.recv(1) == b""
    client.socket.close()


def test_mosquitto_refuses_the_rule_that_decode_names(broker: int) -> None:
    client = Client(broker, 4)
    client.send(mqtt.Connect, client_id="bad")
    client.receive(mqtt.ConnAck)
    client.send(mqtt.Publish, topic="a/#")
    assert client.socket.recv(1) == b""
    client.socket.close()
    with pytest.raises(wireyard.DecodeError) as caught:
        wireyard.decode(wireyard.encode(mqtt.Publish(topic="a/#")), "mqtt/3.1.1")
    assert caught.value.code == "MQTT-3.3.2-2"


# --- tshark ---------------------------------------------------------------------------------

FIELDS: dict[str, Callable[[Any], str]] = {
    "mqtt.msgtype": lambda one: str(one.packet_type),
    "mqtt.clientid": lambda one: getattr(one, "client_id", ""),
    "mqtt.kalive": lambda one: str(getattr(one, "keep_alive", "")),
    "mqtt.willtopic": lambda one: getattr(one, "will_topic", None) or "",
    "mqtt.username": lambda one: getattr(one, "username", None) or "",
    "mqtt.passwd": lambda one: (getattr(one, "password", None) or b"").decode(),
    "mqtt.qos": lambda one: str(getattr(one, "qos", "")),
    "mqtt.retain": lambda one: bit(one, "retain"),
    "mqtt.dupflag": lambda one: bit(one, "dup") if isinstance(one, mqtt.Publish) else "",
    "mqtt.msgid": lambda one: str(getattr(one, "packet_id", None) or ""),
    "mqtt.msg": lambda one: getattr(one, "payload", b"").hex(),
    "_ws.malformed": lambda one: "",
}


def bit(packet: mqtt.Packet, name: str) -> str:
    return str(int(getattr(packet, name))) if hasattr(packet, name) else ""


def conversation(version: int) -> list[mqtt.Packet]:
    five = version == 5
    properties = {"user_property": [("k", "v"), ("k", "w")]} if five else ()
    packets: list[mqtt.Packet] = [
        mqtt.Connect(version_in_force=version, client_id="till", keep_alive=60, will_topic="gone",
                     will_payload="bye", username="ann", password="sesame", properties=properties),
        mqtt.Publish(version_in_force=version, topic="a/b", payload="é", retain=True),
        mqtt.Publish(version_in_force=version, topic="a/b", payload=b"\0\xff", qos=2, dup=True,
                     packet_id=65535, properties=properties),
        mqtt.PubAck(version_in_force=version, packet_id=1, return_code=16 if five else None),
        mqtt.PubRec(version_in_force=version, packet_id=2, return_code=0 if five else None),
        mqtt.PubRel(version_in_force=version, packet_id=3),
        mqtt.PubComp(version_in_force=version, packet_id=4,
                     properties={"reason_string": "r"} if five else None),
        mqtt.Subscribe(version_in_force=version, packet_id=5, filters=["a", ("b", 1)],
                       properties=properties),
        mqtt.Unsubscribe(version_in_force=version, packet_id=6, filters=["a", "b"]),
        mqtt.PingReq(version_in_force=version),
        mqtt.Disconnect(version_in_force=version, return_code=4 if five else None),
    ]  # fmt: skip
    if five:
        packets.insert(1, mqtt.Auth(return_code=24, properties={"authentication_method": "m"}))
    return packets


@pytest.mark.parametrize("version", [3, 4, 5])
def test_tshark_reads_what_was_written(version: int, tmp_path: Path) -> None:
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    packets = conversation(version)
    pieces, at = [], 0
    for packet in packets:
        data = wireyard.encode(packet)
        pieces.append((at, data))
        at += len(data)
    capture = tmp_path / "conversation.pcap"
    capture.write_bytes(one_way(pieces))
    words = [word for name in FIELDS for word in ("-e", name)]
    done = subprocess.run(
        ["tshark", "-r", str(capture), "-Y", "mqtt", "-T", "fields", *words],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    read = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(read) == len(packets)
    for packet, row in zip(packets, read, strict=True):
        shown = {name: show(packet) for name, show in FIELDS.items()}
        found = dict(zip(FIELDS, row, strict=True))
        if version == 3 and isinstance(packet, mqtt.PubRel | mqtt.Subscribe | mqtt.Unsubscribe):
            # These have a QoS, always 1, which tshark shows too.
            shown |= {"mqtt.qos": "1", "mqtt.dupflag": "0"}
        assert found == shown, packet
