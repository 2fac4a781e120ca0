"""The columns of JMQ facts beside the model: the rows of both have to be equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tests.reference.goldens import lines_of
from tests.reference.jmq import Facts, facts_of
from wireyard.errors import EncodeError
from wireyard.formats import get_format
from wireyard.formats.base import Row
from wireyard.formats.property_rows import typed_value
from wireyard.formats.rows import rows_to_batch
from wireyard.layers.jmq import columns
from wireyard.layers.jmq.packet_columns import ROW_NUMBER
from wireyard.layers.jmq.tracking import Ends
from wireyard.layers.tables import TABLES
from wireyard.schema import CAPTURED, COMMON

Tables = Mapping[str, pa.Table]
NO_ENDS: Final[Ends] = {}
_PLACE: Final = ("source", "stream", "offset")


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
        name: _pair(name, entry) if isinstance(entry, dict) else entry
        for name, entry in properties.items()
    }
    return {"properties": pairs or None}


def _pair(name: str, entry: Row) -> tuple[str, Any]:
    kind, value = entry["type"], entry["value"]
    with suppress(EncodeError):
        value = typed_value(name, kind, value)
    return kind, value


def derive(
    rows: Iterable[Row], ended: Ends = NO_ENDS, sliced: Collection[str] = ()
) -> dict[str, list[Row]]:
    """Return what packets say; columns and model have to agree. Rows are in the model's order."""
    tables = packet_tables(rows)
    model = facts_of(_rows_of(tables), ended, sliced)
    made = columns.derive_columns(tables, ended, sliced)
    assert _differences(model, made, tables) == []
    found = {
        table: [
            {column.name: row.get(column.name) for column in TABLES[table]}
            for row in getattr(model, table)
        ]
        for table in columns.FACTS
    }
    first = {row["message_key"]: row for row in made.tables["hops"].to_pylist() if row["hop"] == 1}
    order = {key: (row["captured_ns"] or 0, key) for key, row in first.items()}
    hops = made.tables["hops"].to_pylist()
    found["hops"] = sorted(hops, key=lambda row: (*order[row["message_key"]], row["hop"]))
    return found


def differences(tables: Tables, ended: Ends = NO_ENDS, sliced: Collection[str] = ()) -> list[str]:
    """Return the rows on which model and columns do not agree."""
    made = columns.derive_columns(tables, ended, sliced)
    return _differences(facts_of(_rows_of(tables), ended, sliced), made, tables)


def _rows_of(tables: Tables) -> list[Row]:
    rows: list[Row] = []
    for table in tables.values():
        rows += table.to_pylist(maps_as_pydicts="lossy")
    return rows


def _differences(model: Facts, made: columns.DerivedColumns, tables: Tables) -> list[str]:
    found = {name: made.tables[name].to_pylist() for name in columns.FACTS}
    # Hops of messages that several captures show are not judged yet.
    found["hops"] = [row for row in found["hops"] if row["message_key"] not in model.of_several]
    rows = _rows_of({name: table.select(_PLACE) for name, table in tables.items()})
    found["messages"] = [row | rows[row.pop(ROW_NUMBER)] for row in made.messages.to_pylist()]
    found["producers"] = made.producers.to_pylist()
    differing = _without_message(made)
    for name, given in found.items():
        wanted, known = Counter(lines_of(getattr(model, name))), Counter(lines_of(given))
        differing += [f"{name}: the columns have no {line}" for line in (wanted - known)]
        differing += [f"{name}: the model has no {line}" for line in (known - wanted)]
    return differing


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


def derive_in_parts(tables: Tables, ended: Ends, parts: int) -> dict[str, list[Row]]:
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
    for (requests,) in in_parts("messages", together("requests")):
        keep({"conversations": columns.join_requests(requests)})
    for records in in_parts("messages", sendings, deliveries, relays):
        joined = columns.join_messages(*records)
        keep({"deliveries": joined.deliveries})
        messages.append(_plain(joined.messages))
    for (records,) in in_parts("conversations", pa.concat_tables(messages)):
        keep({"conversations": columns.match_replies(records)[0]})
    several, spans, clocks = [], [], []
    for records in in_parts("hops", sendings, deliveries, relays):
        seen = columns.order_hops(*records)
        keep({"hops": seen.hops})
        if seen.several.num_rows:
            compared = columns.compare_times(seen.several)
            several.append(compared.several)
            spans.append(_plain(compared.spans))
    if several:
        for (part,) in in_parts("points", pa.concat_tables(spans)):
            clocks.append(columns.compare_clocks(part)[0])
        for part in several:
            keep({"hops": columns.order_several(part, pa.concat_tables(clocks))})
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
    """Return rows of tables as texts, to be compared in any order."""
    return {table: lines_of(rows(found)) for table, found in tables.items()}
