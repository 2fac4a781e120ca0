"""Topic filters, subscriptions and aliases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireyard.layers.mqtt.subscriptions import MAX_LEVELS, Subscription, Subscriptions
from wireyard.layers.mqtt.topics import Aliases, matches, split_shared

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
    aliases = Aliases(maximum=2)
    assert aliases.resolve("a", None) == ("a", None)
    assert aliases.resolve("", 1) == (None, "alias_unknown")
    assert aliases.resolve("a", 1) == ("a", None)
    assert aliases.resolve("", 1) == ("a", None)
    assert aliases.resolve("b", 1) == ("b", None)
    assert aliases.resolve("", 1) == ("b", None)
    assert aliases.resolve("c", 3) == ("c", "alias_maximum")
    assert aliases.resolve("", 3) == ("c", "alias_maximum")
    assert Aliases().resolve("c", 65_535) == ("c", None)
