"""Sessions of growing inputs: those that are open are in provisional files of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.lake.parts import read_batches, write_table
from wireyard.lake.staging import Staging
from wireyard.lake.writer import Input
from wireyard.layers.gaps import of_sources, source_keys
from wireyard.layers.tables import TABLES, fact_table, join_tables, packet_keys, with_times
from wireyard.pipeline.facts.stage import Facts
from wireyard.pipeline.replacing import OPEN_PREFIX, OPEN_STATES, is_provisional
from wireyard.streams.source import filesystem

SESSIONS: Final = "sessions"
ALL_PREFIX: Final = f"{OPEN_PREFIX}all-"
"""Prefix of files with the sessions that were open when facts of all packets were made."""


def read_sessions(listed: Mapping[str, Sequence[str]]) -> pa.Table:
    """Return the rows of the sessions of inputs in files, each input with its files.

    Inputs may share a file, which is read once.
    """
    columns = [column.name for column in TABLES[SESSIONS]]
    of_path = defaultdict[str, list[str]](list)
    for source, paths in listed.items():
        for path in paths:
            of_path[path].append(source)
    return join_tables(
        [
            fact_table(SESSIONS, ()),
            *(
                rows.filter(of_sources(rows, sources))
                for path, sources in of_path.items()
                for rows in read_batches(path, columns)
            ),
        ]
    )


def session_keys(rows: pa.Table) -> pa.Array:
    """Return the keys of sessions: the packets that prove them."""
    return source_keys(rows, packet_keys(rows["stream"], rows["offset"])).combine_chunks()


def without_sessions(rows: pa.Table, keys: pa.Array) -> pa.Table:
    """Return rows of sessions without those that have one of the keys."""
    return rows.filter(pc.invert(pc.is_in(session_keys(rows), keys)))


def divide_sessions(lake: Staging, facts: Facts, inputs: Iterable[Input]) -> Facts:
    """Move the open sessions of growing inputs to provisional files of their own.

    `facts` are the staged facts of all packets of the inputs.
    """
    followed = {each.source for each in inputs if each.files.get(OPEN_STATES)}
    files: dict[str, Sequence[str]] = {}
    for name, sources in facts.files.get(SESSIONS, {}).items():
        mine = sorted(followed.intersection(sources))
        if not mine:
            files[name] = sources
            continue
        system, inner = filesystem(lake.staged(SESSIONS, name))
        rows = pq.read_table(inner, filesystem=system)
        is_mine = pc.is_in(rows["source"], pa.array(mine, pa.string()))
        is_open = pc.and_(is_mine, rows["closed_ns"].is_null())
        if (closed := rows.filter(pc.invert(is_open))).num_rows:
            files[write_table(lake.staged(SESSIONS), closed)] = sources
        for source in mine:
            of_source = rows.filter(pc.and_(is_open, pc.equal(rows["source"], source)))
            files[write_table(lake.staged(SESSIONS), of_source, ALL_PREFIX)] = [source]
    return replace(facts, files={**facts.files, SESSIONS: files})


def merge_open_sessions(
    lake: Staging, source: str, made: Iterable[str], since: Iterable[str]
) -> str:
    """Stage the open sessions of an input that has got parts while its facts were made.

    Return the name of the provisional file. `made` are files with the sessions of all packets, as
    of the commit that the facts were made from; `since` files with the sessions of later parts,
    which repeat some of the earlier ones.
    """
    made_closed, made_open = _closed_and_open(source, made)
    since_closed, since_open = _closed_and_open(source, since)
    kept = without_sessions(since_open, session_keys(made_closed))
    left = without_sessions(made_open, session_keys(join_tables([since_closed, since_open])))
    rows = with_times(SESSIONS, join_tables([kept, left]))
    return write_table(lake.staged(SESSIONS), rows, ALL_PREFIX)


def _closed_and_open(source: str, paths: Iterable[str]) -> tuple[pa.Table, pa.Table]:
    """Return the sessions of an input in final files, and those in provisional files."""
    divided: tuple[list[str], list[str]] = [], []
    for path in paths:
        divided[is_provisional(path)].append(path)
    closed, still_open = (read_sessions({source: files}) for files in divided)
    return closed, still_open
