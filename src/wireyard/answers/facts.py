"""Packets to what follows from them, by the code that fills a lake: messages, deliveries, ..."""

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

_SHOWN: Final = ["source", "stream", "opened", "begun", "ended", "ended_frame", "ended_ns"]
"""What a capture shows of a stream: see `wireyard.layers.mqtt.directions`."""
_ROWS_AT_ONCE: Final = 1 << 12
_Made = tuple[Iterable[tuple[str, pa.Table]], Counter[str]]


def derive_facts(spool: Spool, streams: pa.Table, files: FrameFiles) -> Counter[str]:
    """Make the tables of facts of the packets in a spool, in the spool.

    Parameters
    ----------
    streams
        Columns of the table ``streams``.
    files
        Those of the captures.

    Returns
    -------
    How much was left out, by the cap that it was above.

    Limits
    ------
    What is held of packets is in memory, without payloads: about 500 bytes for one of MQTT, for one
    source after the other, and 1.5 kB for one of JMQ, for all of them.
    """
    dropped: Counter[str] = Counter()
    counts: list[pa.Table] = []
    deliveries: list[pa.Table] = []
    delays = [fact_table("messages", ()).select(DELAYS)]
    for tables, forgotten in chain(_mqtt(spool, streams), _jmq(spool, streams), _rmp(spool)):
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
        dropped += forgotten
    if counts:
        spool.write("destinations", as_text(with_times("destinations", destinations(counts))))
    late = pa.concat_tables(delays)
    for table in deliveries:
        spool.write("latencies", as_text(with_times("latencies", latencies(table, late))))
    spool.close()
    return dropped


def _mqtt(spool: Spool, streams: pa.Table) -> Iterator[_Made]:
    """Yield what follows from each source with MQTT; no two have to do with each other."""
    for source in spool.parts("packets_mqtt"):
        is_shown = pc.and_(streams["transport"].is_valid(), pc.equal(streams["source"], source))
        shown = streams.select(_SHOWN).filter(is_shown)
        file = partial(spool.batches, "packets_mqtt", source)
        yield mqtt_files.derive_files([file], _rows(shown), [source])


def _rows(table: pa.Table) -> Iterator[Row]:
    """Yield the rows of a large table."""
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


def _jmq(spool: Spool, streams: pa.Table) -> Iterator[_Made]:
    """Yield what follows from all sources with JMQ: a message may be in several."""
    parts = [(name, part) for name in (JMQ, GPACKET) for part in spool.parts(f"packets_{name}")]
    files = [
        jmq_files.PacketFile(number, name, partial(spool.batches, f"packets_{name}", part))
        for number, (name, part) in enumerate(parts)
    ]
    if files:
        known = streams.filter(streams["ended"].is_valid())
        ended = list(zip(known["source"].to_pylist(), known["stream"].to_pylist(), strict=True))
        yield jmq_files.derive_files(files, {part for _, part in parts}, ended)


def _rmp(spool: Spool) -> Iterator[_Made]:
    for source in spool.parts("packets_rmp"):
        batches = spool.batches("packets_rmp", source, RMP_NEEDED)
        found = rmp_tables(chain.from_iterable(table.to_pylist() for table in batches))
        yield (
            ((name, fact_table(name, rows)) for name, rows in found.tables.items()),
            found.dropped,
        )
