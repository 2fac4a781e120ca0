"""Equal messages where packets are missing: only what every pairing has in common is concluded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from tests.layers.mqtt.make import Capture, deliveries_of, pair, tables_of
from tests.layers.mqtt.test_lost import lose
from wireyard.layers.mqtt.kernels.deliveries import SEVERAL, find_partners

PERIODS = 6


def equal_messages(version: int = 4, qos: int = 1) -> Capture:
    """Return a capture of equal messages, each delivered before the next one is sent."""
    capture = pair(version, qos)
    for number in range(1, PERIODS + 1):
        capture.wait(0.4)
        capture.message("pub", "t/1", b"ON", qos, number)
        capture.hand("sub", "t/1", b"ON", qos, number)
    return capture


def rows_of(capture: Capture) -> list[tuple[str, bool, bool, bool]]:
    """Return verdict, and whether there are a message, a time of delivery and a consumer."""
    tables = tables_of(capture)
    assert tables["violations"] == []
    for row in tables["deliveries"]:
        if row.get("sent_ns") is not None and row.get("delivered_ns") is not None:
            assert row["delivered_ns"] - row["sent_ns"] < 100_000_000
    return [
        (row["verdict"], *(row.get(name) is not None for name in _SHOWN))
        for row in tables["deliveries"]
    ]


_SHOWN = ("message_key", "delivered_ns", "consumer")
_CERTAIN = ("delivered", True, True, True)
_OPEN = ("undecided", True, False, False)
_OF_ANY = ("delivered", False, True, True)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_all_pairs_of_a_whole_capture_are_certain(version: int) -> None:
    assert rows_of(equal_messages(version)) == [_CERTAIN] * PERIODS


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("lost", range(PERIODS))
def test_a_lost_message_leaves_the_later_ones_open(version: int, lost: int) -> None:
    """It was sent behind the one before it, of which the delivery may be one of it too."""
    capture = equal_messages(version)
    lose(capture, 6 + 4 * lost)
    found = rows_of(capture)
    certain = max(lost - 1, 0)
    assert found.count(_CERTAIN) == certain
    assert found.count(_OPEN) == PERIODS - 1 - certain
    assert found.count(_OF_ANY) == PERIODS - certain


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("lost", range(PERIODS))
def test_a_lost_delivery_leaves_the_later_ones_open(version: int, lost: int) -> None:
    """Any of the messages from the one on whose delivery is lost may be without one."""
    capture = equal_messages(version)
    lose(capture, 8 + 4 * lost)
    found = rows_of(capture)
    assert found.count(_CERTAIN) == lost
    # The last message has nothing after it, so that it has no delivery is certain.
    is_last = lost == PERIODS - 1
    assert found.count(_OPEN) == (0 if is_last else PERIODS - lost)
    assert found.count(_OF_ANY) == PERIODS - 1 - lost


@pytest.mark.parametrize("index", [7, 9])
def test_a_lost_acknowledgement_leaves_all_pairs_certain(index: int) -> None:
    capture = equal_messages()
    lose(capture, index)
    rows = [row for row in deliveries_of(capture) if row["verdict"] == "delivered"]
    assert len(rows) >= PERIODS - 1
    assert all(row["delivered_ns"] - row["sent_ns"] < 10_000_000 for row in rows)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_where_a_message_is_lost_another_may_not_have_been_delivered(
    is_known: bool, is_lost: bool
) -> None:
    """As many of both are left, but no delivery need be of the message before it."""
    capture = equal_messages()
    if is_lost:
        lose(capture, 12, 14, *([] if is_known else [2]))
    else:  # the broker never made the delivery
        del capture.rows[12:14]
        lose(capture, 12, *([] if is_known else [2]))
    found = rows_of(capture)
    assert found.count(_CERTAIN) <= 1
    assert found.count(_OF_ANY) >= PERIODS - 2


def test_which_member_of_a_group_got_a_message_is_open() -> None:
    capture = Capture(5)
    for who in ("a", "b"):
        capture.connect(who)
        capture.subscribe(who, "$share/g/t/#", qos=1)
    capture.connect("pub")
    for number in (1, 2):
        capture.wait(0.4)
        capture.message("pub", "t/1", b"ON", 1, number)
        capture.hand("ab"[number - 1], "t/1", b"ON", 1, number)
    lose(capture, 14)  # the second message
    assert sorted(rows_of(capture)) == sorted([_OF_ANY, _OF_ANY, _OPEN])


def test_deliveries_to_an_older_subscription_are_paired_where_that_is_certain() -> None:
    capture = equal_messages()
    del capture.rows[:4]  # the connection of the subscriber, and its subscription
    assert rows_of(capture) == [_CERTAIN] * PERIODS
    lose(capture, 10)  # the message of the third delivery
    capture.streams = []
    found = rows_of(capture)
    assert (found.count(_CERTAIN), found.count(_OF_ANY)) == (1, PERIODS - 1)
    assert found.count(_OPEN) == PERIODS - 2


@pytest.mark.parametrize("version", [4, 5])
def test_an_equal_message_may_be_of_a_subscription_that_was_not_captured(version: int) -> None:
    """The client subscribes again on each connection; a delivery and a later SUBACK are lost."""
    capture = Capture(version)
    capture.connect("pub")
    places = []
    for number in (1, 2, 3):
        capture.connect("sub")
        capture.subscribe("sub", "t/1", qos=1)
        places.append(len(capture.rows) - 1)
        capture.message("pub", "t/1", b"ON", 1, number)
        places.append(len(capture.rows))
        capture.hand("sub", "t/1", b"ON", 1, number)
        capture.end("sub")
        capture.wait(1)
    assert rows_of(capture) == [_CERTAIN] * 3
    lose(capture, *places[1:3])
    assert _CERTAIN not in rows_of(capture)


# --- a payload that was sent once -------------------------------------------------------------


@pytest.mark.parametrize(("lost", "is_certain"), [((10,), True), ((12,), True), ((10, 12), False)])
def test_a_payload_sent_once_may_be_another_only_if_both_sides_lack_bytes(
    lost: tuple[int, ...], is_certain: bool
) -> None:
    """What is lost was another message, and its delivery; for all that is known, equal ones."""
    capture = pair(qos=1)
    for number, payload in enumerate((b"ON", b"OFF"), 1):
        capture.message("pub", "t/1", payload, 1, number)
        capture.hand("sub", "t/1", payload, 1, number)
    lose(capture, *lost)
    (row,) = (row for row in deliveries_of(capture) if row.get("delivered_frame") == 9)
    assert row.get("sent_frame") == (7 if is_certain else None)
    assert row["verdict"] == "delivered"


def test_what_was_lost_long_before_and_long_behind_is_of_other_messages() -> None:
    capture = pair(qos=1)
    for number, payload in enumerate((b"OFF", b"ON", b"OFF", b"OFF"), 1):
        capture.message("pub", "t/1", payload, 1, number)
        capture.hand("sub", "t/1", payload, 1, number)
        capture.wait(2)
    lose(capture, 6, 20)  # the first message, and the last but one delivery
    (row,) = (row for row in deliveries_of(capture) if row.get("delivered_frame") == 13)
    assert row["sent_frame"] == 11


def test_a_stream_that_begins_behind_a_message_may_have_had_another_one() -> None:
    capture = Capture()
    capture.connect("pub")
    capture.message("pub", "t/1", b"ON", 1)
    capture.connect("sub", clean=False, present=True)
    capture.message("pub", "t/1", b"ON", 1, 2)
    capture.hand("sub", "t/1", b"ON", 1)
    lose(capture, 6)  # the second message
    (row,) = (row for row in deliveries_of(capture) if row.get("delivered_frame"))
    assert "sent_frame" not in row


# --- the kernel against all pairings ----------------------------------------------------------


def pairings(starts: list[int], capacities: list[int], ats: list[int]) -> Iterator[list[int]]:
    """Yield all pairings in order with the most pairs: for each attempt its message, or -1."""
    copies = [place for place, count in enumerate(capacities) for _ in range(count)]
    for size in range(min(len(copies), len(ats)), -1, -1):
        found = [
            dict(zip(attempts, messages, strict=True))
            for messages in combinations(copies, size)
            for attempts in combinations(range(len(ats)), size)
            if all(starts[m] < ats[a] for m, a in zip(messages, attempts, strict=True))
        ]
        if found:
            yield from ([of.get(attempt, -1) for attempt in range(len(ats))] for of in found)
            return


@pytest.mark.parametrize("seed", range(300))
def test_only_what_all_pairings_have_in_common_is_certain(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.randint(0, 4), dice.randint(0, 4)
    times = dice.sample(range(20), sum(count))
    starts, ats = sorted(times[: count[0]]), sorted(times[count[0] :])
    capacities = [dice.choice((1, 1, 2)) for _ in starts]
    partners = np.full(len(ats), 99, np.int64)
    runs = np.array([[0, len(starts), 0, len(ats), len(ats)]], np.int32)
    find_partners(
        *(np.array(starts, np.int64), np.array(capacities, np.int64), np.array(ats, np.int64)),
        runs, np.empty(len(starts), np.int64), partners,
    )  # fmt: skip
    every = np.array(list(pairings(starts, capacities, ats)))
    is_same = (every == every[0]).all(axis=0)
    assert partners.tolist() == np.where(is_same, every[0], SEVERAL).tolist()
