"""Far more half-open things than are kept: memory stays bounded, what is evicted is counted."""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterator
from itertools import count, islice

import pytest

from tests.layers.jmq.make import Talk
from wireyard.formats.base import Row
from wireyard.formats.properties import Properties, Property
from wireyard.layers.jmq.chain import CHAIN
from wireyard.layers.jmq.observer import Observer
from wireyard.layers.jmq.records import MAX_TEXT
from wireyard.layers.stages import run_chain

MOST = 1 << 12
"""How many half-open things are kept, by a cap that is lower than ours."""
TIMES = 4
"""How many times as many half-open things there are as are kept."""
HOME = "wireyard.layers.jmq"
OBJECTS_OF_ONE = 18
"""Objects that the largest half-open thing is made of, a connection."""
FEW = 100


def numbered(template: Row, column: str) -> Iterator[Row]:
    """Yield a row again and again, with another value of a column each time."""
    for number in count(1):
        yield template | {column: number, "sequence": number}


def named(template: Row, name: str, rest: dict[str, Property]) -> Iterator[Row]:
    for number in count(1):
        properties = Properties(rest | {name: Property("long", number)})
        yield template | {"properties": properties, "sequence": number}


def requests(talk: Talk) -> Iterator[Row]:
    return numbered(talk.ask("PING"), "consumer_id")


def messages(talk: Talk) -> Iterator[Row]:
    talk.consumer(7)
    return numbered(talk.deliver(talk.send(), 7), "timestamp")


def consumers(talk: Talk) -> Iterator[Row]:
    return numbered(talk.deliver(talk.send(), 7), "consumer_id")


def producers(talk: Talk) -> Iterator[Row]:
    return numbered(talk.send(flags="C"), "producer_id")


def transactions(talk: Talk) -> Iterator[Row]:
    asked = talk.ask("START_TRANSACTION")
    answer = talk.reply("START_TRANSACTION_REPLY")
    ok = {"JMQStatus": Property("integer", 200)}
    for reply in named(answer, "JMQTransactionID", ok):
        yield asked
        yield reply


def connections(talk: Talk) -> Iterator[Row]:
    row = talk.rows[0]
    for number in count():
        yield row | {"stream": f"10.0.0.9:1>10.0.0.1:2#{number}"}


