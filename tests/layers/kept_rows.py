"""A model of the early rows in a lake: final ones, and open ones that later parts replace."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from wireyard.layers.facts import PacketFile
from wireyard.layers.newest import NewestRows, NewestRules

Row = dict[str, Any]

TIMES: Final = {
    "violations": "captured_ns",
    "conversations": "requested_ns",
    "transactions": "begun_ns",
}
"""The column with the time when the subject of a row began, or happened."""
COMPLETE: Final = {"conversations": "replied_ns", "transactions": "ended_ns"}
"""The column that is null in a row that is not complete."""
OF_GAPS: Final = ("in_flight_sent", "in_flight_received", "pauses", "paused_ns")


def derived_rows(
    rules: NewestRules, packets: Mapping[str, pa.Table], streams: pa.Table, source: str
) -> dict[str, list[Row]]:
    """Return the rows that follow from all packets of an input, by table."""
    files = [
        PacketFile.in_memory(number, name, [some])
        for number, (name, some) in enumerate(packets.items())
        if some.num_rows
    ]
    tables: dict[str, list[Row]] = {}
    for name, part in rules.facts.derive(files, streams, [source]).tables:
        tables.setdefault(name, []).extend(part.to_pylist())
    return tables


class KeptRows:
    """Rows of the tables that are not about one message, updated part by part.

    Parameters
    ----------
    whole
        The rows of all packets at the beginning.
    since_ns
        The time of the last one of these.
    """

    def __init__(self, whole: Mapping[str, Sequence[Row]], since_ns: int) -> None:
        self._since_ns = since_ns
        sessions = whole.get("sessions", ())
        self._kept: dict[str, list[Row]] = {name: [] for name in TIMES}
        self._kept["sessions"] = [row for row in sessions if row["closed_ns"] is not None]
        self._open: dict[str, list[Row]] = {
            "sessions": [row for row in sessions if row["closed_ns"] is None]
        }

    def take(self, parts: Iterable[NewestRows]) -> None:
        """Take the rows of a part."""
        before = self._open.get("sessions", [])
        self._open = {}
        for name, closed, still_open in parts:
            if name in self._kept:
                self._kept[name] += closed.to_pylist()
                self._open[name] = still_open.to_pylist()
                if name == "sessions":
                    new = {_place(row) for row in (*closed.to_pylist(), *still_open.to_pylist())}
                    before = [row for row in before if _place(row) not in new]
        self._open["sessions"] = before + self._open.get("sessions", [])

    def rows(self, table: str) -> list[Row]:
        return self._kept[table] + self._open.get(table, [])

    def judge(self, whole: Mapping[str, Sequence[Row]]) -> dict[str, int]:
        """Compare with the rows of all packets so far; return the number of rows by table.

        There must be a row for every session, with its values; those that a gap may change may be
        null.
        """
        sessions = {_place(row): row for row in whole.get("sessions", ())}
        found = self.rows("sessions")
        places = Counter(map(_place, found))
        assert places == Counter([*sessions]), places
        for row in found:
            expected = sessions[_place(row)]
            unknown = {name: None for name in OF_GAPS if row[name] is None}
            wrong = {n: (row[n], v) for n, v in (expected | unknown).items() if row[n] != v}
            assert not wrong, row
        counts = {"sessions": len(found)}
        for name, began in TIMES.items():
            rows = [row for row in whole.get(name, ()) if (row[began] or 0) > self._since_ns]
            late = Counter(map(_text, self.rows(name))) - Counter(map(_text, rows))
            assert not late, late
            counts[name] = len(self.rows(name))
        return counts


def _place(row: Row) -> tuple[str, int]:
    return row["stream"], row["offset"]


def _text(row: Row) -> str:
    return json.dumps(row, default=str, sort_keys=True)
