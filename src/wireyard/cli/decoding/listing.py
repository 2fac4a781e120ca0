"""The list of packets for people: one line a packet, in the order of capture across streams.

Streams are read one after the other, so their lines are written to a temporary file, and their
frames to another; then the lines are printed by frame, some frames at a time. Neither is held in
memory, however large the capture. Lines of a growing capture are printed before it is waited for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from tempfile import TemporaryFile
from typing import Any, Final

import numpy as np
import pyarrow as pa
from rich.console import Console

from wireyard.captures.clients import LOGIN_COLUMNS, LOGINS, Clients, opposite
from wireyard.cli.decoding.cells import cell_of, payload_cell
from wireyard.cli.decoding.reading import Budget, OpenInput, read_parts
from wireyard.cli.decoding.selection import Selection
from wireyard.cli.tables import padded, width_of
from wireyard.formats.base import Format, Row
from wireyard.formats.rows import pick_columns
from wireyard.layout import Column
from wireyard.schema import as_array
from wireyard.streams.conditions import BoundFilter, bind, parse
from wireyard.streams.framer import GAP, OK
from wireyard.streams.redaction import Redactor
from wireyard.text import count_text, moment, printable

_KEY: Final = np.dtype([(name, np.int64) for name in ("frame", "time_ns", "stream", "at", "size")])
_CLOCK: Final = len("00:00:00.000000")
_SECOND_NS: Final = 10**9
_FRAMES_AT_ONCE: Final = 1 << 20
_HELD_ROWS: Final = 1 << 12
"""Rows of growing streams that are held to print them in order."""
_MOST_PAYLOAD: Final = 1 << 10
_MOST: Final = {"client": 24, "packet": 24, "topic": 48, "qos": 4}
"""The columns between the time and the payload, with their greatest widths."""
_LEAST: Final = 8
_NARROW: Final = 64
"""Width from which on there is room for all columns."""
_SHARES: Final = {"client": 6, "packet": 8, "topic": 4, "qos": 1}
"""The same as parts of a terminal's width, a sixth and so on."""
_TITLES: Final = {"client": "client", "packet": "packet", "topic": "topic", "qos": "QoS"}
_ON_LINE: Final = ("source", "status", "error", "captured_ns", "topic", "destination", "qos")
"""Columns that are on the line of each packet."""
_STYLES: Final = {"client": "32", "packet": "1", "topic": "36", "qos": "2"}
_FAULT, _DIM = "31", "2"
_SEPARATOR: Final = "\x1f"  # `printable` leaves it in no text
_ABOUT: Final[Mapping[str, str]] = {
    "username": "user {}",
    "will_topic": "will {}",
    "keep_alive": "keep-alive {} s",
    "return_codes": "codes {}",
    "consumer_id": "consumer {}",
    "transaction_id": "transaction {}",
    "packet_id": "id {}",
}
"""What the line of a packet without payload shows, by column."""
_UNNAMED: Final[Mapping[str, str]] = {
    "packet_type": "{}",
    "layer": "layer {}",
    "typing": "0x{:04x}",
}
"""How packets of types without a name are called, by column."""
_SHOWN: Final = (
    *("offset", "length", "status", "error", "captured_ns", "frame", "src_port", "dst_port"),
    *("packet_type_name", "layer_name", *_UNNAMED),
    *("topic", "destination", "filters", "qos", "retain", "dup"),
    *("return_code", "version", "bit_flags", "property_offset", "property_size", *_ABOUT),
)


