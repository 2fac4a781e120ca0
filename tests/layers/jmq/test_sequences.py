"""What senders number: numbers that are left out break no rule, those that go back do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layers.jmq.judge import derive
from tests.layers.jmq.make import CLIENT, Talk, address_bytes
from tests.layers.jmq.tables import only, rules
from wireyard.formats.base import Row


def numbered(*packets: tuple[int, int]) -> Talk:
    """Return a conversation that goes on with packets of the client: number and timestamp."""
    talk = Talk().login()
    for number, timestamp in packets:
        talk.send(sequence=number, timestamp=timestamp)
    return talk


@pytest.mark.parametrize(
    ("packets", "expected"),
    [
        ([(3, 10), (4, 11), (3, 12)], ["sequence_reused"]),
        ([(3, 10), (3, 10)], []),
        ([(3, 10), (3, 9)], ["sequence_reused"]),
        ([(3, 10), (4, 11), (5, 12), (3, 10), (4, 11), (6, 13)], []),
        ([(3, 10), (7, 11), (5, 12)], ["sequence_back"]),
        (
            [(3, 10), (4, 11), (1, 20), (0, 21), (-9, 22)],
            ["sequence_reused"] + 2 * ["sequence_back"],
        ),
        ([(3, 10), (-9, 10)], []),
        ([(3, 10), (2 - (1 << 31), 11), (3 - (1 << 31), 12), (3, 13)], []),
    ],
)
def test_a_new_packet_has_a_higher_number(
    packets: list[tuple[int, int]], expected: list[str]
) -> None:
    """One that is sent again has the timestamp that it had, which is not above the highest's."""
    assert rules(numbered(*packets).tables()) == expected


def test_a_number_is_told_with_its_packet() -> None:
    talk = numbered((3, 10), (4, 11), (3, 12))
    row = only(talk.tables()["violations"])
    broken = talk.rows[-1]
    assert row["text"].startswith("TEXT_MESSAGE: ")
    assert row["message_key"] == broken["sys_message_id"]
    assert (row["client"], row["frame"]) == ("10.0.0.9:50000", broken["frame"])
    assert (row["stream"], row["offset"]) == (broken["stream"], broken["offset"])


def test_numbers_of_another_sender_are_its_own() -> None:
    """A packet that another program wrote, or that it wrote on another connection, goes on."""
    talk = numbered((3, 10), (40, 11))
    talk.send(sequence=5, timestamp=20, source_port=CLIENT[1] + 1)
    talk.send(sequence=40, timestamp=20, source_ip=address_bytes("10.0.0.8"))
    assert rules(talk.tables()) == []


def test_brokers_number_their_own_packets_alone() -> None:
    talk = Talk().login()
    talk.consumer(7)
    message = talk.send(timestamp=1)
    talk.deliver({**message, "timestamp": 99_999}, 7)
    talk.sequence[False] -= 1
    talk.request("STOP")
    row = only(talk.tables()["violations"])
    assert (row["rule"], row["client"]) == ("sequence_reused", "10.0.0.1:7677")
    assert row["text"].startswith("STOP_REPLY")


def gpackets(*packets: tuple[int, int]) -> list[Row]:
    """Return the GPackets of a broker's link: number and timestamp."""
    common: dict[str, Any] = {
        "source": "made.pcap", "format": "gpacket", "status": "ok", "packet_type": 33,
        "src_addr": "10.0.0.2", "src_port": 40000, "dst_addr": "10.0.0.1", "dst_port": 7677,
        "stream": "10.0.0.2:40000>10.0.0.1:7677", "captured_ns": 0, "properties": None,
    }  # fmt: skip
    return [
        common | {"sequence": number, "timestamp": timestamp, "offset": 100 * at, "frame": at}
        for at, (number, timestamp) in enumerate(packets, 1)
    ]


@pytest.mark.parametrize(
    ("packets", "expected"),
    [
        ([(1, 10), (2, 10), (90, 11), (1 << 40, 12)], []),
        ([(5, 10), (5, 10), (3, 9), (3, 10), (6, 11)], []),
        ([(5, 10), (5, 11)], ["sequence_reused"]),
        ([(5, 10), (4, 11), (6, 12)], ["sequence_back"]),
    ],
)
def test_gpackets(packets: list[tuple[int, int]], expected: list[str]) -> None:
    rows = gpackets(*packets)
    found = derive(rows)["violations"]
    assert rules({"violations": found}) == expected
    for row in found:
        assert row["client"] == "10.0.0.2:40000"
        assert row["frame"] == (2 if expected else None)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=20))
def test_a_packet_that_was_seen_before_breaks_no_rule(packets: list[tuple[int, int]]) -> None:
    """However often and wherever the packets of a sender come again."""
    timestamps = dict(packets)
    in_order = sorted(timestamps)
    stamped = dict(zip(in_order, sorted(timestamps.values()), strict=True))
    seen: list[int] = []
    again: list[int] = []
    for number in in_order:
        seen.append(number)
        again += [number, *reversed(seen)]
    rows = gpackets(*((number, stamped[number]) for number in again))
    assert derive(rows)["violations"] == []


# --- flag T ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "broken"),
    [
        ({"flags": "T"}, True),
        ({"flags": "T", "transaction_id": 0}, True),
        ({"flags": "T", "transaction_id": 5}, False),
        ({"transaction_id": 5}, False),
        ({"flags": "PQ"}, False),
        ({"flags": "T", "version": 200}, True),
        ({"flags": "T", "version": 103}, False),
    ],
)
def test_flag_t_needs_a_transaction_id(values: dict[str, Any], broken: bool) -> None:
    talk = Talk().login()
    sent = talk.send(**values)
    found = talk.tables()["violations"]
    assert rules({"violations": found}) == ["transaction_id_missing"] * broken
    if broken:
        assert (found[0]["message_key"], found[0]["client"]) == (
            sent["sys_message_id"], "10.0.0.9:50000",
        )  # fmt: skip
