"""The job of ``wireyard decode``: its inputs, one after the other, and what was lost of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from wireyard.captures.inputs import Input, Readable, open_captures, open_input
from wireyard.cli import exits
from wireyard.cli.progress import Progress
from wireyard.errors import UsageError
from wireyard.formats import get_format
from wireyard.formats.rows import pick_columns
from wireyard.streams.conditions import ALIASES, Where, comparisons, parse
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_streams
from wireyard.text import moment

if TYPE_CHECKING:
    from wireyard.cli.decoding.reading import Budget, OpenInput
    from wireyard.cli.decoding.selection import Request
    from wireyard.formats import Format


@dataclass
class Job:
    """The arguments of one call of ``wireyard decode``, and its exit status."""

    paths: tuple[str, ...]
    format_name: str | None
    decode_as: tuple[str, ...]
    keylog: tuple[str, ...]
    request: Request
    budget: Budget
    shows_progress: bool
    follows: bool
    """Whether files are followed while they grow."""
    rotated: bool
    """Whether the files are one capture."""
    tables: bool
    """Whether the output has columns, which are written even if there are no rows."""
    one_format: bool
    """Whether all rows of growing streams must have the same format."""
    verbose: bool = False
    """Whether the list shows all columns."""
    fields: tuple[str, ...] = ()
    """The columns of ``-T fields``, as they were named."""
    field_options: tuple[str, ...] = ()
    before_waits: Callable[[], None] | None = None
    """Called before a growing input is waited for, to print what is held; then nothing shows
    progress."""
    status: int = field(default=exits.DONE)
    matchless: dict[str, bool] = field(default_factory=dict)
    """By format: whether it has none of the columns of the conditions."""

    def readings(self) -> Generator[OpenInput]:
        """Yield the inputs one after the other; the problems of an input are printed after it."""
        from wireyard.streams.arrivals import is_live

        named = get_format(self.format_name) if self.format_name else None
        for path in self.paths[:1] if self.rotated else self.paths:
            if self.budget.spent:
                return
            if self.follows or (is_live(path) and not self.rotated):
                yield from self._follow(path, named)
                continue
            before = self.budget.taken
            with closing(self._open(path, named)) as found:
                yield from self._read(found, named)
            if self.request.where and self.budget.taken == before and path != "-":
                self._explain_nothing(path, named)
            exits.notes_on(path, (*found.notes, *found.closed, found.unread, found.damage))
            if found.is_lossy(any_read=bool(found.readables)):
                self.status = exits.DATA_LOST
        if self.matchless and all(self.matchless.values()):
            where, columns = " ".join(self.request.where), ",".join(self.request.columns or ())
            asked = f"--where {where}" if where else f"--columns {columns}"
            known = " and ".join(self.matchless)
            raise UsageError(f"{asked}: {known} rows have no such column")

    def _open(self, path: str, named: Format | None) -> Input:
        if self.rotated:
            return open_captures(self.paths, named, self.decode_as, keylog=self.keylog)
        return open_input(path, named, self.decode_as, self.keylog)

    def _explain_nothing(self, path: str, named: Format | None) -> None:
        """Print what an input has, of which no row meets the conditions."""
        if self.matchless and all(self.matchless.values()):
            return
        with closing(self._open(path, named)) as found:
            there = what_there_is(found, self.request.where)
        exits.note(f"{path}: no row matches{f'; {there}' if there else ''}")

    def _follow(self, path: str, named: Format | None) -> Generator[OpenInput]:
        """Yield the streams of a followed input each time they have grown."""
        from wireyard.captures.live.following import follow
        from wireyard.cli.decoding.live import LiveReading, stopping

        how = named, self.decode_as, self.keylog
        most = self.request.max_packet_bytes
        with (
            stopping() as stop,
            closing(follow(path, *how, max_packet_bytes=most, stop=stop)) as following,
        ):
            yield from LiveReading(self, following, named, stop).readings()

    def _read(self, found: Input, named: Format | None) -> Generator[OpenInput]:
        """Yield runs of adjacent streams of an input that have the same format."""
        from wireyard.cli.decoding.reading import OpenInput
        from wireyard.cli.decoding.selection import Selection

        groups: Iterable[tuple[Format, Iterable[Readable]]]
        groups = groupby(found.readables, key=attrgetter("format"))
        is_known = found.closed or found.unread or found.damage
        if named is not None and not found.readables and not is_known:
            exits.note(f"{found.name}: holds no stream of {named.name}")
        elif not found.readables and not found.notes and not is_known:
            exits.note(f"{found.name}: {exits.NO_PACKET}")
        if self.tables and named is not None and not found.readables:
            groups = [(named, [])]  # a table without rows
        for format, some in groups:
            if self.budget.spent:
                return
            streams = [each.opened for each in some]
            sizes = [each.size for each in streams]
            size = None if None in sizes else sum(filter(None, sizes))
            progress = Progress(found.name, size, self.shows_progress)
            selection = Selection(format, self.request, found.captured)
            self.matchless[format.name] = selection.matches_nothing
            if selection.matches_nothing:
                continue
            reading = OpenInput(streams, selection, self.budget, progress)
            yield reading
            progress.end()
            for line in reading.faults.lines(found.name, captured=found.captured):
                exits.note(line)
                self.status = exits.DATA_LOST


_MOST_ROWS: Final = 1 << 20
_MOST_VALUES: Final = 10_000
_SHOWN: Final = 5


def what_there_is(found: Input, where: Where) -> str:
    """Return the values of the columns of a condition, those like the wanted ones first."""
    tree = parse(where)
    wanted = {one.column: one.value for one in comparisons(tree)} if tree else {}
    return "; ".join(filter(None, (_values(found, *each) for each in wanted.items())))


def _values(found: Input, name: str, wanted: Sequence[Any]) -> str:
    """Return what a column holds, empty if it holds nothing."""
    values: dict[Any, None] = {}
    rows = 0
    for batch in _batches(found, name):
        values |= dict.fromkeys(batch)
        rows += len(batch)
        if rows > _MOST_ROWS or len(values) > _MOST_VALUES:
            break
    for empty in (None, ""):
        values.pop(empty, None)
    if not values:
        return f"{name} has no value"
    if name == "captured_ns":
        return f"packets are from {moment(min(values))} to {moment(max(values))}"
    if len(values) > _SHOWN and isinstance(next(iter(values)), int):
        return f"{name} is {min(values)} to {max(values)}"
    texts = [
        text.lower() if text in ("True", "False") else text for text in sorted(map(str, values))
    ]
    close = [like for value in wanted for like in get_close_matches(str(value), texts, _SHOWN, 0.5)]
    shown = list(dict.fromkeys([*close, *texts]))[:_SHOWN]
    others = len(texts) - len(shown)
    return f"{name} is {', '.join(shown)}" + (f" and {others:,} others" if others else "")


def _batches(found: Input, name: str) -> Iterator[list[Any]]:
    """Yield the values of a column of all formats that have it."""
    for format, opened in found.readables:
        known = {column.name for column in pick_columns(format, None, captured=found.captured)}
        own = name if name in known else ALIASES.get(name, "")
        if own in known:
            plan = make_plan(format, [own], captured=found.captured)
            for batch in scan_streams([(opened, plan)]):
                yield batch[own].to_pylist()
