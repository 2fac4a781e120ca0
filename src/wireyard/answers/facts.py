"""Derivation of fact tables (messages, deliveries, ...) from packets, as for a lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.answers.spool import Spool
from wireyard.formats.base import Row
from wireyard.layers.destinations import NEEDED as COUNTED
from wireyard.layers.destinations import count_messages, destinations
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.jmq import files as jmq_files
from wireyard.layers.jmq.packet_columns import GPACKET, JMQ
from wireyard.layers.latencies import DELAYS, delayed, latencies
from wireyard.layers.latencies import NEEDED as LATENCY_NEEDED
from wireyard.layers.mqtt import files as mqtt_files
from wireyard.layers.rmp.chain import derive_tables as rmp_tables
from wireyard.layers.rmp.observer import NEEDED as RMP_NEEDED
from wireyard.layers.tables import as_text, fact_table, with_times

__all__ = ["derive_facts"]

_STREAM_COLUMNS: Final = ["source", "stream", "opened", "begun", "ended", "ended_frame", "ended_ns"]
"""Columns of the table `streams` that the MQTT layer needs; see `layers.mqtt.directions`."""
_ROWS_AT_ONCE: Final = 1 << 12
_Derived = tuple[Iterable[tuple[str, pa.Table]], Counter[str]]
"""Parts of tables by name, and the number of dropped records by limit."""


def derive_facts(spool: Spool, streams: pa.Table, files: FrameFiles) -> Counter[str]:
    """Derive the fact tables from the packets in a spool, and write them to the spool.

    Parameters
    ----------
    streams
        Columns of the table ``streams``.
    files
        The files of the captures.

    Returns
    -------
    The number of dropped records, by the limit that they exceeded.

    Limits
    ------
    Packets are held in memory, without payloads: about 500 bytes for each MQTT packet, of one
    source at a time, and 1.5 kB for each JMQ packet, of all sources.
    """
    dropped: Counter[str] = Counter()
    counts: list[pa.Table] = []
    deliveries: list[pa.Table] = []
    delays = [fact_table("messages", ()).select(DELAYS)]
    for tables, dropped_here in chain(_mqtt(spool, streams), _jmq(spool, streams), _rmp(spool)):
        for name, table in tables:
            if not table.num_rows:
                continue
            rows_of_table = files.locate(table) if name == "messages" else table
            spool.write(name, as_text(with_times(name, rows_of_table)))
            if name == "messages":
                counts.append(count_messages(table.select(COUNTED)))
                delays.append(as_text(delayed(table)))
            elif name == "deliveries":
                deliveries.append(table.select(LATENCY_NEEDED))
        dropped += dropped_here
    if counts:
        spool.write("destinations", as_text(with_times("destinations", destinations(counts))))
    all_delays = pa.concat_tables(delays)
    for table in deliveries:
        spool.write("latencies", as_text(with_times("latencies", latencies(table, all_delays))))
    spool.close()
    return dropped


def _mqtt(spool: Spool, streams: pa.Table) -> Iterator[_Derived]:
    """Yield the facts of each source with MQTT packets; sources are independent."""
    for source in spool.parts("packets_mqtt"):
        is_shown = pc.and_(streams["transport"].is_valid(), pc.equal(streams["source"], source))
        shown = streams.select(_STREAM_COLUMNS).filter(is_shown)
        file = partial(spool.batches, "packets_mqtt", source)
        yield mqtt_files.derive_files([file], _rows(shown), [source])


def _rows(table: pa.Table) -> Iterator[Row]:
    """Yield the rows of a table, creating a few thousand at a time."""
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


def _jmq(spool: Spool, streams: pa.Table) -> Iterator[_Derived]:
    """Yield the facts of all sources with JMQ packets together: a message may be in several."""
    parts = [(name, part) for name in (JMQ, GPACKET) for part in spool.parts(f"packets_{name}")]
    files = [
        jmq_files.PacketFile(number, name, partial(spool.batches, f"packets_{name}", part))
        for number, (name, part) in enumerate(parts)
    ]
    if files:
        known = streams.filter(streams["ended"].is_valid())
        ended = list(zip(known["source"].to_pylist(), known["stream"].to_pylist(), strict=True))
        yield jmq_files.derive_files(files, {part for _, part in parts}, ended)


def _rmp(spool: Spool) -> Iterator[_Derived]:
    """Yield the facts of each source with RMP packets; sources are independent."""
    for source in spool.parts("packets_rmp"):
        batches = spool.batches("packets_rmp", source, RMP_NEEDED)
        derived = rmp_tables(chain.from_iterable(table.to_pylist() for table in batches))
        yield (
            ((name, fact_table(name, rows)) for name, rows in derived.tables.items()),
            derived.dropped,
        )
