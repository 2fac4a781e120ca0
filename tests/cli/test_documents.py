"""The generated documents: complete, and what the generator would write today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import generate_docs
from wireyard.cli import COMMANDS
from wireyard.formats import get_format
from wireyard.formats.jmq.layout import FLAGS, HEADERS, ITEMS, PACKET_TYPES
from wireyard.schema import pick_columns


def test_documents_are_up_to_date() -> None:
    # In a process of its own: click keeps the first help option that was made of a command.
    words = [sys.executable, generate_docs.__file__, "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_stale_document_is_noticed_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate_docs, "DOCS", tmp_path)
    assert generate_docs.main(["--check"]) == 1
    assert generate_docs.main([]) == 0
    assert generate_docs.main(["--check"]) == 0
    document = tmp_path / "cli.md"
    document.write_text(document.read_text().replace("--secrets", "--passwords"))
    capsys.readouterr()
    assert generate_docs.main(["--check"]) == 1
    assert capsys.readouterr().out.startswith("docs/cli.md is stale")


def test_every_command_is_described() -> None:
    text = (generate_docs.DOCS / "cli.md").read_text()
    assert all(f"## wireyard {name}\n" in text for name in COMMANDS)


def test_everything_in_the_layout_is_described() -> None:
    text = (generate_docs.DOCS / "formats" / "jmq.md").read_text()
    assert all(f"`{field.name}`" in text for layout in HEADERS.values() for field in layout.fields)
    assert all(f"| {item.code} | `{item.name}` |" in text for item in ITEMS.values())
    assert all(f"| {letter} | {bit:#06x} |" in text for letter, bit in FLAGS.items())
    assert all(f"| {code} | {name} |" in text for code, name in PACKET_TYPES.items())
    assert all(f"| `{c.name}` |" in text for c in pick_columns(get_format("jmq"), None))
