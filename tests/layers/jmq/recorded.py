"""The rows of recorded captures, as the tables of the layers take them."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import wireyard
from tests.layers.jmq.judge import derive
from wireyard.captures.connections.stream import Stream
from wireyard.captures.read import read_capture
from wireyard.formats.base import Row
from wireyard.layers.jmq.tracking import Ends

Rows = list[Row]

SCENARIOS = (
    "acks",
    "admin",
    "auth",
    "bodies",
    "bulk",
    "cluster",
    "deadletters",
    "drops",
    "flow",
    "jms20",
    "pubsub",
    "requests",
    "transactions",
)


@cache
def packets(path: Path) -> tuple[Row, ...]:
    """Return the packets of both formats, in the order of time."""
    rows: Rows = []
    for format in ("jmq", "gpacket") if path.stem == "cluster" else ("jmq",):
        rows += wireyard.read(str(path), format).to_pylist(maps_as_pydicts="lossy")
    return tuple(sorted(rows, key=lambda row: (row["captured_ns"], row["frame"])))


@cache
def ended(path: Path) -> Ends:
    """Return the streams that end with a FIN or a reset."""
    streams = read_capture(path).streams
    return {(str(path), stream.name): _end(stream) for stream in streams if stream.ended}


def _end(stream: Stream) -> tuple[int | None, int | None]:
    frame, ns = stream.closed or (None, None)
    return ns, frame


@cache
def tables_of(path: Path) -> dict[str, Rows]:
    """Return the tables of a capture."""
    return derive(packets(path), ended(path))


def client_log(path: Path) -> list[dict[str, Any]]:
    """Return what the client program of a capture logged."""
    log = path.with_name(f"{path.stem}.client.jsonl.gz")
    return [json.loads(line) for line in gzip.decompress(log.read_bytes()).splitlines()]
