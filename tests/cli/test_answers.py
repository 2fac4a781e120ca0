"""Commands that answer from tables: what was lost or not read shows in their exit status."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import wireyard
from tests.captures.make import one_way, pcap
from tests.captures.test_live import connect, publish
from tests.cli.results import Run
from wireyard import mqtt
from wireyard.answers.why import _command
from wireyard.cli import main
from wireyard.cli.asking.answers import shown_inputs
from wireyard.layers.symptoms import TRACE
from wireyard.text import printable

pytest.importorskip("duckdb")

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
COMMANDS = [
    ("why",),
    ("slow",),
    ("trace", "a/b"),
    ("sql", "SELECT 1 FROM packets_mqtt"),
    ("report", "-o", "-"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_capture_that_is_cut_inside_its_last_packet(
    command: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    name, *rest = command
    path = tmp_path / "capture"
    whole = one_way([(0, connect(1) + publish(20)), (51, publish(30))])
    path.write_bytes(whole)
    assert run(name, path, *rest).exit_code == 0
    path.write_bytes(whole[:-5])
    result = run(name, path, *rest)
    assert (result.exit_code, "not read" in result.stderr) == (1, True)
    assert result.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("data", [pcap([]), one_way([(0, b"SSH-2.0-x\r\n")], server=22)])
def test_a_capture_without_traffic_of_ours(
    data: bytes, command: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    name, *rest = command
    path = tmp_path / "capture"
    path.write_bytes(data)
    result = run(name, path, *rest)
    assert "nothing is stuck" not in result.stdout
    if name != "sql":
        assert result.exit_code == 1
        first = result.stderr.splitlines()[0]
        assert first == f"wireyard: {path}: no packet was read, so nothing is known"


@pytest.mark.parametrize(
    ("command", "asked", "near"),
    [
        ("trace", "a/bc", "a/b"),
        ("why", "client20", "client2"),
        ("trace", "x", None),
    ],
)
def test_a_name_that_is_not_there_suggests_one_that_is(
    command: str, asked: str, near: str | None, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "capture"
    sent = mqtt.Connect(client_id="client2"), mqtt.Publish(topic="a/b", payload=b"x")
    path.write_bytes(one_way([(0, b"".join(map(wireyard.encode, sent)))]))
    result = run(command, path, asked)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.endswith(f"; there is '{near}'\n") == (near is not None)


def test_a_report_is_written_by_either_option(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(one_way([(0, connect(1) + publish(20))]))
    for option in ("-w", "--write", "-o", "--output"):
        assert run("report", path, option, tmp_path / option).exit_code == 0
        assert (tmp_path / option).read_text().startswith("<!doctype html>")


@example("-x/y", "-i.pcap")
@example("--", "a b")
@example("a'\n$(x)\\ \"é\u200b", "it's\t")
@settings(max_examples=30, deadline=None)
@given(WORDS, WORDS)
def test_a_command_to_run_next_is_what_a_shell_reads(subject: str, path: str) -> None:
    words = {"party": subject, "client": None, "verdict": "expired"}
    shown = printable(_command(TRACE, words, shown_inputs([path])))
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {shown}"], capture_output=True, check=True
    ).stdout
    _, name, *given_words = printed.decode("utf-8", "surrogateescape").split("\0")[:-1]
    command = main.get_command(click.Context(main), name)
    assert command is not None
    context = command.make_context(name, given_words)
    assert (context.params["message"], context.params["verdict"]) == (subject, "expired")
    assert context.params["inputs"] == (f"./{path}" if path[0] == "-" != path else path,)
