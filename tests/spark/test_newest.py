"""While a capture grows, its newest messages are in the lake before all facts are made anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.spark import lakes
from tests.spark.lakes import HEADER_BYTES, no_session, records
from wireyard.layers.mqtt import newest
from wireyard.spark import growth as spark_growth
from wireyard.spark.growth import Growth
from wireyard.spark.inputs import list_inputs
from wireyard.spark.job import FEW_BYTES
from wireyard.spark.lake import Lake

CAPTURE = Path(__file__).resolve().parents[2] / "examples" / "traffic.pcap"
PARTS = 9
COLUMNS = "message_key", "consumer_client_id", "verdict", "delivered_frame"


@pytest.fixture(autouse=True)
def long_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few packets be many."""
    monkeypatch.setattr(spark_growth, "_MOMENT_S", 0.0)
    monkeypatch.setattr(spark_growth, "_WAITS_WITH_NEWEST", 1e6)
    monkeypatch.setattr(newest, "MAX_NEWEST", 64)


def of_mqtt(lake: Path, table: str, *columns: str) -> list[tuple[str, ...]]:
    """Return columns of rows, sorted."""
    found = lakes.rows(lake, table, "protocol", *columns)
    return [row[1:] for row in found if row[0] == "mqtt"]


@pytest.mark.parametrize("partition_by", [None, "day"])
def test_messages_are_there_before_all_facts_are(tmp_path: Path, partition_by: str | None) -> None:
    data = CAPTURE.read_bytes()
    frames = records(data)
    folder, root, whole = tmp_path / "in", tmp_path / "lake", tmp_path / "whole"
    folder.mkdir()
    path = folder / "grows.pcap"
    path.write_bytes(data[:HEADER_BYTES])
    name, times, rows = str(path), set[float](), list[int]()
    with Lake.open(str(root), partition_by=partition_by) as lake:
        growth = Growth(lake, no_session)
        for part in range(PARTS):
            first, stop = (len(frames) * number // PARTS for number in (part, part + 1))
            with path.open("ab") as file:
                file.write(b"".join(frames[first:stop]))
            if part:
                assert growth.look(name, [name])
            else:
                assert growth.begin(list_inputs([name]).inputs[0])
            growth.commit({name: growth.unread_bytes(name)}, ())
            times.add(growth._inputs[name].facts_at_s)
            shutil.rmtree(whole, ignore_errors=True)
            lakes.run(whole, None, path, few_bytes=FEW_BYTES)
            found, expected = ({*of_mqtt(one, "messages", "message_key")} for one in (root, whole))
            assert found <= expected
            # A resend of what is in the gap comes with all facts.
            assert len(expected - found) <= 1
            rows.append(len(found))
            for table in ("deliveries", "latencies"):
                found, expected = ({*of_mqtt(one, table, *COLUMNS)} for one in (root, whole))
                consumers = {row[:2] for row in expected}
                for row in found - expected:
                    assert row[2] == "undecided"
                    assert row[:2] in consumers
        growth.commit({name: 0}, {name})
        growth.close()
    lakes.assert_as_one_run(folder, root)
    assert len(times) == 1
    assert rows[-1] > 3 * rows[0]
