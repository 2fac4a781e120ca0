"""Fact tables of many RMP packets, in stages: packets by sender, then messages by process.

A sender and its group are one stream. Both stages are those of ``wireyard.layers.rmp.chain``, run
row by row: a task holds few of the rows of a large sender at once.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats import get_format
from wireyard.formats.base import Row
from wireyard.layers.gaps import of_sources, stream_keys
from wireyard.layers.rmp.chain import CHAIN, ConversationMessage
from wireyard.layers.rmp.observer import NEEDED
from wireyard.layers.stages import Fact, Found, Key, KeyedRecord, Order
from wireyard.layers.stages import Stage as Step
from wireyard.layers.tables import fact_table
from wireyard.pipeline.exchange import Inbox, PartInput, Stage, pass_by_text, pass_value, values_of
from wireyard.pipeline.facts.tasks import (
    Divided,
    Division,
    Output,
    Outputs,
    Plan,
    dropped_rows,
)
from wireyard.streams.plan import make_plan

_MOST_PACKETS: Final = 1 << 13
"""Packets that a task holds at once, with their bodies of up to 64 kB."""
_ROWS: Final = 1 << 13
"""Rows of one table, or records of one part, that a task holds before it writes them."""
_BODY_BYTES: Final = 32 << 20
"""The most bytes of their bodies: two of the longest messages."""
_PACKETS, _RECORDS = "packets", "records"
_SENDERS, _CONVERSATIONS = CHAIN
_Records = list[tuple[Key, Order, ConversationMessage]]


def _plan(divided: Divided, output: Output) -> Plan:
    """Return the stages: packets by sender, then messages by process."""
    parts = -(-divided.packets // _MOST_PACKETS) or 1
    stages = [
        Stage([_PACKETS], parts, partial(_follow_senders, parts=parts, output=output)),
        Stage([_RECORDS], parts, partial(_match_replies, parts=parts, output=output)),
    ]
    return Plan(partial(_split, divided=divided, parts=parts), stages)


DIVISION: Final = Division(_MOST_PACKETS, sys.maxsize, _plan)


def _split(number: int, inbox: Inbox, divided: Divided, parts: int) -> Outputs:
    """Partition the packets of a file by sender."""
    schema = make_plan(get_format("rmp"), captured=True).schema
    names = [*dict.fromkeys((*NEEDED, "offset"))]
    for file in divided.files.packets([number], inbox):
        for table in file.batches(names):
            own = table.filter(of_sources(table, divided.sources))
            rows = own.select(names).cast(pa.schema(map(schema.field, names)))
            rows = rows.append_column("key", stream_keys(rows))
            yield from pass_by_text(_PACKETS, rows, rows["key"], parts)


def _follow_senders(given: PartInput, parts: int, output: Output) -> Outputs:
    """Write what follows from the packets of each sender; pass its messages on by process."""
    packets = pa.concat_tables(table for each in given.inbox[_PACKETS] for table in each.tables)
    senders = (rows for _, rows in groupby(_rows(packets), key=itemgetter("key")))
    return _run(CHAIN[_SENDERS], senders, parts, output)


def _rows(packets: pa.Table) -> Iterator[Row]:
    """Yield rows by sender and offset; what was passed on is in a file, so few are in memory."""
    order = pc.sort_indices(packets, [("key", "ascending"), ("offset", "ascending")])
    for start in range(0, len(order), _ROWS):
        yield from packets.take(order.slice(start, _ROWS)).to_pylist()


def _match_replies(given: PartInput, parts: int, output: Output) -> Outputs:
    """Write the conversations of each process."""
    of_process = defaultdict[Key, list[tuple[Order, ConversationMessage]]](list)
    for key, order, message in chain.from_iterable(values_of(given.inbox, _RECORDS, _Records)):
        of_process[key].append((order, message))
    processes = (
        (message for _, message in sorted(own, key=itemgetter(0))) for own in of_process.values()
    )
    return _run(CHAIN[_CONVERSATIONS], processes, parts, output)


def _run(step: Step, of_keys: Iterable[Iterator[Any]], parts: int, output: Output) -> Outputs:
    """Run a step over the records of one key after another; write and pass on what it finds."""
    writer, tables = output.writer(), defaultdict[str, list[Row]](list)
    records, dropped = defaultdict[int, _Records](list), Counter[str]()
    held_bytes = 0
    found: Iterable[Found] = chain.from_iterable(map(step, of_keys))
    for each in found:
        if isinstance(each, KeyedRecord):
            part = zlib.crc32(repr(each.key).encode()) % parts
            records[part].append((each.key, each.order, each.record))
            if len(records[part]) == _ROWS:
                yield from pass_value(_RECORDS, part, records.pop(part), _Records)
        elif isinstance(each, Fact):
            rows = tables[each.table]
            rows.append(each.row)
            held_bytes += len(each.row.get("body") or b"")
            if len(rows) == _ROWS or held_bytes > _BODY_BYTES:
                writer.write(each.table, fact_table(each.table, tables.pop(each.table)))
                held_bytes = 0
        else:
            dropped[each.cap] += each.things
    for name, rows in tables.items():
        writer.write(name, fact_table(name, rows))
    for part, own in records.items():
        yield from pass_value(_RECORDS, part, own, _Records)
    yield from writer.close()
    yield from dropped_rows(dropped)
