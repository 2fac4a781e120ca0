"""Tasks of the facts stage: those that derive the facts of whole inputs, and how tasks are run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain, starmap
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.captures.stream_table import STREAMS
from wireyard.lake.ledgers import captured_streams
from wireyard.lake.parts import PartFile, read_batches, read_footer_table
from wireyard.lake.records import Input
from wireyard.lake.snapshot import name_of
from wireyard.layers.destinations import count_messages
from wireyard.layers.facts import DerivedFiles, Facts, PacketFile, facts_of
from wireyard.layers.frame_files import FrameFiles, Spans
from wireyard.layers.latencies import delayed, latencies
from wireyard.layers.stages import Dropped
from wireyard.layers.tables import with_times
from wireyard.pipeline.decoding.task import packets_table
from wireyard.pipeline.exchange import Blob, Inbox, Stage
from wireyard.pipeline.running import Runner
from wireyard.streams.source import filesystem


class FactFile(NamedTuple):
    """A file of facts."""

    table: str
    name: str
    sources: tuple[str, ...]
    """Those of its rows."""


class Messages(NamedTuple):
    """What other tables need of the messages of a file."""

    counts: pa.Table
    """As of `count_messages`."""
    delayed: pa.Table
    """As of `delayed`."""


Result = FactFile | Messages | Dropped
"""A result of a task."""
Results = Iterator[Result]
Outputs = Iterable[Result | Blob]
"""The results of a task, and what it passes on."""
TASK_PACKETS: Final = 1 << 17
"""Packets of several inputs for a task, which takes about a second: then its core is free for what
is in a hurry, such as parts of growing inputs."""
_DIVIDED: Final = {"mqtt": "mqtt", "jms": "jmq", "rmp": "rmp"}
"""By protocol, the module with its `DIVISION`, which is loaded where its packets occur."""
TOGETHER: Final = 4
"""Tasks that Spark starts as one: to start a task takes Java some 30 ms, its work about 150."""


class Group(NamedTuple):
    """Inputs whose facts of a protocol are derived together, from files that they share."""

    protocol: str
    files: tuple[tuple[str, str], ...]
    """Format and path of each file of packets. Packets of other inputs in them are ignored."""
    sources: tuple[str, ...]
    packets: int
    streams: tuple[str, ...]
    """Files of the table `streams`."""


class Writer(Protocol):
    """Writes rows of tables as they come."""

    def write(self, name: str, table: pa.Table) -> None:
        """Write rows of a table."""

    def close(self) -> Outputs:
        """Finish, and yield what was written."""


class Output(Protocol):
    """Where tasks write facts."""

    def writer(self) -> Writer:
        """Return the writer of a task."""


class Staged(NamedTuple):
    """Files of a run's staged tables: an `Output`."""

    folder: str
    spans: Spans
    """The frames of the files of captures."""
    ends_ns: Mapping[str, int]
    """When each capture ends."""

    def writer(self) -> Writer:
        """Return the writer of a task."""
        return FactWriter(self.folder, FrameFiles.of(self.spans))


class Files(Protocol):
    """Files of packets by number, that stages read more than once."""

    @property
    def number(self) -> int:
        """How many there are."""

    def packets(self, numbers: Iterable[int], inbox: Inbox) -> Iterator[PacketFile]:
        """Yield some files; `inbox` is what was passed on to the part that reads them."""

    def streams(self, number: int, columns: Sequence[str], inbox: Inbox) -> Iterator[pa.Table]:
        """Yield columns of the captured streams that belong to a file."""


@dataclass(frozen=True, slots=True)
class LakeFiles:
    """The files of a group in the lake: `Files`."""

    paths: tuple[tuple[str, str], ...]
    """Format and path of each file of packets."""
    sources: tuple[str, ...]
    tables: tuple[str, ...]
    """Files of the table `streams`."""

    @property
    def number(self) -> int:
        """How many files of packets there are."""
        return len(self.paths)

    def packets(self, numbers: Iterable[int], inbox: Inbox) -> Iterator[PacketFile]:
        """Yield some files."""
        return map(partial(_opened, self.paths), numbers)

    def streams(self, number: int, columns: Sequence[str], inbox: Inbox) -> Iterator[pa.Table]:
        """Yield columns of the captured streams in a share of the files of streams."""
        return captured_streams(self.tables[number :: self.number], self.sources, columns)


class Counted(NamedTuple):
    """What is counted in a file of packets before they are divided."""

    topics: dict[str, int]
    """The packets of each topic."""
    evidence: pa.Table
    """For the sides of streams."""


