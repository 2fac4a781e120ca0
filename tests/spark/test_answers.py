"""Tables made of inputs without Spark: those of the lake that a run makes of them, row for row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark import lakes
from wireyard.answers import open_tables
from wireyard.layers.tables import FACTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
INPUTS = (
    "traffic.pcap", "ring.pcap", "store/fs370", "traffic/shop-b2c.jmq", "traffic/shop-c2b.jmq",
    "traffic/shelf-c2b.mqtt",
)  # fmt: skip
DECODE_AS = ("udp.port==7078,rmp",)
TABLES = ("ledger", "streams", "packets_jmq", "packets_mqtt", "packets_rmp", *FACTS)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    folder = tmp_path_factory.mktemp("lakes") / "lake"
    bad = folder.parent / "bad.jmq"
    bad.write_bytes(lakes.HELLO + b"no packet" + lakes.HELLO[:-1])
    lakes.run(folder, spark, bad, *(EXAMPLES / name for name in INPUTS), decode_as=DECODE_AS)
    return folder


def test_tables_are_those_of_a_lake(lake: Path) -> None:
    stored = sorted(path for path in (EXAMPLES / "store/fs370").rglob("*") if path.is_file())
    others = [EXAMPLES / name for name in INPUTS if "store" not in name]
    bad = lake.parent / "bad.jmq"
    with (
        open_tables([str(lake)]) as theirs,
        open_tables([str(path) for path in (bad, *others, *stored)], decode_as=DECODE_AS) as ours,
    ):
        for name in (*TABLES, "quarantine", "store_records"):
            expected, found = (each.sql(f"FROM {name}") for each in (theirs, ours))
            assert found.schema.equals(expected.schema), name
            assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist())), (
                name
            )