@pytest.mark.parametrize(
    ("flood", "rows_of_one", "cap"),
    [
        (requests, 1, "requests.MAX_WAITING"),
        (messages, 1, "consumers.MAX_HELD"),
        (consumers, 1, "consumers.MAX_CONSUMERS"),
        (producers, 1, "flow.MAX_PAUSED"),
        (transactions, 2, "sender.MAX_TRANSACTIONS"),
        (connections, 1, "observer.MAX_CONNECTIONS"),
    ],
)
def test_many_half_open_things(
    flood: Callable[[Talk], Iterator[Row]],
    rows_of_one: int,
    cap: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{HOME}.{cap}", MOST)
    others = alive()
    talk = Talk().login()
    observer = Observer()
    given = flood(talk)
    for row in talk.rows:
        observer.observe(row)
    many = TIMES * MOST
    for at, row in enumerate(islice(given, many * rows_of_one)):
        observer.observe(row)
        if at % 1_000 == 0:
            observer.output.clear()
    observer.output.clear()
    assert alive() - others <= OBJECTS_OF_ONE * MOST + FEW
    observer.finish()
    assert observer.output.dropped[cap.partition(".")[2]] >= many - MOST


def alive() -> int:
    """Return how many objects of this room there are."""
    # Classes of some other packages have no text for a module.
    return sum(str(type(one).__module__).startswith(HOME) for one in gc.get_objects())


def delivered(talk: Talk, messages: int) -> Iterator[Row]:
    """Yield messages, sent, delivered and acknowledged one after the other."""
    yield from talk.rows
    for _ in range(messages):
        del talk.rows[:]
        talk.acknowledge(talk.deliver(talk.send(), 7))
        yield from talk.rows
    del talk.rows[:]
    yield from talk.goodbye().rows


def broken_up(talk: Talk, packets: int) -> Iterator[Row]:
    """Yield packets of which every other one is missing."""
    row = talk.tell("START")
    yield from talk.rows
    for number in range(packets):
        yield row | {"sequence": row["sequence"] + 2 * number}


@pytest.mark.parametrize(("follow", "many"), [(delivered, 8_000), (broken_up, 30_000)])
def test_what_is_over_is_not_held(follow: Callable[[Talk, int], Iterator[Row]], many: int) -> None:
    """A connection's facts and notes leave as they become final, however long it lasts."""
    others = alive()
    talk = Talk().login()
    talk.consumer(7)
    (_, step), *_ = CHAIN.items()
    held = []
    found = 0
    for found, _ in enumerate(step(follow(talk, many))):
        if found % 2_000 == 0:
            held.append(alive() - others)
    assert found > many and len(held) > 10
    # What up to a thousand packets say is taken away together.
    assert max(held[len(held) // 2 :]) <= max(held[: len(held) // 2]) + FEW
    assert max(held) <= OBJECTS_OF_ONE * 1024


def test_requests_that_nobody_answers_are_forgotten_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wireyard.layers.jmq.conversations.MAX_REMEMBERED", 3)
    talk = Talk().login()
    first, second, third = (talk.send(reply_to="back")["sys_message_id"] for _ in range(3))
    replies = [
        talk.send(destination="back", correlation_id=f"ID:{key}")["sys_message_id"]
        for key in (second, first, second, third)
    ]
    packets = [(("connection",), row) for row in talk.rows]
    found, dropped = run_chain(CHAIN, packets)
    pairs = [
        (row["request_key"], row["reply_key"])
        for row in found["conversations"]
        if row["kind"] == "jms"
    ]
    # The first had to go for the first reply, and the second, with its replies, for the last.
    assert pairs == [(first, None), (second, replies[0]), (second, replies[2]), (third, replies[3])]
    assert dropped == {"MAX_REMEMBERED": 1}


def test_a_cap_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireyard.layers.jmq.consumers.MAX_HELD", 2)
    talk = Talk().login()
    talk.consumer(7)
    talk.consumer(8)
    first, second, third = (talk.deliver(talk.send(), 7) for _ in range(3))
    fourth = talk.deliver(talk.send(), 8)
    talk.acknowledge(first, second, third, fourth)
    tables = talk.tables()
    by_message = {row["message_key"]: row["verdict"] for row in tables["deliveries"]}
    wanted = ["held", "acknowledged", "acknowledged", "held"]
    assert [by_message[row["sys_message_id"]] for row in (first, second, third, fourth)] == wanted
    (row,) = tables["violations"]
    assert row["rule"] == "acknowledged_nothing" and row["text"].endswith(", 2 times")
    assert row["message_key"] == first["sys_message_id"]


def test_what_was_forgotten_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireyard.layers.jmq.requests.MAX_WAITING", 1)
    talk = Talk().login()
    first = talk.ask("CREATE_SESSION")
    talk.request("CREATE_DESTINATION")
    observer = Observer()
    for row in talk.rows:
        observer.observe(row)
    observer.finish()
    assert dict(observer.output.dropped) == {"MAX_WAITING": 1}
    (unanswered,) = (one for one in observer.output.exchanges if one.replied is None)
    assert unanswered.requested.offset == first["offset"]


CAPS: dict[str, Callable[[Talk], object]] = {
    "requests.MAX_WAITING": lambda talk: talk.ask("PING"),
    "consumers.MAX_HELD": lambda talk: talk.deliver(talk.send(), 7),
    "consumers.MAX_CONSUMERS": lambda talk: talk.deliver(talk.send(), 7),
    "flow.MAX_PAUSED": lambda talk: talk.send(flags="C", producer_id=4),
    "sender.MAX_TRANSACTIONS": lambda talk: talk.request(
        "START_TRANSACTION", re_JMQTransactionID=talk.client[1]
    ),
}


@pytest.mark.parametrize("cap", CAPS)
def test_many_connections_have_one_cap(cap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one connection left open there is no room for in another, until the first is over."""
    module, _, name = cap.partition(".")
    observer = Observer()
    talks = [Talk(client=("10.0.0.9", port)).login() for port in (1, 2, 3)]
    for talk in talks:
        CAPS[cap](talk)
    monkeypatch.setattr(f"wireyard.layers.jmq.{module}.{name}", 1)
    for row in talks[0].rows + talks[1].rows:
        observer.observe(row)
    before = dict(observer.output.dropped)
    assert before.keys() == {name}
    monkeypatch.setattr("wireyard.layers.jmq.observer.MAX_CONNECTIONS", 2)
    for row in talks[2].rows:
        observer.observe(row)
    observer.finish()
    assert dict(observer.output.dropped) == before | {"MAX_CONNECTIONS": 1}
    assert len(observer.output.logins) == 3


def test_an_id_that_is_used_again_takes_the_place_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = Talk().login()
    observer = Observer()
    for _ in range(3):
        talk.ask("PING")
        talk.ack_id -= 1
    talk.ack_id += 1
    talk.reply("PING_REPLY")
    talk.request("CREATE_SESSION")
    monkeypatch.setattr("wireyard.layers.jmq.requests.MAX_WAITING", 1)
    for row in talk.rows:
        observer.observe(row)
    assert not observer.output.dropped


def test_long_texts_are_cut() -> None:
    talk = Talk().login()
    talk.consumer(7, JMQDurableName="d" * 5000)
    sent = talk.send(destination="q" * 5000, reply_to="r" * 5000)
    delivered = talk.deliver(sent, 7)
    for row in (sent, delivered):
        row["property_offset"] = 72 + 10_000
    tables = talk.tables()
    (row,) = tables["deliveries"]
    assert row["destination"] == "q" * MAX_TEXT and row["subscription"] == "d" * MAX_TEXT
    (row,) = (row for row in tables["conversations"] if row["kind"] == "jms")
    assert row["request"] == "q" * MAX_TEXT


def test_a_reply_answers_the_latest_of_requests_that_look_the_same() -> None:
    talk = Talk().login()
    for _ in range(3):
        last = talk.send(reply_to="back", correlation_id="c")
    for _ in range(2):
        talk.send(destination="back", correlation_id="c")
    rows = [row for row in talk.tables()["conversations"] if row["reply_key"]]
    keys = [row["request_key"] for row in rows if row["kind"] == "jms"]
    assert keys == [last["sys_message_id"]] * 2


def test_one_packet_breaks_a_rule_once() -> None:
    talk = Talk().login()
    talk.tell("ACKNOWLEDGE", body=struct.pack(">qq16sii", -1, -1, bytes(16), -1, -1) * 1000)
    (row,) = talk.tables()["violations"]
    assert row["rule"] == "acknowledged_nothing" and row["text"].endswith(", 1000 times")
