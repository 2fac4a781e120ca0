"""The rule by which secrets stay out of everything that is shown or stored, unless requested.

1. Secrets are: the password of an MQTT CONNECT; authentication data of MQTT 5.0; the bodies of
   AUTHENTICATE and AUTHENTICATE_REQUEST of JMQ, also inside GPackets and converted to GPackets;
   user information and query values of URLs. User names, wills and payloads of messages are none.
2. In a well-formed packet, the secret is left out of the row, and its bytes are not shown. Rows of
   JMQ logins have nothing but the fixed header.
3. In a malformed or unfinished packet of a type that has secrets, any text may be the secret,
   because a length or a flag may be wrong. So only numbers of its headers are shown, unless its
   fields make up all of its bytes.
4. Bytes that are no field of a packet are not shown: what is left of a malformed packet, an
   unfinished packet behind its header, and bytes between packets. They may be a part of a secret.
   An MQTT packet that cannot be read to its end may be one too: its first four bytes are shown.
   This holds for the formats that have secrets.
5. Errors have the name of a field, its position and numbers, never text of such a packet.
6. URLs and request targets are shown and stored without user information, and with masked query
   values (``wireyard.streams.urls``).
7. The state of a growing input has the bytes of unfinished packets. It is readable by its owner
   only, and is deleted once it has been replaced.
8. In captures that a broker or a proxy records, the bytes that are not shown are replaced by as
   many asterisks. Nothing is shown behind a login whose length may be wrong, and four bytes of
   what a broker does not read any more.
9. A capture that `slice` writes, packets that `convert` and `encode` write, and everything that
   ``--secrets`` requests have all bytes.

`Redactor` applies the rule to rows, `annotate` and `shown_beginning` to bytes, `masked` of
``wireyard.formats.marks`` to records. The
formats decide what is secret in a packet, in `Secrets.redact` and `Format.annotate`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from wireyard.arrays import Bools, Ints
from wireyard.formats.base import Annotation, Carried, Format, Row
from wireyard.schema import array_of, as_array, as_numbers
from wireyard.streams.framer import GARBAGE, MALFORMED, TAIL


def annotate(
    format: Format, data: bytes, status: str, context: int, size: int | None = None
) -> Sequence[Annotation]:
    """Return annotations of the bytes of a row; those that may be secret are hidden.

    Bytes that belong to no packet have none if they may be shown. If `data` has only the first
    bytes of the row, `size` is the size of the row.
    """
    if status != GARBAGE and (size is None or len(data) == size):
        return format.annotate(data, context)
    if not format.secrets.types:
        return ()
    return [Annotation(0, len(data), "no field", "not shown", format.title, hidden=True)]


def shown_beginning(format: Format, data: bytes, status: str, context: int) -> bytes:
    """Return bytes of a row up to the first that may be secret.

    If `data` has only the first bytes of the row, only those of its header are shown.
    """
    marks = annotate(format, data, status, context) if format.secrets.types else ()
    return data[: min((mark.start for mark in marks if mark.hidden), default=len(data))]


class Redactor:
    """Redacts the batches of one format by its `redact`, which takes single rows.

    A call for every row would cost as much as decoding. So it is called only for malformed rows,
    unfinished ones, and those of packet types with secrets that have a value in a secret column.
    """

    def __init__(self, format: Format) -> None:
        self._format = format

    def redact(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch without secrets."""
        if "packet_type" not in batch.schema.names or not self._format.secrets.types:
            return batch
        secrets, changes = self._format.secrets, dict[str, dict[int, Any]]()
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        can_change = [name for name in secrets.columns if name in columns]
        held = np.zeros(batch.num_rows, np.bool_)
        for name in can_change:
            held |= ~as_numbers(columns[name].is_null())
        for at in np.flatnonzero(held & self._suspects(batch)).tolist():
            row = _BatchRow(columns, at, can_change)
            redacted = secrets.redact(cast(Row, row))
            if redacted is not cast(Row, row):
                for name, new in redacted.items():
                    if new is not row[name]:
                        changes.setdefault(name, {})[at] = new
        for name, others in changes.items():
            batch = _replace(batch, name, others)
        return batch

    def _suspects(self, batch: pa.RecordBatch) -> Bools:
        """Return which rows may have a secret."""
        format = self._format
        suspects = _is_one_of(batch["packet_type"], format.secrets.types)
        if suspects.any():
            has_value = {
                name: _has_value(batch[name])
                for name in set().union(*format.secrets.types.values())
                if name in batch.schema.names
            }
            for kind, names in format.secrets.types.items():
                of_kind = _is_one_of(batch["packet_type"], (kind,))
                held = np.zeros(batch.num_rows, np.bool_)
                for name in set(names) & has_value.keys():
                    carried = (
                        format.secrets.carried.get(kind) if name == format.body.column else None
                    )
                    held |= has_value[name] & ~_is_clean(batch[name], carried)
                suspects &= held | ~of_kind
        if "status" in batch.schema.names:
            suspects |= _is_one_of(batch["status"], (MALFORMED, TAIL))
        return suspects


