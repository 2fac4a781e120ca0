"""Man pages: one for each command, with all of its help."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.man_pages import main, pages
from wireyard.cli import COMMANDS


def test_every_command_has_a_page() -> None:
    found = dict(pages())
    assert {f"wireyard-{name}" for name in COMMANDS} | {"wireyard"} <= {*found}
    page = found["wireyard-decode"]
    assert page.startswith('.TH "WIREYARD-DECODE" "1"')
    for part in (r"\-w, \-o, \-\-write", ".SH EXAMPLES", r"wireyard decode \-i lo", ".nf"):
        assert part in page
    assert "\b" not in page and not any(line.startswith("'") for line in page.splitlines())


def test_pages_are_what_groff_reads(tmp_path: Path) -> None:
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    main(str(tmp_path))
    files = sorted(tmp_path.glob("man1/*.1"))
    for file in files:
        words = ["groff", "-man", "-ww", "-Tutf8", str(file)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        assert "DESCRIPTION" in re.sub(".\b", "", done.stdout)  # bold is printed twice
