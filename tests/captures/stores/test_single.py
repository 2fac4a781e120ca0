"""Messages and transactions that have a file to themselves."""

from __future__ import annotations

import pytest

from tests.captures.stores.judge import judged, rows_of, store_file
from tests.captures.stores.make import details, packets, routed, single, states, work
from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.layout import State
from wireyard.captures.stores.record import ConsumerState, Transaction

P = packets(3)


def test_a_good_message_is_held_with_its_states() -> None:
    data = single(P[1], states((7, 1))) + b"of a longer one that was here before"
    message, room = judged(Kind.MESSAGE, data)
    assert (message.state, message.start, room.state) == (State.ALLOCATED, 0, State.UNUSED)
    assert message.contents.packets[0].consumers == (ConsumerState(7, "delivered"),)
    rows = rows_of(store_file(Kind.MESSAGE, data))
    assert [(row["status"], row["offset"]) for row in rows] == [
        ("gap", 0),
        ("ok", 14),
        ("gap", 14 + len(P[1])),
    ]


@pytest.mark.parametrize(("tag", "state"), [(b"FREE", State.FREE), (b"....", State.PENDING)])
def test_another_tag_holds_nothing(tag: bytes, state: State) -> None:
    data = single(P[1], states((7, 1)), tag)
    (message,) = judged(Kind.MESSAGE, data)
    assert (message.state, message.status) == (state, "ok")
    assert len(message.contents.packets) == 1
    assert [row["status"] for row in rows_of(store_file(Kind.MESSAGE, data))] == ["gap"]


@pytest.mark.parametrize("tag", [b"FREE", b"...."])
def test_what_is_not_there_whole_is_no_fault_behind_another_tag(tag: bytes) -> None:
    (message,) = judged(Kind.MESSAGE, single(P[1], tag=tag)[:60])
    assert (message.status, message.contents.packets) == ("ok", [])


@pytest.mark.parametrize(
    ("at", "harm", "code", "field"),
    [
        (0, b"\0\5", "bad_tag", "tag"),
        (2, b"G00D", "bad_tag", "tag"),
        (6, b"\xff", "bad_size", "data size"),
        (13, b"\x48", "bad_size", "packet"),
        (14, b"\0", "bad_magic", "packet"),
        (14 + len(P[1]), b"\xff", "bad_size", "attachment size"),
        (21 + len(P[1]), b"\x11", "truncated", "attachment"),
        (21 + len(P[1]), b"\x0f", "truncated", "consumer count"),
        (22 + len(P[1]), b"\xff", "bad_size", "consumer count"),
        (25 + len(P[1]), b"\2", "truncated", "consumer count"),
    ],
)
def test_damage_is_told_and_read_as_a_stream(at: int, harm: bytes, code: str, field: str) -> None:
    data = bytearray(single(P[1], states((7, 1))))
    data[at : at + len(harm)] = harm
    (message,) = judged(Kind.MESSAGE, bytes(data))
    assert message.error is not None
    assert (message.error.code, message.error.field) == (code, field)
    rows = rows_of(store_file(Kind.MESSAGE, bytes(data)))
    found = [row["offset"] for row in rows if row["status"] == "ok"]
    assert found == ([] if at == 14 else [14])
    assert "gap" not in {row["status"] for row in rows}


def test_every_prefix_is_a_tail() -> None:
    data = single(P[1], states((7, 1)))
    for stop in range(1, len(data)):
        (message,) = judged(Kind.MESSAGE, data[:stop])
        assert message.status == "tail", stop


def test_a_large_transaction_has_its_work_in_it() -> None:
    body = details(1, 77, 5, xid=True) + work([routed(P[2], 5)]) + b"\0\0\0\2\xac\xed"
    data = single(body)
    (found,) = judged(Kind.PREPARED, data)
    assert found.contents.kind == "local prepare"
    assert found.contents.transaction == Transaction(77, "prepared")
    (packet,) = found.contents.packets
    assert data[packet.start : packet.stop] == P[2]
    for stop in range(1, len(data)):
        (cut,) = judged(Kind.PREPARED, data[:stop])
        assert cut.status == "tail", stop
    (short,) = judged(Kind.PREPARED, single(body[:-1]))
    assert (short.status, len(short.contents.packets)) == ("malformed", 1)
    (attached,) = judged(Kind.PREPARED, single(body, b"?"))
    assert attached.status == "malformed"
