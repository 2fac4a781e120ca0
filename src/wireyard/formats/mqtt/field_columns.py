"""Arrow columns of the fields of CONNECT, SUBSCRIBE, UNSUBSCRIBE and of acknowledgements.

Such packets are few in most streams, so these columns have buffers of their own beside that of a
batch, and are made only for batches with such packets.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from wireyard.arrays import Bytes, Ints
from wireyard.formats.mqtt.kernels import fields
from wireyard.formats.mqtt.kernels.fields import (
    ENTRY_BITS,
    ENTRY_NUMBERS,
    LISTS,
    NUMBERS,
    ROW_BITS,
    TEXTS,
)
from wireyard.schema import arrow_type

_OF_CONNECT, _OF_WILL = "is connect", "has will"
_VALID: Mapping[str, str] = {
    "protocol_name": _OF_CONNECT,
    "protocol_version": _OF_CONNECT,
    "client_id": _OF_CONNECT,
    "clean_start": _OF_CONNECT,
    "keep_alive": _OF_CONNECT,
    "will_topic": _OF_WILL,
    "will_payload": _OF_WILL,
    "will_qos": _OF_WILL,
    "will_retain": _OF_WILL,
    "username": "has username",
    "has_password": _OF_CONNECT,
    "password": "has a password",
    "session_present": "has session",
    "return_code": "has code",
    "return_codes": "has codes",
    "filters": "has filters",
    "will_properties": "has will list",
}
"""Validity bitmap of each column."""
FIELDS = _VALID.keys()
"""The columns of this module."""
_ROW_TEXTS = TEXTS[:-1]
_OFFSETS = (*_ROW_TEXTS, *LISTS)
_LEAST_FILTER_BYTES = 3
_BITS_OF_FILTERS = ("no_local", "retain_as_published")


def read_fields(
    data: Bytes,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
    rejected: Bytes,
    checked_bytes: int,
    wanted: Mapping[str, pa.DataType],
) -> dict[str, pa.Array]:
    """Return the `wanted` columns, which are given with their types.

    The other parameters are those of the kernel, `fill_fields`. `checked_bytes` are the bytes of
    the packets with such fields that are not rejected, or more.
    """
    rows, entries = len(starts), checked_bytes // _LEAST_FILTER_BYTES
    numbers = np.empty((len(NUMBERS), rows), np.int32)
    offsets = np.zeros((len(_OFFSETS), rows + 1), np.int32)
    bits = np.zeros((len(ROW_BITS), -(-rows // 8)), np.uint8)
    texts = np.empty(len(TEXTS) * checked_bytes, np.uint8)
    codes = np.empty(checked_bytes, np.int32)
    entry_ends = np.zeros(entries + 1, np.int32)
    entry_numbers = np.empty((len(ENTRY_NUMBERS), entries), np.int32)
    entry_bits = np.zeros((len(ENTRY_BITS), -(-entries // 8)), np.uint8)
    ends = np.zeros(len(TEXTS) + len(LISTS), np.int64)
    entries = fields.fill_fields(
        data, starts, sizes, contexts, rejected, numbers, offsets, bits, texts, codes,
        entry_ends, entry_numbers, entry_bits, ends,
    )  # fmt: skip

    def text_of(name: str) -> pa.Buffer:
        first = TEXTS.index(name) * checked_bytes
        return pa.py_buffer(texts[first : first + int(ends[TEXTS.index(name)])])

    def filters() -> pa.Array:
        """Return the topic filters of all packets, in order."""
        flags = dict(zip(ENTRY_BITS, map(pa.py_buffer, entry_bits), strict=True))
        qos, handling = map(pa.py_buffer, entry_numbers)
        known = {
            "filter": [None, pa.py_buffer(entry_ends), text_of("filter")],
            "qos": [flags["has options"], qos],
            "retain_handling": [flags["is new"], handling],
            **{name: [flags["is new"], flags[name]] for name in _BITS_OF_FILTERS},
        }
        kind = arrow_type("filters").value_type
        children = [
            pa.Array.from_buffers(field.type, entries, known[field.name])
            if field.name in known
            else pa.nulls(entries, field.type)
            for field in kind
        ]
        return pa.Array.from_buffers(kind, entries, [None], children=children)

    def column(name: str, kind: pa.DataType) -> pa.Array:
        buffers = [pa.py_buffer(bits[ROW_BITS.index(_VALID[name])])]
        children = []
        if name in ROW_BITS:
            buffers.append(pa.py_buffer(bits[ROW_BITS.index(name)]))
        elif name in NUMBERS:
            buffers.append(pa.py_buffer(numbers[NUMBERS.index(name)]))
        elif name in _OFFSETS:
            buffers.append(pa.py_buffer(offsets[_OFFSETS.index(name)]))
            if name in _ROW_TEXTS:
                buffers.append(text_of(name))
            elif name == "filters":
                children.append(filters())
            else:
                count = int(offsets[_OFFSETS.index(name), rows])
                children.append(
                    pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(codes)])
                )
        else:  # properties of wills are empty here: the scalar reader decodes the others
            buffers.append(pa.py_buffer(np.zeros(rows + 1, np.int32)))
            children.append(pa.nulls(0, kind.value_type))
        return pa.Array.from_buffers(kind, rows, buffers, children=children)

    return {name: column(name, kind) for name, kind in wanted.items()}
