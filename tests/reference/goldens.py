"""Goldens of tables: a digest of the rows of every table, in a file small enough to commit.

Rules of this file:

1. A case is rows of packets and what is known of their streams; its name is that of a recording or
   of a batch of random conversations. Recordings of ``../shared`` are named by their paths in it.
2. A digest covers all columns of all rows, in whatever order. A null is what is not there.
3. Of the path of a source only the name of the file counts: it may lie anywhere. Bare streams have
   it in other columns too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["Digests", "digests", "lines_of", "read_goldens", "write_goldens"]

Row = Mapping[str, Any]
Digests = dict[str, str]
"""By the name of the table: the number of its rows, and the digest of these."""

_FOLDER: Final = Path(__file__).resolve().parent / "goldens"
_HEX_DIGITS: Final = 16


def digests(tables: Mapping[str, Iterable[Row]]) -> Digests:
    """Return the digests of the tables that have rows."""
    found = {}
    for name, rows in sorted(tables.items()):
        if lines := lines_of(rows):
            digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
            found[name] = f"{len(lines)} {digest[:_HEX_DIGITS]}"
    return found


def lines_of(rows: Iterable[Row]) -> list[str]:
    """Return each row as canonical JSON, sorted."""
    return sorted(map(_line, rows))


def _line(row: Row) -> str:
    known = {name: value for name, value in row.items() if value is not None}
    folder = f"{Path(known.get('source', '')).parent}/"
    for name, value in known.items():
        if isinstance(value, str):
            known[name] = value.removeprefix(folder)
    return json.dumps(known, sort_keys=True, separators=(",", ":"), default=_text)


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def read_goldens(protocol: str) -> dict[str, Digests]:
    """Return the digests of all cases of a protocol by their names."""
    found: dict[str, Digests] = json.loads(_path(protocol).read_text())
    return found


def write_goldens(protocol: str, cases: Mapping[str, Digests]) -> None:
    """Write the digests of all cases of a protocol, a case on each line."""
    lines = (f"{json.dumps(name)}: {json.dumps(cases[name])}" for name in sorted(cases))
    _FOLDER.mkdir(exist_ok=True)
    _path(protocol).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _path(protocol: str) -> Path:
    return _FOLDER / f"{protocol}.json"
