"""Rows of framed packets back to bytes: the first says how long its packet is."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import wireyard
from tests.formats.rmp.make import DOMAIN, MORE, framed, message, random_packet
from tests.readings import table_of
from wireyard.errors import EncodeError
from wireyard.formats import get_format
from wireyard.streams.write import encode_batches, encode_rows, write_stream

FRAMED = get_format("rmp/framed")
THREE = message(MORE | DOMAIN, b"a") + message(MORE) + message(0, b"ccc")


def rows(data: bytes, label: str = "rmp/framed") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table_of(data, compiled=False, format=label).to_pylist()
    return found


@pytest.mark.parametrize("label", ["rmp/framed", "rmp/framed-list-order"])
def test_tables_come_back_however_they_are_cut(label: str, tmp_path: Path) -> None:
    rng = Random(label)
    packets = [random_packet(rng, list_order="list" in label) for _ in range(300)]
    data = framed(*packets)
    table = table_of(data, compiled=True, format=label)
    assert table.num_rows > len(packets)
    assert b"".join(encode_batches([table.to_batches()[0]], get_format(label))) == data
    cuts = [0, *sorted(rng.sample(range(table.num_rows), 60)), table.num_rows]
    batches = [
        batch
        for start, stop in pairwise(cuts)
        for batch in table.slice(start, stop - start).to_batches()
    ]
    target = tmp_path / "out.rmp"
    assert write_stream(batches, str(target), get_format(label)) == len(data)
    assert target.read_bytes() == data
    assert wireyard.write(table, target, label) == len(data)
    assert target.read_bytes() == data


def test_messages_of_datagrams_become_a_framed_stream() -> None:
    """Rows of packets that were not framed say all that is needed."""
    found = [*rows(THREE, "rmp"), *rows(message(0, b"x"), "rmp")]
    assert b"".join(encode_rows(found, FRAMED)) == framed(THREE, message(0, b"x"))


def test_rows_made_by_hand_need_no_places() -> None:
    made = [{"layer": 0, "more_follows": True, "data": b"a"}, {"layer": 1, "data": b"b"}]
    packet = message(MORE, b"a") + message(1, b"b")
    assert b"".join(encode_rows(made, FRAMED)) == framed(packet)


def test_no_more_is_held_than_a_packet_can_be_long() -> None:
    endless = ({"layer": 0, "more_follows": True, "data": bytes(1000)} for _ in iter(int, 1))
    with pytest.raises(EncodeError, match="framed_bytes"):
        list(encode_rows(endless, FRAMED))


def test_the_longest_packet_comes_back() -> None:
    data = framed(message(MORE, bytes(60_000)) + message(0, bytes(5529)))
    assert len(data) == 2 + 0xFFFF
    assert b"".join(encode_rows(rows(data), FRAMED)) == data


@pytest.mark.parametrize(
    ("kept", "field"),
    [
        ([0, 1], "more_follows"),
        ([1, 2], "message_in_packet"),
        ([0, 2], "message_in_packet"),
        ([0, 3], "message_in_packet"),
        ([2, 1, 0], "message_in_packet"),
    ],
)
def test_a_packet_that_is_not_all_there_is_refused(kept: list[int], field: str) -> None:
    found = rows(framed(THREE, message(0, b"x")))
    with pytest.raises(EncodeError) as caught:
        list(encode_rows([found[place] for place in kept], FRAMED))
    assert caught.value.field == field


def test_packets_that_are_all_there_come_back_without_others() -> None:
    table = table_of(framed(THREE, message(0, b"x"), THREE), compiled=False, format=FRAMED)
    some = pa.concat_tables([table.slice(4), table.slice(3, 1)]).combine_chunks()
    assert b"".join(encode_batches([some.to_batches()[0]], FRAMED)) == framed(
        THREE, message(0, b"x")
    )
