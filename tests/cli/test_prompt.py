"""The prompt of ``wireyard sql``."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path
from subprocess import Popen

import pytest

from wireyard.cli.asking.sql import completions, prompt
from wireyard.errors import UsageError

CAPTURE = Path(__file__).resolve().parents[2] / "examples" / "traffic" / "shelf-c2b.mqtt"


def test_queries_end_with_a_semicolon_and_mistakes_do_not_end_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["SELECT a,", "b FROM t;", "", "oops;", "show tables", "FROM t", "", "not", "Ctrl-C"]
    given, ran = iter(typed), list[str]()

    def read(_prompt: str) -> str:
        line = next(given, None)
        if line is None:
            raise EOFError
        if line == "Ctrl-C":
            raise KeyboardInterrupt
        return line

    def run(query: str) -> None:
        ran.append(query)
        if query == "oops;":
            raise UsageError("there is no such thing")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("builtins.input", read)
    prompt(["t"], lambda _table: ["a"], run)
    assert ran == ["SELECT a,\nb FROM t;", "oops;", "show tables", "FROM t"]
    assert capsys.readouterr().err == "wireyard: there is no such thing\n"
    assert (tmp_path / "wireyard" / "sql_history").stat().st_mode & 0o77 == 0


def test_tables_and_columns_are_completed() -> None:
    names = ["messages", "deliveries", "offset", "message_key"]
    assert completions("mess", names) == ["message_key", "messages"]
    assert completions("off", names) == ['"offset"']
    assert completions("gr", names) == ["GROUP BY"]


def test_a_terminal_has_the_prompt(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    words = [sys.executable, "-m", "wireyard", "sql", str(CAPTURE)]
    with Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        os.write(ours, b"SELECT count(*) AS packets FROM packets_mqtt;\nexit\n")
        shown = b""
        try:
            while data := os.read(ours, 4096):
                shown += data
        except OSError:  # the other end is closed
            pass
        assert process.wait(60) == 0
    os.close(ours)
    assert b"packets\r\n" in shown and b"     40" in shown
