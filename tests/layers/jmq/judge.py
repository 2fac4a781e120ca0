"""The columnar engine beside the chain of scalar steps: the rows of both have to be equal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from tests.reference.jmq_chain.chain import CHAIN
from wireyard.formats import get_format
from wireyard.formats.base import Row
from wireyard.formats.rows import rows_to_batch
from wireyard.layers.endpoints import connection_of
from wireyard.layers.jmq import columns
from wireyard.layers.stages import Derived, run_chain
from wireyard.layers.tables import TABLES
from wireyard.schema import CAPTURED, COMMON

Tables = Mapping[str, pa.Table]
Ended = Collection[tuple[str, str]]


def packet_tables(rows: Iterable[Row]) -> dict[str, pa.Table]:
    """Return rows as the bronze columns that the engine takes, stream by stream."""
    by_format: dict[str, list[Row]] = {"jmq": [], "gpacket": []}
    for row in rows:
        name = row.get("format", "jmq").partition("/")[0]
        if name in by_format and row.get("parent_offset") is None:
            by_format[name].append({"format": name, "status": "ok"} | row | _pairs(row))
    found = {}
    for name, of_format in by_format.items():
        if of_format:
            of_format.sort(key=lambda row: (row["source"], row["stream"], row["offset"]))
            wanted = [
                column
                for column in (*COMMON, *CAPTURED, *get_format(name).columns)
                if column.name in columns.NEEDED
            ]
            found[name] = pa.Table.from_batches([rows_to_batch(wanted, of_format)])
    return found


def _pairs(row: Row) -> Row:
    """Return the properties of a row as packets have them; those of a few tests are columns'."""
    properties = row.get("properties") or {}
    pairs = {
        name: (entry["type"], entry["value"]) if isinstance(entry, dict) else entry
        for name, entry in properties.items()
    }
    return {"properties": pairs or None}


def rows_in_order(tables: Tables) -> list[Row]:
    """Return the rows of packets in the order in which the facts stage puts them."""
    rows: list[Row] = []
    for table in tables.values():
        rows += table.to_pylist(maps_as_pydicts="lossy")
    reached: dict[tuple[str, str], tuple[int, int]] = {}
    order = {}
    for row in sorted(rows, key=lambda row: (row["source"], row["stream"], row["offset"])):
        stream = row["source"], row["stream"]
        captured = row.get("captured_ns")
        ns = -(1 << 62) if captured is None else captured
        reached[stream] = max(reached.get(stream, (ns, 0)), (ns, row.get("frame") or 0))
        order[id(row)] = (*reached[stream], row["stream"], row["offset"])
    return sorted(rows, key=lambda row: order[id(row)])


def run_scalar(rows: Iterable[Row], ended: Ended = ()) -> Derived[list[Row]]:
    """Run the chain; `rows` are in the order of time."""
    packets = [(connection_of(row), row) for row in rows]
    keys = {(row["source"], row["stream"]): key for key, row in packets}
    streams = [
        (key, {"source": stream[0], "stream": stream[1], "ended": True})
        for stream, key in keys.items()
        if stream in ended
    ]
    return run_chain(CHAIN, chain(streams, packets))


def _text(table: str, row: Row) -> str:
    return json.dumps([row.get(column.name) for column in TABLES[table]])


def differences(tables: Tables, ended: Ended = ()) -> list[str]:
    """Return what the engine and the chain do not agree about; nothing if all is well."""
    scalar = run_scalar(rows_in_order(tables), ended)
    found = columns.derive_columns(tables, ended)
    differing = []
    for table in columns.FACTS:
        wanted = Counter(_text(table, row) for row in scalar.tables.get(table, ()))
        made = Counter(_text(table, row) for row in found.tables[table].to_pylist())
        names = [column.name for column in TABLES[table]]
        assert found.tables[table].column_names == names
        differing += [f"{table}: missing {row}" for row in (wanted - made)]
        differing += [f"{table}: invented {row}" for row in (made - wanted)]
    if scalar.dropped != found.dropped:
        differing.append(f"dropped: {scalar.dropped} is {found.dropped}")
    return differing + _without_message(found)