class PacketList:
    """Prints packets, one a line.

    The console has colours if it is a terminal that has any, and NO_COLOR is not set. With
    `verbose`, each line is followed by all other columns of its packet. `limit` is the number of
    packets to print, of a capture the first by time; None for all. With `headings`, the packets of
    bare streams are printed below their names.
    """

    def __init__(
        self,
        console: Console,
        *,
        verbose: bool = False,
        limit: int | None = None,
        headings: bool = False,
    ) -> None:
        self._console, self._verbose, self._headings = console, verbose, headings
        self._left = sys.maxsize if limit is None else limit
        self._colours = console.color_system is not None and not console.no_color
        self._cuts = console.is_terminal or "COLUMNS" in os.environ
        self._widths = dict.fromkeys(_MOST, 0)
        self._day = self._heading = ""
        self._files = ExitStack()
        self._begin("")

    def _begin(self, source: str) -> None:
        """Begin to list another source, with clients and streams of its own."""
        self._source = source
        self._clients = Clients()
        self._streams: list[tuple[str, bool]] = []
        self._numbers: dict[str, int] = {}
        self._topics: dict[tuple[str, str], str] = {}
        """Topics by stream and alias."""
        self._open()

    def _open(self) -> None:
        self._files.close()
        self._texts = self._files.enter_context(TemporaryFile())  # noqa: SIM115
        self._keys = self._files.enter_context(TemporaryFile())  # noqa: SIM115
        self._rows = 0

    def close(self) -> None:
        """Print what is held, and delete the files."""
        self.flush()
        self._files.close()

    def flush(self) -> None:
        """Print what is held, in the order of frames."""
        if not self._rows:
            return
        self._keys.flush()
        self._texts.flush()
        keys = np.memmap(self._keys, _KEY, "r")
        frames = keys["frame"]
        there = np.zeros(len(self._streams), np.bool_)
        there[keys["stream"]] = True
        clients = {
            int(number): self._client(*self._streams[number]) for number in np.flatnonzero(there)
        }
        widest = max(width_of(client) for client, _ in clients.values())
        self._widths["client"] = max(self._widths["client"], min(widest, _MOST["client"]))
        for first in range(0, int(frames.max()) + 1, _FRAMES_AT_ONCE):
            here = np.flatnonzero((frames >= first) & (frames < first + _FRAMES_AT_ONCE))
            here = here[np.argsort(frames[here], kind="stable")][: self._left]
            self._left -= len(here)
            self._print(keys[here], clients)
        self._open()

    # --- rows ---------------------------------------------------------------------------------

    def add(self, reading: OpenInput) -> None:
        """Add the selected packets of streams."""
        if reading.streams[0].name != self._source:
            self.flush()
            self._begin(reading.streams[0].name)
        selection, budget = reading.selection, reading.budget
        format, captured = selection.format, selection.captured
        columns = pick_columns(format, None, captured=captured)
        needed = {*_SHOWN, *LOGIN_COLUMNS, format.body.column, *format.secrets.reads}
        shown = columns if self._verbose else [one for one in columns if one.name in needed]
        sorts = captured and not reading.live
        reading, mask = _with_logins(replace(reading, budget=Budget(None)) if sorts else reading)
        plan = reading.selection.plan_of([one.name for one in (*shown, *mask.columns)])
        redactor = Redactor(format)
        for _, batch in read_parts(reading, plan):
            if not selection.request.secrets:
                batch = redactor.redact(batch)
            if "packet_type" in batch.schema.names:
                self._clients.add(format.name, batch)
            if mask.mask is not None:
                batch = batch.filter(mask.mask(batch))
            if sorts:
                budget.taken += batch.num_rows
            elif mask.mask is not None:
                batch = batch.slice(0, budget.take(batch.num_rows))
            if not captured:
                batch = self._below_heading(reading, batch)
            self._hold(selection, shown, batch)
            if budget.spent:
                break
            if not captured or (reading.live and self._rows > _HELD_ROWS):
                self.flush()

    def _below_heading(self, reading: OpenInput, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Print the name of a bare stream, or of a file of a store, before its first packet.

        Return the batch, of a store without what is between its packets.
        """
        from wireyard.captures.stores.stream import StoreStream

        stored = isinstance(reading.streams[0], StoreStream)
        if stored:
            kept = [at for at, one in enumerate(batch["status"].to_pylist()) if one != GAP]
            batch = batch.take(as_array(np.array(kept, np.int64)))
        if batch.num_rows and (stored or self._headings):
            name = batch["stream"][0].as_py()
            if name != self._heading:
                self.flush()
                self._heading = name
                self._write([self._styled(printable(name), "1")])
        return batch

    def _hold(self, selection: Selection, shown: Sequence[Column], batch: pa.RecordBatch) -> None:
        """Write the lines of a batch to the files."""
        format, payload = selection.format, selection.request.payload or "text"
        most_bytes = selection.request.payload_bytes or (None if self._verbose else _MOST_PAYLOAD)
        keys = np.zeros(batch.num_rows, _KEY)
        captured = selection.captured
        texts, at, frame, time_ns = [], self._texts.tell(), 0, 0
        filled = [name for name in batch.schema.names if batch[name].null_count < batch.num_rows]
        for number, row in enumerate(batch.select(filled).to_pylist()):
            if "topic" in row:
                self._resolve(row)
            cells = _cells(format, payload, row, most_bytes)
            for name, cell in zip(_MOST, ("", *cells), strict=False):
                self._widths[name] = max(self._widths[name], min(width_of(cell), _MOST[name]))
            if self._verbose:
                cells += _more(shown, row)
            text = _SEPARATOR.join(cells).encode("utf-8", "backslashreplace")
            frame = row.get("frame") or frame  # a gap has none
            time_ns = (row.get("captured_ns") if captured else row["offset"]) or time_ns
            keys[number] = frame, time_ns, self._number(row, format), at, len(text)
            at += len(text)
            texts.append(text)
        self._texts.write(b"".join(texts))
        self._keys.write(keys.tobytes())
        self._rows += batch.num_rows

    def _resolve(self, row: Row) -> None:
        """Set the topic of a PUBLISH that has only an alias for it."""
        alias = next(
            (p["value"] for p in row.get("properties") or () if p["name"] == "topic_alias"), ""
        )
        if alias and row["topic"]:
            self._topics[row["stream"], alias] = row["topic"]
        elif alias:
            row["topic"] = self._topics.get((row["stream"], alias), f"(alias {alias})")

    def _number(self, row: Row, format: Format) -> int:
        """Return the number of a row's stream; the client is the side with the other port."""
        name = row["stream"]
        if name not in self._numbers:
            self._numbers[name] = len(self._streams)
            src, dst = row.get("src_port"), row.get("dst_port")
            sends = src is not None and (
                dst in format.evidence.ports
                or (src not in format.evidence.ports and src >= (dst or 0))
            )
            self._streams.append((name, sends))
        return self._numbers[name]

    # --- lines --------------------------------------------------------------------------------

    def _print(self, keys: np.ndarray[Any, Any], clients: Mapping[int, tuple[str, str]]) -> None:
        """Print the lines of keys in order; `clients` is by number of stream."""
        texts = np.memmap(self._texts, np.uint8, "r")
        widths, width, second, clock = self._fitted(), self._console.width, -1, ""
        for place in range(0, len(keys), _HELD_ROWS):
            lines: list[str] = []
            for _, time_ns, stream, at, size in keys[place : place + _HELD_ROWS].tolist():
                cells = texts[at : at + size].tobytes().decode().split(_SEPARATOR)
                if not clients[stream][1]:  # of no capture
                    day, shown = "offset", f"{time_ns:>{_CLOCK}}"
                else:
                    if time_ns // _SECOND_NS != second:
                        second = time_ns // _SECOND_NS
                        day, _, clock = moment(time_ns, 0).partition("T")
                    shown = f"{clock[:8]}.{time_ns % _SECOND_NS // 1000:06d}"
                if day != self._day:
                    self._day = day
                    lines.append(self._header(day, widths))
                lines.append(self._line(shown, clients[stream], cells, widths, width))
                lines += (self._styled(f"    {each}", _DIM) for each in cells[4:])
            self._write(lines)

    def _client(self, name: str, sends: bool) -> tuple[str, str]:
        """Return the client of a stream, and an arrow: > from the client, < to it."""
        back = opposite(name)
        ends = name.partition("#")[0].split(">")
        if name in self._clients.senders or back in self._clients.senders:
            sends = name in self._clients.senders
        client = self._clients.ids.get(name)
        if back == name:
            return printable(client or ""), ""
        return printable(client or ends[not sends]), ">" if sends else "<"

    def _fitted(self) -> dict[str, int]:
        """Return the widths of the columns that are not empty."""
        most = self._console.width if self._cuts else sum(_MOST.values()) * _LEAST
        return {
            name: max(min(width, max(most // _SHARES[name], _LEAST)), len(_TITLES[name]))
            for name, width in self._widths.items()
            if width
        }

    @property
    def _is_narrow(self) -> bool:
        """Whether what follows a packet's type is on a line of its own."""
        return self._cuts and self._console.width < _NARROW

    def _header(self, day: str, widths: Mapping[str, int]) -> str:
        first = f"{day:>{_CLOCK}}" if day == "offset" else f"{day} UTC "
        cells = [f"{_TITLES[name]:<{width}}" for name, width in widths.items()]
        if "client" in widths:
            cells[0] += "  "  # above the arrow
        if self._is_narrow:
            return self._styled("  ".join([first, *cells[:2]]), _DIM)
        return self._styled("  ".join([first, *cells, "payload"]), _DIM)

    def _line(
        self,
        clock: str,
        client: tuple[str, str],
        cells: Sequence[str],
        widths: Mapping[str, int],
        room: int,
    ) -> str:
        parts = [self._styled(clock, _DIM)]
        room -= len(clock)
        if width := widths.get("client"):
            name, arrow = client
            text = f"{padded(name, width, right=False)} {arrow or ' '}"
            parts.append(self._styled(text, _STYLES["client"]))
            room -= width + 4
        if self._is_narrow:
            parts.append(
                self._styled(cells[0], _FAULT if cells[0][:1] == "!" else _STYLES["packet"])
            )
            below = "  ".join(filter(None, cells[1:4]))
            below = f"\n    {padded(below, self._console.width - 4, right=False)}" if below else ""
            return "  ".join(parts) + below
        # What a packet without topic is about takes the place of its topic.
        shown = 3 if cells[1] or cells[2] else 1
        for name, cell in zip(("packet", "topic", "qos")[:shown], cells, strict=False):
            if width := widths.get(name):
                style = _FAULT if cell.startswith("!") else _STYLES[name]
                parts.append(self._styled(padded(cell, width, right=False), style))
                room -= width + 2
        cuts = self._cuts and not self._verbose
        parts.append(padded(cells[3], max(room - 2, 1), right=False) if cuts else cells[3])
        return "  ".join(parts).rstrip()

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._colours and text.strip() else text

    def _write(self, lines: Iterable[str]) -> None:
        self._console.file.write("".join(f"{line.rstrip()}\n" for line in lines))


def _with_logins(reading: OpenInput) -> tuple[OpenInput, BoundFilter]:
    """Return a reading with logins too, if there are conditions, and the filter for the others."""
    selection = reading.selection
    request, format = selection.request, selection.format
    how = {"captured": selection.captured, "lenient": request.lenient}
    filter = bind(parse(request.where), format, **how)
    logins = LOGINS.get(format.name)
    if filter.mask is None or logins is None:
        return reading, replace(filter, mask=None)
    rows = " AND ".join(f"({where})" for where in request.where)
    where = f"{rows} OR packet_type in {','.join(map(str, logins))}"
    selection = replace(selection, request=replace(request, where=(where,)))
    return replace(reading, selection=selection, budget=Budget(None)), filter


def _cells(format: Format, payload: str, row: Row, most_bytes: int | None) -> list[str]:
    """Return the packet's type, its topic, its QoS, and its payload or what else it is about."""
    kind = row.get("packet_type_name") or row.get("layer_name") or ""
    topic = row.get("topic") or row.get("destination") or ""
    if filters := row.get("filters"):
        topic = ", ".join(one["filter"] for one in filters)
    qos = ""
    if row.get("qos") is not None and row.get("topic") is not None:
        flags = "R" * row["retain"] + "D" * row["dup"]
        qos = f"{row['qos']} {flags}".rstrip()
    if row["status"] != OK:
        why = row["error"]["message"] if row.get("error") else count_text(row["length"], "byte")
        return [
            f"!{kind or row['status']}",
            printable(topic),
            "",
            printable(f"{row['status']}: {why}"),
        ]
    about = payload_cell(format, payload, row, most_bytes)
    if not topic:
        about = about or ", ".join(_about(row))
    numbers = (
        text.format(row[name]) for name, text in _UNNAMED.items() if row.get(name) is not None
    )
    return [kind or next(numbers, ""), *map(printable, (topic, qos, about))]


def _about(row: Row) -> Iterator[str]:
    """Yield what a packet without payload is about."""
    if (code := row.get("return_code")) is not None:
        from wireyard.layers.mqtt.reasons import REASONS

        yield f"code {code}" + (f" ({REASONS[code]})" if code in REASONS else "")
    for name, text in _ABOUT.items():
        if (value := row.get(name)) is not None:
            yield text.format(", ".join(map(str, value)) if isinstance(value, list) else value)


def _more(columns: Iterable[Column], row: Row) -> list[str]:
    """Return the other columns of a row, each with its name."""
    typed = [one for one in row.get("properties") or () if isinstance(one, tuple)]
    if typed:
        row = {**row, "properties": {name: (one["type"], one["value"]) for name, one in typed}}
    cells = ((column, cell_of(column, row)) for column in columns if column.name not in _ON_LINE)
    return [f"{column.name:<24}{cell}" for column, cell in cells if cell]
