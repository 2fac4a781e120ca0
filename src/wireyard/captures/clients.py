"""The connections of a client in a capture, and all their frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from wireyard.captures.directed import CapturedStream
from wireyard.captures.files.file import CaptureFile
from wireyard.captures.inputs import Input, Readable
from wireyard.captures.packets.segment_columns import segment_schema
from wireyard.captures.packets.segments import scan_files
from wireyard.errors import SourceError
from wireyard.formats.base import Row
from wireyard.schema import as_array, as_numbers
from wireyard.streams.framer import OK
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_streams

LOGINS = {"mqtt": (1, 2), "jmq": (50,)}
"""By format, the types of packets with a client id: CONNECT, CONNACK, SET_CLIENTID."""
_ANSWERS = {"mqtt": (2,)}
"""Those that the broker sends."""
LOGIN_COLUMNS = ("stream", "status", "packet_type", "client_id", "properties")
"""The columns that have it, of formats that have them."""
_FEW = 64
_NAMES = ("assigned_client_identifier", "JMQClientID")
_SYN, _ACK = 0x02, 0x10


class Clients:
    """The client ids of connections, and which of their streams come from the client."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        """Client id by the name of a stream, of both directions."""
        self.senders: set[str] = set()
        """The streams from clients that logged in."""

    def add(self, format: str, batch: pa.RecordBatch) -> None:
        """Read the logins in a batch that has `LOGIN_COLUMNS`."""
        rows = np.flatnonzero(np.isin(as_numbers(batch["packet_type"]), LOGINS.get(format, ())))
        held = [name for name in LOGIN_COLUMNS if name in batch.schema.names]
        if len(rows) < _FEW:  # `take` loads Arrow's functions
            parts = [batch.slice(row, 1) for row in rows.tolist()]
        else:
            parts = [batch.take(as_array(rows))]
        for row in chain.from_iterable(part.select(held).to_pylist() for part in parts):
            if row["status"] != OK:  # a client id that is read wrong may have a password in it
                continue
            stream, back = row["stream"], opposite(row["stream"])
            self.senders.add(back if row["packet_type"] in _ANSWERS.get(format, ()) else stream)
            for name in _names(row):
                self.ids[stream] = self.ids[back] = name

    @classmethod
    def of(cls, streams: Iterable[Readable]) -> Clients:
        """Return the clients of streams."""
        found = cls()
        for format, some in groupby(streams, key=attrgetter("format")):
            if format.name in LOGINS:
                where = [("packet_type", "in", LOGINS[format.name])]
                own = {column.name for column in format.columns} | {"stream", "status"}
                plan = make_plan(format, [*filter(own.__contains__, LOGIN_COLUMNS)], where)
                for batch in scan_streams((opened, plan) for _, opened in some):
                    found.add(format.name, batch)
        return found


def streams_of_clients(source: Input, clients: Collection[str]) -> list[Readable]:
    """Return both directions of all connections of clients.

    `clients` are client ids, including those that MQTT servers assigned, or endpoints such as
    ``10.0.0.1:40000``.
    """
    wanted = {name for name, id in Clients.of(source.readables).ids.items() if id in clients}
    wanted |= {name for name in source.stream_names() if not set(_ends(name)).isdisjoint(clients)}
    wanted |= {opposite(name) for name in wanted}
    return [*source.streams_named(wanted)]


def _ends(name: str) -> list[str]:
    """Return the endpoints in the name of a stream."""
    return name.partition("#")[0].split(">")


def opposite(name: str) -> str:
    """Return the name of the other stream of a connection; that of a bare stream is its own."""
    src, *dst = _ends(name)
    return f"{dst[0]}>{src}{name[len(src) + len(dst[0]) + 1 :]}" if len(dst) == 1 else name


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
