"""Taking passwords out of whole batches with a format's `redact`, which takes single rows.

Asking for every row would cost as much as decoding. A redaction looks at one column first, such as
the packet type, and for almost every row at nothing else. So rows are asked about by that column:
where a row came back as it was and nothing else of it was looked at, the same goes for every row
with the same value there. It goes as well for rows in which all else that was looked at is null, or
empty, in the same way: of a CONNECT there is nothing to take out that has no password.
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
        self._looked_at: list[str] = []
        """The columns that redactions looked at; the first of them comes first in every row."""
        self._clean: set[Any] = set()

    def redact(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
        """Return the batch without passwords, and which rows had one."""
        if not batch.num_rows:
            return batch, _NONE
        if not self._looked_at:
            self._ask(_BatchRow(batch, 0, self._secret))
            if not self._looked_at:
                return batch, _NONE
        suspects = self._suspects(batch, self._looked_at[0])
        if len(suspects):
            suspects = self._not_blank(batch, suspects)
        names = list(self._looked_at)
        known = [batch[name].take(as_array(suspects)).to_pylist() for name in names]
        changes: dict[str, dict[int, Any]] = {}
        for at, values in zip(suspects.tolist(), zip(*known, strict=True), strict=True):
            row = _BatchRow(batch, at, self._secret, dict(zip(names, values, strict=True)))
            for name, new in (self._ask(row) or {}).items():
                changes.setdefault(name, {})[at] = new
        for name, others in changes.items():
            batch = _replace(batch, name, others)
        changed = {at for others in changes.values() for at in others}
        return batch, np.array(sorted(changed), np.int64)

    def _suspects(self, batch: pa.RecordBatch, decider: str) -> Ints:
        """Return the rows that are not clean by the value of the column that decides."""
        encoded = batch[decider].dictionary_encode(null_encoding="encode")
        codes = as_numbers(encoded.indices)
        suspects = []
        for code, value in enumerate(encoded.dictionary.to_pylist()):
            if value in self._clean:
                continue
            row = _BatchRow(batch, int(np.argmax(codes == code)), self._secret)
            if self._ask(row) is None and list(row.looked_at) == [decider]:
                self._clean.add(value)
            else:
                suspects.append(code)
        return np.flatnonzero(np.isin(codes, suspects)) if suspects else _NONE

    def _not_blank(self, batch: pa.RecordBatch, suspects: Ints) -> Ints:
        """Return the suspects but for those of which one is clean that is as blank as they are."""
        while True:
            decider, *others = self._looked_at
            taken = batch[decider].take(as_array(suspects)).dictionary_encode("encode")
            classes, blank = as_numbers(taken.indices).astype(np.int64), suspects >= 0
            for name in others:
                states = _states(batch[name].take(as_array(suspects)))
                classes = classes * _STATES + states
                blank &= states != _FILLED
            kept = np.ones(len(suspects), np.bool_)
            for one in np.unique(classes[blank]).tolist():
                first = int(suspects[np.argmax(classes == one)])
                if self._ask(_BatchRow(batch, first, self._secret)) is None:
                    kept &= classes != one
            if self._looked_at == [decider, *others]:  # else some may differ in what is new there
                return suspects[kept]

    def _ask(self, row: _BatchRow) -> dict[str, Any] | None:
        """Return what changes in one row, None if nothing does."""
        redacted = self._redact(cast(Row, row))
        self._looked_at += [name for name in row.looked_at if name not in self._looked_at]
        if redacted is cast(Row, row):
            return None
        return {name: new for name, new in redacted.items() if new is not row[name]}


class _BatchRow(Mapping[str, Any]):
    """One row of a batch, its values made when they are asked for and then kept.

    Parameters
    ----------
    secret
        The columns that are copied to a redacted row: only they can differ there.
    known
        Values that were made already.
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
        self.looked_at: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.looked_at:
            if name in self._known:
                value = self._known[name]
            elif name in self._batch.schema.names:
                value = self._batch[name][self._at].as_py()
            else:
                raise KeyError(name)
            self.looked_at[name] = value
        return self.looked_at[name]

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
    """Return the batch with other values of a column in some rows."""
    place = batch.schema.get_field_index(name)
    field = batch.schema.field(place)
    order = np.arange(batch.num_rows)
    order[list(values)] = batch.num_rows + np.arange(len(values))
    both = pa.concat_arrays([batch[name], array_of(list(values.values()), field.type)])
    return batch.set_column(place, field, both.take(as_array(order)))
