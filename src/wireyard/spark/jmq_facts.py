"""The tables of facts of JMQ packets and GPackets in Spark: few by a task, many by phases.

A message may be seen in several inputs, and its hops are numbered over all of them, so inputs are
taken together that have messages in common. Of as many packets as a task can hold one task makes
all rows. More go through the phases of ``wireyard.layers.jmq.columns``, each a stage whose tasks
take some of its keys: packets by connection, what was in transactions by transaction, messages by
their id, requests by where their replies go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.lake.ledgers import captured_streams
from wireyard.layers.grouping import split_rows
from wireyard.layers.jmq.columns import (
    connection_keys,
    find_gaps,
    follow_connections,
    follow_transactions,
    join_messages,
    match_replies,
    order_hops,
    partition_keys,
    producers_of,
    records_of,
    stand_for_messages,
)
from wireyard.layers.jmq.files import (
    PacketFile,
    derive_files,
    file_numbers,
    messages_of,
    packets_of,
)
from wireyard.layers.jmq.hops import hop_record
from wireyard.layers.jmq.packet_columns import GPACKET, JMQ
from wireyard.layers.tables import join_tables
from wireyard.spark.exchange import read_part, write_parts
from wireyard.spark.fact_tasks import dropped_rows, note_file, run_tasks, write_tables
from wireyard.spark.parts import measure, read_batches
from wireyard.spark.running import Runner
from wireyard.spark.steps import write_notes

__all__ = ["FEW", "FORMATS", "MOST_PACKETS", "write_jmq_facts"]

FORMATS: Final = (JMQ, GPACKET)
MOST_PACKETS: Final = 1 << 18
"""Packets that a task holds at once, about 1.5 kB each with all that is made of them."""
FEW: Final = 1 << 17
"""Packets that need no task: to start Spark for one takes longer than to go through them."""
_SHOWN: Final = (
    "source", "stream", "src_addr", "src_port", "dst_addr", "dst_port", "format", "ended",
)  # fmt: skip
"""Columns of the table `streams`."""
_HELD_BATCHES: Final = 4
"""Of a file that is split, what is held before it is written."""

Files = Mapping[str, Sequence[str]]
"""Where packets are, by format."""
Written = Iterator[Mapping[str, Any]]
"""What a task has written, as rows of `FOUND`."""


class _File(NamedTuple):
    """A file of packets."""

    number: int
    format: str
    path: str


def write_jmq_facts(
    runner: Runner,
    staging: str,
    files: Files,
    streams: Sequence[str],
    sources: Collection[str],
) -> Written:
    """Stage the rows of all tables; yield what was written, as rows of `FOUND`.

    Parameters
    ----------
    streams
        Files of the table `streams`.
    sources
        The inputs that are wanted; files may have packets and streams of others too.
    """
    named = [(name, path) for name in FORMATS for path in files.get(name, ())]
    numbered = [_File(number, *one) for number, one in enumerate(named)]
    job = _Job(staging, frozenset(sources), tuple(streams), len(numbered))
    packets = sum(measure(one.path)[0] for one in numbered)
    if packets > MOST_PACKETS:
        yield from _write_by_phases(runner, job, numbered, -(-packets // (MOST_PACKETS // 4)))
    elif packets:
        work = partial(_write_all, job=job)
        yield from run_tasks(runner, [numbered], work, here=packets <= FEW)


class _Job(NamedTuple):
    """What all tasks share."""

    staging: str
    sources: frozenset[str]
    streams: tuple[str, ...]
    """Files of the table `streams`."""
    files: int
    """How many files there are."""


# --- packets --------------------------------------------------------------------------------


def _opened(file: _File) -> PacketFile:
    """Return a file to be read by its columns."""
    return PacketFile(file.number, file.format, partial(read_batches, file.path))


def _write_messages(file: _File, marks: pa.Table, staging: str) -> Written:
    """Write the messages that packets of a file stand for."""
    messages = messages_of(_opened(file), marks)
    yield from write_tables((("messages", one) for one in messages), staging)


def _ended_streams(path: str, sources: Collection[str]) -> Iterator[pa.Table]:
    """Yield the streams of some inputs whose end the captures show."""
    formats = pa.array(FORMATS)
    for table in captured_streams([path], sources, _SHOWN):
        yield table.filter(pc.and_(table["ended"].is_valid(), pc.is_in(table["format"], formats)))


def _names(streams: Iterable[pa.Table]) -> Iterator[tuple[str, str]]:
    """Yield the source and name of each of some streams."""
    for table in streams:
        yield from zip(table["source"].to_pylist(), table["stream"].to_pylist(), strict=True)


def _of_files(marks: pa.Table, files: int) -> list[pa.Table]:
    """Return marks by the files that their rows are in."""
    return split_rows(marks, file_numbers(marks), files)


# --- one task -------------------------------------------------------------------------------


def _write_all(files: Sequence[_File], job: _Job) -> Written:
    """Write all that the packets of some files say."""
    ended = chain.from_iterable(_ended_streams(path, job.sources) for path in job.streams)
    found = derive_files(list(map(_opened, files)), job.sources, _names(ended))
    yield from write_tables(found.tables, job.staging)
    yield from dropped_rows(found.dropped)


# --- phases ---------------------------------------------------------------------------------

_ENDED, _TRANSACTIONS, _MESSAGES, _RELAYS, _REQUESTS, _RUNS, _MARKS = _BETWEEN = (
    "ended", "transactions", "messages", "relays", "requests", "runs", "marks",
)  # fmt: skip
"""Files between the stages, by what is in them."""


def _write_by_phases(runner: Runner, job: _Job, files: Sequence[_File], count: int) -> Written:
    """Run the phases one behind the other, each with so many tasks."""
    between: dict[str, list[str]] = {name: [] for name in (*FORMATS, *_BETWEEN)}
    numbers = range(count)

    def run(tasks: Sequence[Any], work: Callable[..., Written], **more: Any) -> Written:
        for one in run_tasks(runner, tasks, partial(work, job=job, count=count, **more)):
            if one["kind"] == "note" and one["name"] in between:
                between[one["name"]].append(one["file"])
            else:
                yield one

    yield from run(files, _split)
    yield from run(job.streams, _split_ended)
    later = {name: between[name] for name in (*FORMATS, _ENDED)}
    yield from run(numbers, _follow, files=later)
    if between[_TRANSACTIONS]:
        yield from run(numbers, _end_transactions, files=between[_TRANSACTIONS])
    later = {name: between[name] for name in (_MESSAGES, _RELAYS)}
    yield from run(numbers, _join, files=later)
    later = {name: between[name] for name in (_REQUESTS, _RUNS)}
    yield from run(numbers, _finish, files=later)
    yield from run(files, _stand, files=between[_MARKS])


def _split(file: _File, job: _Job, count: int) -> Written:
    """Write the packets of a file by connection."""
    held: list[list[pa.Table]] = []

    def write() -> Mapping[str, Any]:
        parts = ([join_tables(some)] for some in zip(*held, strict=True))
        path = write_parts(job.staging, parts)
        held.clear()
        return note_file(file.format, path)

    for table in packets_of(_opened(file), job.sources):
        held.append(split_rows(table, _part(connection_keys(table), count), count))
        if len(held) == _HELD_BATCHES:
            yield write()
    if held:
        yield write()


def _split_ended(path: str, job: _Job, count: int) -> Written:
    """Write the streams whose end captures show by connection."""
    for table in _ended_streams(path, job.sources):
        if table.num_rows:
            parts = split_rows(table, _part(connection_keys(table), count), count)
            yield note_file(_ENDED, write_parts(job.staging, ([part] for part in parts)))


def _part(keys: Any, count: int) -> Any:
    return keys % np.uint64(count)


def _by_key(phase: str, count: int, *records: pa.Table) -> list[list[pa.Table]]:
    """Return the tables for each task of a phase."""
    parts = (
        split_rows(table, _part(partition_keys(phase, table), count), count) for table in records
    )
    return list(map(list, zip(*parts, strict=True)))


def _read(files: Sequence[str], number: int) -> list[pa.Table]:
    """Return the tables that all files have for a task, those of the same place together."""
    return list(map(join_tables, zip(*read_part(files, number), strict=True)))


def _follow(number: int, job: _Job, count: int, files: Files) -> Written:
    """Follow some connections."""
    packets = {name: _read(files[name], number)[0] for name in FORMATS if files[name]}
    ended = chain.from_iterable(read_part(files[_ENDED], number))
    found = follow_connections(packets, _names(ended))
    del packets
    yield from write_tables(found.facts.items(), job.staging)
    yield from dropped_rows(found.dropped)
    inside, outside = zip(*map(_of_transactions, (found.sendings, found.deliveries)), strict=True)
    if found.uses.num_rows or any(table.num_rows for table in inside):
        parts = _by_key("transactions", count, found.uses, *inside)
        yield note_file(_TRANSACTIONS, write_parts(job.staging, parts))
    over = follow_transactions(found.uses.slice(0, 0), *outside)
    parts = _by_key("hops", count, over.sendings, over.deliveries)
    yield note_file(_MESSAGES, write_parts(job.staging, parts))
    parts = _by_key("hops", count, found.relays)
    yield note_file(_RELAYS, write_parts(job.staging, parts))
    parts = _by_key("numbers", count, found.runs)
    yield note_file(_RUNS, write_parts(job.staging, parts))


def _of_transactions(records: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the records that belong to a transaction, and the others."""
    inside = records["transaction_id"].is_valid()
    return records.filter(inside), records.filter(pc.invert(inside))


