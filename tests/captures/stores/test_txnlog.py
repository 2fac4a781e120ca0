"""Transaction logs: what would be played back, what is done with, what is damaged."""

from __future__ import annotations

import struct

import pytest

from tests.captures.stores.judge import judged, rows_of, store_file
from tests.captures.stores.make import (
    RECORD,
    acknowledgment,
    details,
    group,
    log,
    log_header,
    log_record,
    message_id,
    packets,
    record,
    routed,
    utf,
    vrfile,
    work,
)
from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.record import (
    Acknowledgment,
    ConsumerState,
    Contents,
    Record,
    Transaction,
)

P = packets(4)
SEND = b"\4\0"


def send(number: int) -> bytes:
    return SEND + routed(P[number], number)


def states(records: list[Record]) -> list[str]:
    return [one.state.value if one.status == "ok" else one.status for one in records]


def contents_of(body: bytes, type: int = -1) -> Contents:
    """Return what a log's one record tells."""
    found = judged(Kind.LOG, log(log_record(body, 0, type=type)))
    assert states(found) == ["header", "live", "unused"]
    return found[1].contents


def packets_in(data: bytes, contents: Contents) -> list[bytes]:
    return [data[one.start : one.stop] for one in contents.packets]


def test_records_are_live_in_order_of_their_numbers() -> None:
    data = log(*(log_record(send(number), number) for number in range(3)))
    found = judged(Kind.LOG, data)
    assert states(found) == ["header", "live", "live", "live", "unused"]
    assert [packets_in(data, one.contents) for one in found[1:4]] == [[P[0]], [P[1]], [P[2]]]
    assert [one.contents.sequence for one in found[1:4]] == [0, 1, 2]
    assert {one.contents.checkpoint_sequence for one in found[1:4]} == {2}
    assert {one.contents.timestamp_ms for one in found[1:4]} == {1795288300134}


def test_records_of_an_earlier_round_are_stale() -> None:
    now = [log_record(send(number), number) for number in range(2)]
    then = [log_record(send(number), number, checkpoint=1) for number in range(2, 4)]
    data = log(*now, *then)
    found = judged(Kind.LOG, data)
    assert states(found) == ["header", "live", "live", "stale", "stale", "unused"]
    rows = rows_of(store_file(Kind.LOG, data))
    assert [row["sequence"] for row in rows if row["status"] == "ok"] == [0, 1]


def test_the_rest_of_a_record_that_was_written_over_is_stale() -> None:
    now = log_record(send(0), 0)
    then = log_record(send(3), 1, checkpoint=1)
    later = log_record(send(2), 2, checkpoint=1)
    data = log(now, then[20:], later)
    found = judged(Kind.LOG, data)
    assert states(found) == ["header", "live", "stale", "stale", "unused"]
    assert states(judged(Kind.LOG, log(now, then[20:])))[-1] == "stale"


def test_after_a_clean_shutdown_all_are_stale() -> None:
    data = log(log_record(send(0), 0), header=log_header(status=1))
    assert states(judged(Kind.LOG, data)) == ["header", "stale", "unused"]
    assert [row["status"] for row in rows_of(store_file(Kind.LOG, data))] == ["gap"]


def test_records_before_the_checkpoint_are_stale() -> None:
    first = log_record(send(0), 7)
    data = log(first, log_record(send(1), 0), header=log_header(position=48 + len(first)))
    assert states(judged(Kind.LOG, data)) == ["header", "stale", "live", "unused"]


def test_a_number_out_of_order_ends_playing_back() -> None:
    data = log(log_record(send(0), 0), log_record(send(1), 2), log_record(send(2), 3))
    assert states(judged(Kind.LOG, data)) == ["header", "live", "unreached", "unreached", "unused"]


HARM = {
    "magic": (0, b"\0", "garbage"),
    "size that is negative": (8, b"\xff", "garbage"),
    "size over the file": (8, b"\0\1\0\0", "garbage"),
    "sum": (40, b"\xff", "malformed"),
    "body": (60, b"\xff", "malformed"),
}


@pytest.mark.parametrize("name", HARM)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_damage_ends_playing_back_but_loses_nothing(name: str, place: int) -> None:
    at, harm, status = HARM[name]
    parts = [log_record(send(number), number) for number in range(3)]
    start = 48 + sum(map(len, parts[:place]))
    data = bytearray(log(*parts))
    data[start + at : start + at + len(harm)] = harm
    found = judged(Kind.LOG, bytes(data))
    expected = ["live"] * place + [status] + ["unreached"] * (2 - place)
    if status == "garbage" and place == 2:
        # Nothing marks where the last one ends; with it goes the room behind it.
        assert states(found)[:-1] == ["header", "live", "live"]
        assert states(found)[-1] in ("garbage", "tail")
    else:
        assert states(found) == ["header", *expected, "unused"]
    rows = rows_of(store_file(Kind.LOG, bytes(data)))
    intact = [0, 1, 2] if name != "body" else [one for one in range(3) if one != place]
    assert [row["sequence"] for row in rows if row["status"] == "ok"] == intact