def _without_message(found: columns.DerivedColumns) -> list[str]:
    """Return keys of messages that no packet stands for."""
    known = set(found.messages["message_key"].to_pylist())
    keys = set(found.tables["deliveries"]["message_key"].to_pylist())
    keys |= set(found.tables["hops"]["message_key"].to_pylist())
    for row in (
        found.tables["conversations"].select(["kind", "request_key", "reply_key"]).to_pylist()
    ):
        if row["kind"] == "jms":
            keys |= {row["request_key"], row["reply_key"]} - {None}
    assert len(known) == found.messages.num_rows
    return [f"no message for {key}" for key in keys - known]


def derive_in_parts(tables: Tables, ended: Ended, parts: int) -> dict[str, list[Row]]:
    """Return the rows of all phases, each run on partitions by its key."""
    rows: dict[str, list[Row]] = {table: [] for table in columns.FACTS}

    def keep(facts: Mapping[str, pa.Table]) -> None:
        for table, found in facts.items():
            rows[table] += found.to_pylist()

    keys = {name: columns.connection_keys(table) for name, table in tables.items()}
    first = []
    for part in range(parts):
        chosen = {
            n: t.filter(pa.array(keys[n] % np.uint64(parts) == part)) for n, t in tables.items()
        }
        first.append(columns.follow_connections(chosen, ended))
        keep(first[-1].facts)

    def in_parts(phase: str, *records: Any) -> list[list[pa.Table]]:
        return _in_parts(phase, [_plain(table) for table in records], parts)

    def together(name: str) -> pa.Table:
        return pa.concat_tables([_plain(getattr(one, name)) for one in first])

    sendings, deliveries, relays = map(together, ("sendings", "deliveries", "relays"))
    after = []
    for use, sending, delivery in in_parts("transactions", together("uses"), sendings, deliveries):
        after.append(columns.follow_transactions(use, sending, delivery))
        keep(after[-1].facts)
    sendings = pa.concat_tables([_plain(one.sendings) for one in after])
    deliveries = pa.concat_tables([_plain(one.deliveries) for one in after])
    messages = []
    for records in in_parts("messages", sendings, deliveries, relays):
        joined = columns.join_messages(*records)
        keep({"deliveries": joined.deliveries})
        messages.append(_plain(joined.messages))
    for (records,) in in_parts("conversations", pa.concat_tables(messages)):
        keep({"conversations": columns.match_replies(records)[0]})
    for (runs,) in in_parts("numbers", together("runs")):
        keep({"violations": columns.find_gaps(runs)})
    several = []
    for records in in_parts("hops", sendings, deliveries, relays):
        seen = columns.order_hops(*records)
        keep({"hops": seen.hops})
        several += list(columns.records_of(*seen.records))
    rows["hops"] += columns.hops_of_several(several).tables.get("hops", [])
    return rows


def _in_parts(phase: str, records: list[pa.Table], parts: int) -> list[list[pa.Table]]:
    keys = [columns.partition_keys(phase, table) for table in records]
    return [
        [
            t.filter(pa.array(k % np.uint64(parts) == part))
            for t, k in zip(records, keys, strict=True)
        ]
        for part in range(parts)
    ]


def _plain(table: pa.Table) -> pa.Table:
    """Return a table as files give it back: without dictionaries."""
    kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in table.schema]
    names = table.schema.names
    return table.cast(pa.schema(list(zip(names, kinds, strict=True))))


def texts_of(tables: Mapping[str, Any], rows: Callable[[Any], Iterable[Row]]) -> dict[str, Any]:
    """Return rows of tables as counted texts, to be compared in any order."""
    return {
        table: Counter(_text(table, row) for row in rows(found)) for table, found in tables.items()
    }
