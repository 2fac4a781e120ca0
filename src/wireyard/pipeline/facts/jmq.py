"""Fact tables of many JMQ packets and GPackets, in phases.

Several inputs may show the same message, and its hops are numbered over all of them, so inputs with
common messages are processed together. Packets that are too many for a task go through the phases
of ``wireyard.layers.jmq.columns``. Each phase is a stage of tasks that is partitioned by key:
packets by connection, records in transactions by transaction, messages by id, requests by reply
destination.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.lake.ledgers import captured_streams
from wireyard.lake.parts import read_batches
from wireyard.layers.facts import PacketFile
from wireyard.layers.grouping import split_rows
from wireyard.layers.jmq.columns import (
    connection_keys,
    find_gaps,
    follow_connections,
    follow_transactions,
    join_messages,
    join_requests,
    match_replies,
    order_hops,
    partition_keys,
    producers_of,
    records_of,
    stand_for_messages,
)
from wireyard.layers.jmq.facts import FORMATS
from wireyard.layers.jmq.files import (
    ends_of,
    file_numbers,
    messages_of,
    packets_of,
)
from wireyard.layers.jmq.hops import HOP_STAGES
from wireyard.layers.tables import join_tables
from wireyard.pipeline.exchange import read_part, write_parts
from wireyard.pipeline.facts.keyed import write_records
from wireyard.pipeline.facts.tasks import (
    Division,
    Group,
    Results,
    dropped_rows,
    intermediate_file,
    run_tasks,
    write_tables,
)
from wireyard.pipeline.running import Runner

__all__ = ["DIVISION", "PARTITION_PACKETS"]

_MOST_PACKETS: Final = 1 << 18
"""Packets that a task holds at once, about 1.5 kB each with all records derived from them."""
PARTITION_PACKETS: Final = 1 << 16
"""Packets of a partition of more."""
_SHOWN: Final = (
    "source", "stream", "src_addr", "src_port", "dst_addr", "dst_port", "format", "ended",
    "ended_ns", "ended_frame",
)  # fmt: skip
"""Columns of the table `streams`."""
_HELD_BATCHES: Final = 4
"""Batches of a file that are buffered before they are partitioned and written."""

Files = Mapping[str, Sequence[str]]
"""Paths of intermediate files, by name."""


class _File(NamedTuple):
    """A file of packets."""

    number: int
    format: str
    path: str


class _Job(NamedTuple):
    """The arguments common to all tasks."""

    staging: str
    sources: frozenset[str]
    streams: tuple[str, ...]
    """Files of the table `streams`."""
    files: int
    """Number of files of packets."""


# --- packets --------------------------------------------------------------------------------


def _opened(file: _File) -> PacketFile:
    """Return a file as one that is read by columns."""
    return PacketFile(file.number, file.format, partial(read_batches, file.path))


def _write_messages(file: _File, marks: pa.Table, staging: str) -> Results:
    """Write the rows of the table `messages` for the marked packets of a file."""
    messages = messages_of(_opened(file), marks)
    yield from write_tables((("messages", table) for table in messages), staging)


def _of_files(marks: pa.Table, files: int) -> list[pa.Table]:
    """Partition marks by the file of the packet."""
    return split_rows(marks, file_numbers(marks), files)


# --- phases ---------------------------------------------------------------------------------

_ENDED, _TRANSACTIONS, _MESSAGES, _RELAYS, _REQUESTS, _RUNS, _MARKS = _BETWEEN = (
    "ended", "transactions", "messages", "relays", "requests", "runs", "marks",
)  # fmt: skip
"""Names of the intermediate files, by their content."""


def _write_by_phases(runner: Runner, staging: str, group: Group) -> Results:
    """Write the facts of some inputs, phase by phase; yield rows of `RESULTS`."""
    files = [_File(number, *each) for number, each in enumerate(group.files)]
    job = _Job(staging, frozenset(group.sources), group.streams, len(files))
    count = -(-group.packets // PARTITION_PACKETS)
    between: dict[str, list[str]] = {name: [] for name in (*FORMATS, *_BETWEEN)}
    numbers = range(count)

    def run(tasks: Sequence[Any], work: Callable[..., Results], **more: Any) -> Results:
        for row in run_tasks(runner, tasks, partial(work, job=job, count=count, **more)):
            if row["kind"] == "intermediate" and row["name"] in between:
                between[row["name"]].append(row["file"])
            else:
                yield row

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
    yield from run(files, _write_marked, files=between[_MARKS])


DIVISION: Final = Division(_MOST_PACKETS, 1 << 19, _write_by_phases, HOP_STAGES)


def _split(file: _File, job: _Job, count: int) -> Results:
    """Partition the packets of a file by connection."""
    held: list[list[pa.Table]] = []

    def write() -> Mapping[str, Any]:
        parts = ([join_tables(tables)] for tables in zip(*held, strict=True))
        path = write_parts(job.staging, parts)
        held.clear()
        return intermediate_file(file.format, path)

    for table in packets_of(_opened(file), job.sources):
        held.append(split_rows(table, _part(connection_keys(table), count), count))
        if len(held) == _HELD_BATCHES:
            yield write()
    if held:
        yield write()


def _split_ended(path: str, job: _Job, count: int) -> Results:
    """Partition the streams whose end is in the captures by connection."""
    for table in captured_streams([path], job.sources, _SHOWN):
        table = table.filter(table["ended"].is_valid())
        if table.num_rows:
            parts = split_rows(table, _part(connection_keys(table), count), count)
            yield intermediate_file(_ENDED, write_parts(job.staging, ([part] for part in parts)))


def _part(keys: Any, count: int) -> Any:
    return keys % np.uint64(count)


def _by_key(phase: str, count: int, *records: pa.Table) -> list[list[pa.Table]]:
    """Partition records by the key of a phase; return the tables for each of its tasks."""
    parts = (
        split_rows(table, _part(partition_keys(phase, table), count), count) for table in records
    )
    return list(map(list, zip(*parts, strict=True)))


def _read(files: Sequence[str], number: int) -> list[pa.Table]:
    """Read the part of a task from all files; return the tables, each joined over the files."""
    return list(map(join_tables, zip(*read_part(files, number), strict=True)))


def _follow(number: int, job: _Job, count: int, files: Files) -> Results:
    """Follow the connections of a partition."""
    packets = {name: _read(files[name], number)[0] for name in FORMATS if files[name]}
    ended = chain.from_iterable(read_part(files[_ENDED], number))
    followed = follow_connections(packets, ends_of(ended))
    del packets
    yield from write_tables(followed.facts.items(), job.staging)
    yield from dropped_rows(followed.dropped)
    records = followed.sendings, followed.deliveries
    inside, outside = zip(*map(_by_transaction, records), strict=True)
    if followed.uses.num_rows or any(table.num_rows for table in inside):
        parts = _by_key("transactions", count, followed.uses, *inside)
        yield intermediate_file(_TRANSACTIONS, write_parts(job.staging, parts))
    others = follow_transactions(followed.uses.slice(0, 0), *outside)
    parts = _by_key("hops", count, others.sendings, others.deliveries)
    yield intermediate_file(_MESSAGES, write_parts(job.staging, parts))
    parts = _by_key("hops", count, followed.relays, followed.requests)
    yield intermediate_file(_RELAYS, write_parts(job.staging, parts))
    parts = _by_key("numbers", count, followed.runs)
    yield intermediate_file(_RUNS, write_parts(job.staging, parts))


def _by_transaction(records: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the records that belong to a transaction, and the others."""
    inside = records["transaction_id"].is_valid()
    return records.filter(inside), records.filter(pc.invert(inside))


