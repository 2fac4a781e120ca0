"""The options of the data source: a table of their names and parsers.

If Spark's file sources have the same option, ours has its name and meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wireyard.captures.packets.segment_columns import TABLE
from wireyard.errors import UsageError

if TYPE_CHECKING:
    from wireyard.formats.base import Format
    from wireyard.payloads.columns import PayloadColumns

INPUTS = ("auto", "pcap", "stream")
TABLES = ("packets", TABLE, "streams")
"""The tables besides those of facts."""
_UNITS = {unit: 1 << 10 * power for power, unit in enumerate(("b", "k", "m", "g", "t"))}
_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Options:
    """The options given to the data source."""

    protocol: str | None = None
    """Name of the wire format; if not given, the first bytes of the first file decide."""
    paths: tuple[str, ...] = ()
    """Files, folders or patterns, as given to `load`."""
    columns: tuple[str, ...] | None = None
    """The columns to read, separated by commas; a schema given by the caller takes precedence."""
    mode: str = "permissive"
    """``PERMISSIVE`` keeps bad rows with their error; or ``DROPMALFORMED``, or ``FAILFAST``."""
    corrupt_column: str | None = None
    """Name of a string (hex) or binary column that gets the bytes of bad rows."""
    name_filter: str | None = None
    """Only files with names that match this pattern."""
    recursive: bool = False
    """Whether nested folders are read too."""
    modified_before: datetime | None = None
    """Only files changed earlier; UTC unless the time has an offset."""
    modified_after: datetime | None = None
    """Only files changed later; UTC unless the time has an offset."""
    ignore_missing: bool = False
    """Whether a path without files is no error."""
    ignore_corrupt: bool = False
    """Whether a file that cannot be read further simply ends there."""
    partition_bytes: int = 128 << 20
    """Input of a task: larger files are split, smaller ones share a task."""
    packet_bytes: int | None = None
    """Largest packet that is accepted; the format's own limit if not given."""
    input: str = "auto"
    """Kind of the files: ``stream``, ``pcap`` for captures, pcapng too, or ``auto``, by the first
    bytes of each."""
    table: str = "packets"
    """``packets``; ``tcp_segments``, the TCP segments and UDP datagrams of captures; ``streams``,
    or a table of facts such as ``deliveries``."""
    decode_as: tuple[str, ...] = ()
    """Formats by port for captures, separated by semicolons: ``tcp.port==1884,mqtt``."""
    keylog: tuple[str, ...] = ()
    """A key log with the secrets of TLS connections, at a path that every task can read."""
    rotated: bool = False
    """Whether all captures at a path are the files of one rotated capture."""
    payload: tuple[str, ...] = ()
    """Rules by which payloads are decoded, one in each line: ``plant/#=json``."""
    batch_files: int | None = None
    """Most files in a batch of a stream; all if not given."""
    batch_bytes: int | None = None
    """Bytes in a batch of a stream, exceeded by at most a file, or a packet; all if not given."""
    push_filters: bool = False
    """Whether filters are evaluated before rows are decoded; needs Spark's setting
    ``spark.sql.python.filterPushdown.enabled``."""


def _yes_or_no(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError
    return int(match[1]) * _UNITS[match[2].lower() or "b"]


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _rules(text: str) -> tuple[str, ...]:
    return tuple(rule.strip() for rule in text.split(";") if rule.strip())


def _table(text: str) -> str:
    if text.lower() in TABLES:
        return text.lower()
    from wireyard.layers.tables import all_tables  # loads Arrow

    return _one_of(tuple(all_tables()))(text)


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    known = {name: name for name in names}
    return lambda text: known[text.lower()]


_TRUTH = "true or false"
_BYTES = "a size such as 64m or 134217728"
_MOMENT = "a time such as 2026-03-01T12:00:00"
_NUMBER = "a number from 1 on"
_READERS: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "protocol": ("protocol", str, ""),
    "path": ("paths", lambda text: (text,), ""),
    "paths": ("paths", lambda text: tuple(json.loads(text)), "a JSON list"),
    "columns": ("columns", _names, ""),
    "mode": ("mode", str.lower, ""),
    "columnNameOfCorruptRecord": ("corrupt_column", str, ""),
    "pathGlobFilter": ("name_filter", str, ""),
    "recursiveFileLookup": ("recursive", _yes_or_no, _TRUTH),
    "modifiedBefore": ("modified_before", _time, _MOMENT),
    "modifiedAfter": ("modified_after", _time, _MOMENT),
    "ignoreMissingFiles": ("ignore_missing", _yes_or_no, _TRUTH),
    "ignoreCorruptFiles": ("ignore_corrupt", _yes_or_no, _TRUTH),
    "maxPartitionBytes": ("partition_bytes", _size, _BYTES),
    "maxPacketBytes": ("packet_bytes", _size, _BYTES),
    "input": ("input", _one_of(INPUTS), f"one of {', '.join(INPUTS)}"),
    "table": ("table", _table, f"{', '.join(TABLES)} or a table of facts"),
    "decodeAs": ("decode_as", _rules, "rules"),
    "keylog": ("keylog", lambda text: (text,), ""),
    "rotated": ("rotated", _yes_or_no, _TRUTH),
    "payload": ("payload", lambda text: tuple(filter(None, map(str.strip, text.splitlines()))), ""),
    "maxFilesPerTrigger": ("batch_files", _count, _NUMBER),
    "maxBytesPerTrigger": ("batch_bytes", _size, _BYTES),
    "pushFilters": ("push_filters", _yes_or_no, _TRUTH),
}
_BY_KEY = {name.lower(): name for name in _READERS}
WRITE_OPTIONS = frozenset({"protocol", "path"})
"""The options that mean something to a writer."""


def read_options(given: Mapping[str, str]) -> Options:
    """Return the options as values.

    A `UsageError` is raised for an option that does not exist, or a value that it cannot have.
    """
    if {"provider", "location"} <= given.keys():  # a catalog adds these to a table's options
        raise UsageError(
            "CREATE TABLE: Spark keeps no options of a table whose source is written in Python, so"
            " the table could not be read; CREATE TEMPORARY VIEW ... USING wireyard OPTIONS keeps"
            " them"
        )
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = _BY_KEY.get(key.lower())
        if name is None:
            known = ", ".join(_READERS)
            raise UsageError(f"the wireyard data source has no option '{key}'; it has {known}")
        field, read, wanted = _READERS[name]
        try:
            values[field] = read(text)
        except (KeyError, ValueError):
            raise UsageError(f"option '{name}' cannot be '{text}': {wanted} is wanted") from None
    return Options(**values)


def opener_of(format: Format, options: Options) -> PayloadColumns | None:
    """Return the decoder of payloads; None without rules."""
    if not options.payload:
        return None
    from wireyard.payloads import parse_rules
    from wireyard.payloads.columns import PayloadColumns

    return PayloadColumns(format, parse_rules(options.payload))