def _end_transactions(number: int, job: _Job, count: int, files: Sequence[str]) -> Written:
    """Follow some transactions."""
    found = follow_transactions(*_read(files, number))
    yield from write_tables(found.facts.items(), job.staging)
    parts = _by_key("hops", count, found.sendings, found.deliveries)
    yield note_file(_MESSAGES, write_parts(job.staging, parts))


def _join(number: int, job: _Job, count: int, files: Files) -> Written:
    """Put together what is known of some messages."""
    sendings, deliveries = _read(files[_MESSAGES], number)
    (relays,) = _read(files[_RELAYS], number)
    joined = join_messages(sendings, deliveries, relays)
    hops = order_hops(sendings, deliveries, relays)
    tables = {
        "deliveries": joined.deliveries,
        "hops": hops.hops,
        "producers": producers_of(sendings, deliveries, relays),
    }
    yield from write_tables(tables.items(), job.staging)
    yield from dropped_rows(hops.dropped)
    yield from write_notes(map(hop_record, records_of(*hops.records)), job.staging)
    yield note_file(
        _REQUESTS,
        write_parts(job.staging, _by_key("conversations", count, joined.messages)),
    )
    marks = stand_for_messages(sendings, deliveries, relays)
    by_file = ([some] for some in _of_files(marks, job.files))
    yield note_file(_MARKS, write_parts(job.staging, by_file))


def _finish(number: int, job: _Job, count: int, files: Files) -> Written:
    """Match requests with replies, and find packet numbers that are missing."""
    conversations, dropped = match_replies(*_read(files[_REQUESTS], number))
    violations = find_gaps(*_read(files[_RUNS], number))
    tables = {"conversations": conversations, "violations": violations}
    yield from write_tables(tables.items(), job.staging)
    yield from dropped_rows(dropped)


def _stand(file: _File, job: _Job, count: int, files: Sequence[str]) -> Written:
    """Write the messages among the packets of a file."""
    marks = join_tables(chain.from_iterable(read_part(files, file.number)))
    yield from _write_messages(file, marks, job.staging)