def _end_transactions(number: int, job: _Job, count: int, files: Sequence[str]) -> Results:
    """Follow the transactions of a partition."""
    followed = follow_transactions(*_read(files, number))
    yield from write_tables(followed.facts.items(), job.staging)
    parts = _by_key("hops", count, followed.sendings, followed.deliveries)
    yield intermediate_file(_MESSAGES, write_parts(job.staging, parts))


def _join(number: int, job: _Job, count: int, files: Files) -> Results:
    """Join the records of the messages of a partition."""
    sendings, deliveries = _read(files[_MESSAGES], number)
    relays, requests = _read(files[_RELAYS], number)
    joined = join_messages(sendings, deliveries, relays)
    hops = order_hops(sendings, deliveries, relays)
    tables = {
        "conversations": join_requests(requests),
        "deliveries": joined.deliveries,
        "hops": hops.hops,
        "producers": producers_of(sendings, deliveries, relays),
    }
    yield from write_tables(tables.items(), job.staging)
    yield from dropped_rows(hops.dropped)
    yield from write_records(records_of(*hops.records), HOP_STAGES, job.staging)
    yield intermediate_file(
        _REQUESTS,
        write_parts(job.staging, _by_key("conversations", count, joined.messages)),
    )
    marks = stand_for_messages(sendings, deliveries, relays)
    by_file = ([part] for part in _of_files(marks, job.files))
    yield intermediate_file(_MARKS, write_parts(job.staging, by_file))


def _finish(number: int, job: _Job, count: int, files: Files) -> Results:
    """Match requests with replies, and find gaps in packet numbers."""
    conversations, dropped = match_replies(*_read(files[_REQUESTS], number))
    violations = find_gaps(*_read(files[_RUNS], number))
    tables = {"conversations": conversations, "violations": violations}
    yield from write_tables(tables.items(), job.staging)
    yield from dropped_rows(dropped)


def _write_marked(file: _File, job: _Job, count: int, files: Sequence[str]) -> Results:
    """Write the messages in a file, which the phase of messages has marked."""
    marks = join_tables(chain.from_iterable(read_part(files, file.number)))
    yield from _write_messages(file, marks, job.staging)
