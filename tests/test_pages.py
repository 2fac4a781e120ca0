"""The examples of the pages about packets, and of the modules behind them, run as printed."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MODULES = (
    "wireyard.gpacket",
    "wireyard.jmq",
    "wireyard.mqtt",
    "wireyard.rmp",
    "wireyard.formats.jmq.sender",
)


@pytest.mark.parametrize("name", ["packets.md", "jms-message.md", "router-view.md"])
def test_examples_of_a_page_print_what_it_says(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")
    # All blocks are one session; a line between them keeps their outputs apart.
    session = "\n".join(BLOCK.findall(text))
    test = doctest.DocTestParser().get_doctest(session, {}, name, name, 0)
    assert len(test.examples) == text.count("\n>>> ") > 0
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_print_what_it_says(name: str) -> None:
    found = doctest.testmod(import_module(name))
    assert found.attempted > 0 and not found.failed


def test_readme_leads_to_the_page_and_the_page_to_the_others() -> None:
    assert "(docs/packets.md)" in (DOCS.parent / "README.md").read_text("utf-8")
    page = (DOCS / "packets.md").read_text("utf-8")
    assert "(jms-message.md)" in page and "(router-view.md)" in page
