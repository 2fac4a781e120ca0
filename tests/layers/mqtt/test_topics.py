"""Topic filters, subscriptions and aliases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layers.mqtt.make import Capture, tables_of
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.deliveries.subscriptions import MAX_LEVELS, Subscription, Subscriptions
from wireyard.layers.mqtt.deliveries.topics import matches, split_shared

MATCHES = [
    # From the standard (4.7.1), or what follows from it.
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/#", "sport", True),
    ("sport/#", "sports", False),
    ("#", "/", True),
    ("#", "a/b/c", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("#", "$SYS/broker/version", False),
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("$SYS/#", "$SYS/", True),
    ("$SYS/#", "$SYS", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("a/$SYS/+", "a/$SYS/b", True),
    ("+/$x", "a/$x", True),
    ("a//b", "a//b", True),
    ("a/+/b", "a//b", True),
    ("A", "a", False),
    ("", "", True),
]


@pytest.mark.parametrize(("filter", "topic", "expected"), MATCHES)
def test_matches(filter: str, topic: str, expected: bool) -> None:
    assert matches(filter, topic) == expected
    tree = Subscriptions()
    tree.subscribe(Subscription("me", filter))
    assert bool(list(tree.matching(topic))) == expected


LEVELS = st.lists(st.sampled_from(["a", "b", "", "$c"]), min_size=1, max_size=4)
WILD = st.lists(st.sampled_from(["a", "b", "", "$c", "+"]), min_size=0, max_size=4)
FILTERS = st.builds(
    lambda levels, end: "/".join([*levels, *end]) or "a", WILD, st.sampled_from([[], ["#"]])
)


@given(st.lists(st.tuples(FILTERS, st.booleans()), max_size=12), LEVELS)
def test_the_tree_is_what_matching_one_by_one_is(
    changes: list[tuple[str, bool]], levels: list[str]
) -> None:
    tree, kept = Subscriptions(), set[str]()
    for filter, on in changes:
        if on:
            assert tree.subscribe(Subscription("me", filter)) == (filter not in kept)
            kept.add(filter)
        else:
            assert tree.unsubscribe("me", filter) == (filter in kept)
            kept.discard(filter)
    topic = "/".join(levels)
    assert len(tree) == len(kept)
    assert {one.filter for one in tree.matching(topic)} == {
        filter for filter in kept if matches(filter, topic)
    }
    for filter in kept:
        tree.unsubscribe("me", filter)
    assert list(tree.matching(topic)) == [] and len(tree) == 0


def test_a_newer_subscription_takes_the_place_of_an_older_one() -> None:
    tree = Subscriptions()
    assert tree.subscribe(Subscription("me", "a", qos=0))
    assert not tree.subscribe(Subscription("me", "a", qos=2))
    assert tree.subscribe(Subscription("you", "a", qos=1))
    assert {one.client_id: one.qos for one in tree.matching("a")} == {"me": 2, "you": 1}


def test_shared_subscriptions_match_with_what_is_behind_the_group() -> None:
    assert split_shared("$share/group/a/#") == ("group", "a/#")
    assert split_shared("a/#") == (None, "a/#")
    tree = Subscriptions()
    tree.subscribe(Subscription("me", "$share/one/a/+"))
    tree.subscribe(Subscription("me", "$share/two/a/+"))
    assert {one.group for one in tree.matching("a/b")} == {"one", "two"}
    assert tree.unsubscribe("me", "$share/one/a/+")
    assert {one.group for one in tree.matching("a/b")} == {"two"}


def test_a_filter_of_too_many_levels_is_refused() -> None:
    tree = Subscriptions()
    assert not tree.subscribe(Subscription("me", "/" * MAX_LEVELS))
    assert tree.subscribe(Subscription("me", "/" * (MAX_LEVELS - 1)))
    assert (len(tree), tree.refused) == (1, 1)


def test_aliases() -> None:
    capture = Capture(5)
    capture.connect("one", said=(("topic_alias_maximum", 2),))
    sent = [("", 1), ("a", 1), ("", 1), ("b", 1), ("", 1), ("c", 3), ("", 3)]
    for number, (topic, alias) in enumerate(sent, 1):
        capture.publish(
            "one", True, topic, b"x", 1, number, properties=(("topic_alias", alias),)
        )  # fmt: skip
    # Those of the broker, and of another connection, are others; without CONNACK any may be right.
    capture.publish("one", False, "", b"x", 0, properties=(("topic_alias", 1),))
    capture.disconnect("one")
    capture.put("one", True, layout.CONNECT, client_id="one", clean_start=True, keep_alive=0)
    capture.publish("one", True, "", b"x", 0, properties=(("topic_alias", 1),))
    tables = tables_of(capture)
    topics = [row["destination"] for row in tables["deliveries"]]
    assert topics == ["a", "a", "b", "b", "c", "c"]
    rules = [row["rule"] for row in tables["violations"]]
    assert rules == ["alias_unknown", *["MQTT-3.3.2-9"] * 2, "MQTT-3.3.2-11"]
