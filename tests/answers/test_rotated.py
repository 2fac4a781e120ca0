"""Rotated captures: rows and answers name the file that a frame is in, and its number there."""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from random import Random
from shutil import copy, copytree, rmtree
from tempfile import mkdtemp

import numpy as np
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from tests.spark.lakes import Silent
from wireyard.answers import Tables, open_tables
from wireyard.captures.files.file import read_records
from wireyard.cli import main
from wireyard.lake.writer import Lake
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake
from wireyard.report import build_report

EXAMPLES = Path(__file__).parents[2] / "examples"
CAPTURE = EXAMPLES / "traffic.pcap"
FILES = 23
HEADER_BYTES = 24


def records(path: Path) -> list[bytes]:
    """Return the records of a capture with their headers."""
    data = path.read_bytes()
    ends = np.concatenate(
        [each.starts + each.captured for each in read_records(np.frombuffer(data, np.uint8), "")]
    ).tolist()
    return [data[start:stop] for start, stop in pairwise([HEADER_BYTES, *ends])]


@pytest.fixture(scope="module")
def ring() -> Iterator[Path]:
    """Yield a folder with the example in several files, whose names have no order.

    Its path is short, so that it is not cut where a line of 80 columns ends.
    """
    rng = Random(5)
    folder = Path(mkdtemp(prefix="ring"))
    head, all_records = CAPTURE.read_bytes()[:HEADER_BYTES], records(CAPTURE)
    cuts = sorted(rng.sample(range(1, len(all_records)), FILES - 1))
    names = rng.sample(range(1000), FILES)
    for name, (start, stop) in zip(names, pairwise([0, *cuts, len(all_records)]), strict=True):
        (folder / f"{name}.pcap").write_bytes(head + b"".join(all_records[start:stop]))
    yield folder
    rmtree(folder)


@pytest.fixture(scope="module", params=["capture", "lake"])
def tables(
    request: pytest.FixtureRequest, ring: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tables]:
    """Yield the tables of the ring, read directly, and through a lake."""
    if request.param == "capture":
        with open_tables([str(ring)], rotated=True) as found:
            yield found
        return
    lake = tmp_path_factory.mktemp("lakes") / "lake"
    with Lake.open(str(lake)) as opened:
        inputs = list_inputs([str(ring)], rotated=True).inputs
        fill_lake(opened, inputs, None, Silent())
    with open_tables([str(lake)]) as found:
        yield found


def test_files_account_for_all_frames(tables: Tables, ring: Path) -> None:
    rows = tables.sql("FROM files ORDER BY first_frame").to_pylist()
    assert {row["source"] for row in rows} == {str(ring)}
    assert {row["file"] for row in rows} == set(map(str, ring.iterdir()))
    first = 1
    for row in rows:
        frames = records(Path(row["file"]))
        assert (row["first_frame"], row["frames"]) == (first, len(frames))
        seconds, micros = struct.unpack_from("<II", frames[-1])
        assert row["last_ns"] == seconds * 10**9 + micros * 1000
        first += row["frames"]
    assert first - 1 == len(records(CAPTURE))


def test_messages_lead_to_the_hash_of_their_file(tables: Tables) -> None:
    rows = tables.sql("SELECT DISTINCT file, sha256 FROM messages JOIN files USING (file)")
    assert rows.num_rows > FILES / 2
    for row in rows.to_pylist():
        assert row["sha256"] == sha256(Path(row["file"]).read_bytes()).hexdigest()