class Divided(NamedTuple):
    """The packets that stages divide among tasks."""

    files: Files
    sources: tuple[str, ...]
    packets: int
    counted: Sequence[Counted] = ()
    """Of each file, if its protocol counts."""
    streams: pa.Table = STREAMS.empty_table()
    """As of `shown_streams`, if its protocol counts."""


class Plan(NamedTuple):
    """The stages by which the facts of many packets are made."""

    split: Callable[[int, Inbox], Outputs]
    """The first stage: the number of a file, and what was passed on to it -> its packets by key."""
    stages: Sequence[Stage]
    groups: int = 0
    """Groups of files, by the remainder of their number, that are read again: the first parts of
    the stages that read `FILES`."""


class Division(NamedTuple):
    """How the facts of a protocol are divided among tasks if there are many packets."""

    most_packets: int
    """Packets of inputs that a task of a cluster holds at once."""
    most_here: int
    """The same in this process, which has all of the memory, and to which stages are no gain."""
    plan: Callable[[Divided, Output], Plan]
    count_file: Callable[[PacketFile, Collection[str]], Counted] | None = None
    """A file and the sources of its packets -> what `plan` needs to be counted in it."""


FILES: Final = "files"
"""The name under which packets of files are passed on, where no lake has them."""


def division_of(protocol: str) -> Division | None:
    """Return how a protocol is divided; None if one task derives all, however many packets."""
    name = _DIVIDED.get(protocol)
    if name is None:
        return None
    found: Division = import_module(f"wireyard.pipeline.facts.{name}").DIVISION
    return found


def groups_of(
    facts: Facts,
    files: Mapping[str, Sequence[str]],
    inputs: Iterable[Input],
    streams: Iterable[str],
) -> list[Group]:
    """Return the inputs with packets of a protocol, grouped by the files that they have in common.

    If several inputs may show the same message, they are one group. `files` are the files with the
    packets of all inputs, by format; `streams` their files of the table `streams`.
    """
    # Files of several tables may have the same name.
    paths = {
        (format, name_of(path)): path for format in facts.formats for path in files.get(format, ())
    }
    stream_paths = {name_of(path): path for path in streams}
    of_input: dict[str, list[tuple[str, str]]] = {}
    by_file: defaultdict[tuple[str, str], list[Input]] = defaultdict(list)
    for each in inputs:
        of_input[each.source] = [
            (format, name)
            for format in facts.formats
            for name in each.files.get(packets_table(format), ())
        ]
        for file in of_input[each.source]:
            by_file[file].append(each)
    groups, seen = list[Group](), set[tuple[str, str]]()
    for first in by_file:
        if first in seen:
            continue
        waiting = list(by_file) if facts.shares_messages else [first]
        members, found = dict[str, Input](), dict[tuple[str, str], None]()
        while waiting:
            file = waiting.pop()
            if file not in found:
                found[file] = None
                for each in by_file[file]:
                    members[each.source] = each
                    waiting += of_input[each.source]
        seen |= found.keys()
        stream_names = dict.fromkeys(
            name for each in members.values() for name in each.files.get("streams", ())
        )
        groups.append(
            Group(
                facts.protocol,
                tuple((file[0], paths[file]) for file in sorted(found)),
                tuple(members),
                sum(_packets_of(each, facts) for each in members.values()),
                tuple(map(stream_paths.__getitem__, stream_names)),
            )
        )
    return groups


def _packets_of(each: Input, facts: Facts) -> int:
    """Return the number of packets of an input from which the facts follow."""
    sums = each.ledger.items()
    return sum(total.packets for label, total in sums if label.partition("/")[0] in facts.formats)


def run_tasks(
    runner: Runner, tasks: Sequence[Any], work: Callable[[Any], Iterable[Any]], kind: Any = Result
) -> list[Any]:
    """Run tasks; return their results."""
    return runner.run(tasks, work, kind, together=TOGETHER)


def divide(runner: Runner, output: Staged, group: Group, division: Division) -> list[Result]:
    """Write the facts of a group, stage by stage; return the results of all tasks."""
    divided = Divided(_files_of(group), group.sources, group.packets)
    if division.count_file is not None:
        count = partial(_count, divided=divided, count_file=division.count_file)
        counted = run_tasks(runner, range(divided.files.number), count, Counted)
        shown = pa.concat_tables(shown_streams(group, output.ends_ns))
        divided = divided._replace(counted=counted, streams=shown)
    plan = division.plan(divided, output)
    first, split = range(divided.files.number), partial(_split, split=plan.split)
    return runner.run_stages(first, split, plan.stages, Result, together=TOGETHER)


