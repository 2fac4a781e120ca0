"""Tasks that run a stage of a layer: record batches in, files out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireyard.lake.ledgers import LedgerSum
from wireyard.lake.records import Input
from wireyard.layers.facts import facts_of
from wireyard.layers.stages import Dropped, Fact, Found, KeyedRecord, Stage
from wireyard.layers.tables import fact_table, with_times
from wireyard.pipeline.exchange import Blob, PartInput, Passed, read_tables
from wireyard.pipeline.facts.keyed import order_bytes, run_rows, stages_of, values_of
from wireyard.pipeline.facts.tasks import FactFile, Output, groups_of

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
ORDERS = st.tuples(NUMBERS, st.text("a\0\xff\U0001f600\udc80", max_size=3), NUMBERS)


@given(ORDERS, ORDERS)
def test_orders_compare_as_their_bytes_do(one: Any, other: Any) -> None:
    assert (order_bytes(one) < order_bytes(other)) == (one < other)
    assert (order_bytes(one) == order_bytes(other)) == (one == other)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -(1 << 63), (1 << 63) - 1], pa.int64()),
        ([1, 2, 3], pa.int32()),
        ([True, None, False], pa.bool_()),
        (["a", None, "", "ä\0b"], pa.string()),
        ([b"", None, b"\0\xff"], pa.binary()),
        ([None, None], pa.string()),
        ([["a"], None, []], pa.list_(pa.string())),
        ([{"a": {"x": "1"}}, None, {}], pa.map_(pa.string(), pa.struct([("x", pa.string())]))),
    ],
)
def test_values_are_those_of_arrow(values: list[Any], kind: pa.DataType) -> None:
    given = [value and list(value.items()) if pa.types.is_map(kind) else value for value in values]
    column = pa.array(given, kind)
    for start, stop in ((0, len(values)), (1, len(values))):
        found = list(values_of(column.slice(start, stop - start)))
        assert found == values[start:stop]
        assert [type(one) for one in found] == [type(one) for one in values[start:stop]]


def follow(records: Iterator[dict[str, Any]]) -> Iterator[Found]:
    for number, row in enumerate(records):
        yield Fact("sessions", {"client": row["name"], "packets": number, "opened_ns": 1999,
                                "source": row["key"]})  # fmt: skip
        yield KeyedRecord("later", (row["key"],), (-number,), [row["name"]])
        yield Dropped("MAX_NAMES", 2)


def take(records: Iterator[list[str]]) -> Iterator[Found]:
    yield Fact("violations", {"text": " ".join(name for (name,) in records), "source": "s"})


STAGES: dict[str, Stage] = {"first": follow, "later": take}


def run(batches: list[pa.RecordBatch], staging: Path) -> list[Any]:
    inbox = {"rows": [Passed(0, [pa.Table.from_batches([batch])]) for batch in batches]}
    given = PartInput(0, inbox)
    return list(run_rows(given, "rows", "first", STAGES, 2, Output(str(staging), {}, {})))


def test_facts_and_records_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireyard.pipeline.facts.keyed.BATCH_ROWS", 2)
    for name in ("sessions", "violations"):
        (tmp_path / name).mkdir()
    rows = [
        {"key": key, "name": f"{key}{place}", "offset": place}
        for key in "ba"
        for place in (2, 0, 1)
    ]
    # A key may go on in the next batch.
    batches = [pa.RecordBatch.from_pylist(rows[:2]), pa.RecordBatch.from_pylist(rows[2:])]
    outputs = run(batches, tmp_path)
    blobs = [output for output in outputs if isinstance(output, Blob)]
    fact, dropped = (output for output in outputs if not isinstance(output, Blob))
    assert (fact.table, fact.sources) == ("sessions", ("a", "b"))
    assert dropped == Dropped("MAX_NAMES", 12)
    sessions = pq.read_table(tmp_path / "sessions" / fact.name)
    assert sessions["client"].to_pylist() == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert sessions["packets"].to_pylist() == [0, 1, 2] * 2
    assert sessions["opened_at"].cast(pa.int64()).to_pylist() == [1] * 6
    assert sessions.schema.names == with_times("sessions", fact_table("sessions", ())).schema.names
    assert {blob.name for blob in blobs} == {"later"}
    ((names, parts, work),) = stages_of({"later": take}, 2, Output(str(tmp_path), {}, {}))
    assert (names, parts) == (["later"], 2)
    found = list[str]()
    for part in sorted({blob.part for blob in blobs}):
        passed = [Passed(0, read_tables(blob.data)) for blob in blobs if blob.part == part]
        (made,) = work(PartInput(part, {"later": passed}))
        assert isinstance(made, FactFile) and made.table == "violations"
        violations = pq.read_table(tmp_path / "violations" / made.name)
        found += violations["text"].to_pylist()
    assert sorted(found) == ["a2 a1 a0", "b2 b1 b0"]


def test_nothing_leaves_no_file(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.string()), ("name", pa.string()), ("offset", pa.int64())])
    assert run([pa.RecordBatch.from_pylist([], schema)], tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_text_that_arrow_cannot_have_is_spelled_out() -> None:
    batch = fact_table("sessions", [{"client": "a\udc80"}, {"client": None}, {"user": "ä"}])
    assert batch["client"].to_pylist() == ["a\\udc80", None, None]
    assert batch["user"].to_pylist() == [None, None, "ä"]


# --- groups of inputs -----------------------------------------------------------------------


def input_of(source: str, ledger: dict[str, int], **files: list[str]) -> Input:
    sums = {format: LedgerSum(packets_ok=count) for format, count in ledger.items()}
    return Input(source, None, {}, sums, {**files, "streams": [f"of-{source}"]})


def test_inputs_are_grouped_by_the_files_that_they_share() -> None:
    """Files of different tables may have the same name; inputs may show the same JMS messages."""
    inputs = [
        input_of("a", {"mqtt": 1, "jmq": 10}, packets_mqtt=["x"], packets_jmq=["x"]),
        input_of("b", {"mqtt/5.0": 2}, packets_mqtt=["x", "y"]),
        input_of("c", {"mqtt": 4, "gpacket": 20}, packets_mqtt=["z"], packets_gpacket=["z"]),
    ]
    files = {
        "mqtt": [f"lake/packets_mqtt/{name}" for name in "zyx"],
        "jmq": ["lake/packets_jmq/x"],
        "gpacket": ["lake/packets_gpacket/z"],
    }
    streams = [f"lake/streams/of-{name}" for name in "abc"]
    found: dict[str, list[Any]] = {}
    for protocol in ("mqtt", "jms", "rmp"):
        facts = facts_of(protocol)
        assert facts is not None
        found[protocol] = [
            (
                {path: format for format, path in group.files},
                group.sources,
                group.packets,
                group.streams,
            )
            for group in groups_of(facts, files, inputs, streams)
        ]
    x, y, z = (f"lake/packets_mqtt/{name}" for name in "xyz")
    assert found["mqtt"] == [
        ({x: "mqtt", y: "mqtt"}, ("a", "b"), 3, tuple(streams[:2])),
        ({z: "mqtt"}, ("c",), 4, (streams[2],)),
    ]
    assert [(files, {*sources}, packets) for files, sources, packets, _ in found["jms"]] == [
        ({"lake/packets_jmq/x": "jmq", "lake/packets_gpacket/z": "gpacket"}, {"a", "c"}, 30)
    ]
    assert found["rmp"] == []