def _is_one_of(array: pa.Array, values: Collection[Any]) -> Bools:
    """Return which rows of a column of few different values have one of some."""
    encoded = array.dictionary_encode("encode")
    wanted = [code for code, one in enumerate(encoded.dictionary.to_pylist()) if one in values]
    return np.isin(as_numbers(encoded.indices), wanted)


def _is_clean(bodies: pa.Array, carried: Carried | None) -> Bools:
    """Return which bodies hold packets without secrets; `carried` recognizes them."""
    clean = np.zeros(len(bodies), np.bool_)
    if carried is not None:
        clean[_rows_with(bodies, carried.header)] = True
        clean[_rows_with(bodies, carried.secret_header)] = False
    return clean


def _rows_with(array: pa.Array, pattern: re.Pattern[bytes]) -> Ints:
    """Return the rows of a binary column in which a pattern occurs."""
    _, ends, data = array.buffers()
    offsets = np.frombuffer(ends, np.int32)[array.offset :][: len(array) + 1]
    if data is None or not len(array):
        return np.empty(0, np.int64)
    found = pattern.finditer(data, offsets[0], offsets[-1])
    spans = np.array([one.span() for one in found], np.int64).reshape(-1, 2)
    rows = offsets.searchsorted(spans[:, 0], "right") - 1
    return rows[spans[:, 1] <= offsets[rows + 1]]


class _BatchRow(Mapping[str, Any]):
    """One row of a batch, whose values are converted on first use.

    The columns `can_change` are copied to a redacted row.
    """

    def __init__(self, columns: Mapping[str, pa.Array], at: int, can_change: Sequence[str]) -> None:
        self._columns, self._at, self._can_change = columns, at, can_change
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._read:
            self._read[name] = self._columns[name][self._at].as_py()
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._can_change)

    def __len__(self) -> int:
        return len(self._can_change)


def _has_value(array: pa.Array) -> Bools:
    """Return which values are neither null nor an empty list."""
    filled = np.ones(len(array), np.bool_)
    if pa.types.is_list(array.type):
        ends = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
        filled &= np.diff(ends) > 0
    if array.null_count:
        filled &= ~as_numbers(array.is_null())
    return filled


def _replace(batch: pa.RecordBatch, name: str, values: Mapping[int, Any]) -> pa.RecordBatch:
    """Return the batch with new values of a column in some rows."""
    place = batch.schema.get_field_index(name)
    field = batch.schema.field(place)
    order = np.arange(batch.num_rows)
    order[list(values)] = batch.num_rows + np.arange(len(values))
    both = pa.concat_arrays([batch[name], array_of(list(values.values()), field.type)])
    return batch.set_column(place, field, both.take(as_array(order)))
