"""The sender: ids that are unique and increase, whatever the clock does."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireyard.errors import EncodeError
from wireyard.formats.jmq import sender as module
from wireyard.formats.jmq.packet import Packet, decode, encode
from wireyard.formats.jmq.sender import Sender

PING = Packet(packet_type="PING", consumer_id=7)


def test_a_packet_gets_the_four_fields_of_its_id_and_keeps_the_rest() -> None:
    sender = Sender("10.0.0.7(80:1b:2c:3d:4e:5f)", 7676)
    first = sender.stamp(PING, now=datetime(2026, 7, 1, tzinfo=UTC))
    assert first.sys_message_id == "1-10.0.0.7(80:1b:2c:3d:4e:5f)-7676-1782864000000"
    assert (first.packet_type, first.consumer_id) == (54, 7)
    assert decode(encode(first)) == first
    assert sender.stamp(PING, now=1782864000001).sequence == 2


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=60), st.integers(1, 5))
def test_ids_are_unique_and_increase_whatever_the_clock_does(clock: list[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_SEQUENCE", most)  # it begins again often
        sender = Sender("10.0.0.7", 1)
        made = [sender.stamp(PING, now) for now in clock]
    ids = [(one.timestamp, one.sequence) for one in made]
    assert ids == sorted(set(ids))
    assert len({one.sys_message_id for one in made}) == len(made)
    assert all(1 <= one.sequence <= most for one in made)
    assert all(one.timestamp >= now for one, now in zip(made, clock, strict=True))


def test_the_largest_sequence_has_31_bits() -> None:
    assert module.MAX_SEQUENCE == 2**31 - 1


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"address": "nowhere"}, "source_ip"),
        ({"address": b"\x7f\0\0\1"}, "source_ip"),
        ({"port": 2**31}, "source_port"),
        ({"port": "7676"}, "source_port"),
        ({"now": "noon"}, "timestamp"),
        ({"now": datetime(2026, 7, 1)}, "timestamp"),
    ],
)
def test_what_is_no_sender_or_no_time(given: dict[str, Any], field: str) -> None:
    values: dict[str, Any] = {"address": "10.0.0.7", "port": 7676, "now": 0} | given
    with pytest.raises(EncodeError) as caught:
        Sender(values["address"], values["port"]).stamp(PING, values["now"])
    assert caught.value.field == field
