"""Conversations and violations of RMP packets, as rows of tables."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from tests.layers.rmp.captured import GROUP, PORT, Sent, rows_of
from tests.layers.rmp.make import plain, segment
from wireyard.layers.rmp.chain import derive_tables, key_of
from wireyard.layers.rmp.limits import Limits
from wireyard.layers.tables import TABLES

ASKER, ANSWERER, OTHER = 5001, 5002, 5003
PORTS = (ASKER, ANSWERER)
KEY = f"10.0.0.1:{ASKER}>{GROUP}:{PORT}@"


def ask(number: int = 258, **named: Any) -> bytes:
    return segment(number, 1, 1, b"?", layer=2, reply_requested=True, **named)


def reply(data: bytes = b"!", number: int = 258, port: int = ASKER) -> bytes:
    return plain(data, reply_message_number=number, reply_source=f"10.0.0.1:{port}")


def conversations(*sent: Sent) -> list[dict[str, Any]]:
    rows = derive_tables(rows_of(sent)).tables.get("conversations", [])
    for row in rows:
        assert row.keys() <= {column.name for column in TABLES["conversations"]}
    return sorted(rows, key=lambda row: (row["requested_frame"], row["replied_frame"] or 0))


def frames(*sent: Sent) -> list[tuple[int, int | None]]:
    return [(row["requested_frame"], row["replied_frame"]) for row in conversations(*sent)]


def test_a_request_and_its_reply() -> None:
    [row] = conversations(Sent(ask()), Sent(reply(), 0.0425, ANSWERER))
    assert row["replied_ns"] - row["requested_ns"] == 42_500_000
    assert {**row, "source": "", "requested_ns": 0, "replied_ns": 0} == {
        "kind": "rmp",
        "request_key": f"{KEY}0",
        "reply_key": f"10.0.0.1:{ANSWERER}>{GROUP}:{PORT}@0",
        "requester": f"10.0.0.1:{ASKER}",
        "responder": f"10.0.0.1:{ANSWERER}",
        "requested_ns": 0,
        "replied_ns": 0,
        "latency_ms": 42,
        "request": "RPC",
        "requested_frame": 1,
        "replied_frame": 2,
        "source": "",
        "stream": KEY[:-1],
        "offset": 0,
    }


def test_a_request_that_nobody_answers() -> None:
    [row] = conversations(Sent(ask()), Sent(reply(number=259), 0.1, ANSWERER))
    assert (row["request_key"], row["reply_key"], row["responder"]) == (f"{KEY}0", None, None)
    assert (row["replied_ns"], row["latency_ms"]) == (None, None)


def test_every_reply_is_a_row() -> None:
    sent = [Sent(ask())]
    sent += [Sent(reply(b"%d" % n), 0.1 * n, port) for n, port in ((1, ANSWERER), (2, OTHER))]
    sent += [Sent(reply(b"to itself"), 0.3)]
    assert frames(*sent) == [(1, 2), (1, 3), (1, 4)]


def test_a_reply_to_a_message_that_asks_for_none() -> None:
    parts = [Sent(segment(7, place, 2, b"a"), 0.01 * place) for place in (1, 2)]
    assert frames(*parts) == []
    assert frames(*parts, Sent(reply(number=7), 0.1, ANSWERER)) == [(1, 3)]


def test_a_reply_is_to_the_last_message_of_its_number() -> None:
    sent = [
        Sent(ask()),
        Sent(reply(b"a"), 1, OTHER),
        Sent(ask(client=4), 2),
        Sent(ask(client=5), 3),
    ]
    sent += [Sent(reply(b"b"), 4, OTHER)]
    assert frames(*sent) == [(1, 2), (3, None), (4, 5)]
    assert frames(Sent(reply(), 0, OTHER), Sent(ask(), 1)) == [(2, None)]


def test_a_request_is_open_with_the_last_of_its_packets() -> None:
    parts = [segment(7, place, 2, b"?", reply_requested=place == 1) for place in (1, 2)]
    sent = [Sent(parts[0]), Sent(reply(number=7), 1, OTHER), Sent(parts[1], 2)]
    sent.append(Sent(reply(b"later", number=7), 3, OTHER))
    assert frames(*sent) == [(1, 4)]


def test_a_reply_in_another_group_is_none() -> None:
    rows = rows_of([Sent(ask()), Sent(reply(), 1, ANSWERER)])
    rows[1] |= {"dst_port": PORT + 1, "stream": "other"}
    [row] = derive_tables(rows).tables["conversations"]
    assert row["reply_key"] is None


def test_a_raw_stream_has_no_conversations() -> None:
    nulls = dict.fromkeys(("src_addr", "src_port", "dst_addr", "dst_port", "captured_ns", "frame"))
    rows = [{**row, **nulls} for row in rows_of([Sent(ask()), Sent(b"\0", 1)])]
    found = derive_tables(rows).tables
    assert "conversations" not in found
    [row] = found["violations"]
    assert (row["client"], row["frame"], row["captured_ns"]) == (None, None, None)


def test_violations_lead_to_their_packets() -> None:
    asked = plain(b"?", reply_requested=True)
    sent = [Sent(asked), Sent(segment(7, 1, 2, b"a"), 1.0), Sent(b"\0", 2.0, OTHER)]
    rows = derive_tables(rows_of(sent)).tables["violations"]
    for row in rows:
        assert row.keys() <= {column.name for column in TABLES["violations"]}
        assert row["protocol"] == "rmp" and row["captured_ns"] is not None
    found = {row["rule"]: (row["client"], row["message_key"], row["frame"]) for row in rows}
    assert found == {
        "reply_not_addressable": (f"10.0.0.1:{ASKER}", None, 1),
        "incomplete": (f"10.0.0.1:{ASKER}", f"{KEY}{len(asked)}", 2),
        "malformed_packet": (f"10.0.0.1:{OTHER}", None, 3),
    }


def test_what_a_bound_made_forget_is_counted() -> None:
    most = Limits().max_unfinished_of_source
    sent = [Sent(segment(n, 1, 2, b""), 0.001 * n, port) for n in range(most + 3) for port in PORTS]
    found = derive_tables(rows_of(sent))
    assert found.dropped == {"max_unfinished_of_source": 6}
    rules = Counter(row["rule"] for row in found.tables["violations"])
    assert rules == {"over_bound": 6, "incomplete": 2 * most}


def test_the_order_of_senders_says_nothing() -> None:
    rng = Random(4)
    sent = []
    for n in range(60):
        port = rng.choice((ASKER, ANSWERER, OTHER))
        named = rng.choice((ASKER, ANSWERER, OTHER))
        packet = (
            ask(rng.randrange(4))
            if rng.random() < 0.4
            else reply(b"%d" % n, rng.randrange(4), named)
        )
        sent.append(Sent(packet, 0.1 * n, port))
    rows = rows_of(sent)
    expected = derive_tables(rows).tables["conversations"]
    assert len(expected) > 20
    by_sender: dict[Any, list[Any]] = {}
    for row in rows:
        by_sender.setdefault(key_of(row), []).append(row)
    for group in (reversed(by_sender), sorted(by_sender, key=str)):
        again = derive_tables(row for key in group for row in by_sender[key]).tables[
            "conversations"
        ]
        assert sorted(map(str, again)) == sorted(map(str, expected))
