"""Recorded captures as rows in the order of time, and what the clients logged."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import wireyard
from tests.reference.order import in_order
from wireyard.captures.read import read_capture

__all__ = ["capture_of", "ends_of", "log_of", "rows_of", "streams_of"]

Row = dict[str, Any]


@cache
def rows_of(path: Path) -> list[Row]:
    """Return the packets of a capture, both directions, in the order of their frames."""
    return in_order(wireyard.read(path, "mqtt").to_pylist())


@cache
def streams_of(path: Path) -> list[Row]:
    """Return what a capture shows of its streams; their last frames were recorded beside it."""
    (said,) = path.parent.glob(path.name.split(".")[0] + ".streams.json")
    frames: dict[str, list[int]] = {}
    for row in json.loads(said.read_text()):
        if row["bytes"] and row["ends"]:
            frames.setdefault(f"{row['src']}>{row['dst']}", []).append(row["ends"][0]["frame"])
    streams = []
    for stream in read_capture(path).streams:
        numbers = frames.get(stream.name.split("#")[0])
        frame = numbers.pop(0) if stream.ended and numbers else None
        streams.append(
            {
                "source": str(path),
                "stream": stream.name,
                "opened": stream.opened,
                "begun": stream.begun,
                "paired": stream.paired,
                "ended": stream.ended if frame else None,
                "ended_frame": frame,
                "ended_ns": int(stream.content.times_ns[frame - 1]) if frame else None,
            }
        )
    return streams


def ends_of(capture: Path | bytes, source: str) -> list[Row]:
    """Return the beginnings and ends of the streams of a capture, as it shows them."""
    streams = []
    for stream in read_capture(capture).streams:
        frame, time_ns = stream.closed or (None, None)
        streams.append(
            {
                "source": source, "stream": stream.name, "opened": stream.opened,
                "begun": stream.begun, "paired": stream.paired, "ended": stream.ended,
                "ended_frame": frame, "ended_ns": time_ns,
            }
        )  # fmt: skip
    return streams


def log_of(folder: Path, scenario: str) -> list[Row]:
    """Return what the clients of a scenario logged."""
    with gzip.open(folder / f"{scenario}.client.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def capture_of(folder: Path, scenario: str) -> Path:
    """Return a scenario's capture."""
    (path,) = folder.glob(f"{scenario}.pcap*")
    return path
