"""The newest messages of MQTT and their deliveries, while an input grows: `wireyard.layers.newest`.

Facts that depend on packets in the gap have rows only when all packets are read: topics of aliases,
retained values, messages that waited for their client.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Bools
from wireyard.layers.gaps import source_keys, stream_keys, torn_streams
from wireyard.layers.mqtt.facts import FACTS, FORMAT
from wireyard.layers.mqtt.messages import NEEDED as MESSAGE_NEEDED
from wireyard.layers.mqtt.packets import NEEDED as PACKET_NEEDED
from wireyard.layers.mqtt.packets import TRACKED
from wireyard.layers.newest import LastIds, NewestRules, Packets, SureRows
from wireyard.layers.tables import packet_keys


def _is_rare(format: str, packets: pa.Table) -> Bools:
    """Return which rows are rare packets, which deliver no messages, or no packets."""
    rare: Bools = ~np.isin(packets["packet_type"].fill_null(-1).to_numpy(), TRACKED)
    return rare


def _is_counted(format: str, packets: pa.Table) -> Bools:
    """Return which rows are packets, including malformed ones."""
    is_packet: Bools = packets["packet_type"].is_valid().to_numpy()
    return is_packet


def _last_ids(format: str, packets: pa.Table) -> LastIds:
    """Return an empty mapping: MQTT messages have no ids."""
    return {}


def _sure_rows(packets: Packets, last_ids: LastIds | None) -> SureRows:
    """Return a function that marks the rows that packets in the gap cannot change.

    Messages with DUP are not marked: their first copy may be in the gap. Sessions are marked if
    their CONNECT is there, or was not captured.
    """
    table = packets[FORMAT]
    torn = torn_streams(table)
    resent = table.filter(pc.fill_null(table["dup"], False))
    resends = source_keys(resent, packet_keys(resent["stream"], resent["offset"]))

    def is_sure(table: str, rows: pa.Table) -> pa.Array:
        of_message = "message_key" in rows.column_names
        unsure = resends if of_message else torn
        if not len(unsure):
            return pa.array(np.ones(rows.num_rows, bool))
        keys = source_keys(rows, rows["message_key"]) if of_message else stream_keys(rows)
        return pc.invert(pc.is_in(keys, unsure))

    return is_sure


MQTT: Final = NewestRules(
    facts=FACTS,
    few=1 << 18,
    needed={FORMAT: tuple(dict.fromkeys((*PACKET_NEEDED, *MESSAGE_NEEDED)))},
    tables=("messages", "deliveries"),
    is_rare=_is_rare,
    is_counted=_is_counted,
    last_ids=_last_ids,
    sure_rows=_sure_rows,
)
