"""The model of JMQ beside the columns: their rows have to be equal, table by table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.layers.jmq.judge import Ended, Tables
from tests.reference.goldens import lines_of
from tests.reference.jmq import facts_of
from wireyard.layers.jmq import columns
from wireyard.layers.jmq.packet_columns import ROW_NUMBER

Rows = Iterable[Mapping[str, Any]]
FACTS = "sessions", "transactions", "deliveries", "violations", "conversations", "hops"


def rows_of(tables: Tables) -> list[dict[str, Any]]:
    """Return the packets of all formats as rows."""
    found: list[dict[str, Any]] = []
    for table in tables.values():
        found += table.to_pylist(maps_as_pydicts="lossy")
    return found


def differences(tables: Tables, ended: Ended = ()) -> list[str]:
    """Return the rows on which model and columns do not agree."""
    rows = rows_of(tables)
    model, made = facts_of(rows, ended), columns.derive_columns(tables, ended)
    found = {name: made.tables[name].to_pylist() for name in FACTS}
    # Hops of messages that several captures show are not judged yet.
    found["hops"] = [row for row in found["hops"] if row["message_key"] not in model.of_several]
    found["messages"] = [
        row | {name: rows[number][name] for name in ("source", "stream", "offset")}
        for row in made.messages.to_pylist()
        for number in [row.pop(ROW_NUMBER)]
    ]
    found["producers"] = made.producers.to_pylist()
    differing = []
    for name, given in found.items():
        differing += _between(name, getattr(model, name), given)
    return differing


def _between(name: str, wanted: Rows, given: Rows) -> list[str]:
    model, made = Counter(lines_of(wanted)), Counter(lines_of(given))
    missing = [f"{name}: the columns have no {line}" for line in (model - made)]
    return missing + [f"{name}: the model has no {line}" for line in (made - model)]
