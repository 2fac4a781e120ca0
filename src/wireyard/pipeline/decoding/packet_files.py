"""Packet files: MQTT packets for the tasks that track clients, written by the bronze tasks.

A bronze task has packets as columns, but which client a stream belongs to is decided when all tasks
are done. So it writes the columns that tracking needs (``Part``) in the order of decoding, and an
index of the runs of each stream. A task that tracks some clients reads the runs of their streams
from each file; a local file is memory-mapped, so the rest of it is not read. To read the packets
from Parquet files instead took as long as tracking them.

If the bronze tasks of this run have not written such a file, or the lake is no local folder, a
stage of its own writes packet files that are partitioned by client (``mqtt_facts``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, pairwise
from typing import Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Ints
from wireyard.layers.grouping import text_codes
from wireyard.layers.mqtt.grids import NONE
from wireyard.layers.mqtt.packets import PACKETS, KnownStream, Part
from wireyard.pipeline.exchange import EXCHANGE, Parts, PartsWriter, narrowed, with_own_texts
from wireyard.streams.source import filesystem

__all__ = [
    "UNDIVIDED",
    "PacketFile",
    "PacketHead",
    "StreamsOfFile",
    "find_packet_files",
    "packet_file_path",
    "read_heads",
    "read_packets",
    "write_split",
]

UNDIVIDED: Final = 1 << 62
"""Count of a topic's packets that marks it as one whose messages must stay in one partition."""
_HELD_ROWS: Final = 1 << 17
_HELD_BYTES: Final = 16 << 20
"""Rows or bytes that are buffered before they are written."""
_HELD_BATCHES: Final = 8
"""Batches that are buffered before they are partitioned and written: about 150 bytes a packet."""
_THREADS: Final = 8
"""Threads that read heads, mostly waiting for a store."""
_NOT_WRITTEN: Final = ("stream", "file")
"""Columns of `PACKETS` that follow from the runs, and are not written."""
_RUNS: Final = pa.schema(
    [
        ("piece", pa.int32()),
        ("stream", pa.int32()),
        ("first", pa.int32()),
        ("rows", pa.int32()),
        ("first_kept", pa.int32()),
        ("kept", pa.int32()),
    ]
)
"""Runs of adjacent packets of a stream: their rows in a piece, and their kept rows."""
_TOPICS: Final = pa.schema([("topic", pa.string()), ("packets", pa.int64())])
_SECRET: Final = "wireyard.secret"


def packet_file_path(staging: str, path: str) -> str:
    """Return the path of the packet file for a bronze file."""
    return f"{staging}/{EXCHANGE}/{path.rpartition('/')[2]}.packets"


class PacketFile:
    """Writer of a packet file.

    Parameters
    ----------
    secret
        Secret points of the payload hashes.

    Raises
    ------
    LakeError
        From any method: the file cannot be written.
    """

    def __init__(self, path: str, secret: tuple[int, int]) -> None:
        self.path = path
        self._secret = secret
        self._writer = PartsWriter(path)
        self._held: list[Part] = []
        self._held_rows = self._held_bytes = 0
        self._runs: list[pa.RecordBatch] = []
        self._topics: Counter[str] = Counter()
        self.rows = 0
        """Number of packets that were added."""

    def add(self, part: Part) -> None:
        """Append packets."""
        part = Part(narrowed(part.packets), part.rows)
        self._held.append(part)
        self.rows += part.packets.num_rows
        self._held_rows += part.packets.num_rows
        self._held_bytes += part.packets.nbytes + part.rows.nbytes
        if self._held_rows >= _HELD_ROWS or self._held_bytes >= _HELD_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            packets, rows = zip(*self._held, strict=True)
            together = pa.concat_tables(packets, promote_options="permissive")
            self.write(Part(together.unify_dictionaries(), pa.concat_tables(rows)))
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def write(self, part: Part) -> None:
        """Write packets as a piece; an empty one is written only if it is the first."""
        packets, rows = part
        if self._runs and not packets.num_rows:
            return
        stream = packets["stream"].to_numpy()
        is_kept = packets["is_kept"].to_numpy(zero_copy_only=False)
        first = np.flatnonzero(np.diff(stream, prepend=NONE))
        kept = np.add.reduceat(is_kept, first, dtype=np.int64)
        columns = {
            "piece": np.full(len(first), len(self._runs)),
            "stream": stream[first],
            "first": first,
            "rows": np.diff(first, append=len(stream)),
            "first_kept": np.cumsum(kept) - kept,
            "kept": kept,
        }
        arrays = [pa.array(columns[name], _RUNS.field(name).type) for name in _RUNS.names]
        self._runs.append(pa.RecordBatch.from_arrays(arrays, schema=_RUNS))
        self._topics.update(_count_topics(part))
        self._writer.write([packets.drop_columns(_NOT_WRITTEN), rows.unify_dictionaries()])

    def close(self) -> None:
        """Finish the file."""
        self._flush()
        secret = {_SECRET: " ".join(map(str, self._secret))}
        runs = pa.Table.from_batches(self._runs, _RUNS).combine_chunks()
        counts = [min(count, UNDIVIDED) for count in self._topics.values()]
        topics = pa.table([list(self._topics), counts], _TOPICS.with_metadata(secret))
        self._writer.write([runs, topics])
        self._writer.close()