def test_streams_and_stores_have_a_hash_too(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    copytree(EXAMPLES / "store", inputs / "store")
    with gzip.open(inputs / "shop.jmq.gz", "wb") as packed:
        packed.write((EXAMPLES / "traffic" / "shop-c2b.jmq").read_bytes())
    copy(EXAMPLES / "traffic" / "office-c2b.mqtt", inputs)
    lake = str(tmp_path / "lake")
    with Lake.open(lake) as opened:
        fill_lake(opened, list_inputs([str(inputs)]).inputs, None, Silent(), split_bytes=300)
    with open_tables([lake]) as tables:
        rows = tables.sql("SELECT source, file, frames, sha256 FROM files").to_pylist()
        without = tables.sql(
            "SELECT DISTINCT file FROM messages WHERE file NOT IN (SELECT file FROM files)"
        )
        sources = tables.sql("SELECT DISTINCT source FROM ledger")["source"].to_pylist()
    assert without.num_rows == 0
    assert sorted(row["file"] for row in rows) == sorted(sources)
    for row in rows:
        assert (row["source"], row["frames"]) == (row["file"], None)
        assert row["sha256"] == sha256(Path(row["file"]).read_bytes()).hexdigest()
    with open_tables([str(inputs / "shop.jmq.gz"), str(inputs / "store" / "fs370")]) as tables:
        (row,) = tables.sql("FROM files").to_pylist()
    assert row["sha256"] == sha256((inputs / "shop.jmq.gz").read_bytes()).hexdigest()


def test_messages_name_the_file_and_the_frame_there(tables: Tables) -> None:
    rows = tables.sql("SELECT protocol, frame, file, file_frame, body FROM messages").to_pylist()
    assert len(rows) > 150
    assert len({row["file"] for row in rows}) > FILES / 2
    whole = records(CAPTURE)
    for row in rows:
        record = records(Path(row["file"]))[row["file_frame"] - 1]
        assert record == whole[row["frame"] - 1]
        assert row["protocol"] == "jms" or (row["body"] or b"") in record


@pytest.fixture(scope="module")
def run_on(ring: Path) -> dict[str, list[str]]:
    """Return lines of commands about the ring, and about the capture that it was, by command."""
    found = {}
    for name in ("why", "slow", "trace"):
        more = {"trace": ["shop/#", "--all"], "why": ["-v"]}
        subject = [*more.get(name, []), "--limit", "60"]
        for kind, given in (("ring", [str(ring), "--rotated"]), ("whole", [str(CAPTURE)])):
            shown = CliRunner().invoke(main, [name, *given, *subject], prog_name="wireyard")
            assert shown.exit_code == 0, shown.output
            found[f"{name} {kind}"] = shown.stdout.splitlines()
    return found


def test_why_names_the_file_of_a_proof(run_on: dict[str, list[str]], ring: Path) -> None:
    whole, rows = records(CAPTURE), {}
    for kind in ("ring", "whole"):
        proofs = [line.split() for line in run_on[f"why {kind}"] if "proof: frame" in line]
        rows[kind] = [(int(words[2]), words[4]) for words in proofs]
    assert len(rows["ring"]) == len(rows["whole"]) > 5
    for (number, file), (frame, _) in zip(rows["ring"], rows["whole"], strict=True):
        assert records(Path(file))[number - 1] == whole[frame - 1]
    commands = [line for line in run_on["why ring"] if "next: wireyard trace" in line]
    assert commands and all(f"{ring} --rotated" in line for line in commands)


def test_trace_names_the_files_of_frames(run_on: dict[str, list[str]], ring: Path) -> None:
    whole = records(CAPTURE)
    text = {kind: "\n".join(run_on[f"trace {kind}"]) for kind in ("ring", "whole")}
    sent = {
        kind: re.findall(r"^  in +frame (\d+) of\s+(\S+)", some, re.MULTILINE)
        for kind, some in text.items()
    }
    assert len(sent["ring"]) == len(sent["whole"]) == 60
    for (number, file), (frame, _) in zip(sent["ring"], sent["whole"], strict=True):
        assert records(Path(file))[int(number) - 1] == whole[int(frame) - 1]
    # Every frame of another file than the message's is given with that file.
    given = re.findall(r"frame\s+(\d+)\s+(?:in|of)\s+(\S+)", text["ring"])
    assert len({file for _, file in given}) > 5
    assert all(0 < int(number) <= len(records(Path(file))) for number, file in given)


def test_a_page_shows_bytes_of_a_ring(ring: Path) -> None:
    with open_tables([str(ring)], rotated=True) as tables:
        page = build_report(tables, [str(ring)], f"{ring} --rotated")
    assert "The bytes of the proof" in page
    assert "Its bytes are not shown" not in page
    assert f"wireyard sql {ring} --rotated" in page


def test_a_ring_has_the_rows_of_the_whole(ring: Path) -> None:
    names = ["message_key", "verdict", "consumer", "sent_frame", "delivered_frame"]
    found = []
    for given, rotated in ((ring, True), (CAPTURE, False)):
        with open_tables([str(given)], rotated=rotated) as tables:
            rows = tables.sql(f"SELECT {', '.join(names)} FROM deliveries ORDER BY ALL")
            found.append(rows)
    assert found[0].equals(found[1]) and found[0].num_rows > 100
    assert pc.sum(found[0]["delivered_frame"].is_valid()).as_py() > 100
