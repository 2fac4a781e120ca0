"""Fact tables of many JMQ packets and GPackets, in phases.

Several inputs may show the same message, and its hops are numbered over all of them, so inputs with
common messages are processed together. Packets that are too many for a task go through the phases
of ``wireyard.layers.jmq.columns``. Each phase is a stage of tasks that is partitioned by key:
packets by connection, records in transactions by transaction, messages by id, requests by reply
destination.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.layers.facts import PacketFile
from wireyard.layers.grouping import split_rows
from wireyard.layers.jmq.columns import (
    compare_clocks,
    compare_times,
    connection_keys,
    follow_connections,
    follow_transactions,
    join_messages,
    join_requests,
    match_replies,
    order_hops,
    order_several,
    partition_keys,
    producers_of,
    stand_for_messages,
)
from wireyard.layers.jmq.facts import FORMATS
from wireyard.layers.jmq.files import (
    ends_of,
    file_numbers,
    messages_of,
    packets_of,
    slices_of,
)
from wireyard.layers.tables import join_tables
from wireyard.pipeline.exchange import Inbox, PartInput, Stage, pass_on
from wireyard.pipeline.facts.tasks import (
    FILES,
    Divided,
    Division,
    Files,
    Output,
    Outputs,
    Plan,
    dropped_rows,
    write_tables,
)

_MOST_PACKETS: Final = 1 << 18
"""Packets that a task holds at once, about 1.5 kB each with all records derived from them."""
PARTITION_PACKETS: Final = 1 << 16
"""Packets of a partition of more."""
_SHOWN: Final = (
    "source", "stream", "src_addr", "src_port", "dst_addr", "dst_port", "format", "sliced",
    "ended", "ended_ns", "ended_frame",
)  # fmt: skip
"""Columns of the table `streams`."""
_HELD_BATCHES: Final = 4
"""Batches of a file that are buffered before they are partitioned and written."""


class _Job(NamedTuple):
    """The arguments common to all tasks."""

    output: Output
    sources: tuple[str, ...]
    files: Files
    parts: int
    """Number of partitions of each phase."""

    @property
    def file_groups(self) -> int:
        """Number of groups of files whose messages a task writes."""
        return min(self.files.number, self.parts)


# --- phases ---------------------------------------------------------------------------------

_STREAMS, _TRANSACTIONS, _MESSAGES, _RELAYS, _REQUESTS, _MARKS = (
    "streams", "transactions", "messages", "relays", "requests", "marks",
)  # fmt: skip
_SEVERAL, _SPANS, _CLOCKS = "several", "spans", "clocks"
"""Names of what tasks pass on, besides the packets of each format."""


def _plan(divided: Divided, output: Output) -> Plan:
    """Return the phases."""
    parts = -(-divided.packets // PARTITION_PACKETS) or 1
    job = _Job(output, divided.sources, divided.files, parts)
    stages = [
        Stage((*FORMATS, _STREAMS), parts, partial(_follow, job=job)),
        Stage((_TRANSACTIONS,), parts, partial(_end_transactions, job=job)),
        Stage((_MESSAGES, _RELAYS), parts, partial(_join, job=job)),
        Stage((_REQUESTS, _MARKS, FILES), job.file_groups + parts, partial(_finish, job=job)),
    ]
    if len(divided.sources) > 1:
        stages += [
            Stage((_SPANS,), parts, partial(_compare, job=job)),
            Stage((_SEVERAL, _CLOCKS), parts, partial(_order, job=job)),
        ]
    return Plan(partial(_split, job=job), stages, job.file_groups)


DIVISION: Final = Division(_MOST_PACKETS, 1 << 19, _plan)


def _split(number: int, inbox: Inbox, job: _Job) -> Outputs:
    """Partition the packets of a file, and what is known of streams, by connection."""
    for file in job.files.packets([number], inbox):
        yield from _split_packets(file, job)
    for table in job.files.streams(number, _SHOWN, inbox):
        yield from _split_streams(table, job)


def _split_packets(file: PacketFile, job: _Job) -> Outputs:
    tables = packets_of(file, job.sources)
    while held := list(islice(tables, _HELD_BATCHES)):
        split = (
            split_rows(each, _part(connection_keys(each), job.parts), job.parts) for each in held
        )
        parts = ([join_tables(each)] for each in zip(*split, strict=True))
        yield from pass_on(file.format, parts)


def _split_streams(table: pa.Table, job: _Job) -> Outputs:
    table = table.filter(pc.or_(table["ended"].is_valid(), pc.fill_null(table["sliced"], False)))
    if table.num_rows:
        parts = split_rows(table, _part(connection_keys(table), job.parts), job.parts)
        yield from pass_on(_STREAMS, ([part] for part in parts))


def _part(keys: Any, count: int) -> Any:
    return keys % np.uint64(count)


def _by_key(phase: str, count: int, *records: pa.Table) -> list[list[pa.Table]]:
    """Partition records by the key of a phase; return the tables for each of its tasks."""
    parts = (
        split_rows(table, _part(partition_keys(phase, table), count), count) for table in records
    )
    return list(map(list, zip(*parts, strict=True)))


def _read(given: PartInput, name: str) -> list[pa.Table]:
    """Return the tables that were passed on under a name, each joined over all tasks."""
    tables = (passed.tables for passed in given.inbox[name])
    return list(map(join_tables, zip(*tables, strict=True)))


def _follow(given: PartInput, job: _Job) -> Outputs:
    """Follow the connections of a partition."""
    packets = {name: _read(given, name)[0] for name in FORMATS if name in given.inbox}
    shown = [table for passed in given.inbox.get(_STREAMS, ()) for table in passed.tables]
    followed = follow_connections(packets, ends_of(shown), slices_of(shown))
    del packets
    yield from write_tables(followed.facts.items(), job.output)
    yield from dropped_rows(followed.dropped)
    records = followed.sendings, followed.deliveries
    inside, outside = zip(*map(_by_transaction, records), strict=True)
    if followed.uses.num_rows or any(table.num_rows for table in inside):
        parts = _by_key("transactions", job.parts, followed.uses, *inside)
        yield from pass_on(_TRANSACTIONS, parts)
    others = follow_transactions(followed.uses.slice(0, 0), *outside)
    yield from pass_on(_MESSAGES, _by_key("hops", job.parts, others.sendings, others.deliveries))
    yield from pass_on(_RELAYS, _by_key("hops", job.parts, followed.relays, followed.requests))


def _by_transaction(records: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the records that belong to a transaction, and the others."""
    inside = records["transaction_id"].is_valid()
    return records.filter(inside), records.filter(pc.invert(inside))


