"""A stream with every status in it, packets in packets, and what one reader reads of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import wireyard
from tests.make import item, items, long_item, packet

__all__ = ["BAD", "GARBAGE", "GOOD", "MALFORMED", "STREAM", "TAIL", "plain", "read"]


def _message(number: int, **changes: Any) -> bytes:
    given = {
        "packet_type": 1 + number % 3,
        "items": items(long_item(9, number % 7), item(1, f"orders.{number % 5}")),
        "sequence": number,
        "timestamp": 1_790_000_000_000 + number,
        "body": b"body %d" % number,
    }
    return packet(**{**given, **changes})


GOOD = [_message(number) for number in range(120)]
# Whole packets in the body, ending where it ends: a reader that enters here is in step, and wrong.
GOOD[40] = _message(40, body=b"".join(GOOD[:30]))
GOOD[80] = _message(80, body=b"before" + b"".join(GOOD[:30]) + b"after")
MALFORMED = _message(500, items=items(item(1, "x", length=60_000)))
GARBAGE = b"no packet begins here"
TAIL = GOOD[0][:50]
BAD = [MALFORMED, GARBAGE, TAIL]
STREAM = b"".join([*GOOD[:60], MALFORMED, *GOOD[60:100], GARBAGE, *GOOD[100:], TAIL])


def read(*paths: Path, **how: Any) -> list[dict[str, Any]]:
    """Return the rows of streams as one reader reads them, one after the other."""
    return plain(pa.concat_tables([wireyard.read(path, format="jmq", **how) for path in paths]))


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, in the order of sources and offsets where it has them."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: (row.get("source", ""), row.get("offset", 0)))
