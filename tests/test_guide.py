"""What pages show of commands is what the commands print: every block that begins with ``$``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from wireyard.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
BLOCK = re.compile(r"^```\w*\n\$ (.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = [(page.name, block) for page in PAGES for block in BLOCK.findall(page.read_text())]
CUT = "...\n"
"""A line that stands for any number of lines."""


def split(block: str) -> tuple[list[str], str]:
    """Return the words of a command, which goes on until its quotes are closed, and its output."""
    lines = block.splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        try:
            return shlex.split("".join(lines[:count])), "".join(lines[count:])
        except ValueError:
            continue
    raise AssertionError(f"no command: {block}")


@pytest.mark.parametrize(("page", "block"), SHOWN, ids=[block[:60] for _, block in SHOWN])
def test_a_page_shows_what_the_command_prints(
    page: str, block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program, *words), output = split(block)
    assert program == "wireyard", page
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(main, words, prog_name="wireyard", catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    pattern = ".*".join(map(re.escape, output.split(CUT)))
    assert re.fullmatch(pattern, done.stdout, re.DOTALL), done.stdout
