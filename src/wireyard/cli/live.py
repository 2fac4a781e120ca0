"""Live inputs: a command reads them while they are written, until they end or Ctrl-C."""

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

from wireyard.captures.live.following import Following
from wireyard.cli import exits
from wireyard.cli.decoding.faults import Faults
from wireyard.cli.decoding.reading import Budget, OpenInput
from wireyard.cli.decoding.selection import Request, Selection
from wireyard.cli.progress import Progress
from wireyard.formats import Format
from wireyard.streams.batches import BlockReader
from wireyard.streams.growth import Grown
from wireyard.streams.scan import load_fast_path

__all__ = ["LiveReading", "flush_output", "stopping"]

_MOST_FAULTY = 256
"""Number of streams with faults from which on faults are printed."""


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Return a function that returns whether Ctrl-C was pressed, or SIGTERM received.

    The first signal ends reading, so that everything read is written; a second one acts as usual.
    """
    stopped = threading.Event()
    kept: list[tuple[signal.Signals, signal.Handlers | Callable[..., object] | int | None]] = []

    def restore() -> None:
        while kept:
            signal.signal(*kept.pop())

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            kept.append((number, signal.signal(number, stop)))
    try:
        yield stopped.is_set
    finally:
        restore()


@dataclass
class LiveReading:
    """A followed input, as a sequence of inputs for the writers of a command.

    Parameters
    ----------
    flush
        Called before reading waits, so that all rows are visible by then.
    tables
        Whether the output has columns, which are written even if there are no rows.
    one_format
        Whether all rows must have the format of the first, as in one table.
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
        """Yield grown streams of one format, turn by turn; at the end print faults and notes."""
        faults: defaultdict[str, Faults] = defaultdict(Faults)
        progress = Progress(self.following.name, None, self.shows_progress)
        readers: list[BlockReader] = []
        selections: dict[str, Selection] = {}
        others: dict[str, set[str]] = defaultdict(set)
        size = 0
        for turn in self.following.turns():
            if not turn:
                self.flush()
            for format, grown in _by_format(turn):
                if self.one_format and selections and format.label not in selections:
                    others[format.name].update(one.opened.stream for one in grown)
                    continue
                selection = selections.get(format.label)
                if selection is None:
                    selection = Selection(format, self.request, self.following.captured)
                    selections[format.label] = selection
                size += sum(one.opened.bytes_ahead for one in grown)
                load_fast_path(format, size)  # loads kernels once the size pays for it
                opened = [one.opened for one in grown]
                framers = {id(one.opened): one.framer for one in grown}
                yield OpenInput(opened, selection, self.budget, progress, faults, framers, readers)
                if self.budget.spent:
                    break
            if self.budget.spent:
                break
            if len(faults) > _MOST_FAULTY:
                self._print_faults(faults)
        if self.tables and self.named is not None and not selections:
            selection = Selection(self.named, self.request, self.following.captured)
            yield OpenInput([], selection, self.budget, progress, faults, {}, readers)
        progress.end()
        self._print_faults(faults)
        for name, streams in others.items():
            exits.note(
                f"{self.following.name}: {len(streams)} streams of {name} are not in a table"
                f" of {next(iter(selections))}; --format {name} writes them"
            )
            self.status = exits.DATA_LOST
        self._print_notes()

    def _print_faults(self, faults: defaultdict[str, Faults]) -> None:
        """Print the faults of streams so far, and reset their counts."""
        for stream, of_this in faults.items():
            if of_this:
                of_stream = f" {stream}" if self.following.captured else ""
                exits.note(f"{self.following.name}{of_stream}: {of_this.text()}")
                self.status = exits.DATA_LOST
        faults.clear()

    def _print_notes(self) -> None:
        summary = self.following.summary()
        for note in (*summary.notes, *summary.closed):
            exits.note(f"{summary.name}: {note}")
        for problem in (summary.unread, summary.damage):
            if problem:
                exits.note(f"{summary.name}: {problem}")
                self.status = exits.DATA_LOST


def _by_format(turn: Sequence[Grown]) -> Iterator[tuple[Format, list[Grown]]]:
    """Yield the streams of a turn grouped by format, in their order."""
    ordered = sorted(turn, key=lambda grown: grown.format.label)
    for _, same_format in groupby(ordered, key=lambda grown: grown.format.label):
        streams = list(same_format)
        yield streams[0].format, streams


def flush_output() -> None:
    """Flush the buffers of standard output."""
    sys.stdout.flush()
    sys.stdout.buffer.flush()
