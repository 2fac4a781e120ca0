from __future__ import annotations

from pathlib import Path

import click
import pytest

from tools import check_docs


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    return tmp_path


def test_a_link_leads_to_a_file_and_a_heading(root: Path) -> None:
    (root / "other.md").write_text("# The `same`\n\n# The same\n")
    page = root / "page.md"
    page.write_text(
        "# Here\n[a](other.md#the-same-1) [b](#here) [c](https://example.org/x)\n"
        "```\n[d](gone.md)\n```\n`[e](gone.md)` [f](other.md#the-same-2)\n"
        "[g](gone.md) [h](#there)\n"
    )
    assert list(check_docs.check_links([page])) == [
        "page.md:6: no such heading: other.md#the-same-2",
        "page.md:7: no such file: gone.md",
        "page.md:7: no such heading: #there",
    ]


@pytest.mark.parametrize(
    "parts", [("/ro", "ot/x"), ("/wo", "rk/x"), ("--index", "-url x"), ("py", "pi.org")]
)
def test_what_must_not_stand_in_a_file(root: Path, parts: tuple[str, str]) -> None:
    page = root / "page.txt"
    page.write_text(f"fine\n{''.join(parts)}\n~{parts[0]}\n")
    (found,) = check_docs.check_forbidden([page])
    assert found.startswith("page.txt:2: ")


def test_commands_are_found_at_every_depth() -> None:
    inner = click.Group("inner", commands=[click.Command("leaf"), click.Command("h", hidden=True)])
    outer = click.Group("outer", commands=[inner])
    found = check_docs.commands(outer, click.Context(outer, info_name="top"))
    assert [words for words, _ in found] == ["top inner", "top inner leaf"]
