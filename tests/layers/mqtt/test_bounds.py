"""Far more than is kept of everything a peer can make up: caps hold, what is dropped is counted."""

from __future__ import annotations

from typing import Final

import pytest

from tests.layers.mqtt.flows import Flows
from tests.layers.mqtt.make import Capture
from tests.layers.mqtt.sides import known_streams, sides_of
from tests.layers.mqtt.tracker import MessageTracker, observer_of
from wireyard.formats.mqtt import layout
from wireyard.formats.mqtt.filters import Filter
from wireyard.layers.mqtt import connection, subscriptions
from wireyard.layers.mqtt.qos import MAX_IN_FLIGHT, RECEIVER, SENDER
from wireyard.layers.mqtt.records import Client, ConnectionRecord, Output, Subscribed
from wireyard.layers.mqtt.retained import Retained, Value
from wireyard.layers.mqtt.session import MAX_FILTERS, Broker, Session
from wireyard.layers.mqtt.subscriptions import Subscription, Subscriptions
from wireyard.layers.records import Position

MANY: Final = 200_000
"""More than there are packet identifiers, and than any cap here."""
KEPT: Final = 10_000
AT: Final = Position(1, 1, "stream", 0, 1, 1, "source")

pytestmark = pytest.mark.slow


def client_of(name: str) -> Client:
    return Client("source", "server", name, "client", name)


def test_identifiers() -> None:
    """There are 65,535, and no state is kept of a message that only starts."""
    for table in (SENDER, RECEIVER):
        flows = Flows(table)
        for number in range(MANY):
            flows.step(number % MAX_IN_FLIGHT + 1, "publish_2")
        assert len(flows) == MAX_IN_FLIGHT == len(list(flows.in_flight()))


def test_sessions() -> None:
    output = Output()
    MessageTracker(output)
    broker = Broker(output, most_sessions=KEPT)
    for number in range(MANY):
        broker.open(ConnectionRecord(client_of(str(number)), AT, accepted=AT), None, False, (1, 1))
    assert len(broker.sessions) == KEPT
    assert output.dropped == {"sessions": MANY - KEPT}


def test_subscriptions() -> None:
    tree = Subscriptions(most_levels=2 * KEPT)
    for number in range(MANY):
        tree.subscribe(Subscription("client", f"a/{number}"))
    assert (len(tree), tree.refused) == (KEPT, MANY - KEPT)
    output, client = Output(), client_of("client")
    session = Session("client", True, MessageTracker(output))
    broker = Broker(output)
    for number in range(MANY):
        one = Subscribed(client, f"$share/{number}/t", "group", 0, False, False, None, AT, AT, AT)
        broker.subscribe(session, one)
    assert len(session.filters) == len(session.served_as) == MAX_FILTERS
    assert output.dropped == {"subscriptions": MANY - MAX_FILTERS}


def test_a_tree_that_is_emptied_is_empty() -> None:
    tree = Subscriptions(most_levels=200)
    for number in range(MANY // 100):
        for level in range(50):
            assert tree.subscribe(Subscription("client", f"{number}/{level}"))
        for level in range(50):
            assert tree.unsubscribe("client", f"{number}/{level}")
    assert (len(tree), tree.refused) == (0, 0)


def test_topics() -> None:
    retained = Retained(most=KEPT)
    for number in range(MANY):
        retained.set(Value(str(number), b"x", 0, "key", number))
    assert (len(retained), retained.dropped) == (KEPT, MANY - KEPT)
    retained = Retained(most_bytes=KEPT)
    for number in range(MANY):
        retained.set(Value("t", b"123456789", 0, "key", number))
    assert (len(retained), retained.dropped) == (KEPT // 10, MANY - KEPT // 10)


def test_messages_half_way() -> None:
    """Beyond the cap they are noted, and not followed."""
    capture = Capture()
    capture.connect("pub")
    for packet_id in range(1, 2 * KEPT + 1):
        capture.publish("pub", True, "t", b"x", 2, packet_id)
    observer = observer_of(known_streams(sides_of(capture.rows)))
    observer.observe(capture.rows[0])
    (broker,) = observer.brokers.values()
    broker.most_tracked = KEPT
    for row in capture.rows[1:]:
        observer.observe(row)
    assert broker.tracked == KEPT and observer.output.dropped == {"flows": KEPT}
    assert len(observer.output.messages) == KEPT
    observer.finish()
    assert len(observer.output.messages) == 2 * KEPT


def test_what_waits_for_an_answer() -> None:
    """Requests without an answer, and packets before a CONNACK that never comes."""
    capture = Capture()
    most = subscriptions.MAX_ASKED
    capture.connect("asks")
    for packet_id in range(1, 2 * most + 1):
        capture.put("asks", True, layout.UNSUBSCRIBE, packet_id=packet_id, filters=(Filter("a"),))
        capture.put("asks", True, layout.PINGREQ)
    capture.put(
        "early", True, layout.CONNECT,
        client_id="early", clean_start=True, keep_alive=0,
    )  # fmt: skip
    for _ in range(connection.MAX_EARLY + 5):
        capture.put("early", True, layout.PINGREQ)
    capture.put("early", False, layout.PINGRESP)
    observer = observer_of(known_streams(sides_of(capture.rows)))
    for row in capture.rows:
        observer.observe(row)
    assert observer.output.dropped == {"requests": 2 * most, "early": 5}