def test_a_torn_last_record_is_malformed() -> None:
    torn = log_record(send(3), 1)
    data = log(log_record(send(0), 0), torn[:80] + bytes(len(torn) - 80))
    assert states(judged(Kind.LOG, data)) == ["header", "live", "malformed", "unused"]


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"\0" + log_header()[1:], "bad_magic"),
        (log_header(version=2), "unsupported_version"),
        (log_header()[:30] + b"\xff" + log_header()[31:], "bad_checksum"),
        (log_header(position=3), "bad_position"),
        (log_header(position=1 << 40), "bad_position"),
    ],
)
def test_a_header_that_breaks_a_rule_is_malformed(header: bytes, code: str) -> None:
    found = judged(Kind.LOG, log(log_record(send(0), 0), header=header))
    assert found[0].error is not None
    assert found[0].error.code == code
    assert len(found[1].contents.packets) == 1


def test_every_prefix_is_accounted_for() -> None:
    data = log(*(log_record(send(number), number) for number in range(2)), room=9)
    ends = {0, 48, 48 + len(log_record(send(0), 0))}
    # Three bytes of a magic could be left over from anything.
    short = {end + more for end in ends - {0} for more in range(4)}
    for stop in range(len(data) - 9):
        found = judged(Kind.LOG, data[:stop])
        assert ({one.status for one in found} <= {"ok"}) == (stop in ends | short), stop


EVENTS = {
    "local one-phase": (
        b"\1\0" + details(1, 77, 6) + work([routed(P[1], 5, 6)], [acknowledgment("Q:a", 9, 5)]),
        [Transaction(77, "committed")],
    ),
    "local prepare": (
        b"\1\1"
        + details(1, 77, 5, xid=True)
        + work([routed(P[1], 5, 6)], [acknowledgment("Q:a", 9, 5)])
        + b"\0\0\0\4\xac\xed\0\5",
        [Transaction(77, "prepared")],
    ),
    "local complete": (b"\1\2" + details(1, 77, 7, xid=True), [Transaction(77, "rolled back")]),
    "remote prepare": (b"\2\1" + details(2, 77, 5) + b"more", [Transaction(77, "prepared")]),
    "remote complete": (b"\2\2" + details(2, 77, 99), [Transaction(77, "99")]),
    "cluster prepare": (
        b"\3\1"
        + details(3, 77, 5)
        + work([routed(P[1], 5, 6)], [acknowledgment("Q:a", 9, 5)])
        + b"more",
        [Transaction(77, "prepared")],
    ),
    "cluster complete": (b"\3\2" + details(3, 77, 6), [Transaction(77, "committed")]),
    "send": (SEND + routed(P[1], 5, 6), []),
    "acknowledge": (b"\5\0" + acknowledgment("Q:a", 9, 5), []),
    "remove": (b"\6\0" + utf("Q:a") + message_id(9), []),
}


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_tells_what_was_done(kind: str) -> None:
    body, transactions = EVENTS[kind]
    found = contents_of(body)
    assert found.kind == kind
    assert [found.transaction] if found.transaction else transactions == []
    works = kind in ("local one-phase", "local prepare", "cluster prepare")
    if works or kind == "send":
        assert packets_in(log(log_record(body, 0)), found) == [P[1]]
        assert found.packets[0].consumers == (ConsumerState(5, None), ConsumerState(6, None))
    else:
        assert found.packets == []
    if works or kind in ("acknowledge", "remove"):
        consumer = None if kind == "remove" else 5
        message = "9-192.168.1.17-49152-1105948800001"
        assert found.acknowledgments == [Acknowledgment("Q:a", message, consumer)]
    else:
        assert found.acknowledgments == []


@pytest.mark.parametrize("kind", EVENTS)
def test_every_prefix_of_an_event_is_malformed(kind: str) -> None:
    body, _ = EVENTS[kind]
    short = len(body) - len(b"more") if body.endswith(b"more") else len(body)
    for stop in range(short):
        found = judged(Kind.LOG, log(log_record(body[:stop], 0)))
        assert states(found) == ["header", "malformed", "unused"], stop


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"\7\0", "bad_kind", "kind"),
        (b"\1\3", "bad_kind", "kind"),
        (SEND + P[0] + b"\x7f\xff\xff\xff", "truncated", "consumer count"),
        (SEND + b"x" * 80, "bad_magic", "packet"),
        (b"\1\0" + details(1, 7, 6) + b"\xff\xff\xff\xff", "bad_size", "message count"),
        (b"\5\0" + b"\0\1\xff" + bytes(40), "bad_utf8", "destination"),
        (b"\1\2" + details(1, 7, 6) + b"?", "trailing_bytes", "end"),
    ],
)
def test_a_body_that_breaks_a_rule_is_malformed(body: bytes, code: str, field: str) -> None:
    found = judged(Kind.LOG, log(log_record(body, 0), log_record(send(1), 1)))
    assert states(found)[1:3] == ["malformed", "live"]
    assert found[1].error is not None
    assert (found[1].error.code, found[1].error.field) == (code, field)


