"""The columns of JMQ facts: partitions, orders, and packets of one kind alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.layers.jmq.conversation import conversation, conversations
from tests.layers.jmq.judge import derive_in_parts, differences, packet_tables, texts_of
from wireyard.layers.endpoints import connection_of
from wireyard.layers.jmq import columns

CONVERSATIONS = 40


@pytest.mark.parametrize("parts", (1, 2, 7))
def test_phases_give_the_same_rows_on_any_partition_by_their_keys(parts: int) -> None:
    rows, ends = conversations(5, CONVERSATIONS)
    tables = packet_tables(rows)
    whole = texts_of(columns.derive_columns(tables, ends).tables, lambda table: table.to_pylist())
    assert texts_of(derive_in_parts(tables, ends, parts), list) == whole


def test_streams_of_a_connection_have_one_key() -> None:
    captured = {
        "10.0.0.1:1>10.0.0.2:22": ("10.0.0.1", 1, "10.0.0.2", 22),
        "10.0.0.2:22>10.0.0.1:1": ("10.0.0.2", 22, "10.0.0.1", 1),
        "10.0.0.2:22>10.0.0.1:1#2": ("10.0.0.2", 22, "10.0.0.1", 1),
        "10.0.0.1:1>10.0.0.2:22#2": ("10.0.0.1", 1, "10.0.0.2", 22),
        "[fe80::1]:1>[fe80::2]:2": ("fe80::1", 1, "fe80::2", 2),
        "[fe80::2]:2>[fe80::1]:1": ("fe80::2", 2, "fe80::1", 1),
    }
    bare = dict.fromkeys(("a>b", "b>a", "a>b#2", "b", ""), (None, None, None, None))
    names = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")
    rows = [
        dict(zip(names, (source, name, *ends), strict=True))
        for source in "xy"
        for name, ends in (captured | bare).items()
    ]
    keys = columns.connection_keys(pa.Table.from_pylist(rows)).tolist()
    wanted = list(map(connection_of, rows))
    pairs = set(zip(keys, wanted, strict=True))
    assert len(pairs) == len({key for key, _ in pairs}) == len(set(wanted)) == 2 * (3 + 5)


def test_nothing_makes_empty_tables() -> None:
    for tables in ({}, packet_tables(conversation(1, 1)[0][:0])):
        found = columns.derive_columns(tables)
        assert found.messages.num_rows == 0
        assert {table: found.tables[table].num_rows for table in found.tables} == dict.fromkeys(
            columns.FACTS, 0
        )


def test_gpackets_alone_are_the_same_rows() -> None:
    rows = [row for row in conversations(6, CONVERSATIONS)[0] if row["format"] == "gpacket"]
    assert rows and differences(packet_tables(rows)) == []


def test_rows_of_streams_in_any_order_are_put_in_order() -> None:
    rows, ends = conversations(7, 4)
    tables = packet_tables(rows)
    dice = np.random.default_rng(1)
    mixed = {
        name: table.take(pa.array(dice.permutation(table.num_rows)))
        for name, table in tables.items()
    }
    found = (columns.derive_columns(each, ends).tables for each in (tables, mixed))
    one, other = (texts_of(each, lambda table: table.to_pylist()) for each in found)
    assert one == other
