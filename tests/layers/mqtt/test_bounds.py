"""Far more than is kept of everything a peer can make up: caps hold, what is dropped is counted."""

from __future__ import annotations

from typing import Final

import pytest

from tests.layers.mqtt.make import Capture, derived
from wireyard.formats.mqtt import layout
from wireyard.formats.mqtt.filters import Filter
from wireyard.layers.mqtt.deliveries import columns as delivery_columns
from wireyard.layers.mqtt.deliveries.subscriptions import Subscription, Subscriptions
from wireyard.layers.mqtt.kernels.requests import MAX_FILTERS

MANY: Final = 200_000
"""More than there are packet identifiers, and than any cap here."""
KEPT: Final = 10_000

pytestmark = pytest.mark.slow


def test_subscriptions() -> None:
    tree = Subscriptions(most_levels=2 * KEPT)
    for number in range(MANY):
        tree.subscribe(Subscription("client", f"a/{number}"))
    assert (len(tree), tree.refused) == (KEPT, MANY - KEPT)


def test_subscriptions_of_a_session() -> None:
    """Those above the most of a session are counted; one that has ended makes room."""
    capture = Capture(5)
    capture.connect("sub")
    most, each = MAX_FILTERS, 1 << 10
    for first in range(0, most + 2 * each, each):
        names = [f"$share/{number}/t" for number in range(first, first + each)]
        capture.subscribe("sub", *names, qos=0)
    capture.unsubscribe("sub", "$share/0/t")
    capture.subscribe("sub", "$share/1/t", "t", qos=0)
    _, dropped = derived(capture.rows)
    assert dropped == {"subscriptions": 2 * each}


def test_a_tree_that_is_emptied_is_empty() -> None:
    tree = Subscriptions(most_levels=200)
    for number in range(MANY // 100):
        for level in range(50):
            assert tree.subscribe(Subscription("client", f"{number}/{level}"))
        for level in range(50):
            assert tree.unsubscribe("client", f"{number}/{level}")
    assert (len(tree), tree.refused) == (0, 0)


def test_what_waits_for_an_answer() -> None:
    """Nothing is dropped of requests without answers, and of packets before a CONNACK."""
    capture, count = Capture(), 1500
    capture.put(
        "one", True, layout.CONNECT, client_id="one", clean_start=True, keep_alive=0,
    )  # fmt: skip
    for packet_id in range(1, count + 1):
        capture.put("one", True, layout.UNSUBSCRIBE, packet_id=packet_id, filters=(Filter("a"),))
        capture.put("one", True, layout.PINGREQ)
        capture.publish("one", True, "t", b"x", 0)
    capture.put("one", False, layout.CONNACK, return_code=0, session_present=False)
    for _ in range(count):
        capture.put("one", False, layout.PINGRESP)
    capture.put("one", False, layout.UNSUBACK, packet_id=count)
    tables, dropped = derived(capture.rows)
    accepted = [row["accepted_frame"] for row in tables["deliveries"]]
    # Each PINGRESP answers one PINGREQ; no message is before the first, one is behind the last.
    assert not dropped and "violations" not in tables
    first = 3 * count + 3
    assert sorted(filter(None, accepted)) == list(range(first + 1, first + count))
    assert accepted.count(None) == 1


def test_violations_without_end() -> None:
    """The kernel is called again as often as their buffer is full."""
    capture, count = Capture(), 10_000
    capture.connect("one")
    for number in range(count):
        capture.put("one", False, layout.PUBACK, packet_id=number + 1)
    capture.message("one", "t", b"x", 1)
    tables, _ = derived(capture.rows)
    assert [row["frame"] for row in tables["violations"]] == list(range(3, count + 3))
    assert [row["accepted_frame"] for row in tables["deliveries"]] == [count + 4]


def many_to_many(subscribers: int, messages: int, *, each: int = 1) -> Capture:
    """Return a capture of messages to many subscribers, of which only the first gets any."""
    capture = Capture()
    for number in range(subscribers):
        capture.connect(f"s{number}")
        capture.subscribe(f"s{number}", *("t/#", "t/+", "t/1")[:each], qos=0)
    capture.connect("pub")
    for number in range(messages):
        capture.message("pub", "t/1", b"%d" % number, 0)
        capture.hand("s0", "t/1", b"%d" % number, 0)
    capture.ping("pub")
    return capture


@pytest.mark.parametrize("each", [1, 3])
def test_messages_that_many_subscribers_did_not_get(
    monkeypatch: pytest.MonkeyPatch, each: int
) -> None:
    """Those that were delivered have their rows, of the others some, and no message is lost."""
    most, subscribers, messages = 30, 20, 25
    capture = many_to_many(subscribers, messages, each=each)
    whole, dropped = derived(capture.rows)
    assert dropped == {}
    assert len(whole["deliveries"]) == subscribers * messages
    monkeypatch.setattr(delivery_columns, "MAX_UNDELIVERED", most)
    tables, dropped = derived(capture.rows)
    rows = tables["deliveries"]
    delivered = [row for row in rows if row["delivered_ns"] is not None]
    assert {row["verdict"] for row in delivered} == {"delivered"}
    assert len(delivered) == messages == len({row["message_key"] for row in rows})
    assert len(rows) <= messages + most + messages
    assert dropped["undelivered"] >= (subscribers * messages - len(rows))


def test_ordinary_traffic_is_below_the_limit() -> None:
    """15 subscribers that get none of 46,778 messages, as a load of a real broker had them."""
    assert delivery_columns.MAX_UNDELIVERED > 15 * 46_778