def test_older_logs_have_the_kind_in_the_type() -> None:
    sent = struct.pack(">qi", 77, 2) + P[0] + P[1]
    done = struct.pack(">qi", 0, 1) + acknowledgment("T:b", 3, 8)
    both = struct.pack(">qi", 5, 1) + P[2] + struct.pack(">i", 1) + acknowledgment("T:b", 3, 8)
    data = log(
        log_record(sent, 0, type=1), log_record(done, 1, type=2), log_record(both, 2, type=4)
    )
    found = judged(Kind.LOG, data)
    assert states(found) == ["header", "live", "live", "live", "unused"]
    assert [one.contents.kind for one in found[1:4]] == [
        "produce",
        "consume",
        "produce and consume",
    ]
    assert [one.contents.transaction for one in found[1:4]] == [
        Transaction(77, None),
        None,
        Transaction(5, None),
    ]
    assert [packets_in(data, one.contents) for one in found[1:4]] == [[P[0], P[1]], [], [P[2]]]
    acknowledged = Acknowledgment("T:b", "3-192.168.1.17-49152-1105948800001", 8)
    assert [one.contents.acknowledgments for one in found[2:4]] == [[acknowledged]] * 2


def test_an_unknown_type_is_malformed() -> None:
    found = judged(Kind.LOG, log(log_record(send(0), 0, type=3)))
    assert states(found) == ["header", "malformed", "unused"]


def test_a_group_is_taken_apart() -> None:
    old = struct.pack(">qi", 77, 1) + P[0]
    body = group((-1, send(1)), (1, old), (-1, b"\7\7"), (-1, send(2)))
    data = log(log_record(body, 0, type=8), log_record(send(3), 1))
    found = judged(Kind.LOG, data)
    assert states(found) == [
        "header",
        "live",
        "live",
        "live",
        "malformed",
        "live",
        "live",
        "unused",
    ]
    kinds = [one.contents.kind for one in found[1:7]]
    assert kinds == ["group", "send", "produce", None, "send", "send"]
    assert [packets_in(data, one.contents) for one in found[1:7]] == [
        *([], [P[1]], [P[0]], [], [P[2]], [P[3]]),
    ]
    assert {one.contents.sequence for one in found[1:6]} == {0}
    assert found[4].error is not None
    assert found[4].error.offset == 8


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", ["malformed"]),
        (b"\0\0\0", ["malformed"]),
        (b"\x7f\xff\xff\xff", ["malformed"]),
        (group(), ["live"]),
        (group((-1, send(1))) + b"?", ["live", "live", "malformed"]),
        (group((-1, send(1)))[:-1], ["live", "malformed"]),
        (group((8, group((-1, send(1))))), ["live", "malformed"]),
        (b"\0\0\0\2" + group((-1, send(1)))[4:], ["live", "malformed"]),
    ],
)
def test_a_group_that_breaks_a_rule_is_malformed_from_there_on(
    body: bytes, expected: list[str]
) -> None:
    found = judged(Kind.LOG, log(log_record(body, 0, type=8)))
    assert states(found) == ["header", *expected, "unused"]


def test_many_members_cost_no_more_than_their_bytes() -> None:
    body = group(*[(-1, b"")] * 20_000)
    found = judged(Kind.LOG, log(log_record(body, 0, type=8)))
    assert len(found) == 20_003


def test_many_false_magics_cost_no_more_than_their_bytes() -> None:
    data = log_header() + (RECORD + b"\xff" * 8) * 50_000
    assert len(judged(Kind.LOG, data)) == 2


def test_incomplete_transactions_are_kept_in_a_vrfile() -> None:
    body, _ = EVENTS["local prepare"]
    data = vrfile(record(struct.pack(">i", len(body) - 2) + body[2:]))
    found = judged(Kind.INCOMPLETE, data)
    contents = found[1].contents
    assert (contents.kind, contents.transaction) == ("local prepare", Transaction(77, "prepared"))
    assert packets_in(data, contents) == [P[1]]
    rows = rows_of(store_file(Kind.INCOMPLETE, data))
    assert [row["status"] for row in rows] == ["gap", "ok", "gap"]


@pytest.mark.parametrize("size", [-1, 0, 1, 5, 100, 1 << 30])
def test_an_incomplete_transaction_of_another_size_is_malformed(size: int) -> None:
    body, _ = EVENTS["local prepare"]
    found = judged(Kind.INCOMPLETE, vrfile(record(struct.pack(">i", size) + body[2:])))
    assert states(found)[1] == "malformed"
