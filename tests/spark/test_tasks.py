"""The tasks of the bronze stage, without Spark: what they write, count and say."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import wireyard
from tests.captures.connections import make_capture
from tests.captures.test_bundled import reading
from tests.make import item, items, packet, section, text
from tests.spark.lakes import uncaptured
from wireyard.captures.left_out import LeftOut
from wireyard.captures.quarantine import QUARANTINE
from wireyard.captures.records import Placed
from wireyard.errors import LakeError, SourceError
from wireyard.formats import get_format
from wireyard.formats.base import Format, Row
from wireyard.lake.ledgers import LEDGER_FILES, LedgerSum
from wireyard.lake.parts import PartFile
from wireyard.pipeline.decoding import task as bronze
from wireyard.pipeline.decoding.results import (
    EndpointsResult,
    FailureResult,
    FilesResult,
    FormatResult,
    GoneResult,
    HeadersResult,
    LeftOutResult,
    NoteResult,
    PieceResult,
    Result,
    of_kind,
    without_failures,
)
from wireyard.pipeline.decoding.task import AnyPiece, BronzeSettings, Piece, write_task
from wireyard.pipeline.inputs.captures import CapturePart
from wireyard.pipeline.typed_json import from_json, to_json
from wireyard.streams.redaction import Redactor
from wireyard.streams.split import TO_THE_END

PACKETS = [
    packet(packet_type=10),
    *(packet(items=items(item(1, f"q{n}")), sequence=n, body=b"x" * n) for n in range(40)),
]
STREAM = b"".join(PACKETS)


def decode(folder: Path, pieces: Sequence[AnyPiece], **settings: Any) -> list[Result]:
    """Run a task here; what it stages is in `folder`."""
    tables = ("packets_jmq", "packets_mqtt", "quarantine", *LEDGER_FILES, bronze.FILES_TABLE)
    for table in tables:
        (folder / table).mkdir(parents=True, exist_ok=True)
    return [*without_failures(write_task((7, pieces), BronzeSettings(str(folder), **settings)))]


def decode_pieces(folder: Path, pieces: Sequence[AnyPiece], **settings: Any) -> list[PieceResult]:
    """Run a task that does not fail here; return the results of its pieces."""
    results = decode(folder, pieces, **settings)
    found = of_kind(PieceResult, results)
    assert len(found) == len(results) == len(pieces)
    return found


def whole(path: Path) -> Piece:
    size = path.stat().st_size
    return Piece(str(path), "jmq", 0, size, size, True, 0)


def staged(folder: Path, table: str = "packets_jmq") -> pa.Table:
    return pa.concat_tables(
        pq.read_table(path) for path in sorted((folder / table).glob("*.parquet"))
    )


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "some.jmq"
    path.write_bytes(STREAM)
    return path


def test_a_task_writes_what_a_reader_reads(tmp_path: Path, stream: Path) -> None:
    other = tmp_path / "other.jmq"
    other.write_bytes(STREAM[: len(PACKETS[0])] + b"noise" + STREAM[:-3])
    first, ledger = decode_pieces(tmp_path / "out", [whole(stream), whole(other)])
    rows = staged(tmp_path / "out")
    assert uncaptured(rows).equals(pa.concat_tables([wireyard.read(stream), wireyard.read(other)]))
    assert first.file == ledger.file
    assert first.tables == ["files", "packets_jmq"]
    assert ledger.tables == ["files", "packets_jmq", "quarantine"]
    assert (ledger.bytes_garbage, ledger.bytes_tail) == (5, len(PACKETS[-1]) - 3)
    assert ledger.bytes_ok + ledger.bytes_garbage + ledger.bytes_tail == other.stat().st_size
    assert ledger.broken_at is None


@pytest.mark.parametrize("seed", range(3))
def test_streams_read_together_are_staged_as_each_is_by_itself(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "many.pcap"
    path.write_bytes(make_capture(Random(seed), 120))
    part = CapturePart(str(path), (str(path),), None, (), (), 0, 1, path.stat().st_size)
    tables = ("packets_mqtt", "packets_jmq", "quarantine", *LEDGER_FILES)
    found = []
    for together in (False, True):
        folder = tmp_path / str(together)
        with reading(together=together):
            results = decode(folder, [part])
        sums = of_kind(FormatResult, results)
        (files,) = of_kind(FilesResult, results)
        assert set(files.tables) == {*tables, "files"}
        found.append((sums, *(staged(folder, table).to_pylist() for table in tables)))
    for alone, together_rows in zip(*found, strict=True):
        assert alone == together_rows
    _, packets, more, bad, streams, _ = found[0]
    assert len(packets) > 200 and len(more) > 30 and len(bad) > 10 and len(streams) > 100


def test_the_quarantine_has_what_is_no_packet(tmp_path: Path) -> None:
    bad = packet(properties=b"\xff" * 9)
    path = tmp_path / "bad.jmq"
    path.write_bytes(PACKETS[1] + bad + b"noise" * 20 + PACKETS[2] + PACKETS[3][:50])
    decode(tmp_path / "out", [whole(path)])
    every = staged(tmp_path / "out")
    rows = staged(tmp_path / "out", "quarantine")
    assert rows.schema.equals(QUARANTINE)
    assert rows["status"].to_pylist() == ["malformed", "garbage", "tail"]
    wanted = every.filter(pc.not_equal(every["status"], "ok")).select(rows.schema.names[:-1])
    assert rows.select(wanted.schema.names).equals(wanted)
    assert rows["first_bytes"].to_pylist() == [
        bad[:32].hex(),
        None,
        PACKETS[3][:32].hex(),
    ]


@pytest.mark.parametrize("parts", [2, 3, 7, 50])
def test_pieces_meet(tmp_path: Path, stream: Path, parts: int) -> None:
    size = len(STREAM)
    bounds = [size * part // parts for part in range(parts + 1)]
    results = [
        result
        for start, stop in pairwise(bounds)
        for result in decode_pieces(
            tmp_path / "out", [Piece(str(stream), "jmq", start, stop, size, start == 0, 0)]
        )
    ]
    found = [one for one in results if one.first is not None]
    assert [one.first for one in found[1:]] == [one.end for one in found[:-1]]
    assert found[-1].end == size
    assert sum(one.rows for one in found) == len(PACKETS)


def test_what_is_appended_meanwhile_is_for_the_next_run(tmp_path: Path, stream: Path) -> None:
    piece = whole(stream)
    with stream.open("ab") as file:
        file.write(STREAM)
    (result,) = decode_pieces(tmp_path / "out", [piece])
    assert (result.end, result.rows, result.reached) == (len(STREAM), len(PACKETS), len(STREAM))


def test_a_compressed_source_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "some.jmq.gz"
    path.write_bytes(gzip.compress(STREAM + b"rest"))
    size = path.stat().st_size
    piece = Piece(str(path), "jmq", 0, TO_THE_END, size, True, 0)
    (result,) = decode_pieces(tmp_path / "out", [piece])
    assert result.reached == result.end == len(STREAM) + 4
    (row,) = staged(tmp_path / "out", "quarantine").to_pylist()
    assert (row["offset"], row["first_bytes"]) == (len(STREAM), None)


def test_a_source_that_is_gone_is_said_and_not_raised(tmp_path: Path) -> None:
    piece = Piece(str(tmp_path / "gone"), "jmq", 0, 100, 100, True, 0)
    with pytest.raises(SourceError, match=f"{tmp_path}/gone: there is no such file"):
        decode(tmp_path / "out", [piece])
    results = decode(tmp_path / "out", [piece], skip_missing=True)
    assert results == [GoneResult(piece.source)]


def test_a_full_disk_is_said_and_not_raised(
    tmp_path: Path, stream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bronze, "PartFile", lambda path, schema: PartFile("/dev/full", schema))
    with pytest.raises(LakeError, match=r"/dev/full: cannot be written .No space left on device"):
        decode(tmp_path / "out", [whole(stream)])


def test_results_of_every_kind_are_read_as_they_were() -> None:
    results: list[Result] = [
        PieceResult("jmq", 5, 9, source="s", start=3, file="f", tables=("files", "packets_jmq")),
        HeadersResult("s", 0, 24, 99, 3, None, "cut off", 7, "headers/1.arrow"),
        FormatResult("s", "mqtt", LedgerSum(*range(9))),
        FilesResult("s", "f", ("ledger", "streams"), 3),
        EndpointsResult("s", 3, (("10.0.0.1", 1883, "mqtt"),), None),
        LeftOutResult("s", 3, LeftOut(2, 9, (Placed(1, "x"),))),
        NoteResult("s", "not read to its end"),
        GoneResult("s"),
    ]
    assert [from_json(to_json(one, Result), Result) for one in results] == results
    with pytest.raises(LakeError, match=r"^a sentence$"):
        [*without_failures([*results, FailureResult("write", "a sentence")])]


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireyard.lake.parts._GROUP_BYTES", 10_000)
    rows = pa.RecordBatch.from_pydict({"n": range(1000), "s": [str(n) for n in range(1000)]})
    file = PartFile(str(tmp_path / "rows.parquet"), rows.schema)
    for _ in range(5):
        file.write(rows)
    file.close()
    written = pq.ParquetFile(tmp_path / "rows.parquet")
    assert written.read().equals(pa.Table.from_batches([rows] * 5))
    assert written.metadata.num_row_groups == 5


def test_values_that_repeat_get_a_dictionary(tmp_path: Path, stream: Path) -> None:
    decode(tmp_path / "out", [whole(stream)])
    (path,) = (tmp_path / "out" / "packets_jmq").glob("*.parquet")
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    by_dictionary = {one.path_in_schema for one in columns if one.has_dictionary_page}
    assert {"source", "status", "source_ip", "packet_type_name"} <= by_dictionary
    assert not {"sys_message_id", "body", "timestamp"} & by_dictionary
    # Values of bytes may be long, and nobody asks for the least and the greatest of them.
    schema = pq.ParquetFile(path).schema
    for place, one in enumerate(columns):
        leaf = schema.column(place)
        is_bytes = (leaf.physical_type, leaf.logical_type.type) == ("BYTE_ARRAY", "NONE")
        assert one.is_stats_set != is_bytes, leaf.path


# --- secrets --------------------------------------------------------------------------------

LOGIN = packet(packet_type=12, properties=section(("JMQAuthType", 8, "basic")), body=text("guest"))


def test_passwords_are_left_out_unless_wanted(tmp_path: Path) -> None:
    path = tmp_path / "login.jmq"
    path.write_bytes(PACKETS[0] + LOGIN + PACKETS[5])
    for secrets in (False, True):
        folder = tmp_path / str(secrets)
        decode(folder, [whole(path)], secrets=secrets)
        expected = wireyard.read(path)["body"].to_pylist()
        assert expected[1] == text("guest")
        expected[1] = expected[1] if secrets else None
        assert staged(folder)["body"].to_pylist() == expected


def test_a_malformed_login_shows_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "login.jmq"
    path.write_bytes(packet(packet_type=12, properties=b"\xff" * 9, body=text("guest")))
    decode(tmp_path / "out", [whole(path)])
    (row,) = staged(tmp_path / "out", "quarantine").to_pylist()
    shown = staged(tmp_path / "out")["body"].to_pylist() == [None]
    assert shown is True
    assert row["first_bytes"] is None or text("guest").hex() not in row["first_bytes"]


def redacted_one_by_one(batch: pa.RecordBatch, format: Format) -> list[Row]:
    return [format.secrets.redact(row) for row in batch.to_pylist()]


def mixed_batches() -> Iterator[pa.RecordBatch]:
    packets = [LOGIN, *PACKETS, LOGIN, packet(packet_type=12), packet(packet_type=12, body=b"x")]
    for some in (packets, packets[::-1], packets[1:2]):
        (batch,) = wireyard.scan(b"".join(some), format="jmq")
        yield batch


def test_a_redactor_does_what_the_format_does_row_by_row() -> None:
    format = get_format("jmq")
    redactor = Redactor(format)
    for batch in mixed_batches():
        found = redactor.redact(batch)
        assert found.schema.equals(batch.schema)
        assert found.to_pylist() == redacted_one_by_one(batch, format)
