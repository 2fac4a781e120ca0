"""Inputs that grow while they are read: files, pipes, and interfaces of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryFile
from types import FrameType
from typing import TYPE_CHECKING, Final

from wireyard.captures.live.following import Following
from wireyard.cli import exits
from wireyard.cli.decoding.reading import OpenInput, StreamFaults
from wireyard.cli.decoding.selection import Selection
from wireyard.cli.progress import Progress
from wireyard.errors import SourceError
from wireyard.formats import Format
from wireyard.streams.blocks import by_format
from wireyard.streams.scan import load_fast_path
from wireyard.text import bytes_text, count_text

if TYPE_CHECKING:
    from wireyard.cli.decoding.job import Job


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

    `stop` returns whether the user has ended it.
    """

    job: Job
    following: Following
    named: Format | None
    stop: Callable[[], bool]

    def readings(self) -> Iterator[OpenInput]:
        """Yield grown streams of one format, turn by turn; at the end print faults and notes."""
        job, faults = self.job, StreamFaults()
        request, budget = job.request, job.budget
        shows_progress = job.shows_progress and job.before_waits is None
        progress = Progress(self.following.name, None, shows_progress)
        selections: dict[str, Selection] = {}
        others: dict[str, set[str]] = defaultdict(set)
        size = 0
        for turn in self.following.turns():
            if not turn:
                self._flush()
            for format, grown in by_format(turn):
                if job.one_format and selections and format.label not in selections:
                    others[format.name].update(one.opened.stream for one in grown)
                    continue
                selection = selections.get(format.label)
                if selection is None:
                    selection = Selection(format, request, self.following.captured)
                    selections[format.label] = selection
                size += sum(one.opened.bytes_ahead for one in grown)
                load_fast_path(format, size)  # loads kernels once the size pays for it
                opened = [one.opened for one in grown]
                framers = {id(one.opened): one.framer for one in grown}
                yield OpenInput(opened, selection, budget, progress, faults, framers)
                if budget.spent:
                    break
            if budget.spent:
                break
        if job.tables and self.named is not None and not selections:
            selection = Selection(self.named, request, self.following.captured)
            yield OpenInput([], selection, budget, progress, faults, {})
        progress.end()
        if self.stop() and size:
            rows = count_text(budget.taken, "row")
            exits.note(f"{rows} of {bytes_text(size)} read, until Ctrl-C")
        for line in faults.lines(self.following.name, captured=self.following.captured):
            exits.note(line)
            self.job.status = exits.DATA_LOST
        for name, streams in others.items():
            exits.note(
                f"{self.following.name}: {count_text(len(streams), 'stream')} of {name} left out of"
                f" the table of {next(iter(selections))}; --format {name} writes them"
            )
            self.job.status = exits.DATA_LOST
        self._print_notes(any_read=bool(selections))

    def _flush(self) -> None:
        """Make all rows visible before reading waits."""
        if self.job.before_waits is not None:
            self.job.before_waits()
        sys.stdout.flush()
        sys.stdout.buffer.flush()

    def _print_notes(self, *, any_read: bool) -> None:
        summary = self.following.summary()
        lost = (summary.unread, summary.damage)
        exits.notes_on(summary.name, (*summary.notes, *summary.closed, *lost))
        if summary.is_lossy(any_read=any_read):
            self.job.status = exits.DATA_LOST


_PATIENCE_S: Final = 5
_STDIN: Final = 0


@contextmanager
def capturing(interface: str, filter: str | None) -> Iterator[None]:
    """Let standard input be what is captured of an interface, in pcapng or pcap.

    `filter` is a capture filter of libpcap, such as ``port 1883``; None for all packets. A
    `SourceError` is raised if there is no program to capture with, or it may not capture.
    """
    words = _program(interface, filter)
    with TemporaryFile() as said, Popen(words, stdout=PIPE, stderr=said) as process:
        assert process.stdout is not None
        os.dup2(process.stdout.fileno(), _STDIN)
        try:
            yield
        except SourceError:
            with suppress(TimeoutExpired):  # it was no fault of the program
                process.wait(_PATIENCE_S)
            if process.returncode:
                said.seek(0)
                raise SourceError(f"-i {interface}: {_reason(words[0], said.read())}") from None
            raise
        finally:
            process.terminate()


def _program(interface: str, filter: str | None) -> Sequence[str]:
    """Return the command that writes a capture to standard output."""
    if shutil.which("dumpcap"):
        return ["dumpcap", "-q", "-i", interface, "-w", "-", *(["-f", filter] if filter else [])]
    if shutil.which("tcpdump"):
        words = ["tcpdump", "--immediate-mode", "-U", "-i", interface, "-w", "-"]
        return [*words, *([filter] if filter else [])]
    raise SourceError(f"-i {interface}: needs dumpcap, of Wireshark, or tcpdump; neither is here")


def _reason(program: str, said: bytes) -> str:
    """Return why a program failed, in its own words."""
    text = said.decode(errors="replace")
    lines = [line.removeprefix(f"{program}: ").strip() for line in text.splitlines()]
    reasons = [
        line for line in lines if line and not line.startswith(("Capturing on", "Running as"))
    ]
    return f"{program}: {reasons[0] if reasons else 'cannot capture'}"
