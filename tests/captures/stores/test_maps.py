"""Maps of serialized objects: what is read of them, and that nothing else is."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.captures.stores.judge import judged
from tests.captures.stores.make import record, vrfile
from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.record import Contents, Entry, Transaction

STREAM = bytes.fromhex("aced0005")
FIRST_HANDLE = 0x7E0000


def text(value: str) -> bytes:
    return b"t" + len(value).to_bytes(2, "big") + value.encode()


def described(name: str, flags: int, fields: bytes = b"\0\0", parent: bytes = b"p") -> bytes:
    """Return a class descriptor."""
    head = b"r" + len(name).to_bytes(2, "big") + name.encode() + bytes(8)
    return head + bytes([flags]) + fields + b"x" + parent


def externalized(name: str, written: bytes, parent: bytes = b"p") -> bytes:
    """Return an object whose class writes itself as a block of data, and an end mark."""
    return (
        b"s" + described(name, 0x0C, parent=parent) + b"w" + bytes([len(written)]) + written + b"x"
    )


CORE = "com.sun.messaging.jmq.jmsserver.core."
DATA = "com.sun.messaging.jmq.jmsserver.data."
UID = described("com.sun.messaging.jmq.util.UID", 2, b"\0\1J\0\2id")


def uid(name: str, number: int) -> bytes:
    """Return an id: a class that writes itself, with a parent that has a field."""
    return externalized(name, number.to_bytes(8, "big"), UID)


def state(number: int) -> bytes:
    return externalized(f"{DATA}TransactionState", bytes(136) + number.to_bytes(4, "big"))


def info(number: int) -> bytes:
    name = "com.sun.messaging.jmq.jmsserver.persist.api.TransactionInfo"
    return b"s" + described(name, 0x0C) + b"w\4\0\0\0\1" + state(number) + b"x"


def contents_of(data: bytes, kind: Kind = Kind.MAP) -> Contents:
    found = judged(kind, vrfile(record(data)))
    assert [one.status for one in found] == ["ok"] * 4
    return found[1].contents


def test_a_key_and_a_value_are_text_and_json() -> None:
    assert contents_of(STREAM + text("Q:a") + text("b")).entry == Entry("Q:a", '"b"')
    assert contents_of(STREAM + text("Q:a") + b"p").entry == Entry("Q:a", "null")


def test_an_object_of_another_class_is_its_name() -> None:
    found = contents_of(STREAM + text("Q:a") + b"s" + described(f"{CORE}Queue", 2))
    assert found.entry == Entry("Q:a", f'"{CORE}Queue"')


NUMBER = b"r\0\x10java.lang.Number" + bytes.fromhex("86ac951d0b94e08b") + b"\2\0\0xp"
DOUBLE = (
    b"r\0\x10java.lang.Double" + bytes.fromhex("80b3c24a296bfb04") + b"\2\0\1D\0\5valuex" + NUMBER
)
DOUBLES = b"r\0\2[D" + bytes.fromhex("3ea68c14ab635a1e") + b"\2\0\0xp"


@pytest.mark.parametrize(
    ("value", "shown"), [("inf", "Infinity"), ("-inf", "-Infinity"), ("nan", "NaN"), ("1.5", 1.5)]
)
def test_numbers_that_json_lacks_are_text(value: str, shown: object) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    number = struct.pack(">d", float(value))
    pair = b"u" + DOUBLES + (2).to_bytes(4, "big") + 2 * number
    for data, expected in ((b"s" + DOUBLE + number, shown), (pair, [shown, shown])):
        entry = contents_of(STREAM + text("Q:a") + data).entry
        assert entry is not None
        assert json.loads(entry.value, parse_constant=refuse) == expected


def test_an_id_is_a_number() -> None:
    found = contents_of(STREAM + uid(f"{CORE}ConsumerUID", 1 << 60) + b"p")
    assert found.entry == Entry(str(1 << 60), "null")


@pytest.mark.parametrize(
    ("behind", "name"),
    [(b"", "prepared"), (b"\0\0\0", "prepared"), (b"%CD\6", "committed"), (b"%CD\x63", "99")],
)
def test_a_transaction_has_the_state_behind_it_if_there_is_one(behind: bytes, name: str) -> None:
    data = STREAM + uid(f"{DATA}TransactionUID", 77) + info(5) + behind
    found = contents_of(data, Kind.TRANSACTIONS)
    assert found.transaction == Transaction(77, name)
    assert found.entry == Entry("77", "5")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"no stream", "bad_java"),
        (STREAM + text("alone"), "bad_java"),
        (STREAM + text("Q:a") + b"s" + described("Odd", 4), "bad_java"),
        (STREAM + externalized(f"{CORE}ConsumerUID", b"short") + b"p", "bad_java"),
        (STREAM + text("Q:a") + externalized(f"{DATA}TransactionState", b"short"), "bad_java"),
    ],
)
def test_what_is_no_entry_is_malformed(data: bytes, code: str) -> None:
    found = judged(Kind.MAP, vrfile(record(data)))
    assert found[1].error is not None
    assert (found[1].status, found[1].error.code) == ("malformed", code)


def test_a_transaction_without_its_id_is_malformed() -> None:
    found = judged(Kind.TRANSACTIONS, vrfile(record(STREAM + text("77") + info(5))))
    assert found[1].status == "malformed"
    assert found[1].contents.entry == Entry("77", "5")


def lists(count: int, depth: int, level: int = 0) -> bytes:
    """Return an array with the same array in it `count` times, and so on to `depth`."""
    described_before = b"q" + (FIRST_HANDLE + 1).to_bytes(4, "big")
    desc = described_before if level else described("[Ljava.lang.Object;", 2)
    if level == depth:
        return b"u" + desc + bytes(4)
    again = b"q" + (FIRST_HANDLE + 3 + level).to_bytes(4, "big")
    inner = lists(count, depth, level + 1)
    return b"u" + desc + count.to_bytes(4, "big") + inner + again * (count - 1)


@pytest.mark.parametrize(("count", "depth"), [(100, 3), (60, 6)])
def test_a_value_that_repeats_itself_is_cut_short(count: int, depth: int) -> None:
    """A kilobyte of references would print as megabytes, or as terabytes."""
    data = STREAM + text("k") + lists(count, depth)
    found = judged(Kind.MAP, vrfile(record(data)))
    assert found[1].error is not None
    assert (found[1].status, found[1].error.code) == ("malformed", "limit_exceeded")


def test_a_value_that_repeats_itself_a_little_is_shown() -> None:
    found = contents_of(STREAM + text("k") + lists(3, 2))
    assert found.entry == Entry("k", "[[[], [], []], [[], [], []], [[], [], []]]")


def test_the_subscriptions_of_a_real_store(examples: Path) -> None:
    data = (examples / "store/fs370/interest").read_bytes()
    found = [one.contents.entry for one in judged(Kind.MAP, data)]
    values = [json.loads(one.value) for one in found if one is not None]
    assert values == [
        {
            "client_id": "archive",
            "durable_name": "all",
            "destination": "T:prices",
            "selector": None,
            "no_local": False,
        },
        {
            "client_id": "desk",
            "durable_name": "news",
            "destination": "T:prices",
            "selector": "number < 6",
            "no_local": False,
        },
    ]
