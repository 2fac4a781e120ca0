"""What is there when a broker with a store is started again, and which rows it refuses."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import wireyard
from tests.broker.talk import Broker, Peer, joined, subscribed
from wireyard import mqtt
from wireyard.broker import store as store_module
from wireyard.broker.access import Access
from wireyard.broker.persistence import TABLES
from wireyard.errors import SourceError
from wireyard.formats.mqtt.writing import encode

ANY = pytest.mark.parametrize("version", [3, 4, 5])
SECONDS = 10.0


def stays(version: int, seconds: int = 100) -> dict[str, Any]:
    """Return the fields of a CONNECT whose session outlives the connection."""
    properties = {"session_expiry_interval": seconds} if version == 5 else ()
    return {"clean_start": False, "properties": properties}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.db"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    broker = Broker(path)
    yield broker
    broker.close()


def publish(peer: Peer, topic: str, payload: str, qos: int = 0, **fields: Any) -> None:
    number = {"packet_id": fields.pop("packet_id", 77)} if qos else {}
    peer.send(mqtt.Publish, topic=topic, payload=payload, qos=qos, **number, **fields)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


@ANY
def test_messages_that_wait_are_sent_in_order(broker: Broker, version: int) -> None:
    subscribed(joined(broker, "a", version, **stays(version)), ("t/#", 2))
    sender = joined(broker, "b", version)
    broker.restart()
    sender = joined(broker, "b", version)
    for number in range(5):
        publish(sender, f"t/{number}", str(number), 1 + number % 2, packet_id=number + 1)
    broker.restart()
    peer = joined(broker, "a", version, **stays(version))
    assert peer.messages() == [
        (f"t/{n}", b"%d" % n, 1 + n % 2, False) for n in range(5)
    ]  # fmt: skip


@ANY
def test_messages_in_flight_go_on(broker: Broker, path: Path, version: int) -> None:
    """With DUP and their identifiers, behind which new ones go on; after PUBREC with PUBREL."""
    peer = joined(broker, "a", version, **stays(version))
    subscribed(peer, ("t", 2))
    for number, qos in enumerate((1, 2, 2, 1)):
        publish(peer, "t", str(number), qos, packet_id=number + 1)
    sent = [one for one in peer.received() if isinstance(one, mqtt.Publish)]
    assert [one.packet_id for one in sent] == [1, 2, 3, 4]
    peer.send(mqtt.PubRec, packet_id=2)
    peer.send(mqtt.PubAck, packet_id=4)
    broker.restart()
    peer = joined(broker, "a", version, **stays(version))
    again = peer.received()
    assert [type(one) for one in again] == [mqtt.PubRel, mqtt.Publish, mqtt.Publish]
    found = [
        (one.packet_id, one.payload, one.dup) for one in again if isinstance(one, mqtt.Publish)
    ]
    assert found == [(1, b"0", True), (3, b"2", True)]
    peer.send(mqtt.PubAck, packet_id=1)
    publish(peer, "t", "new", 1)
    (new,) = (one for one in peer.received() if isinstance(one, mqtt.Publish))
    assert new.packet_id == 4
    peer.send(mqtt.PubAck, packet_id=4)
    peer.send(mqtt.PubRec, packet_id=3)
    for packet_id in (2, 3):
        peer.send(mqtt.PubComp, packet_id=packet_id)
    broker.restart()
    for table in ("mqtt_messages", "mqtt_deliveries"):
        assert rows(path, f"SELECT * FROM {table}") == []


@ANY
def test_a_message_of_qos_2_is_passed_on_once(broker: Broker, path: Path, version: int) -> None:
    subscribed(joined(broker, "r", version, **stays(version)), ("t", 2))
    sender = joined(broker, "s", version, **stays(version))
    publish(sender, "t", "once", 2)
    for _ in range(2):
        broker.restart()
        sender = joined(broker, "s", version, **stays(version))
        publish(sender, "t", "once", 2, dup=True)
        (answer,) = sender.received()
        assert isinstance(answer, mqtt.PubRec)
    sender.send(mqtt.PubRel, packet_id=77)
    broker.restart()
    assert rows(path, "SELECT * FROM mqtt_held") == []
    sender = joined(broker, "s", version, **stays(version))
    publish(sender, "t", "new", 2)
    reader = joined(broker, "r", version, **stays(version))
    assert [message[1] for message in reader.messages()] == [b"once", b"new"]


def test_subscriptions_have_their_options(broker: Broker) -> None:
    peer = joined(broker, "a", **stays(5))
    wanted = mqtt.Filter.of("t/#", 1, no_local=True, retain_as_published=True, retain_handling=1)
    subscribed(peer, wanted, "u", "v", properties={"subscription_identifier": 9})
    peer.send(mqtt.Unsubscribe, packet_id=2, filters=["v"])
    broker.restart()
    peer = joined(broker, "a", **stays(5))
    for topic in ("t/x", "v"):
        publish(peer, topic, "own")
    publish(joined(broker, "b"), "t/x", "1", 1, retain=True, properties={"content_type": "c"})
    (message,) = (one for one in peer.received() if isinstance(one, mqtt.Publish))
    assert (message.payload, message.qos, message.retain) == (b"1", 1, True)
    assert message.properties == (("content_type", "c"), ("subscription_identifier", 9))
    subscribed(peer, wanted)
    assert peer.messages() == []


def test_retained_values(broker: Broker) -> None:
    peer = joined(broker, "a")
    properties = {
        "correlation_data": b"\0\xff",
        "user_property": [("é", "1"), ("é", "2")],
        "message_expiry_interval": 100,
    }
    publish(peer, "kept", "1", 1, retain=True, properties=properties)
    for topic, payload in (("gone", "1"), ("gone", ""), ("new", "old"), ("new", "new")):
        publish(peer, topic, payload, retain=True)
    publish(peer, "short", "1", retain=True, properties={"message_expiry_interval": 10})
    broker.now += 20
    broker.restart()
    peer = joined(broker, "a")
    subscribed(peer, ("#", 1))
    found = [one for one in peer.received() if isinstance(one, mqtt.Publish)]
    assert sorted((one.topic, one.payload, one.qos) for one in found) == [
        ("kept", b"1", 1), ("new", b"new", 0),
    ]  # fmt: skip
    (kept,) = (one for one in found if one.topic == "kept")
    assert kept.properties == (
        ("correlation_data", b"\0\xff"), ("user_property", ("é", "1")),
        ("user_property", ("é", "2")), ("message_expiry_interval", 80),
    )  # fmt: skip


def test_sessions_and_messages_expire(broker: Broker, path: Path) -> None:
    joined(broker, "a", **stays(5, 50))
    left = joined(broker, "b", **stays(5, 50))
    subscribed(left, ("t", 1))
    left.send(mqtt.Disconnect)
    subscribed(joined(broker, "c", **stays(5, 500)), ("t", 1))
    broker.restart()
    publish(joined(broker, "s"), "t", "1", 1, properties={"message_expiry_interval": 30})
    broker.now += 40
    joined(broker, "a", **stays(5, 50))
    broker.restart()  # the connection of a is lost only now
    broker.wait(20)
    assert list(broker.core.router.sessions) == ["a", "c"]
    assert joined(broker, "c", **stays(5)).messages() == []
    broker.restart()
    assert rows(path, "SELECT client_id FROM mqtt_sessions") == [("a",), ("c",)]
    assert rows(path, "SELECT client_id FROM mqtt_subscriptions") == [("c",)]
    assert rows(path, "SELECT * FROM mqtt_messages") == []


@pytest.mark.parametrize("delay", [0, 10])
@pytest.mark.parametrize("expiry", [0, 100])
def test_wills_of_connections_that_the_restart_ended(
    broker: Broker, path: Path, delay: int, expiry: int
) -> None:
    subscribed(joined(broker, "w", **stays(5)), ("gone", 1))
    joined(
        broker, "a", **stays(5, expiry), will_topic="gone", will_payload="a", will_qos=1,
        will_properties={"will_delay_interval": delay},
    )  # fmt: skip
    broker.restart()
    broker.now += 5
    broker.restart()
    is_late = bool(delay and expiry)
    watcher = joined(broker, "w", **stays(5))
    assert watcher.messages() == ([] if is_late else [("gone", b"a", 1, False)])
    broker.wait(6)
    assert watcher.messages() == ([("gone", b"a", 1, False)] if is_late else [])
    broker.restart()
    assert rows(path, "SELECT will_topic FROM mqtt_sessions WHERE client_id = 'a'") == (
        [(None,)] if expiry else []
    )


@ANY
def test_what_ends_with_its_connection_is_not_written(
    broker: Broker, path: Path, version: int
) -> None:
    peer = joined(broker, "a", version)
    subscribed(peer, ("t", 2))
    publish(peer, "t", "1", 2)
    peer.send(mqtt.PubRec, packet_id=1)
    broker.restart()
    assert all(rows(path, f"SELECT * FROM {table.name}") == [] for table in TABLES)
    joined(broker, "a", version, clean_start=False)


def test_a_clean_start_removes_what_was_there(broker: Broker, path: Path) -> None:
    subscribed(joined(broker, "a", **stays(5)), ("t", 2))
    broker.restart()
    publish(joined(broker, "s"), "t", "1", 2)
    joined(broker, "a")
    broker.restart()
    assert all(rows(path, f"SELECT * FROM {table.name}") == [] for table in TABLES)


def test_a_message_to_many_is_written_once(broker: Broker, path: Path) -> None:
    for name in "abc":
        subscribed(joined(broker, name, **stays(5)), ("t", 1))
    publish(joined(broker, "s"), "t", "x" * 1000, 1)
    broker.restart()
    assert rows(path, "SELECT count(*) FROM mqtt_messages") == [(1,)]
    assert rows(path, "SELECT count(*) FROM mqtt_deliveries") == [(3,)]
    for name in "abc":
        assert len(joined(broker, name, **stays(5)).messages()) == 1


def test_what_may_no_longer_be_read_is_unsubscribed(broker: Broker, path: Path) -> None:
    subscribed(joined(broker, "a", **stays(5)), "t", "u")
    broker.restart(access=Access(reads={None: ["t"]}))
    broker.restart()
    assert rows(path, "SELECT filter FROM mqtt_subscriptions") == [("t",)]


DAMAGE = {
    "UPDATE mqtt_deliveries SET packet_id = 70000": "no packet id",
    "UPDATE mqtt_deliveries SET qos = 3": "no QoS",
    "UPDATE mqtt_deliveries SET identifiers = '[\"x\"]'": "no subscription identifiers",
    "UPDATE mqtt_deliveries SET identifiers = '['": "Expecting value",
    "UPDATE mqtt_deliveries SET message = 5": "has no message",
    "UPDATE mqtt_deliveries SET client_id = 'x'": "client id 'x' has no session",
    "UPDATE mqtt_messages SET topic = 'a/#'": "no topic",
    "UPDATE mqtt_messages SET expires_at = 9e999": "no time",
    'UPDATE mqtt_messages SET properties = \'[{"name": "x"}]\'': "a name of the standard",
    'UPDATE mqtt_messages SET properties = \'[{"name": "content_type"}]\'': "text is needed",
    "UPDATE mqtt_subscriptions SET qos = 9": "no subscription",
    "UPDATE mqtt_sessions SET expiry_s = -1": "no session",
    "UPDATE mqtt_sessions SET will_state = 'x'": "no state of a will",
    "UPDATE mqtt_retained SET topic = '+'": "no topic",
    "UPDATE mqtt_held SET packet_id = 0": "no packet id",
}


@pytest.mark.parametrize("statement", DAMAGE)
def test_rows_that_cannot_be_are_refused_with_one_line(path: Path, statement: str) -> None:
    broker = Broker(path)
    peer = joined(broker, "a", **stays(5), will_topic="w")
    subscribed(peer, ("t", 1))
    publish(peer, "t", "1", 2, retain=True)
    broker.close()
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute(statement).rowcount == 1
    with pytest.raises(SourceError) as caught, wireyard.broker(store=path):
        pass
    text = str(caught.value)
    assert text.startswith(str(path)) and DAMAGE[statement] in text and "\n" not in text


def test_nothing_is_acknowledged_while_the_disk_is_full(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_SECONDS_TO_RETRY", 0.01)
    with (
        wireyard.broker(store=path) as broker,
        socket.create_connection(("127.0.0.1", broker.port), SECONDS) as client,
    ):
        store = broker.server.store
        assert store is not None
        client.sendall(encode(mqtt.Connect(client_id="a", clean_start=False, version_in_force=4)))
        assert client.recv(4) == b"\x20\2\0\0"
        client.sendall(encode(mqtt.Subscribe(packet_id=1, filters=[("t", 1)], version_in_force=4)))
        assert client.recv(5) == b"\x90\3\0\1\1"
        store._database.execute("PRAGMA max_page_count = 20")
        message = mqtt.Publish(topic="t", payload=bytes(200_000), qos=1, packet_id=5)
        client.sendall(encode(message) + b"\xc0\0")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        assert "database or disk is full, nothing is acknowledged" in broker.lines[-1]
        store._database.execute("PRAGMA max_page_count = 100000")
        client.settimeout(SECONDS)
        answer = b""
        while b"\x40\2\0\5" not in answer or len(answer) < 200_000:
            answer += client.recv(1 << 20)
        assert broker.lines[-1].endswith("is written again")


def test_a_store_that_cannot_be_written_ends_the_broker(path: Path) -> None:
    with wireyard.broker(store=path) as broker:
        with closing(sqlite3.connect(path)) as database:
            database.execute("DROP TABLE mqtt_retained")
        with socket.create_connection(("127.0.0.1", broker.port), SECONDS) as client:
            client.sendall(encode(mqtt.Connect(client_id="a")))
            assert client.recv(4) == b"\x20\2\0\0"
            message = mqtt.Publish(topic="t", payload="1", qos=1, retain=True, packet_id=5)
            client.sendall(encode(message))
            assert client.recv(4) == b""
        broker._thread.join(SECONDS)  # its loop is closed before it is asked to end
    assert any("no such table" in line for line in broker.lines)
