"""What the broker does with sessions, subscriptions, retained values and wills."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.talk import Broker, Peer, joined, subscribed
from wireyard import mqtt
from wireyard.broker.access import Access
from wireyard.endpoints import Limits
from wireyard.formats.mqtt.writing import encode

ANY = pytest.mark.parametrize("version", [3, 4, 5])
STAYS = {"session_expiry_interval": 100}


def publish(peer: Peer, topic: str, payload: str, qos: int = 0, **fields: Any) -> None:
    packet_id = {"packet_id": 77} if qos else {}
    peer.send(mqtt.Publish, topic=topic, payload=payload, qos=qos, **packet_id, **fields)


@ANY
def test_a_message_comes_once_at_the_highest_qos(version: int) -> None:
    broker = Broker()
    peer = joined(broker, "a", version)
    subscribed(peer, ("t/#", 0), ("t/+", 1), "t/x")
    publish(peer, "t/x", "1", 2)
    assert peer.messages() == [("t/x", b"1", 1, False)]


def test_a_copy_has_the_identifiers_of_all_subscriptions() -> None:
    peer = joined(Broker(), "a")
    subscribed(peer, "t/#", properties={"subscription_identifier": 4})
    subscribed(peer, "t/+", properties={"subscription_identifier": 5})
    publish(peer, "t/x", "1", properties={"content_type": "c"})
    (*_, packet) = peer.received()
    assert isinstance(packet, mqtt.Publish)
    assert packet.properties[0] == ("content_type", "c")
    assert {one.value for one in packet.properties[1:]} == {4, 5}


@pytest.mark.parametrize("handling", [0, 1, 2])
def test_retain_handling(handling: int) -> None:
    peer = joined(Broker(), "a")
    publish(peer, "t", "1", retain=True)
    publish(peer, "$t", "2", retain=True)
    wanted = mqtt.Filter.of("#", 1, retain_handling=handling)
    subscribed(peer, wanted)
    assert peer.messages() == ([("t", b"1", 0, True)] if handling < 2 else [])
    subscribed(peer, wanted)
    assert peer.messages() == ([("t", b"1", 0, True)] if handling == 0 else [])


def test_a_retained_value_is_replaced_and_removed() -> None:
    broker = Broker(max_retained=1)
    peer = joined(broker, "a")
    for payload in ("1", "2"):
        publish(peer, "t/x", payload, retain=True)
    publish(peer, "t/y", "3", retain=True)
    assert "t/y: is not retained, there are 1 retained values" in broker.lines
    subscribed(peer, "t/+")
    assert peer.messages() == [("t/x", b"2", 0, True)]
    publish(peer, "t/x", "", retain=True)
    assert broker.core.router.retained.count == broker.core.router.retained.bytes == 0


def test_retain_as_published_and_no_local() -> None:
    broker = Broker()
    peer, other = joined(broker, "a"), joined(broker, "b")
    subscribed(peer, mqtt.Filter.of("t", no_local=True), mqtt.Filter.of("u", no_local=True))
    subscribed(other, mqtt.Filter.of("t", retain_as_published=True))
    publish(peer, "t", "1", retain=True)
    publish(other, "t", "2")
    assert peer.messages() == [("t", b"2", 0, False)]
    assert other.messages() == [("t", b"1", 0, True), ("t", b"2", 0, False)]


def test_bits_beside_the_qos_mean_nothing_before_5() -> None:
    peer = joined(Broker(), "a", 3)
    subscribed(peer, mqtt.Filter("t", 0xFD))
    publish(peer, "t", "1", retain=True)
    assert peer.messages() == [("t", b"1", 0, False)]


def test_messages_wait_for_a_session_and_expire() -> None:
    broker = Broker()
    peer = joined(broker, "a", clean_start=False, properties=STAYS)
    subscribed(peer, ("t", 1))
    peer.lose()
    sender = joined(broker, "b")
    for lifetime in (5, 50):
        publish(sender, "t", str(lifetime), 1, properties={"message_expiry_interval": lifetime})
    publish(sender, "t", "QoS 0")
    broker.wait(10)
    again = joined(broker, "a", clean_start=False, properties=STAYS)
    (packet,) = again.received()
    assert isinstance(packet, mqtt.Publish) and packet.payload == b"50"
    assert packet.properties == (("message_expiry_interval", 40),)


def test_a_session_expires() -> None:
    broker = Broker()
    joined(broker, "a", properties=STAYS).lose()
    broker.wait(99)
    assert "a" in broker.core.router.sessions
    broker.wait(2)
    assert broker.lines[-1] == "a: its session has expired"
    joined(broker, "a", 4, clean_start=False).lose()
    broker.wait(1_000_000)
    assert "a" in broker.core.router.sessions


@pytest.mark.parametrize(
    ("ends", "delay", "publishes"),
    [("lost", 0, True), ("lost", 10, False), ("left", 0, False), ("left with will", 0, True)],
)
def test_wills(ends: str, delay: int, publishes: bool) -> None:
    broker = Broker()
    watcher = joined(broker, "w")
    subscribed(watcher, "gone")
    watcher.received()
    peer = joined(
        broker, "a", properties=STAYS, will_topic="gone", will_payload="a",
        will_properties={"will_delay_interval": delay},
    )  # fmt: skip
    if ends == "lost":
        peer.lose()
    else:
        peer.send(mqtt.Disconnect, return_code=4 if ends == "left with will" else 0)
    assert bool(watcher.messages()) == publishes
    broker.wait(9)
    assert watcher.messages() == []
    broker.wait(2)
    assert bool(watcher.messages()) == (delay > 0)


def test_a_client_that_is_back_in_time_has_no_will() -> None:
    broker = Broker()
    watcher = joined(broker, "w")
    subscribed(watcher, "gone")
    joined(
        broker, "a", properties=STAYS, will_topic="gone",
        will_properties={"will_delay_interval": 10},
    ).lose()  # fmt: skip
    joined(broker, "a", clean_start=False)
    broker.wait(20)
    assert watcher.messages() == []


@ANY
def test_a_client_id_has_one_connection(version: int) -> None:
    broker = Broker()
    old = joined(broker, "a", version)
    new = joined(broker, "a", version)
    assert old.link.endpoint.ended is not None and new.link.endpoint.ended is None
    assert [one.return_code for one in old.received() if isinstance(one, mqtt.Disconnect)] == (
        [142] if version == 5 else []
    )


def test_shared_subscriptions_take_turns() -> None:
    broker = Broker()
    peers = [joined(broker, name) for name in "abc"]
    for peer in peers:
        subscribed(peer, "$share/g/t")
    peers[2].lose()
    for number in range(6):
        publish(peers[0], "t", str(number))
    counts = [len(peer.messages()) for peer in peers[:2]]
    assert sorted(counts) == [3, 3]


def test_a_client_that_is_silent_is_dropped() -> None:
    broker = Broker(max_keep_alive=20)
    peer = joined(broker, "a", keep_alive=60)
    broker.wait(29)
    peer.send(mqtt.PingReq)
    broker.wait(29)
    assert peer.link.endpoint.ended is None
    broker.wait(2)
    assert broker.lines[-1] == "a (10.0.0.1:1): was silent for over 30 s [141]"


def test_what_connack_says() -> None:
    broker = Broker(max_keep_alive=20, max_session_expiry_s=50)
    peer = Peer(broker)
    asked = {"request_response_information": 1, "session_expiry_interval": 100}
    peer.send(mqtt.Connect, keep_alive=60, properties=asked)
    (answer,) = peer.received()
    assert isinstance(answer, mqtt.ConnAck)
    said: dict[str, Any] = dict(answer.properties)
    client_id = said["assigned_client_identifier"]
    assert said["server_keep_alive"] == 20 and said["session_expiry_interval"] == 50
    assert said["response_information"] == f"response/{client_id}"


def test_a_topic_alias_is_used_both_ways() -> None:
    broker = Broker()
    peer = joined(broker, "a", properties={"topic_alias_maximum": 1})
    subscribed(peer, "#")
    peer.received()
    for topic in ("t", "", "u"):
        publish(peer, topic, "1", properties={} if topic == "u" else {"topic_alias": 1})
    packets = [one for one in peer.received() if isinstance(one, mqtt.Publish)]
    assert [(one.topic, one.properties) for one in packets] == [
        ("t", (("topic_alias", 1),)), ("", (("topic_alias", 1),)), ("u", ()),
    ]  # fmt: skip


def test_a_window_is_kept_and_refilled() -> None:
    broker = Broker()
    peer = joined(broker, "a", properties={"receive_maximum": 2})
    subscribed(peer, ("t", 1))
    for number in range(5):
        publish(peer, "t", str(number), 1)
    packets = [one for one in peer.received() if isinstance(one, mqtt.Publish)]
    assert len(packets) == 2
    peer.send(mqtt.PubAck, packet_id=packets[0].packet_id)
    assert [message[1] for message in peer.messages()] == [b"2"]


def test_messages_above_a_clients_packet_size_are_said() -> None:
    broker = Broker()
    peer = joined(broker, "a", properties={"maximum_packet_size": 20})
    subscribed(peer, ("t", 1))
    for size in (30, 31, 5):
        publish(peer, "t", "x" * size, 1)
    assert [len(message[1]) for message in peer.messages()] == [5]
    assert "a: takes packets of 20 bytes at most, larger ones are dropped" in broker.lines
    peer.lose()
    assert broker.lines[-1] == "a: 2 messages were dropped"


@ANY
def test_access(version: int) -> None:
    reads = {None: ["status/#"], "ann": ["plant/+/%c"]}
    access = Access(reads=reads, writes={"ann": ["plant/#"]})
    broker = Broker(access=access)
    peer = joined(broker, "c", version, username="ann")
    subscribed(peer, "status/x/#", "plant/1/c", "plant/1/d", "plant/#", "#")
    (answer,) = peer.received()
    assert isinstance(answer, mqtt.SubAck)
    refused = 135 if version == 5 else 128
    assert answer.return_codes == (0, 0, refused, refused, refused)
    publish(peer, "plant/1/c", "1", 1)
    publish(peer, "other", "1", 1)
    answers = [one for one in peer.received() if isinstance(one, mqtt.PubAck)]
    assert [one.return_code for one in answers] == ([None, 135] if version == 5 else [None])
    assert (peer.link.endpoint.ended is None) == (version == 5)
    assert "may not publish to other" in broker.lines[-1]


def test_enhanced_authentication() -> None:
    def word(connect: mqtt.Connect) -> Any:
        return (yield b"what is the word?") == b"sesame"

    broker = Broker(enhanced={"word": word})
    method = {"authentication_method": "word"}
    for answer, code in ((b"sesame", 0), (b"please", 135)):
        peer = Peer(broker)
        peer.send(mqtt.Connect, client_id="a", properties=method)
        (asked,) = peer.received()
        assert isinstance(asked, mqtt.Auth) and asked.return_code == 24
        data = {**method, "authentication_data": answer}
        peer.send(mqtt.Auth, return_code=24, properties=data)
        (said,) = peer.received()
        assert isinstance(said, mqtt.ConnAck) and said.return_code == code
        if not code:
            assert ("authentication_method", "word") in said.properties
            peer.send(mqtt.Auth, return_code=25, properties=method)
            peer.send(mqtt.Auth, return_code=24, properties=data)
            codes = [one.return_code for one in peer.received() if isinstance(one, mqtt.Auth)]
            assert codes == [24, 0]
    peer = Peer(broker)
    peer.send(mqtt.Connect, client_id="b", properties={"authentication_method": "other"})
    (refusal,) = peer.received()
    assert isinstance(refusal, mqtt.ConnAck) and refusal.return_code == 140


def test_limits_of_sessions_subscriptions_and_queues() -> None:
    broker = Broker(max_sessions=2, max_subscriptions=1, max_queued=2, endpoint=Limits(in_flight=1))
    peer, _ = joined(broker, "a"), joined(broker, "b")
    third = Peer(broker)
    third.send(mqtt.Connect, client_id="c")
    (refusal,) = third.received()
    assert isinstance(refusal, mqtt.ConnAck) and refusal.return_code == 151
    subscribed(peer, ("t", 1), "u")
    for number in range(6):
        publish(peer, "t", str(number), 1)
    answers = peer.received()
    assert [one.return_codes for one in answers if isinstance(one, mqtt.SubAck)] == [(1, 151)]
    assert len([one for one in answers if isinstance(one, mqtt.Publish)]) == 1
    assert "a: 2 messages wait for it, more are dropped" in broker.lines
    peer.lose()
    assert broker.lines[-1] == "a: 3 messages were dropped"


def test_what_is_kept_for_a_session_is_counted_in_bytes() -> None:
    size = 300 + len("t")
    broker = Broker(max_kept_bytes=3 * size)
    peer = joined(broker, "a")
    subscribed(peer, ("t", 1))
    peer.received()
    for _ in range(5):
        publish(peer, "t", "x" * 100, 1)
    packets = [one for one in peer.received() if isinstance(one, mqtt.Publish)]
    assert len(packets) == 3
    assert (
        f"a: {3 * size} bytes are kept for it, {3 * size} for all, more are dropped" in broker.lines
    )
    for packet in packets:
        peer.send(mqtt.PubAck, packet_id=packet.packet_id)
    publish(peer, "t", "x" * 100, 1)
    assert len(peer.messages()) == 1
    peer.lose()
    assert broker.core.router._kept_bytes == 0


def test_unfinished_packets_are_counted_over_all_connections() -> None:
    broker = Broker(max_held_bytes=150)
    peers = [joined(broker, name) for name in "ab"]
    half = b"\x30\x7f\x00\x01t" + bytes(95)
    for peer in peers:
        broker.core.receive(peer.link, half, broker.now)
    assert peers[0].link.endpoint.ended is None and peers[1].link.endpoint.ended is not None
    assert "200 bytes of unfinished packets are held" in broker.lines[-1]
    broker.core.receive(peers[0].link, bytes(29), broker.now)
    assert broker.core._held_bytes == 0


@ANY
def test_messages_in_flight_of_a_client_are_bounded(version: int) -> None:
    broker = Broker(endpoint=Limits(receive_maximum=2))
    peer = joined(broker, "a", version)
    for number in range(3):
        peer.send(mqtt.Publish, topic="t", qos=2, packet_id=number + 1)
    assert peer.link.endpoint.ended is not None and peer.link.endpoint.ended.code == 147


@pytest.mark.parametrize("version", [3, 4, 5])
def test_messages_that_arrive_together_go_to_whom_they_go_one_by_one(version: int) -> None:
    packets = [
        encode(mqtt.Publish(topic=topic, payload=bytes(size), version_in_force=version))
        for topic, sizes in (("t", (0, 120, 127, 200, 20_000, 0, 3)), ("u", (1, 2)), ("t", (5, 9)))
        for size in sizes
    ]
    found = []
    for pieces in (packets, [b"".join(packets)], [b"".join(packets[:3]), b"".join(packets[3:])]):
        broker = Broker()
        writer = joined(broker, "w", version)
        subscribed(writer, mqtt.Filter.of("t", no_local=version == 5))
        peers = [joined(broker, f"p{each}", each) for each in (3, 4, 5)]
        for peer in peers:
            subscribed(peer, ("#", 1))
        aliased = joined(broker, "a", 5, properties={"topic_alias_maximum": 2})
        small = joined(broker, "s", 5, properties={"maximum_packet_size": 300})
        named = joined(broker, "n", 5)
        subscribed(named, "t", properties={"subscription_identifier": 7})
        members = [joined(broker, f"m{number}", 4) for number in range(2)]
        for peer in (aliased, small):
            subscribed(peer, "t")
        for peer in members:
            subscribed(peer, "$share/g/u")
        for data in pieces:
            broker.core.receive(writer.link, data, broker.now)
        others = (writer, *peers, aliased, small, named, *members)
        found.append([peer.messages() for peer in others])
        assert len(found[-1][1]) == len(packets)
    assert found[0] == found[1] == found[2]
