"""Packets that deliver no messages, as integers: what their connection and session depend on."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Bools, Grid, Ints
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.deliveries.topics import split_shared
from wireyard.layers.mqtt.grids import NONE, Bridge, Rare, TopicFilter
from wireyard.layers.records import GAP, TAIL

NO_LENGTH: Final = "remaining_length"
"""The rule that a Remaining Length of five bytes violates."""
_ASSIGNED: Final = "assigned_client_identifier"
_PROPERTIES: Final = {
    "session_expiry_interval": Rare.EXPIRY_S,
    "receive_maximum": Rare.RECEIVE_MAXIMUM,
    "topic_alias_maximum": Rare.ALIAS_MAXIMUM,
    "maximum_packet_size": Rare.PACKET_SIZE,
    "subscription_identifier": Rare.IDENTIFIER,
    "server_keep_alive": Rare.KEEP_ALIVE_S,
}
_BRIDGES: Final = (0x83, 0x84)
"""The protocol levels of bridges."""
_OF_LEVEL: Final = pa.array(["MQTT-3.1.2-2", "protocol_level"])
"""The rule on the protocol level, by version."""


class RarePackets:
    """The rare packets, at the indexes `rows`, among kept rows.

    `kept` has the columns of `packets.NEEDED`.
    """

    def __init__(self, kept: pa.Table, rows: Ints) -> None:
        self._kept, self._rows = kept, pa.array(rows)
        self.grid: Grid = np.full((len(rows), len(Rare)), NONE, np.int64)
        """Columns of `Rare`."""
        self.row: Any = np.full(kept.num_rows, NONE, np.int32)
        """The row of `grid` of each kept row."""
        self.row[rows] = np.arange(len(rows))
        self.kind: Ints = self._column("packet_type").fill_null(NONE).to_numpy()
        """The packet type of each; -1 for other bytes."""
        self._read_bytes()
        self._read_properties()
        self.client_ids = self._read_client_ids()
        """By number."""
        self.filters, self.filter_texts = self._read_filters()
        """Columns of `TopicFilter`, and the text of each."""
        self.codes = self._read_codes()
        """Return codes of SUBACK."""

    def _column(self, name: str) -> Any:
        return _whole(self._kept[name].take(self._rows))

    def _flags(self, name: str) -> Ints:
        column = self._column(name).cast(pa.int64()).fill_null(NONE)
        flags: Ints = column.to_numpy(zero_copy_only=False)
        return flags

    def _read_bytes(self) -> None:
        grid, status = self.grid, self._column("status")
        grid[:, Rare.IS_BYTES] = self._column("packet_type").is_null()
        grid[:, Rare.IS_GAP] = _equals(status, GAP)
        grid[:, Rare.IS_TAIL] = _equals(status, TAIL)
        error = self._column("error")
        if error.null_count < len(error):
            grid[:, Rare.HAS_NO_LENGTH] = _equals(pc.struct_field(error, "code"), NO_LENGTH)
        grid[:, Rare.IS_CLEAN] = self._flags("clean_start")
        grid[:, Rare.IS_PRESENT] = self._flags("session_present")
        is_bridge = np.isin(self._flags("protocol_version"), _BRIDGES)
        verdict = self._column("verdict")
        by_level = verdict.is_null().to_numpy(zero_copy_only=False)
        by_level |= pc.is_in(verdict, _OF_LEVEL).to_numpy(zero_copy_only=False)
        grid[:, Rare.BRIDGE] = is_bridge * np.where(by_level, Bridge.BY_LEVEL_ALONE, Bridge.YES)
        grid[:, Rare.HAS_WILL] = self._column("will_topic").is_valid()

    def _read_properties(self) -> None:
        for name, column in _PROPERTIES.items():
            # Of several subscription identifiers the first counts, of others the last.
            rows, values = self._property("properties", name, column == Rare.IDENTIFIER)
            self.grid[rows, column] = values.cast(pa.int64()).to_numpy()
        rows, values = self._property("will_properties", "will_delay_interval")
        self.grid[rows, Rare.WILL_DELAY_S] = values.cast(pa.int64()).to_numpy()

    def _property(self, column: str, name: str, first: bool = False) -> tuple[Ints, pa.Array]:
        """Return the rows that have a property, in order, and the values."""
        lists = self._column(column)
        if lists.null_count == len(lists):
            return np.empty(0, np.int64), pa.array([], pa.string())
        names, values = (pc.struct_field(pc.list_flatten(lists), place) for place in (0, 1))
        is_named = pc.and_(pc.equal(names, name), values.is_valid())
        rows = pc.list_parent_indices(lists).filter(is_named).to_numpy()
        values = values.filter(is_named)
        return (rows[::-1], values[::-1]) if first else (rows, values)

    def _read_client_ids(self) -> pa.Array:
        """Give numbers to the client ids; return them by number."""
        is_connect = self.kind == layout.CONNECT
        texts = pc.if_else(pa.array(is_connect), self._column("client_id"), None)
        rows, assigned = self._property("properties", _ASSIGNED)
        is_given = (self.kind[rows] == layout.CONNACK) & _equals(assigned, "", invert=True)
        every = pa.concat_arrays([texts.cast(pa.string()), assigned.filter(pa.array(is_given))])
        encoded = every.dictionary_encode()
        numbers = encoded.indices.fill_null(NONE).to_numpy()
        self.grid[:, Rare.CLIENT_ID] = numbers[: len(texts)]
        self.grid[rows[is_given], Rare.CLIENT_ID] = numbers[len(texts) :]
        return encoded.dictionary

    def _read_filters(self) -> tuple[Grid, pa.Array]:
        asks = np.isin(self.kind, (layout.SUBSCRIBE, layout.UNSUBSCRIBE))
        filters = self._lists("filters", asks)
        texts = pc.struct_field(filters, "filter")
        encoded = texts.dictionary_encode()
        grid = np.full((len(filters), len(TopicFilter)), NONE, np.int64)
        grid[:, TopicFilter.FILTER] = encoded.indices.fill_null(NONE).to_numpy()
        grid[_equals(texts, ""), TopicFilter.FILTER] = NONE
        groups = [split_shared(text)[0] for text in encoded.dictionary.to_pylist()]
        shared = np.array([group is not None for group in groups] or [False])
        grid[:, TopicFilter.IS_SHARED] = shared[grid[:, TopicFilter.FILTER]]
        for name, column in (
            ("no_local", TopicFilter.NO_LOCAL),
            ("retain_as_published", TopicFilter.AS_PUBLISHED),
            ("retain_handling", TopicFilter.HANDLING),
        ):
            values = pc.struct_field(filters, name).cast(pa.int64()).fill_null(0)
            grid[:, column] = values.to_numpy(zero_copy_only=False)
        return grid, texts

    def _read_codes(self) -> Ints:
        codes = self._lists("return_codes", self.kind == layout.SUBACK)
        return np.array(codes, np.int64)

    def _lists(self, name: str, wanted: Bools) -> pa.Array:
        """Set where the lists of some packets begin, and their lengths; return all elements."""
        lists = pc.if_else(pa.array(wanted), self._column(name), None)
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
        self.grid[wanted, Rare.FIRST] = (np.cumsum(lengths) - lengths)[wanted]
        self.grid[wanted, Rare.COUNT] = lengths[wanted]
        return pc.list_flatten(lists)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, its text plain."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _equals(texts: pa.Array, text: str, invert: bool = False) -> Bools:
    found = pc.equal(texts, text).fill_null(False)
    values: Bools = (pc.invert(found) if invert else found).to_numpy(zero_copy_only=False)
    return values
