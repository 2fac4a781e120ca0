"""Lines about progress: only on a terminal, only if it takes long, and within its width."""

from __future__ import annotations

import io
import time

import pytest

from wireyard.cli import progress
from wireyard.cli.follow import progress_text
from wireyard.cli.progress import Waiting
from wireyard.pipeline.growing.following import Progress


class Terminal(io.StringIO):
    """A terminal that keeps what it is sent."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return what was shown in its one line, one after the other."""
        return [line for line in self.getvalue().split("\r") if line]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "_EVERY_S", 0.001)
    monkeypatch.setenv("COLUMNS", "30")


def wait_for(terminal: Terminal, text: str) -> None:
    until = time.monotonic() + 30
    while text not in terminal.getvalue():
        assert time.monotonic() < until, terminal.getvalue()
        time.sleep(0.001)


def test_a_line_that_fits_and_goes_away() -> None:
    terminal = Terminal()
    with Waiting(terminal) as waiting:
        waiting.stage("reading " + "x" * 90)
        wait_for(terminal, "reading")
        waiting.stage("deriving")
        waiting.at(1, 2)
        wait_for(terminal, "deriving 50 %, 0 s")
        waiting.stage("")
        shown = len(terminal.getvalue())
        time.sleep(0.02)
        assert len(terminal.getvalue()) == shown
    assert max(map(len, terminal.lines())) == 29
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith(" \r")


def test_nothing_is_shown_elsewhere() -> None:
    file = io.StringIO()
    with Waiting(file) as waiting:
        waiting.stage("reading")
        time.sleep(0.02)
    assert file.getvalue() == ""


def test_what_is_short_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PATIENCE_S", 60.0)
    terminal = Terminal()
    with Waiting(terminal) as waiting:
        waiting.stage("reading")
        time.sleep(0.02)
    assert terminal.getvalue() == ""


def test_the_line_of_a_followed_lake_has_the_right_words() -> None:
    said = progress_text(Progress(files=2, waiting=1, waiting_bytes=5, batches=1, inputs=1))
    assert "; 1 waits (5 B)" in said
    assert "; 2 wait (5 B)" in progress_text(Progress(files=2, waiting=2, waiting_bytes=5))
