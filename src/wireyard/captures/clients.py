"""The connections of a client in a capture, and all their frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from wireyard.captures.directed import CapturedStream
from wireyard.captures.files.file import CaptureFile
from wireyard.captures.inputs import Input, Readable
from wireyard.captures.packets.segment_columns import segment_schema
from wireyard.captures.packets.segments import scan_files
from wireyard.errors import SourceError
from wireyard.formats.base import Row
from wireyard.streams.conditions import Condition
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_streams

__all__ = ["frames_of_connections", "streams_of_clients"]

_LOGINS: dict[str, tuple[Condition, tuple[str, ...]]] = {
    "mqtt": (("packet_type", "in", (1, 2)), ("client_id", "properties")),
    "jmq": (("packet_type", "==", 50), ("properties",)),
}
"""By format, the packets with a client id (CONNECT, CONNACK, SET_CLIENTID), and its columns."""
_NAMES = ("assigned_client_identifier", "JMQClientID")
_SYN, _ACK = 0x02, 0x10


def streams_of_clients(source: Input, clients: Collection[str]) -> list[Readable]:
    """Return both directions of all connections of clients.

    Parameters
    ----------
    clients
        Client ids, including those that MQTT servers assigned, or endpoints such as
        ``10.0.0.1:40000``.
    """
    wanted = _streams_naming(source, clients)
    wanted |= {name for name in source.stream_names() if not set(_ends(name)).isdisjoint(clients)}
    wanted |= {_opposite(name) for name in wanted}
    return [*source.streams_named(wanted)]


def _ends(name: str) -> list[str]:
    """Return the endpoints in the name of a stream."""
    return name.partition("#")[0].split(">")


def _opposite(name: str) -> str:
    """Return the name of the other stream of a connection."""
    src, dst = _ends(name)
    return f"{dst}>{src}{name[len(src) + len(dst) + 1 :]}"


def _streams_naming(source: Input, clients: Collection[str]) -> set[str]:
    """Return the streams with a packet that contains one of the client ids."""
    plans = {
        label: make_plan(format, ["stream", *columns], [where])
        for label, format in {format.label: format for format, _ in source.readables}.items()
        for where, columns in filter(None, [_LOGINS.get(format.name)])
    }
    logins = (
        (opened, plans[format.label])
        for format, opened in source.readables
        if format.label in plans
    )
    return {
        row["stream"]
        for batch in scan_streams(logins)
        for row in batch.to_pylist()
        if not _names(row).isdisjoint(clients)
    }


def _names(row: Row) -> set[str]:
    """Return the client ids in a packet."""
    given = {value for key, value in _pairs(row["properties"]) if key in _NAMES}
    return given | {*filter(None, [row.get("client_id")])}


def _pairs(properties: Iterable[Any] | None) -> Iterator[tuple[str, str]]:
    """Yield names and values of properties, which are pairs in MQTT and a map in JMQ."""
    for entry in properties or ():
        if isinstance(entry, dict):
            yield entry["name"], entry["value"]
        else:
            yield entry[0], entry[1]["value"]


def frames_of_connections(source: Input, streams: Iterable[Readable]) -> set[int]:
    """Return the numbers, from 0 on, of all frames of the connections of streams.

    They include handshakes, acknowledgements, retransmissions and ends. If ports were used again,
    a connection begins with its SYN.
    """
    wanted: dict[str, list[CapturedStream]] = defaultdict(list)
    frames: set[int] = set()
    for _, opened in streams:
        assert isinstance(opened, CapturedStream)
        stream = opened.captured
        wanted[f"{stream.src}>{stream.dst}"].append(opened)
        wanted[f"{stream.dst}>{stream.src}"].append(opened)
        # The rows below lack all fragments of a datagram but the last.
        frames.update(stream.packets_of(stream.runs.offsets, stream.runs.stops).tolist())
    rows = _segments_of(source, wanted)
    for flow, (numbers, begins) in rows.items():
        reverse = ">".join(flow.split(">")[::-1])
        syns = np.unique([*begins, *rows.get(reverse, ([], []))[1]])
        for opened in wanted[flow]:
            records = opened.captured.runs.records
            if not len(records):
                continue
            before = syns[syns <= records[0]]
            after = syns[syns > records[-1]]
            first = before[-1] if len(before) else -1
            last = after[0] if len(after) else np.inf
            frames.update(number for number in numbers if first <= number < last)
    return frames


def _segments_of(source: Input, flows: Collection[str]) -> dict[str, tuple[list[int], list[int]]]:
    """Return the frames of each flow, from 0 on, and those of them that begin a connection.

    A retransmitted SYN, with the same sequence number, begins no connection.
    """
    columns = ["frame", "flow", "seq", "bit_flags"]
    files = [CaptureFile.open(data.data) for data in source.files]
    rows: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    last_seq: dict[str, int] = {}
    with suppress(SourceError):  # damage was reported when the capture was opened
        for batch in scan_files(files, source.name, segment_schema(columns)):
            for frame, flow, seq, flags in zip(*batch.to_pydict().values(), strict=True):
                if flow not in flows:
                    continue
                rows[flow][0].append(frame - 1)
                if (flags or 0) & (_SYN | _ACK) == _SYN and last_seq.get(flow) != seq:
                    rows[flow][1].append(frame - 1)
                    last_seq[flow] = seq
    return rows
