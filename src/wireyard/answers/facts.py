"""Packets to what follows from them, by the code that fills a lake: messages, deliveries, ..."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import pyarrow as pa

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

_Made = tuple[Iterable[tuple[str, pa.Table]], Counter[str]]


def derive_facts(spool: Spool, streams: Iterable[Row], files: FrameFiles) -> Counter[str]:
    """Make the tables of facts of the packets in a spool, in the spool.

    Parameters
    ----------
    streams
        Rows of the table ``streams``.
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
    rows = list(streams)
    for tables, forgotten in chain(_mqtt(spool, rows), _jmq(spool, rows), _rmp(spool)):
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


def _mqtt(spool: Spool, streams: Sequence[Row]) -> Iterator[_Made]:
    """Yield what follows from each source with MQTT; no two have to do with each other."""
    for source in spool.parts("packets_mqtt"):
        captured = [row for row in streams if row["source"] == source and row["transport"]]
        file = partial(spool.batches, "packets_mqtt", source)
        yield mqtt_files.derive_files([file], captured, [source])


def _jmq(spool: Spool, streams: Sequence[Row]) -> Iterator[_Made]:
    """Yield what follows from all sources with JMQ: a message may be in several."""
    parts = [(name, part) for name in (JMQ, GPACKET) for part in spool.parts(f"packets_{name}")]
    files = [
        jmq_files.PacketFile(number, name, partial(spool.batches, f"packets_{name}", part))
        for number, (name, part) in enumerate(parts)
    ]
    if files:
        ended = [(row["source"], row["stream"]) for row in streams if row["ended"]]
        yield jmq_files.derive_files(files, {part for _, part in parts}, ended)


def _rmp(spool: Spool) -> Iterator[_Made]:
    for source in spool.parts("packets_rmp"):
        batches = spool.batches("packets_rmp", source, RMP_NEEDED)
        found = rmp_tables(chain.from_iterable(table.to_pylist() for table in batches))
        yield (
            ((name, fact_table(name, rows)) for name, rows in found.tables.items()),
            found.dropped,
        )