def _files_of(group: Group) -> LakeFiles:
    """Return the files of a group by size: no core has a large one when the others are idle."""
    system = filesystem(group.files[0][1])[0]
    infos = system.get_file_info([filesystem(path)[1] for _, path in group.files])
    sizes = dict(zip(group.files, (info.size for info in infos), strict=True))
    largest_first = tuple(sorted(group.files, key=sizes.__getitem__, reverse=True))
    return LakeFiles(largest_first, group.sources, group.streams)


def _count(
    number: int, divided: Divided, count_file: Callable[[PacketFile, Collection[str]], Counted]
) -> Iterator[Counted]:
    """Count what a plan needs in a file."""
    for file in divided.files.packets([number], {}):
        yield count_file(file, divided.sources)


def _split(number: int, split: Callable[[int, Inbox], Outputs]) -> Outputs:
    """Partition the packets of a file."""
    return split(number, {})


class FactWriter:
    """Writes rows of tables as they come, one file for each table, and the latencies of deliveries.

    These are without the delays that producers requested, which the messages have.
    """

    def __init__(self, folder: str, captured: FrameFiles) -> None:
        self._folder, self._captured = folder, captured
        self._files: dict[str, tuple[str, PartFile]] = {}
        self._sources = defaultdict[str, set[str]](set)
        self._messages = list[Messages]()

    def write(self, name: str, table: pa.Table) -> None:
        """Write rows of a table."""
        if not table.num_rows:
            return
        if name == "messages":
            self._messages.append(Messages(count_messages(table), delayed(table)))
        elif name == "deliveries":
            self.write("latencies", latencies(table))
        timed = with_times(name, self._captured.locate(table) if name == "messages" else table)
        if name not in self._files:
            file = f"part-{uuid4().hex}.parquet"
            self._files[name] = file, PartFile(f"{self._folder}/{name}/{file}", timed.schema)
        for batch in timed.to_batches():
            self._files[name][1].write(batch)
        self._sources[name].update(pc.unique(timed["source"]).to_pylist())

    def close(self) -> Results:
        """Finish the files, and yield them with what other tables need of them."""
        for name, (file, part) in self._files.items():
            part.close()
            yield FactFile(name, file, tuple(sorted(self._sources[name])))
        if self._messages:
            yield Messages(*map(pa.concat_tables, zip(*self._messages, strict=True)))


def write_tables(tables: Iterable[tuple[str, pa.Table]], output: Output) -> Outputs:
    """Write rows of tables; yield what was written."""
    writer = output.writer()
    for name, table in tables:
        writer.write(name, table)
    yield from writer.close()


STREAM_ROWS: Final = pa.schema(
    [
        STREAMS.field(name)
        for name in (
            *("source", "stream", "format", "opened", "begun", "paired", "sliced"),
            *("ended", "ended_frame", "ended_ns", "last_ns"),
        )
    ]
)
"""Columns of the table `streams` that facts follow from."""


def ends_of_sources(ends_ns: Mapping[str, int], sources: Iterable[str]) -> pa.Table:
    """Return rows `STREAM_ROWS`, of no stream, that show until when captures last."""
    ends = [{"source": one, "last_ns": ends_ns[one]} for one in sources if one in ends_ns]
    return pa.Table.from_pylist(ends, STREAM_ROWS)


def shown_streams(group: Group, ends_ns: Mapping[str, int]) -> Iterator[pa.Table]:
    """Yield `STREAM_ROWS` of the captured streams of inputs, and `ends_of_sources`."""
    yield from captured_streams(group.streams, group.sources, STREAM_ROWS.names)
    yield ends_of_sources(ends_ns, group.sources)


def derive_whole(facts: Facts, group: Group, ends_ns: Mapping[str, int]) -> DerivedFiles:
    """Derive all facts of some inputs in this process.

    `ends_ns` is when each capture ends.
    """
    opened = [_opened(group.files, number) for number in range(len(group.files))]
    return facts.derive(opened, pa.concat_tables(shown_streams(group, ends_ns)), group.sources)


def _opened(paths: Sequence[tuple[str, str]], number: int) -> PacketFile:
    """Return a file, by format and path, as one that is read by columns."""
    format, path = paths[number]
    return PacketFile(number, format, partial(read_batches, path), partial(read_footer_table, path))


def derive_groups(groups: Sequence[Group], output: Staged) -> Outputs:
    """Write the facts of some groups of one protocol; yield the results."""
    derived = [
        derive_whole(facts, each, output.ends_ns)
        for each in groups
        if (facts := facts_of(each.protocol)) is not None
    ]
    yield from write_tables(chain.from_iterable(each.tables for each in derived), output)
    yield from dropped_rows(sum((each.dropped for each in derived), Counter()))


def dropped_rows(dropped: Counter[str]) -> Results:
    """Yield the numbers of records that a task dropped, by cap."""
    return starmap(Dropped, dropped.items())
