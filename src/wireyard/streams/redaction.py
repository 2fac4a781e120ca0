"""Redaction of whole batches by a format's `redact`, which takes single rows.

A call for every row would cost as much as decoding. `redact` reads one column first, such as the
packet type, and for most rows no other. So it is called for one row of each value of that column:
if it leaves the row unchanged and reads no other column, every row with that value is clean. The
same holds for rows whose other columns, as far as `redact` reads them, are null or empty in the
same way: a CONNECT without a password has nothing to redact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.formats.base import Format, Row
from wireyard.schema import array_of, as_array, as_numbers

__all__ = ["Redactor"]

Ints = npt.NDArray[np.int64]
_NONE: Ints = np.empty(0, np.int64)
_NULL, _EMPTY, _FILLED = range(3)
_STATES: Final = 3


class Redactor:
    """Redacts the batches of one format."""

    def __init__(self, format: Format) -> None:
        self._redact = format.redact
        self._secret = format.secret_columns
        self._columns_read: list[str] = []
        """The columns that `redact` has read; it reads the first of them first in every row."""
        self._clean: set[Any] = set()
        """Values of the first column whose rows are clean."""

    def redact(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
        """Return the batch without passwords, and the rows that had one."""
        if not batch.num_rows:
            return batch, _NONE
        if not self._columns_read:
            self._changes(_BatchRow(batch, 0, self._secret))
            if not self._columns_read:
                return batch, _NONE
        suspects = self._suspects(batch, self._columns_read[0])
        if len(suspects):
            suspects = self._not_blank(batch, suspects)
        names = list(self._columns_read)
        known = [batch[name].take(as_array(suspects)).to_pylist() for name in names]
        changes: dict[str, dict[int, Any]] = {}
        for at, values in zip(suspects.tolist(), zip(*known, strict=True), strict=True):
            row = _BatchRow(batch, at, self._secret, dict(zip(names, values, strict=True)))
            for name, new in (self._changes(row) or {}).items():
                changes.setdefault(name, {})[at] = new
        for name, others in changes.items():
            batch = _replace(batch, name, others)
        changed = {at for others in changes.values() for at in others}
        return batch, np.array(sorted(changed), np.int64)

    def _suspects(self, batch: pa.RecordBatch, first_column: str) -> Ints:
        """Return the rows that are not clean by the value of the first column."""
        encoded = batch[first_column].dictionary_encode(null_encoding="encode")
        codes = as_numbers(encoded.indices)
        suspects = []
        for code, value in enumerate(encoded.dictionary.to_pylist()):
            if value in self._clean:
                continue
            row = _BatchRow(batch, int(np.argmax(codes == code)), self._secret)
            if self._changes(row) is None and list(row.values_read) == [first_column]:
                self._clean.add(value)
            else:
                suspects.append(code)
        return np.flatnonzero(np.isin(codes, suspects)) if suspects else _NONE

    def _not_blank(self, batch: pa.RecordBatch, suspects: Ints) -> Ints:
        """Return the suspects without classes of equally blank rows of which one proves clean."""
        while True:
            first_column, *others = self._columns_read
            taken = batch[first_column].take(as_array(suspects)).dictionary_encode("encode")
            classes, blank = as_numbers(taken.indices).astype(np.int64), suspects >= 0
            for name in others:
                states = _states(batch[name].take(as_array(suspects)))
                classes = classes * _STATES + states
                blank &= states != _FILLED
            suspect = np.ones(len(suspects), np.bool_)
            for number in np.unique(classes[blank]).tolist():
                first = int(suspects[np.argmax(classes == number)])
                if self._changes(_BatchRow(batch, first, self._secret)) is None:
                    suspect &= classes != number
            # Rows of one class may differ in a column that was read for the first time.
            if self._columns_read == [first_column, *others]:
                return suspects[suspect]

    def _changes(self, row: _BatchRow) -> dict[str, Any] | None:
        """Redact one row; return its changed values by column, None if nothing changes."""
        redacted = self._redact(cast(Row, row))
        self._columns_read += [name for name in row.values_read if name not in self._columns_read]
        if redacted is cast(Row, row):
            return None
        return {name: new for name, new in redacted.items() if new is not row[name]}


class _BatchRow(Mapping[str, Any]):
    """One row of a batch, whose values are converted on first use and recorded.

    Parameters
    ----------
    secret
        The columns that are copied to a redacted row, because only they can change.
    known
        Values that are converted already.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        at: int,
        secret: Sequence[str],
        known: Mapping[str, Any] | None = None,
    ) -> None:
        self._batch, self._at, self._secret = batch, at, secret
        self._known = known or {}
        self.values_read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.values_read:
            if name in self._known:
                value = self._known[name]
            elif name in self._batch.schema.names:
                value = self._batch[name][self._at].as_py()
            else:
                raise KeyError(name)
            self.values_read[name] = value
        return self.values_read[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._secret if name in self._batch.schema.names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _states(array: pa.Array) -> Ints:
    """Return whether each value is null, empty, or neither."""
    states = np.full(len(array), _FILLED, np.int64)
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        ends = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
        states[np.diff(ends) == 0] = _EMPTY
    if array.null_count:
        states[as_numbers(array.is_null())] = _NULL
    return states


def _replace(batch: pa.RecordBatch, name: str, values: Mapping[int, Any]) -> pa.RecordBatch:
    """Return the batch with new values of a column in some rows."""
    place = batch.schema.get_field_index(name)
    field = batch.schema.field(place)
    order = np.arange(batch.num_rows)
    order[list(values)] = batch.num_rows + np.arange(len(values))
    both = pa.concat_arrays([batch[name], array_of(list(values.values()), field.type)])
    return batch.set_column(place, field, both.take(as_array(order)))
