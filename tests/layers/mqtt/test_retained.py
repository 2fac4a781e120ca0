"""Retained values: as of now, as of any time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wireyard.layers.mqtt.retained import Retained, Value


def value(topic: str, payload: bytes, since: int, key: str = "key") -> Value:
    return Value(topic, payload, 1, key, since)


def payload_at(retained: Retained, topic: str, time: int) -> bytes | None:
    found = retained.at(topic, time)
    return found.payload if found else None


def test_a_value_stands_until_the_next_one() -> None:
    retained = Retained()
    retained.set(value("a", b"1", 10))
    retained.set(value("a", b"2", 20))
    retained.set(value("a", b"", 30), deletes=True)
    retained.set(value("a", b"3", 40))
    times = {9: None, 10: b"1", 19: b"1", 20: b"2", 29: b"2", 30: None, 39: None, 40: b"3"}
    assert {time: payload_at(retained, "a", time) for time in times} == times
    assert [(one.since, one.until, one.ended_by) for one in retained.values()] == [
        (10, 20, "replaced"), (20, 30, "deleted"), (40, None, None),
    ]  # fmt: skip


def test_a_value_expires() -> None:
    retained = Retained()
    retained.set(value("a", b"1", 10), expires=15)
    retained.set(value("a", b"2", 20), expires=90)
    retained.set(value("a", b"3", 30))
    assert [payload_at(retained, "a", time) for time in (14, 15, 20, 30)] == [
        b"1", None, b"2", b"3",
    ]  # fmt: skip
    assert [one.ended_by for one in retained.values()] == ["expired", "replaced", None]


def test_of_two_at_once_the_later_counts() -> None:
    retained = Retained()
    retained.set(value("a", b"1", 10))
    retained.set(value("a", b"2", 10))
    assert payload_at(retained, "a", 10) == b"2"


def test_what_a_new_subscriber_gets() -> None:
    retained = Retained()
    for topic in ("a/b", "a/c", "b", "$SYS/a"):
        retained.set(value(topic, topic.encode(), 10))
    retained.set(value("a/c", b"", 20), deletes=True)
    assert {one.topic for one in retained.matching("a/#", 15)} == {"a/b", "a/c"}
    assert {one.topic for one in retained.matching("#", 25)} == {"a/b", "b"}


def test_values_of_the_past_are_taken_away() -> None:
    retained = Retained(most=2, most_bytes=4)
    for since in range(0, 100, 10):
        retained.set(value("a", b"%d" % (since // 10), since))
        past = list(retained.take_past("a"))
        assert [one.since for one in past] == ([since - 10] if since else [])
        assert all(one.ended_by == "replaced" for one in past)
    assert (len(retained), retained.dropped) == (1, 0)
    assert payload_at(retained, "a", 90) == b"9" and payload_at(retained, "a", 80) is None
    assert not list(retained.take_past("b"))


def test_what_does_not_fit_ends_the_value_before_it() -> None:
    retained = Retained(most=1)
    retained.set(value("a", b"1", 10))
    retained.set(value("a", b"2", 20))
    assert retained.dropped == 1
    assert payload_at(retained, "a", 15) == b"1" and payload_at(retained, "a", 20) is None
    small = Retained(most_bytes=5)
    small.set(value("a", b"12345", 10))
    small.set(value("a", b"1234", 20))
    assert (small.dropped, len(small)) == (1, 1)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([b"", b"1", b"2"])), max_size=20).map(
        lambda changes: sorted(changes, key=lambda one: one[0])
    ),
    st.integers(-1, 31),
)
def test_as_of_is_what_playing_the_changes_gives(
    changes: list[tuple[int, bytes]], time: int
) -> None:
    retained = Retained()
    expected = b""
    for since, payload in changes:
        retained.set(value("a", payload, since))
        expected = payload if since <= time else expected
    assert (payload_at(retained, "a", time) or b"") == expected
