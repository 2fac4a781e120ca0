"""The progress line of ``wireyard run --follow`` on standard error, and its last line."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest

from wireyard.cli.follow import FollowLine
from wireyard.pipeline.growing.following import Progress

_ONE = Progress(files=1, batches=1, inputs=1, read_bytes=221_000, lag_s=2.4)
_TWO = replace(_ONE, files=2, batches=2, inputs=2, read_bytes=442_000)
_FIRST = "1 file; 1 read in 1 commit (221 kB); the last commit 2.4 s behind its files"
_LAST = "2 files; 2 read in 2 commits (442 kB); the last commit 2.4 s behind its files"


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_ends_with_what_was_read_last() -> None:
    file = StringIO()
    line = FollowLine(quiet=False, file=file)
    for progress in (_ONE, _ONE, _TWO):
        line.progress(progress)
    line.end()
    assert file.getvalue().splitlines() == [_FIRST, _LAST]


def test_nothing_is_said_twice() -> None:
    file = StringIO()
    line = FollowLine(quiet=False, file=file)
    line.progress(_ONE)
    line.end()
    assert file.getvalue().splitlines() == [_FIRST]


def test_a_terminal_keeps_the_last_line() -> None:
    file = _Terminal()
    line = FollowLine(quiet=False, file=file)
    line.progress(_ONE)
    line.progress(_TWO)
    line.end()
    assert file.getvalue().split("\r")[-1] == f"{_LAST}\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_what_read_nothing_or_is_quiet_says_nothing(quiet: bool) -> None:
    file = StringIO()
    line = FollowLine(quiet=quiet, file=file)
    line.progress(_TWO if quiet else Progress())
    line.end()
    assert not file.getvalue()
