"""What others can check of this project: its bill of materials, and advisories about the lock."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tools import sbom

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text()


def test_the_bill_of_materials_has_every_locked_package_and_hash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sbom.main() == 0
    bill = json.loads(capsys.readouterr().out)
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "wireyard")
    shown = [f"{each['name']}=={each['version']}" for each in bill["components"]]
    assert shown == re.findall(r"^([^\s#].*==\S+)", LOCK, re.M)
    hashes = [
        one["content"]
        for each in bill["components"]
        for reference in each["externalReferences"]
        for one in reference["hashes"]
    ]
    assert hashes == re.findall(r"sha256:([0-9a-f]{64})", LOCK)


def test_without_an_index_advisories_are_skipped_with_the_reason() -> None:
    done = subprocess.run(
        [ROOT / "tools" / "advisories"],
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "advisories: not checked: pip-audit cannot be installed\n"
