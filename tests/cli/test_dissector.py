"""`wireyard dissector`: a script on standard output or in a file."""

from __future__ import annotations

from pathlib import Path

from tests.cli.results import Run
from wireyard.cli import exits
from wireyard.dissector import lua_script


def test_all_dissectors_are_one_script(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "wireyard.lua"
    result = run("dissector", "-w", target)
    assert (result.exit_code, result.stdout, result.stderr) == (exits.DONE, "", "")
    assert target.read_text() == run("dissector").stdout == lua_script()


def test_formats_are_chosen_by_name(run: Run) -> None:
    result = run("dissector", "rmp", "jmq")
    assert result.stdout == lua_script(["rmp", "jmq"])
    assert result.stdout.splitlines()[0].startswith("-- Wireshark dissectors for rmp, jmq, made by")


def test_a_format_without_one_is_a_mistake_of_the_user(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "wireyard.lua"
    result = run("dissector", "-w", target, "mqtt")
    assert result.exit_code == exits.USAGE
    assert "jmq, gpacket, rmp" in result.stderr
    assert not target.exists()
