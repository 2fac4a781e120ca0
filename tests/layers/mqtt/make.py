"""Captures made packet by packet, through the real encoder and reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from tests.reference import mqtt
from wireyard.formats.mqtt import FORMAT, layout
from wireyard.formats.mqtt.control import CONTROL_PACKETS
from wireyard.formats.mqtt.filters import Filter
from wireyard.formats.rows import rows_to_batch
from wireyard.layers.facts import PacketFile
from wireyard.layers.mqtt.columns import derive_files
from wireyard.layers.mqtt.facts import VERDICTS
from wireyard.layers.tables import TABLES
from wireyard.schema import CAPTURED, COMMON

__all__ = [
    "MS",
    "Capture",
    "deliveries_of",
    "derived",
    "pair",
    "table_of",
    "tables_of",
    "verdicts_of",
]  # fmt: skip

Row = dict[str, Any]

MS: Final = 1_000_000
_BROKER: Final = "10.0.0.1", 1883
_START_NS: Final = 1_700_000_000_000_000_000


@dataclass
class Capture:
    """Packets one after the other, a frame and a millisecond each."""

    version: int = 4
    rows: list[Row] = field(default_factory=list)
    streams: list[Row] = field(default_factory=list)
    """What is known of streams that ended."""
    now_ns: int = _START_NS
    frame: int = 0
    _ports: dict[str, int] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1000) * MS

    def _position(self) -> None:
        self.frame += 1
        self.now_ns += MS

    def _ends(self, who: str, up: bool) -> tuple[tuple[str, int], tuple[str, int]]:
        port = self._ports.setdefault(who, 40_000 + len(self._ports))
        client = ("10.0.0.2", port)
        return (client, _BROKER) if up else (_BROKER, client)

    def port_of(self, who: str) -> int:
        return self._ends(who, True)[0][1]

    def stream(self, who: str, up: bool = True) -> str:
        (src, src_port), (dst, dst_port) = self._ends(who, up)
        return f"{src}:{src_port}>{dst}:{dst_port}"

    def put(self, who: str, up: bool, kind: int, **values: Any) -> int:
        """Add a packet; return its frame."""
        values = {name: value for name, value in values.items() if value is not None}
        packet = CONTROL_PACKETS[kind](version_in_force=self.version, **values)
        view = FORMAT.encode(packet)
        row, error = FORMAT.read_row(view, self.version)
        assert error is None
        self._position()
        self._add(who, up, row, len(view))
        return self.frame

    def _add(self, who: str, up: bool, row: Row, length: int) -> None:
        (src, src_port), (dst, dst_port) = self._ends(who, up)
        stream = self.stream(who, up)
        offset = self._sizes.get(stream, 0)
        self._sizes[stream] = offset + length
        row |= {
            "source": "made.pcap", "stream": stream, "offset": offset, "length": length,
            "status": row.get("status", "ok"), "error": None, "captured_ns": self.now_ns,
            "frame": self.frame, "src_addr": src, "src_port": src_port, "dst_addr": dst,
            "dst_port": dst_port,
        }  # fmt: skip
        self.rows.append(row)

    def gap(self, who: str, up: bool) -> None:
        """Leave some bytes of a stream out."""
        self._position()
        self._add(who, up, {"status": "gap"}, 100)

    def end(self, who: str) -> None:
        """Show the FIN of a client, who may come back on another port."""
        self._position()
        self.streams.append(
            {
                "source": "made.pcap", "stream": self.stream(who), "begun": None, "ended": "fin",
                "ended_frame": self.frame, "ended_ns": self.now_ns,
            }
        )  # fmt: skip
        self.leave(who)

    def leave(self, who: str) -> None:
        """Have the client come from another port from now on."""
        if who in self._ports:
            self._ports[f"{who} #{self.frame}"] = self._ports.pop(who)

    # --- what clients do --------------------------------------------------------------------

    def connect(
        self, who: str, clean: bool = True, present: bool = False, code: int = 0, **values: Any
    ) -> int:
        said = values.pop("said", None)
        self.put(
            who, True, layout.CONNECT, client_id=who, clean_start=clean, keep_alive=60, **values
        )
        flag = {} if self.version == 3 else {"session_present": present}
        return self.put(who, False, layout.CONNACK, return_code=code, properties=said, **flag)

    def subscribe(
        self, who: str, *filters: str, qos: int = 2, options: int = 0, **values: Any
    ) -> int:
        """Subscribe and be granted what was asked for; return the frame of SUBACK."""
        asked = tuple(Filter(one, qos | options) for one in filters)
        self.put(who, True, layout.SUBSCRIBE, packet_id=900, filters=asked, **values)
        codes = (qos,) * len(filters)
        return self.put(who, False, layout.SUBACK, packet_id=900, return_codes=codes)

    def unsubscribe(self, who: str, *filters: str) -> None:
        asked = tuple(Filter(one) for one in filters)
        codes = {"return_codes": (0,) * len(filters)} if self.version == 5 else {}
        self.put(who, True, layout.UNSUBSCRIBE, packet_id=901, filters=asked)
        self.put(who, False, layout.UNSUBACK, packet_id=901, **codes)

    def publish(
        self, who: str, up: bool, topic: str, payload: bytes, qos: int, packet_id: int = 1,
        **values: Any,
    ) -> int:  # fmt: skip
        values = {"dup": False, "retain": False} | values
        return self.put(
            who, up, layout.PUBLISH, topic=topic, payload=payload, qos=qos,
            packet_id=packet_id if qos else None, **values,
        )  # fmt: skip

    def acknowledge(self, who: str, up: bool, qos: int, packet_id: int = 1) -> int:
        """Bring a PUBLISH that went `up` to its end; return the last frame."""
        if qos == 1:
            return self.put(who, not up, layout.PUBACK, packet_id=packet_id)
        if qos == 2:
            self.put(who, not up, layout.PUBREC, packet_id=packet_id)
            self.put(who, up, layout.PUBREL, packet_id=packet_id)
            return self.put(who, not up, layout.PUBCOMP, packet_id=packet_id)
        return self.frame

    def message(
        self, who: str, topic: str, payload: bytes, qos: int, packet_id: int = 1, **values: Any
    ) -> int:
        """Publish and be acknowledged; return the frame of PUBLISH."""
        frame = self.publish(who, True, topic, payload, qos, packet_id, **values)
        self.acknowledge(who, True, qos, packet_id)
        return frame

    def hand(
        self, who: str, topic: str, payload: bytes, qos: int, packet_id: int = 1, **values: Any
    ) -> int:
        """Hand a message to a client who acknowledges it; return the frame of PUBLISH."""
        frame = self.publish(who, False, topic, payload, qos, packet_id, **values)
        self.acknowledge(who, False, qos, packet_id)
        return frame

    def ping(self, who: str) -> None:
        self.put(who, True, layout.PINGREQ)
        self.put(who, False, layout.PINGRESP)

    def disconnect(self, who: str, **values: Any) -> None:
        self.put(who, True, layout.DISCONNECT, **values)
        self.leave(who)


# --- what is derived from them --------------------------------------------------------------


def unordered(tables: Mapping[str, list[Row]]) -> dict[str, Counter[Any]]:
    """Return what is in tables, in whatever order."""
    return {
        name: Counter(repr(sorted(row.items())) for row in rows)
        for name, rows in tables.items()
        if rows
    }


def table_of(rows: list[Row]) -> pa.Table:
    """Return packets as columns."""
    batch = rows_to_batch((*COMMON, *CAPTURED, *FORMAT.columns), rows)
    return pa.Table.from_batches([batch])


def derived(
    rows: list[Row], streams: list[Row] | None = None
) -> tuple[dict[str, list[Row]], Counter[str]]:
    """Return the tables that follow from rows by columns, and what was dropped."""
    packets = PacketFile.in_memory(0, "mqtt", [table_of(rows)])
    found = derive_files([packets], streams, {row["source"] for row in rows})
    tables: dict[str, list[Row]] = {}
    for name, part in found.tables:
        if name != "messages" and part.num_rows:
            tables.setdefault(name, []).extend(part.to_pylist())
    return tables, found.dropped


def by_columns(rows: list[Row], streams: list[Row] | None) -> dict[str, list[Row]]:
    """Return the tables that follow from rows by columns."""
    tables, dropped = derived(rows, streams)
    assert dropped.keys() <= {"early"}
    return tables


def without_nulls(tables: Mapping[str, list[Row]]) -> dict[str, Counter[Any]]:
    """Return what is in tables, in whatever order; a null is what is not there."""
    return unordered(
        {
            name: [{key: row[key] for key in row if row[key] is not None} for row in rows]
            for name, rows in tables.items()
        }
    )


def tables_of(capture: Capture) -> dict[str, list[Row]]:
    """Return the tables of a capture, whose columns have to be those they say they have.

    Columns give the same as the model.
    """
    tables = mqtt.derive(capture.rows, capture.streams)
    columns = by_columns(capture.rows, capture.streams)
    assert without_nulls(columns) == without_nulls(tables)
    for name, rows in tables.items():
        known = {column.name for column in TABLES[name]}
        for row in rows:
            assert row.keys() <= known
    assert {row["verdict"] for row in tables["deliveries"]} <= VERDICTS.keys()
    return tables


def deliveries_of(capture: Capture) -> list[Row]:
    return tables_of(capture)["deliveries"]


def verdicts_of(capture: Capture) -> list[str]:
    return [row["verdict"] for row in deliveries_of(capture)]


def pair(version: int = 4, qos: int = 2, **subscription: Any) -> Capture:
    """Return a capture with a publisher, and a subscriber to ``t/#``."""
    capture = Capture(version)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=qos, **subscription)
    capture.connect("pub")
    return capture
