from __future__ import annotations

import pytest

from wireyard.errors import DecodeError
from wireyard.formats.jmq.items import ItemSpan, destination_hash, item_value, walk_items
from wireyard.formats.jmq.layout import FLAGS

LIST = bytes.fromhex(
    "0008 0008 0000000000000003"  # transaction id
    "0001 0002 7130"  # destination
    "004d 0001 ff"  # a type nobody knows
    "0000 00"  # end of the list and padding
)


def test_spans_and_values() -> None:
    data = b"head" + LIST
    spans = list(walk_items(data, 4, len(data)))
    assert spans == [
        ItemSpan(8, 4, 8, 16),
        ItemSpan(1, 16, 20, 22),
        ItemSpan(77, 22, 26, 27),
        ItemSpan(0, 27, 29, 29),
    ]
    assert [item_value(data, span) for span in spans[:3]] == [3, "q0", b"\xff"]


def test_an_empty_list_has_no_end() -> None:
    assert list(walk_items(b"abc", 3, 3)) == []


@pytest.mark.parametrize("stop", range(1, 25))
def test_a_list_without_its_end_is_an_error(stop: int) -> None:
    with pytest.raises(DecodeError) as caught:
        list(walk_items(LIST, 0, stop))
    assert caught.value.code == "truncated"
    assert caught.value.offset <= stop


def test_lengths_are_unsigned() -> None:
    data = b"\0\1\xff\xff" + bytes(65535) + b"\0\0"
    assert [span.code for span in walk_items(data, 0, len(data))] == [1, 0]


@pytest.mark.parametrize(
    ("data", "code", "offset"),
    [("0008 0007 00000000000000", "malformed", 2), ("0001 0001 ff", "bad_utf8", 4)],
    ids=["a short number", "no text"],
)
def test_a_value_that_is_not_of_its_type_is_an_error(data: str, code: str, offset: int) -> None:
    item = bytes.fromhex(data) + bytes(2)
    span = next(walk_items(item, 0, len(item)))
    with pytest.raises(DecodeError) as caught:
        item_value(item, span)
    assert (caught.value.code, caught.value.offset) == (code, offset)


@pytest.mark.parametrize(
    ("kind", "name", "number"),
    [
        # By gzip, which has the CRC-32 of its input in its last bytes.
        ("Q", "shop.orders", 1684260620),
        ("T", "shop.orders", 2035053599),
        ("Q", "", 611690328),
        ("T", "Zoë/雪🦊", 1281533434),
        # Two queues that share a number.
        ("Q", "shop.1bfe33b6", 1234541718),
        ("Q", "shop.25ea23da", 1234541718),
    ],
)
def test_the_number_of_a_destination(kind: str, name: str, number: int) -> None:
    flags = FLAGS["P"] | FLAGS["R"] | (FLAGS["Q"] if kind == "Q" else 0)
    assert destination_hash(name, flags) == number