def _end_transactions(given: PartInput, job: _Job) -> Outputs:
    """Follow the transactions of a partition."""
    followed = follow_transactions(*_read(given, _TRANSACTIONS))
    yield from write_tables(followed.facts.items(), job.output)
    parts = _by_key("hops", job.parts, followed.sendings, followed.deliveries)
    yield from pass_on(_MESSAGES, parts)


def _join(given: PartInput, job: _Job) -> Outputs:
    """Join the records of the messages of a partition."""
    sendings, deliveries = _read(given, _MESSAGES)
    relays, requests = _read(given, _RELAYS)
    joined = join_messages(sendings, deliveries, relays)
    hops = order_hops(sendings, deliveries, relays)
    tables = {
        "conversations": join_requests(requests),
        "deliveries": joined.deliveries,
        "hops": hops.hops,
        "producers": producers_of(sendings, deliveries, relays),
    }
    yield from write_tables(tables.items(), job.output)
    yield from dropped_rows(hops.dropped)
    if hops.several.num_rows:
        compared = compare_times(hops.several)
        yield from dropped_rows(compared.dropped)
        yield from pass_on(_SPANS, _by_key("points", job.parts, compared.spans))
        yield from pass_on(_SEVERAL, [[compared.several]], given.part)
    requests_of = _by_key("conversations", job.parts, joined.messages)
    yield from pass_on(_REQUESTS, requests_of, job.file_groups)
    marks = stand_for_messages(sendings, deliveries, relays)
    of_files = split_rows(marks, file_numbers(marks) % job.file_groups, job.file_groups)
    yield from pass_on(_MARKS, ([each] for each in of_files))


def _finish(given: PartInput, job: _Job) -> Outputs:
    """Match requests with replies, or write marked messages."""
    if given.part < job.file_groups:
        yield from _write_marked(given, job)
        return
    conversations, dropped = match_replies(*_read(given, _REQUESTS))
    yield from write_tables([("conversations", conversations)], job.output)
    yield from dropped_rows(dropped)


def _write_marked(given: PartInput, job: _Job) -> Outputs:
    """Write the messages in a group of files, which the phase of messages has marked."""
    (marks,) = _read(given, _MARKS)
    numbers = file_numbers(marks)
    messages = (
        ("messages", table)
        for file in job.files.packets(
            range(given.part, job.files.number, job.file_groups), given.inbox
        )
        for table in messages_of(file, marks.filter(pa.array(numbers == file.number)))
    )
    yield from write_tables(messages, job.output)


def _compare(given: PartInput, job: _Job) -> Outputs:
    """Compare the clocks of capture points; all parts get them."""
    if _SPANS in given.inbox:
        clocks, dropped = compare_clocks(*_read(given, _SPANS))
        yield from dropped_rows(dropped)
        yield from pass_on(_CLOCKS, ([clocks] for _ in range(job.parts)))


def _order(given: PartInput, job: _Job) -> Outputs:
    """Order the hops of messages that several captures show."""
    if _SEVERAL in given.inbox:
        hops = order_several(*_read(given, _SEVERAL), *_read(given, _CLOCKS))
        yield from write_tables([("hops", hops)], job.output)
