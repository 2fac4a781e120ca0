"""Files of variable records: what each record is to the broker, and where damage ends."""

from __future__ import annotations

import pytest

from tests.captures.stores.judge import judged, rows_of, store_file
from tests.captures.stores.make import (
    FREE,
    PROPERTIES,
    RECORD,
    ROOM,
    message,
    packets,
    record,
    vrfile,
)
from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.layout import State
from wireyard.captures.stores.record import ConsumerState, Record

P = packets(4)
PENDING = -1


def states(records: list[Record]) -> list[tuple[str, str]]:
    return [(one.state.value, one.status) for one in records]


def test_every_state_is_told() -> None:
    data = vrfile(
        record(message(P[0], (11, 0), (12, 1), (13, 2), (14, 9))),
        record(message(P[1]), FREE),
        record(message(P[2]), cookie=PENDING),
        record(b"what a broker notes", PROPERTIES),
    )
    found = judged(Kind.MESSAGES, data)
    assert states(found) == [
        ("header", "ok"),
        ("allocated", "ok"),
        ("free", "ok"),
        ("pending", "ok"),
        ("properties", "ok"),
        ("last", "ok"),
        ("unused", "ok"),
    ]
    kept, freed, pending = (found[place].contents.packets for place in (1, 2, 3))
    assert data[kept[0].start : kept[0].stop] == P[0]
    assert kept[0].consumers == (
        ConsumerState(11, "routed"),
        ConsumerState(12, "delivered"),
        ConsumerState(13, "acknowledged"),
        ConsumerState(14, "9"),
    )
    assert data[freed[0].start : freed[0].stop] == P[1]
    assert data[pending[0].start : pending[0].stop] == P[2]


def test_the_stream_holds_what_a_broker_would_load() -> None:
    data = vrfile(
        record(message(P[0])), record(message(P[1]), FREE), record(message(P[2]), cookie=PENDING)
    )
    rows = rows_of(store_file(Kind.MESSAGES, data))
    assert [(row["status"], row["offset"], row["length"]) for row in rows] == [
        ("gap", 0, 40),
        ("ok", 40, len(P[0])),
        ("gap", 40 + len(P[0]), len(data) - 40 - len(P[0])),
    ]
    assert [row["error"] for row in rows] == [None, None, None]
    assert rows[1]["sequence"] == 0
    assert (rows[1]["source"], rows[1]["stream"]) == ("store", "file")


def test_version_1_numbers_its_states_otherwise() -> None:
    data = vrfile(record(message(P[0]), 2), record(message(P[1]), 1), version=1)
    found = judged(Kind.MESSAGES, data)
    assert [state for state, _ in states(found)] == [
        *("header", "allocated", "free", "last", "unused"),
    ]
    assert found[0].stop == 16


def test_old_bytes_in_a_free_record_are_no_fault() -> None:
    found = judged(Kind.MESSAGES, vrfile(record(b"\xff" * 50, FREE), record(b"\xff", cookie=-1)))
    assert {status for _, status in states(found)} == {"ok"}


@pytest.mark.parametrize(
    ("data", "code", "field"),
    [
        (message(P[0])[:-1] + b"\x63", "truncated", "consumer count"),
        (b"\xff" * 200, "bad_size", "packet size"),
        (message(P[0][:-1]), "bad_size", "packet"),
        (message(b"x" * 90), "bad_magic", "packet"),
        ((300).to_bytes(4, "big") + P[0], "bad_size", "packet"),
        (message(P[0])[:-4] + b"\xff" * 4, "bad_size", "consumer count"),
    ],
    ids=range(6),
)
def test_a_record_whose_data_breaks_a_rule_is_malformed(data: bytes, code: str, field: str) -> None:
    found = judged(Kind.MESSAGES, vrfile(record(data), record(message(P[1]))))
    assert states(found)[1:3] == [("allocated", "malformed"), ("allocated", "ok")]
    assert found[1].error is not None
    assert (found[1].error.code, found[1].error.field) == (code, field)


def test_a_fault_behind_a_packet_leaves_the_packet() -> None:
    found = judged(Kind.MESSAGES, vrfile(record(message(P[0])[:-4] + b"\x7f" + bytes(3))))
    assert [one.stop - one.start for one in found[1].contents.packets] == [len(P[0])]
    assert found[1].status == "malformed"


def test_a_cookie_nobody_writes_is_malformed() -> None:
    found = judged(Kind.MESSAGES, vrfile(record(message(P[0]), cookie=5)))
    assert found[1].error is not None
    assert found[1].error.code == "bad_cookie"
    assert len(found[1].contents.packets) == 1


