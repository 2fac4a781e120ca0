"""The generated documents: complete, and what the generator would write today."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

from tools import generate_docs
from wireyard.cli import COMMANDS
from wireyard.formats import get_format, names
from wireyard.formats.jmq.layout import FLAGS, HEADERS, ITEMS, PACKET_TYPES
from wireyard.formats.rows import pick_columns


def test_documents_are_up_to_date() -> None:
    # In a process of its own: click keeps the first help option that was made of a command.
    words = [sys.executable, "-m", "tools.generate_docs", "--check"]
    root = generate_docs.DOCS.parent
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
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


def page(name: str) -> str:
    return (generate_docs.DOCS / "formats" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", names())
def test_every_format_has_a_page_with_all_its_columns_and_dialects(name: str) -> None:
    format = get_format(name)
    assert all(f"| `{c.name}` |" in page(name) for c in pick_columns(format, None))
    for other, columns in format.inner.other_rows.items():
        section = page(name).partition(f"`{other}`\n")[2]
        assert all(f"| `{c.name}` |" in section for c in columns.values())
    assert all(
        f"| `{name}/{key}` | {one.doc} |" in page(name) for key, one in format.dialects.items()
    )


@pytest.mark.parametrize("name", names())
def test_every_public_table_of_a_layout_is_a_section_under_its_text(name: str) -> None:
    layout = import_module(f"wireyard.formats.{name}.layout")
    headings = re.findall(r"^## (.+)$", page(name), re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert "Packet types" in headings or "Layers" in headings
    for public, value in vars(layout).items():
        if public not in layout.__all__ or not isinstance(value, Mapping):
            continue
        # The names of ported packets are those of JMQ, which has them on its own page.
        text = page("jmq" if public.startswith("PORTED_") else name)
        for key, one in value.items():
            if isinstance(one, str):
                shown = f"`{key}`" if isinstance(key, str) else key  # a column, or a code
                assert f"| {shown} | {one} |" in text, public


def test_everything_in_the_layout_is_described() -> None:
    text = page("jmq")
    assert all(f"`{field.name}`" in text for layout in HEADERS.values() for field in layout.fields)
    assert all(f"| {item.code} | `{item.name}` |" in text for item in ITEMS.values())
    assert all(f"| {letter} | {bit:#06x} |" in text for letter, bit in FLAGS.items())
    assert all(f"| {code} | {name} |" in text for code, name in PACKET_TYPES.items())
    assert "| Z | 0x0400 | body compressed |" in text
    assert text.count("| 62 | 2 | `bit_flags` |") == 1  # one header for 200 and 301
    assert "Items by name" not in text


@pytest.mark.parametrize("name", names())
def test_a_page_is_markdown_without_loose_ends(name: str) -> None:
    lines = page(name).splitlines()
    assert lines.count("```") % 2 == 0
    assert not any(line.endswith("::") for line in lines)
    for before, line in itertools.pairwise(lines):
        assert (before, line) != ("", "")
        assert not line.startswith("| ") or before.startswith("|") or before == ""
