"""The sender: the time and a sequence that increases for every packet."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from wireyard import gpacket
from wireyard.errors import EncodeError
from wireyard.formats.gpacket.packet import decode, encode
from wireyard.formats.gpacket.sender import MAX_SEQUENCE

PING = gpacket.Packet(packet_type="G_PING", bit_flags="A", properties={"S": 7})


def test_a_packet_gets_time_and_sequence_and_keeps_the_rest() -> None:
    sender = gpacket.Sender()
    first = sender.stamp(PING, now=datetime(2026, 7, 1, tzinfo=UTC))
    assert (first.timestamp, first.sequence) == (1782864000000, 1)
    assert (first.packet_type, first.flags, first.properties) == (33, "A", PING.properties)
    assert decode(encode(first)) == first


def test_sequences_increase_and_times_never_go_back() -> None:
    sender = gpacket.Sender()
    made = [sender.stamp(PING, now) for now in (5, 3, 9)]
    assert [(one.timestamp, one.sequence) for one in made] == [(5, 1), (5, 2), (9, 3)]
    assert MAX_SEQUENCE == 2**63 - 1
    with pytest.raises(EncodeError, match="timestamp"):
        sender.stamp(PING, "noon")  # type: ignore[arg-type]
