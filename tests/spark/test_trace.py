"""``wireyard trace`` and ``slow`` of a lake: the text that they make of the capture itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.spark import lakes
from wireyard.cli import main

CAPTURE = Path(__file__).parents[2] / "examples" / "traffic.pcap"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers") / "lake"
    lakes.run(folder, None, CAPTURE)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["trace", "shop.orders", "--hops", "--all", "--limit", "99"],
        ["trace", "shop/#", "--all", "--limit", "99"],
        ["trace", "shop.orders", "--verdict", "rolled_back"],
        ["slow"],
        ["slow", "--out", "jsonl"],
    ],
    ids=" ".join,
)
def test_a_lake_gives_what_its_capture_gives(lake: Path, words: list[str]) -> None:
    command, *rest = words
    run = CliRunner().invoke
    of_lake = run(main, [command, str(lake), *rest], prog_name="wireyard")
    of_capture = run(main, [command, str(CAPTURE), *rest], prog_name="wireyard")
    assert of_lake.exit_code == of_capture.exit_code == 0
    assert of_lake.stdout == of_capture.stdout
    assert len(of_lake.stdout) > 500


def test_a_lake_has_the_table_of_latencies(lake: Path) -> None:
    from wireyard.answers import open_tables

    with open_tables([str(lake)]) as theirs, open_tables([str(CAPTURE)]) as ours:
        expected, found = (each.sql("FROM latencies") for each in (ours, theirs))
        assert found.schema.equals(expected.schema)
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))
    assert lakes.table(lake, "latencies").num_rows == found.num_rows > 100