def write_split(
    staging: str,
    parts: Iterable[Part],
    partition: Ints,
    partitions: int,
    secret: tuple[int, int],
) -> str:
    """Write a packet file that is partitioned by client; return its path.

    Parameters
    ----------
    partition
        The partition of each stream.
    """
    file = PacketFile(f"{staging}/{EXCHANGE}/{uuid4().hex}.packets", secret)
    waiting = iter(parts)
    while held := list(islice(waiting, _HELD_BATCHES)):
        packets, rows = map(pa.concat_tables, zip(*held, strict=True))
        whole = Part(narrowed(packets).unify_dictionaries(), rows.unify_dictionaries())
        for part in whole.split(partition[packets["stream"].to_numpy()], partitions):
            file.write(part)
    file.close()
    return file.path


class StreamsOfFile(NamedTuple):
    """A packet file, and the numbers of its streams."""

    path: str
    file: int
    """Number of its bronze file."""
    streams: Ints
    """The number of each of its streams among all streams; -1 for one that is not tracked."""


def find_packet_files(
    staging: str,
    files: Sequence[str],
    evidence: Sequence[pa.Table | None],
    streams: Sequence[KnownStream],
) -> list[StreamsOfFile]:
    """Return the packet files that the bronze stage has written.

    Parameters
    ----------
    files
        The bronze files.
    evidence
        The table in the footer of each: its streams, in the order of their numbers in the file.
    streams
        The streams that are tracked.
    """
    numbers = {(stream.source, stream.name): number for number, stream in enumerate(streams)}
    paths = [packet_file_path(staging, file) for file in files]
    infos = filesystem(staging)[0].get_file_info([filesystem(path)[1] for path in paths])
    found = []
    for number, (path, info, table) in enumerate(zip(paths, infos, evidence, strict=True)):
        if table is not None and info.is_file:
            names = zip(*(table[name].to_pylist() for name in ("source", "stream")), strict=True)
            of_file = np.array([numbers.get(name, NONE) for name in names], np.int64)
            found.append(StreamsOfFile(path, number, of_file))
    return found


class PacketHead(NamedTuple):
    """The head of a packet file, which is read before its packets."""

    secret: tuple[int, int]
    topics: Counter[str]
    """Number of packets of each topic, or `UNDIVIDED`."""


def read_heads(files: Sequence[StreamsOfFile]) -> list[PacketHead]:
    """Return the heads of packet files."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(_read_head, (file.path for file in files)))


def _read_head(path: str) -> PacketHead:
    with Parts(path) as parts:
        _, topics = parts.read(len(parts) - 1)
        one, other = topics.schema.metadata[_SECRET.encode()].split()
        names, counts = (column.to_pylist() for column in topics.columns)
        return PacketHead((int(one), int(other)), Counter(dict(zip(names, counts, strict=True))))


def read_packets(files: Sequence[StreamsOfFile], partition: Ints, wanted: int) -> Iterator[Part]:
    """Yield the packets of partition `wanted` in some files; one empty part if there are none.

    Parameters
    ----------
    partition
        The partition of each stream.
    """
    parts_of_files = chain.from_iterable(_read_file(file, partition, wanted) for file in files)
    first = next(parts_of_files, None)
    if first is None:
        with Parts(files[0].path) as parts:
            packets, rows = parts.read(0)
        none = np.empty(0, np.int64)
        first = Part(_with_places(packets.slice(0, 0), none, files[0].file), rows.slice(0, 0))
    yield first
    yield from parts_of_files


def _read_file(file: StreamsOfFile, partition: Ints, wanted: int) -> Iterator[Part]:
    with Parts(file.path) as parts:
        runs, _ = parts.read(len(parts) - 1)
        number = file.streams[runs["stream"].to_numpy()]
        is_wanted = number != NONE
        is_wanted[is_wanted] = partition[number[is_wanted]] == wanted
        number = number[is_wanted]
        piece, _, *of_runs = (column.to_numpy()[is_wanted] for column in runs.columns)
        bounds = np.flatnonzero(np.diff(piece, prepend=NONE, append=NONE)).tolist()
        for start, stop in pairwise(bounds):
            first, rows, first_kept, kept = (column[start:stop] for column in of_runs)
            packets, all_kept = parts.read(int(piece[start]))
            streams = np.repeat(number[start:stop], rows)
            yield Part(
                _with_places(_taken(packets, first, rows), streams, file.file),
                _taken(all_kept, first_kept, kept),
            )


def _taken(table: pa.Table, first: Ints, rows: Ints) -> pa.Table:
    """Return the rows of some runs."""
    count = int(rows.sum())
    if count == table.num_rows:
        return table
    before = np.cumsum(rows) - rows
    places = np.repeat(first - before, rows) + np.arange(count)
    return with_own_texts(table.take(pa.array(places)))


def _with_places(packets: pa.Table, streams: Ints, file: int) -> pa.Table:
    """Return packets with the columns that are not in files."""
    columns = {"stream": streams, "file": np.full(len(streams), file)}
    for name, values in columns.items():
        packets = packets.append_column(name, pa.array(values, PACKETS.field(name).type))
    return packets


def _count_topics(part: Part) -> Counter[str]:
    """Count packets by topic; topics that may have a retained value get `UNDIVIDED`."""
    codes, texts = text_codes(part.packets["topic"])
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    topics = Counter(dict(zip(texts.to_pylist(), counts.tolist(), strict=True)))
    rows = part.rows
    retained = rows["topic"].cast(pa.string()).filter(pc.fill_null(rows["retain"], False))
    for topic in {*retained.to_pylist(), *rows["will_topic"].to_pylist()} - {None}:
        topics[topic] = UNDIVIDED
    return topics
