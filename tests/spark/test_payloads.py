"""Payloads opened by rule, in the lake and in the data source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner

import wireyard
from tests.spark.lakes import run, table
from wireyard import mqtt, payloads
from wireyard.answers import open_tables
from wireyard.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = [
    ("plant/1", b'{"celsius": 21.5}'),
    ("plant/2", b"empty"),
    ("office/1", b"55.49"),
    ("plant/3", b"[1, null]"),
    ("plant/4", b'"\\ud800"'),
]
RULES = ("plant/#=json", "office/+=text")


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "p.mqtt"
    path.parent.mkdir()
    said = [mqtt.Publish(topic=topic, payload=data) for topic, data in MESSAGES]
    path.write_bytes(b"".join(map(wireyard.encode, [mqtt.Connect(client_id="c"), *said])))
    (path.parent / "q.mqtt").write_bytes(b"".join(map(wireyard.encode, [mqtt.Connect()])))
    return path


def test_a_lake_has_what_payloads_carry(stream: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    given = [word for rule in RULES for word in ("--payload", rule)]
    words = ["run", str(stream.parent), "--lake", str(lake), "-q", "--engine", "process", *given]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    with open_tables([str(lake)]) as tables:
        rows = tables.sql(
            "SELECT p.destination, p.decoder, p.error, p.value, m.body FROM payloads p"
            ' JOIN messages m USING (source, stream, "offset") ORDER BY p."offset"'
        ).to_pylist()
    assert [(row["destination"], row["body"]) for row in rows] == MESSAGES
    assert [row["decoder"] for row in rows] == ["json", "json", "text", "json", "json"]
    values = [row["value"] and json.loads(row["value"]) for row in rows]
    assert values == [{"celsius": 21.5}, None, "55.49", [1, None], None]
    assert [row["error"] is None for row in rows] == [True, False, True, True, False]


def test_a_lake_without_rules_has_no_such_table(stream: Path, tmp_path: Path) -> None:
    run(tmp_path / "lake", None, stream)
    assert not (tmp_path / "lake" / "payloads").exists()


def test_rows_of_an_input_that_changed_are_replaced(stream: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for count in (2, 4):
        said = [mqtt.Publish(topic=topic, payload=data) for topic, data in MESSAGES[:count]]
        stream.write_bytes(b"".join(map(wireyard.encode, [mqtt.Connect(client_id="c"), *said])))
        run(lake, None, stream, payload=RULES)
        assert table(lake, "payloads").num_rows == count


def test_a_wrong_rule_is_named_before_anything_is_read(stream: Path, tmp_path: Path) -> None:
    words = ["run", str(stream), "--lake", str(tmp_path / "lake"), "--payload", "plant/#=nothing"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and "nothing" in done.output
    assert not (tmp_path / "lake").exists()


def test_the_data_source_opens_payloads(spark: SparkSession, stream: Path) -> None:
    reader = spark.read.format("wireyard").option("protocol", "mqtt")
    rows = reader.option("payload", "\n".join(RULES)).load(str(stream))
    found = rows.where("topic is not null").select("topic", "payload_decoder", "payload_json")
    expected = wireyard.read(stream, "mqtt", payload=RULES)
    names = ["topic", "payload_decoder", "payload_json"]
    wanted = expected.filter(expected["topic"].is_valid()).select(names)
    assert found.toArrow().to_pylist() == wanted.to_pylist()
    with pytest.raises(Exception, match="is not FILTER=DECODER"):
        reader.option("payload", "plant").load(str(stream)).count()


def test_the_data_source_has_typed_columns(
    spark: SparkSession, stream: Path, tmp_path: Path
) -> None:
    schema = tmp_path / "reading.avsc"
    fields = [{"name": "celsius", "type": "double"}, {"name": "unit", "type": "string"}]
    schema.write_text(json.dumps({"type": "record", "name": "Reading", "fields": fields}))
    fastavro = pytest.importorskip("fastavro")
    data = tmp_path / "value"
    with data.open("wb") as file:
        fastavro.schemaless_writer(
            file, fastavro.parse_schema(json.loads(schema.read_text())),
            {"celsius": 21.5, "unit": "C"},
        )  # fmt: skip
    said = [mqtt.Connect(client_id="c"), mqtt.Publish(topic="t", payload=data.read_bytes())]
    stream.write_bytes(b"".join(map(wireyard.encode, said)))
    rows = (
        spark.read.format("wireyard")
        .option("protocol", "mqtt")
        .option("columns", "offset,status")
        .option("payload", f"t=avro:{schema}")
        .load(str(stream))
    )
    assert rows.select("payload_reading.celsius").where("celsius is not null").collect() == [
        (21.5,)
    ]


def test_values_with_a_schema_are_json_in_the_lake(stream: Path, tmp_path: Path) -> None:
    kind = pa.struct({"bytes": pa.int64()})
    payloads.register("test_size", lambda data, _: {"bytes": len(data)}, kind)
    run(tmp_path / "lake", None, stream, payload=("plant/1=test_size",))
    (row,) = table(tmp_path / "lake", "payloads").to_pylist()
    assert (row["destination"], row["value"]) == ("plant/1", '{"bytes":17}')