DAMAGE = {
    "state": (8, b"\0\x63", "bad_state"),
    "capacity below its header": (4, b"\0\0\0\5", "bad_size"),
    "capacity over the file": (4, b"\0\1\0\0", "truncated"),
    "last, with a capacity": (8, b"\0\3", "bad_size"),
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_ends_where_the_next_record_begins(name: str, place: int) -> None:
    at, harm, code = DAMAGE[name]
    parts = [record(message(one, (1, 0))) for one in P[:3]]
    start = 24 + sum(map(len, parts[:place]))
    data = bytearray(vrfile(*parts))
    data[start + at : start + at + len(harm)] = harm
    found = judged(Kind.MESSAGES, bytes(data))
    bad = [one for one in found if one.status != "ok"]
    assert [(one.start, one.stop) for one in bad] == [(start, start + len(parts[place]))]
    assert bad[0].error is not None
    assert bad[0].error.code == code
    # Nothing of the message is lost: the framer finds it in the damage.
    rows = rows_of(store_file(Kind.MESSAGES, bytes(data)))
    assert [row["sequence"] for row in rows if row["status"] == "ok"] == [0, 1, 2]
    assert sum(row["length"] for row in rows if row["status"] == "garbage") == len(
        parts[place]
    ) - len(P[place])


def test_a_record_is_damaged_with_the_one_behind_it_that_has_no_magic() -> None:
    parts = [record(message(one)) for one in P[:3]]
    data = bytearray(vrfile(*parts))
    data[24 + len(parts[0])] = 0
    found = judged(Kind.MESSAGES, bytes(data))
    assert states(found)[1:4] == [
        ("allocated", "malformed"),  # as the broker has it: it may as well be too short
        ("unknown", "garbage"),
        ("allocated", "ok"),
    ]
    rows = rows_of(store_file(Kind.MESSAGES, bytes(data)))
    assert [row["sequence"] for row in rows if row["status"] == "ok"] == [0, 1, 2]


def test_a_capacity_that_ends_nowhere_ends_the_record() -> None:
    parts = [record(message(one)) for one in P[:2]]
    data = bytearray(vrfile(*parts))
    data[28:32] = (128).to_bytes(4, "big")
    found = judged(Kind.MESSAGES, bytes(data))
    assert [(one.start, one.stop) for one in found[1:4]] == [(24, 152), (152, 280), (280, 536)]
    assert [status for _, status in states(found)[1:4]] == ["malformed", "garbage", "ok"]


def test_a_capacity_that_reaches_over_a_record_hides_none() -> None:
    first, second = record(message(P[0])), record(message(P[1]))
    data = bytearray(vrfile(first, second, record(message(P[2]))))
    data[28:32] = (len(first) + 128).to_bytes(4, "big")
    found = judged(Kind.MESSAGES, bytes(data))
    assert states(found)[1:4] == [("unknown", "garbage"), ("allocated", "ok"), ("allocated", "ok")]


def test_a_record_without_another_behind_it_is_malformed() -> None:
    data = vrfile(record(message(P[0])))
    cut = data[: data.rindex(RECORD)]
    found = judged(Kind.MESSAGES, cut)
    assert states(found) == [("header", "ok"), ("allocated", "malformed")]
    assert len(found[1].contents.packets) == 1


@pytest.mark.parametrize("harm", [b"\0", b"\x55\x55\xaa\xaa\0\x09"])
def test_records_behind_a_damaged_header_are_read(harm: bytes) -> None:
    data = bytearray(vrfile(record(message(P[0]))))
    data[: len(harm)] = harm
    found = judged(Kind.MESSAGES, bytes(data))
    assert states(found)[:2] == [("unknown", "garbage"), ("allocated", "ok")]
    assert found[0].stop == 24


def test_a_file_without_a_header_loses_nothing() -> None:
    data = vrfile(record(message(P[0])), record(message(P[1])))[24:]
    assert states(judged(Kind.MESSAGES, data))[:2] == [("unknown", "garbage"), ("allocated", "ok")]
    rows = rows_of(store_file(Kind.MESSAGES, data))
    assert [row["sequence"] for row in rows if row["status"] == "ok"] == [0, 1]


def test_every_prefix_is_accounted_for() -> None:
    data = vrfile(record(message(P[0], (1, 0))), record(message(P[1]), FREE), room=20)
    for stop in range(len(data)):
        found = judged(Kind.MESSAGES, data[:stop])
        complete = stop >= len(data) - 20 or stop in (0, 24)
        assert ({one.status for one in found} <= {"ok"}) == complete, stop


def test_what_is_behind_the_last_record_is_unused_whatever_it_is() -> None:
    data = vrfile(record(message(P[0]))) + record(message(P[1])) + b"rubbish"
    found = judged(Kind.MESSAGES, data)
    assert found[-1].state is State.UNUSED
    assert found[-1].stop - found[-1].start == ROOM + len(record(message(P[1]))) + len(b"rubbish")


def test_no_file_has_no_records() -> None:
    assert judged(Kind.MESSAGES, b"") == []


def test_many_false_magics_cost_no_more_than_their_bytes() -> None:
    data = vrfile(record(message(P[0])))[:24] + RECORD * 200_000
    found = judged(Kind.MESSAGES, data)
    assert len(found) == 2
    assert found[1].status != "ok"
