"""A million of everything a peer can make up: what is kept is capped, what is not is counted."""

from __future__ import annotations

from typing import Final

import pytest

from tests.layers.mqtt.make import Capture
from wireyard.formats.mqtt import layout
from wireyard.formats.mqtt.reading import Filter
from wireyard.layers.mqtt import observer as observing
from wireyard.layers.mqtt.broker import Broker
from wireyard.layers.mqtt.derive import observe
from wireyard.layers.mqtt.directions import sides_of
from wireyard.layers.mqtt.flow_tables import RECEIVER, SENDER
from wireyard.layers.mqtt.flows import MAX_IN_FLIGHT, Flows
from wireyard.layers.mqtt.observer import Observer
from wireyard.layers.mqtt.records import Link, Moment, Subscribed
from wireyard.layers.mqtt.retained import Retained, Value
from wireyard.layers.mqtt.sessions import MAX_FILTERS, Session
from wireyard.layers.mqtt.subscriptions import Subscription, Subscriptions

MILLION: Final = 1_000_000
KEPT: Final = 10_000
AT: Final = Moment(1, 1, 1, "source", "stream", 0)

pytestmark = pytest.mark.slow


def link_of(name: str) -> Link:
    return Link(("source", "server"), "client", "server", AT, name=name, accepted=AT)


def ignore(session: Session, at: Moment) -> None:
    """Take the end of a connection."""


def test_identifiers() -> None:
    """There are 65,535, and no state is kept of a message that only starts."""
    for table in (SENDER, RECEIVER):
        flows = Flows(table)
        for number in range(MILLION):
            flows.step(number % MAX_IN_FLIGHT + 1, "publish_2")
        assert len(flows) == MAX_IN_FLIGHT == len(list(flows.in_flight()))


def test_sessions() -> None:
    broker = Broker(ignore, most_sessions=KEPT)
    for number in range(MILLION):
        broker.open(link_of(str(number)), None, False, (1, 1))
    assert len(broker.sessions) == KEPT
    assert broker.dropped == {"sessions": MILLION - KEPT}


def test_subscriptions() -> None:
    tree = Subscriptions(most_levels=2 * KEPT)
    for number in range(MILLION):
        tree.subscribe(Subscription("client", f"a/{number}"))
    assert (len(tree), tree.refused) == (KEPT, MILLION - KEPT)
    session, broker = Session("client", known=True), Broker(ignore)
    for number in range(MILLION):
        link = link_of("client")
        one = Subscribed("client", str(number), None, 0, False, False, None, link, AT, AT)
        broker.subscribe(session, one)
    assert len(session.filters) == MAX_FILTERS
    assert broker.dropped == {"subscriptions": MILLION - MAX_FILTERS}


def test_a_tree_that_is_emptied_is_empty() -> None:
    tree = Subscriptions(most_levels=200)
    for number in range(MILLION // 100):
        for level in range(50):
            assert tree.subscribe(Subscription("client", f"{number}/{level}"))
        for level in range(50):
            assert tree.unsubscribe("client", f"{number}/{level}")
    assert (len(tree), tree.refused) == (0, 0)


def test_topics() -> None:
    retained = Retained(most=KEPT)
    for number in range(MILLION):
        retained.set(Value(str(number), b"x", 0, "key", number))
    assert (len(retained), retained.dropped) == (KEPT, MILLION - KEPT)
    retained = Retained(most_bytes=KEPT)
    for number in range(MILLION):
        retained.set(Value("t", b"123456789", 0, "key", number))
    assert (len(retained), retained.dropped) == (KEPT // 10, MILLION - KEPT // 10)


def test_messages_half_way() -> None:
    """Beyond the cap they are noted, and not followed."""
    capture = Capture()
    capture.connect("pub")
    for packet_id in range(1, 2 * KEPT + 1):
        capture.publish("pub", True, "t", b"x", 2, packet_id)
    observer = Observer(sides_of(capture.rows))
    observe(observer, capture.rows[:1])
    (broker,) = observer.brokers.values()
    broker.most_carried = KEPT
    for place, row in enumerate(capture.rows[1:], 1):
        observer.take(row, 2 * place + 1)
    assert broker.carried == KEPT and broker.dropped == {"flows": KEPT}
    assert len(observer.notes.messages) == 2 * KEPT


def test_what_waits_for_an_answer() -> None:
    """Requests without an answer, and packets before a CONNACK that never comes."""
    capture = Capture()
    most = observing.MAX_ASKED
    capture.connect("asks")
    for packet_id in range(1, 2 * most + 1):
        capture.put("asks", True, layout.UNSUBSCRIBE, packet_id=packet_id, filters=(Filter("a"),))
        capture.put("asks", True, layout.PINGREQ)
    capture.put(
        "early", True, layout.CONNECT, protocol_name="MQTT", protocol_version=4,
        client_id="early", clean_start=True, keep_alive=0,
    )  # fmt: skip
    for _ in range(observing.MAX_EARLY + 5):
        capture.put("early", True, layout.PINGREQ)
    capture.put("early", False, layout.PINGRESP)
    observer = Observer(sides_of(capture.rows))
    observe(observer, capture.rows)
    assert observer.notes.dropped == {"requests": 2 * most, "early": 5}
