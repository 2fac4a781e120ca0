"""A protocol with facts is a module and a line: everything else goes through the registry."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from wireyard.answers import open_tables
from wireyard.cli import main
from wireyard.layers import facts
from wireyard.layers.facts import facts_of, registered
from wireyard.layers.tables import TABLES, all_tables

CAPTURE = str(Path(__file__).parents[2] / "examples" / "traffic.pcap")
COUNT = "SELECT sum(pings) AS n FROM pings"
EXPECTED = "SELECT count(*) AS n FROM packets_mqtt WHERE packet_type = 12 AND status = 'ok'"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_MODULES", [*facts._MODULES, "tests.toy.facts"])


def test_protocols_without_the_toy() -> None:
    assert [each.protocol for each in registered()] == ["mqtt", "jms", "rmp"]
    assert facts_of("toy") is None
    assert all_tables() == TABLES


@pytest.mark.usefixtures("toy")
def test_its_table_and_its_symptom_are_there() -> None:
    with open_tables([CAPTURE]) as tables:
        assert "pings" in tables.names
        wanted = tables.sql(EXPECTED)["n"][0].as_py()
        assert tables.sql(COUNT)["n"][0].as_py() == wanted > 0
    shown = CliRunner().invoke(main, ["why", "-v", CAPTURE], prog_name="wireyard").stdout
    assert "odd      pinged: " in shown


@pytest.mark.usefixtures("toy")
def test_it_is_in_a_lake_and_in_the_report(tmp_path: Path) -> None:
    lake, page = str(tmp_path / "lake"), tmp_path / "report.html"
    words = ["run", CAPTURE, "--lake", lake, "--engine", "process", "-q"]
    done = CliRunner().invoke(main, words, prog_name="wireyard", catch_exceptions=False)
    assert done.exit_code == 0
    with open_tables([lake]) as tables:
        assert tables.sql(COUNT)["n"][0].as_py() == tables.sql(EXPECTED)["n"][0].as_py()
    words = ["report", lake, "-o", str(page)]
    done = CliRunner().invoke(main, words, prog_name="wireyard", catch_exceptions=False)
    assert done.exit_code == 0
    assert "pinged" in page.read_text()
