"""Taking passwords out of whole batches with a format's `redact`, which takes single rows.

Asking for every row would cost as much as decoding. A redaction looks at one column first, such as
the packet type, and for almost every row at nothing else. So rows are asked about by that column:
where a row came back as it was and nothing else of it was looked at, the same goes for every row
with the same value there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.formats.base import Format, Row
from wireyard.schema import array_of, as_numbers

__all__ = ["Redactor"]

Ints = npt.NDArray[np.int64]
_NONE: Ints = np.empty(0, np.int64)


class Redactor:
    """Redacts the batches of one format."""

    def __init__(self, format: Format) -> None:
        self._redact = format.redact
        self._decider: str | None = None
        self._clean: set[Any] = set()

    def redact(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
        """Return the batch without passwords, and which rows had one."""
        if not batch.num_rows:
            return batch, _NONE
        if self._decider is None:
            looked_at = self._ask(batch, 0)[1]
            if not looked_at:
                return batch, _NONE
            self._decider = looked_at[0]
        changes: dict[int, Row] = {}
        for at in self._suspects(batch, self._decider):
            redacted = self._ask(batch, int(at))[0]
            if redacted is not None:
                changes[int(at)] = redacted
        for name in {name for row in changes.values() for name in row}:
            values = batch[name].to_pylist()
            for at, row in changes.items():
                values[at] = row[name]
            field = batch.schema.get_field_index(name)
            batch = batch.set_column(
                field, batch.schema.field(field), array_of(values, batch.schema.field(field).type)
            )
        return batch, np.array(sorted(changes), np.int64)

    def _suspects(self, batch: pa.RecordBatch, decider: str) -> Ints:
        """Return the rows that are not clean by the value of the column that decides."""
        encoded = batch[decider].dictionary_encode(null_encoding="encode")
        codes = as_numbers(encoded.indices)
        suspects = []
        for code, value in enumerate(encoded.dictionary.to_pylist()):
            if value in self._clean:
                continue
            redacted, looked_at = self._ask(batch, int(np.argmax(codes == code)))
            if redacted is None and looked_at == [decider]:
                self._clean.add(value)
            else:
                suspects.append(code)
        return np.flatnonzero(np.isin(codes, suspects)) if suspects else _NONE

    def _ask(self, batch: pa.RecordBatch, at: int) -> tuple[Row | None, list[str]]:
        """Return what changes in one row, None if nothing does, and what was looked at."""
        row = _BatchRow(batch, at)
        redacted = self._redact(cast(Row, row))
        if redacted is cast(Row, row):
            return None, list(row.looked_at)
        looked_at = list(row.looked_at)
        return {name: new for name, new in redacted.items() if new is not row[name]}, looked_at


class _BatchRow(Mapping[str, Any]):
    """One row of a batch, its values made when they are asked for and then kept."""

    def __init__(self, batch: pa.RecordBatch, at: int) -> None:
        self._batch = batch
        self._at = at
        self.looked_at: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.looked_at:
            if name not in self._batch.schema.names:
                raise KeyError(name)
            self.looked_at[name] = self._batch[name][self._at].as_py()
        return self.looked_at[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.schema.names)

    def __len__(self) -> int:
        return int(self._batch.num_columns)
