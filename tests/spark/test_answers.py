"""Tables made of inputs without Spark: those of the lake that a run makes of them, row for row."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tests.spark import lakes
from wireyard.answers import open_tables
from wireyard.answers.tables import is_lake
from wireyard.errors import UsageError
from wireyard.lake.writer import Lake
from wireyard.layers.tables import TABLES as FACTS
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake

EXAMPLES = Path(__file__).parents[2] / "examples"
INPUTS = (
    "traffic.pcap", "ring.pcap", "store/fs370", "traffic/shop-b2c.jmq", "traffic/shop-c2b.jmq",
    "traffic/shelf-c2b.mqtt",
)  # fmt: skip
DECODE_AS = ("udp.port==7078,rmp",)
TABLES = ("ledger", "streams", "packets_jmq", "packets_mqtt", "packets_rmp", *FACTS)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lakes") / "lake"
    bad = folder.parent / "bad.jmq"
    bad.write_bytes(lakes.HELLO + b"no packet" + lakes.HELLO[:-1])
    lakes.run(folder, None, bad, *(EXAMPLES / name for name in INPUTS), decode_as=DECODE_AS)
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


def test_a_lake_in_a_store_answers_like_one_on_a_disk(
    s3: Path, tmp_path: Path, examples: Path
) -> None:
    found = list_inputs([str(examples / "traffic.pcap")]).inputs
    urls = (str(tmp_path / "lake"), f"s3://bucket/{uuid4().hex}")
    for url in urls:
        with Lake.open(url) as lake:
            fill_lake(lake, found, None, lakes.Silent())
    assert not is_lake("s3://bucket/nothing-there")
    with open_tables(urls[:1]) as ours, open_tables(urls[1:]) as theirs:
        assert theirs.lake and theirs.names == ours.names
        for name in (*TABLES, "quarantine", "store_records"):
            expected, remote = (each.sql(f"FROM {name}") for each in (ours, theirs))
            assert remote.schema.equals(expected.schema), name
            rows = (sorted(map(str, each.to_pylist())) for each in (expected, remote))
            assert next(rows) == next(rows), name
        with pytest.raises(UsageError, match="disabled"):
            theirs.sql("FROM read_csv('/etc/passwd')")
