"""Inputs that a command reads while they are written: turn by turn, to the end or to Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from types import FrameType

from wireyard.captures.following import Following
from wireyard.cli import exits
from wireyard.cli.faults import Faults
from wireyard.cli.progress import Progress
from wireyard.cli.reading import Budget, OpenInput
from wireyard.cli.selection import Request, Selection
from wireyard.formats import Format
from wireyard.streams.batches import BlockReader
from wireyard.streams.growth import Grown
from wireyard.streams.scan import load_fast_path

__all__ = ["LiveReading", "flush_output", "stopping"]

_MOST_FAULTY = 256
"""Streams whose faults are counted before they are printed."""


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Return a flag that is set when Ctrl-C is pressed, or the process is asked to end.

    The first time ends reading, so that what was read is written; the second time is as ever.
    """
    asked = threading.Event()
    kept: list[tuple[signal.Signals, signal.Handlers | Callable[..., object] | int | None]] = []

    def restore() -> None:
        while kept:
            signal.signal(*kept.pop())

    def ask(_number: int, _frame: FrameType | None) -> None:
        asked.set()
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            kept.append((number, signal.signal(number, ask)))
    try:
        yield asked.is_set
    finally:
        restore()


@dataclass
class LiveReading:
    """One input that is followed, as inputs for the writers of a command.

    Parameters
    ----------
    flush
        Called before reading waits: whoever looks sees all rows there are.
    tables
        Whether columns are written, which there are even without a row.
    one_format
        Whether all rows have to be of the first format, as in one table of columns.
    """

    following: Following
    named: Format | None
    request: Request
    budget: Budget
    shows_progress: bool
    flush: Callable[[], None]
    tables: bool
    one_format: bool
    status: int = field(default=exits.DONE)

    def readings(self) -> Iterator[OpenInput]:
        """Yield streams of one format that can be read on, again and again; then print the rest."""
        faults: defaultdict[str, Faults] = defaultdict(Faults)
        progress = Progress(self.following.name, None, self.shows_progress)
        readers: list[BlockReader] = []
        selections: dict[str, Selection] = {}
        others: dict[str, set[str]] = defaultdict(set)
        size = 0
        for turn in self.following.turns():
            if not turn:
                self.flush()
            for format, some in _by_format(turn):
                grown = list(some)
                if self.one_format and selections and format.label not in selections:
                    others[format.name].update(one.opened.stream for one in grown)
                    continue
                selection = selections.get(format.label)
                if selection is None:
                    selection = Selection(format, self.request, self.following.captured)
                    selections[format.label] = selection
                size += sum(one.opened.bytes_ahead for one in grown)
                load_fast_path(format, size)  # from when on it is worth it
                opened = [one.opened for one in grown]
                framers = {id(one.opened): one.framer for one in grown}
                yield OpenInput(opened, selection, self.budget, progress, faults, framers, readers)
                if self.budget.spent:
                    break
            if self.budget.spent:
                break
            if len(faults) > _MOST_FAULTY:
                self._tell_faults(faults)
        if self.tables and self.named is not None and not selections:
            selection = Selection(self.named, self.request, self.following.captured)
            yield OpenInput([], selection, self.budget, progress, faults, {}, readers)
        progress.end()
        self._tell_faults(faults)
        for name, streams in others.items():
            exits.note(
                f"{self.following.name}: {len(streams)} streams of {name} are not in a table"
                f" of {next(iter(selections))}; --format {name} writes them"
            )
            self.status = exits.DATA_LOST
        self._tell_rest()

    def _tell_faults(self, faults: defaultdict[str, Faults]) -> None:
        """Say what was wrong with streams so far, and count anew."""
        for stream, found in faults.items():
            if found:
                of_stream = f" {stream}" if self.following.captured else ""
                exits.note(f"{self.following.name}{of_stream}: {found.text()}")
                self.status = exits.DATA_LOST
        faults.clear()

    def _tell_rest(self) -> None:
        found = self.following.summary()
        for note in (*found.notes, *found.closed):
            exits.note(f"{found.name}: {note}")
        for problem in (found.unread, found.damage):
            if problem:
                exits.note(f"{found.name}: {problem}")
                self.status = exits.DATA_LOST


def _by_format(turn: Sequence[Grown]) -> Iterator[tuple[Format, Iterator[Grown]]]:
    """Yield the streams of a turn by their formats, those of one in their order."""
    ordered = sorted(turn, key=lambda one: one.format.label)
    for _, some in groupby(ordered, key=lambda one: one.format.label):
        together = list(some)
        yield together[0].format, iter(together)


def flush_output() -> None:
    """Write out what standard output has in its buffers."""
    sys.stdout.flush()
    sys.stdout.buffer.flush()
