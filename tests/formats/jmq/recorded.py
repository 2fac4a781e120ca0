"""Recorded JMQ traffic and golden packets, from the material beside the checkout."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wireyard.formats.jmq.framing import frame_size


def packets(path: Path) -> Iterator[bytes]:
    """Yield the packets of one directed stream."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        size = frame_size(data, at, len(data), len(data))
        assert size is not None
        yield data[at : at + size]
        at += size


def recorded_packets(shared: Path, scenario: str = "*") -> Iterator[bytes]:
    """Yield the packets of every recorded stream of a scenario."""
    paths = sorted((shared / "streams/real").glob(f"{scenario}-*.jmq"))
    assert paths, f"no recorded stream of {scenario}"
    for path in paths:
        yield from packets(path)


def vectors(shared: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the golden packets, well-formed and broken, with their names."""
    paths = sorted((shared / "vectors/openmq").glob("jmq_*.bin"))
    assert paths, "no golden packet"
    for path in paths:
        yield path.stem, path.read_bytes()


def received(shared: Path, scenario: str) -> Iterator[dict[str, Any]]:
    """Yield what the client program of a scenario logged of the messages that reached it."""
    with gzip.open(shared / f"captures/openmq/{scenario}.client.jsonl.gz", "rt") as lines:
        for line in lines:
            event = json.loads(line)
            if event["event"] in ("received", "browsed"):
                yield event


def _float(text: str) -> float:
    """Return the float that Java printed; before Java 19 it printed more digits than needed."""
    value: float = struct.unpack(">f", struct.pack(">f", float(text)))[0]
    return value


_LOGGED: dict[str, Callable[[str], Any]] = {
    "boolean": {"true": True, "false": False}.__getitem__,
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": _float,
    "double": float,
    "string": str,
    "character": str,
    "bytes": bytes.fromhex,
}


def logged_value(entry: dict[str, Any]) -> Any:
    """Return a typed value of the log as Python has it."""
    return None if entry["type"] == "null" else _LOGGED[entry["type"]](entry["value"])
