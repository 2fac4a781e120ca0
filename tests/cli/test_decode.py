"""decode: the same rows in every form, exact, complete, and without passwords."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet
from rich.cells import cell_len

import wireyard
from tests.cli.results import LOGIN, Run, notes_of, one_line, rows_of
from tests.conftest import ROOT
from tests.make import ALL_TYPES, item, items, packet, section, variety
from tests.mutations import damaged_stream
from wireyard.cli import main
from wireyard.formats import get_format
from wireyard.formats.rows import pick_columns

CAPTURE = Path(__file__).parents[2] / "examples" / "traffic.pcap"
COLUMNS = [column.name for column in pick_columns(get_format("jmq"), None)]


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of columns the way JSON Lines has it, as far as that can be said of text."""
    shown = {k: v.hex() if isinstance(v, bytes) else v for k, v in row.items()}
    items: list[dict[str, Any]] | None = row["unknown_items"]
    if items is not None:
        shown["unknown_items"] = [{**item, "value": item["value"].hex()} for item in items]
    return shown


def test_jsonl_has_every_column_in_order(run: Run, stream: Path) -> None:
    result = run("decode", stream, "--secrets")
    assert result.exit_code == 0
    rows = rows_of(result)
    assert len(rows) == len(variety())
    assert all(list(row) == COLUMNS for row in rows)


def test_jsonl_says_what_the_columns_say(run: Run, stream: Path) -> None:
    rows = rows_of(run("decode", stream, "--secrets"))
    for row, wanted in zip(rows, wireyard.read(str(stream)).to_pylist(), strict=True):
        entries = wanted.pop("properties")
        assert list(row.pop("properties") or ()) == [name for name, _ in entries or ()]
        assert row == as_json(wanted)


def test_properties_keep_their_types(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "one.jmq"
    odd = (
        ("nan", 7, float("nan")),
        ("up", 6, float("inf")),
        ("down", 7, float("-inf")),
        ("minus", 7, -0.0),
        ("tenth", 6, 0.1),
    )
    path.write_bytes(packet(properties=section(*ALL_TYPES, *odd)))
    (row,) = rows_of(run("decode", path))
    assert row["properties"] == {
        "flag": {"type": "boolean", "value": True},
        "octet": {"type": "byte", "value": -128},
        "small": {"type": "short", "value": -32768},
        "whole": {"type": "integer", "value": -(2**31)},
        "large": {"type": "long", "value": -(2**63)},
        "single": {"type": "float", "value": 1.5},
        "double": {"type": "double", "value": -2.5e-300},
        "words": {"type": "string", "value": "grün"},
        "thing": {"type": "object", "value": "aced0005740003" + b"xyz".hex() + "00" * 246},
        "nan": {"type": "double", "value": "NaN"},
        "up": {"type": "float", "value": "Infinity"},
        "down": {"type": "double", "value": "-Infinity"},
        "minus": {"type": "double", "value": -0.0},
        "tenth": {"type": "float", "value": 0.10000000149011612},
    }
    assert str(row["properties"]["minus"]["value"]) == "-0.0"


def test_text_from_the_wire_stays_on_one_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "text.jmq"
    name = "a\nb\u2028c\x9bd\x1be 😀"
    path.write_bytes(
        packet(items=items(item(1, name)), properties=section(("k", 8, b"\xed\xa0\x80")))
    )
    result = run("decode", path)
    (line,) = result.stdout_bytes.decode().splitlines()
    assert "\x9b" not in line and "😀" in line
    row = json.loads(line)
    assert row["destination"] == name
    assert row["properties"]["k"]["value"] == "\ud800"
    assert "\x1b" not in run("decode", path, "--out", "table").stdout


@pytest.mark.parametrize("seed", range(25))
def test_rows_of_any_stream_cover_every_byte(seed: int, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "any.jmq"
    path.write_bytes(damaged_stream("jmq", Random(seed), 40))
    result = run("decode", path, "--format", "jmq", "--body", "value", "--secrets")
    rows = rows_of(result)
    assert rows[0]["offset"] == 0
    assert all(a["offset"] + a["length"] == b["offset"] for a, b in pairwise(rows))
    assert rows[-1]["offset"] + rows[-1]["length"] == path.stat().st_size
    faults = any(row["status"] != "ok" for row in rows)
    assert result.exit_code == (1 if faults or result.stderr else 0)
    assert all((row["error"] is None) == (row["status"] == "ok") for row in rows)
    table = run("decode", path, "--format", "jmq", "--out", "table", "--body", "text")
    assert table.exit_code == result.exit_code


def test_faults_are_rows_and_one_line(run: Run, damaged: Path) -> None:
    result = run("decode", damaged)
    assert result.exit_code == 1
    statuses = [row["status"] for row in rows_of(result)]
    assert statuses == ["ok", "malformed", "malformed", "garbage", "ok", "tail"]
    codes = [row["error"]["code"] for row in rows_of(result) if row["error"]]
    assert codes == ["unsupported_version", "truncated", "bad_magic", "truncated"]
    line = one_line(result)
    assert "2 malformed packets, 149 bytes, first at offset 77" in line
    assert "1 run of bytes that belong to no packet, 9 bytes, at offset 226" in line
    assert "cut short inside a packet, 76 bytes of it, at offset 311" in line


def test_what_was_written_is_said(run: Run, stream: Path, tmp_path: Path) -> None:
    packets = len(rows_of(run("decode", stream)))
    for name, noun in (("rows.csv", "rows of jmq"), ("rows.jsonl", "rows")):
        written = run("decode", stream, "-w", tmp_path / name).stderr.splitlines()
        assert written[-1] == f"wireyard: wrote {tmp_path / name}, {packets} {noun}"
    traffic = ROOT / "examples" / "traffic.pcap"
    *_, jmq, mqtt = run("decode", traffic, "-w", tmp_path / "x.parquet").stderr.splitlines()
    rows = (parquet.read_table(tmp_path / f"x.{name}.parquet").num_rows for name in ("jmq", "mqtt"))
    assert [*rows] == [int(line.split()[-4]) for line in sorted((jmq, mqtt))]
    assert "wrote" not in run("decode", stream, "--out", "csv").stderr


@pytest.mark.parametrize("out", ["table", "arrow", "parquet"])
def test_every_output_says_what_was_lost(out: str, run: Run, damaged: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    result = run("decode", damaged, "--out", out, "--columns", "offset", "-w", target)
    assert result.exit_code == 1
    assert one_line(result) == one_line(run("decode", damaged))


def test_what_may_have_been_wanted_is_missed(run: Run, damaged: Path) -> None:
    """A filter drops rows that are no packets, and says that there were such."""
    for out in ("jsonl", "arrow"):
        result = run("decode", damaged, "--where", "packet_type == 2", "--out", out)
        assert result.exit_code == 1
        notes = notes_of(result.stderr)
        assert "2 malformed packets" not in notes
        assert "1 run of bytes" in notes and "cut short" in notes


def test_what_comes_after_the_limit_is_nobodys_loss(run: Run, damaged: Path) -> None:
    result = run("decode", damaged, "--limit", 1, "--columns", "status")
    assert (result.exit_code, result.stdout, result.stderr) == (0, '{"status":"ok"}\n', "")
    result = run("decode", damaged, "--limit", 4)
    assert "cut short" not in one_line(result) and "1 run of bytes" in one_line(result)


def test_modes_leave_out_or_stop(run: Run, damaged: Path) -> None:
    result = run("decode", damaged, "--mode", "dropmalformed")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [row["status"] for row in rows_of(result)] == ["ok", "ok"]
    result = run("decode", damaged, "--mode", "failfast")
    assert result.exit_code == 1
    assert one_line(result).startswith("jmq: 'version' is 999")
    assert one_line(result).endswith(f"in {damaged}, offset 77")


# --- choosing -------------------------------------------------------------------------------


def test_columns_come_in_the_order_they_were_asked_for(run: Run, stream: Path) -> None:
    rows = rows_of(run("decode", stream, "--columns", "body_size, offset", "--limit", 2))
    assert rows == [{"body_size": 0, "offset": 0}, {"body_size": 5, "offset": 72}]


@pytest.mark.parametrize(
    ("conditions", "types"),
    [
        (["packet_type in 20,55"], [20, 55]),
        (["packet_type == 0x14"], [20]),
        (["packet_type>50", "packet_type != 74"], [55]),
        (["packet_type_name == START"], [20]),
        (["destination in q0, old"], [1, 1]),
    ],
)
def test_where_keeps_matching_rows(
    conditions: list[str], types: list[int], run: Run, stream: Path
) -> None:
    words = [word for condition in conditions for word in ("--where", condition)]
    rows = rows_of(run("decode", stream, "--columns", "packet_type", *words))
    assert [row["packet_type"] for row in rows] == types
    text = run("decode", stream, "--columns", "packet_type", *words, "--out", "arrow").stdout_bytes
    assert pa.ipc.open_stream(text).read_all()["packet_type"].to_pylist() == types


@pytest.mark.parametrize("out", ["jsonl", "arrow", "table"])
def test_limit_counts_rows_of_all_streams(out: str, run: Run, stream: Path, login: Path) -> None:
    words = ("--out", out, "--limit", len(variety()) + 1, "--columns", "offset")
    result = run("decode", stream, "-r", login, *words)
    # Read files come first, as in tshark.
    both = [wireyard.read(str(path))["offset"].to_pylist() for path in (login, stream)]
    wanted = [*both[0], *both[1]]
    wanted = wanted[: len(variety()) + 1]
    if out == "jsonl":
        assert [row["offset"] for row in rows_of(result)] == wanted
    elif out == "arrow":
        assert pa.ipc.open_stream(result.stdout_bytes).read_all()["offset"].to_pylist() == wanted
    else:
        numbers = [int(line) for line in result.stdout.splitlines() if line.strip().isdigit()]
        assert numbers == wanted


def test_standard_input_and_compression_go_by_content(run: Run, stream: Path) -> None:
    plain = rows_of(run("decode", stream))
    packed = rows_of(run("decode", "-", stdin=gzip.compress(stream.read_bytes())))
    assert [row["source"] for row in packed] == ["-"] * len(plain)
    for row in (*plain, *packed):
        del row["source"], row["stream"]
    assert packed == plain


# --- bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("hex", "6772c3bc6e"),
        ("base64", "Z3LDvG4="),
        ("hash", hashlib.sha256("grün".encode()).hexdigest()),
        ("text", "grün"),
        ("value", "grün"),
    ],
)
def test_bodies_are_shown_by_choice(choice: str, wanted: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "text.jmq"
    path.write_bytes(packet(body="grün".encode()) + packet())
    rows = rows_of(run("decode", path, "--body", choice))
    assert [row["body"] for row in rows] == [wanted, None]
    assert all(list(row) == COLUMNS for row in rows)


def test_body_none_leaves_the_column_out(run: Run, stream: Path) -> None:
    (row,) = rows_of(run("decode", stream, "--body", "none", "--limit", 1))
    assert list(row) == [name for name in COLUMNS if name != "body"]


def test_a_body_that_cannot_be_opened_is_null_and_told(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "map.jmq"
    path.write_bytes(packet(packet_type=3, body=b"no map") + packet(body=b"fine"))
    result = run("decode", path, "--body", "value")
    assert [row["body"] for row in rows_of(result)] == [None, "fine"]
    assert result.exit_code == 1
    assert one_line(result).startswith(f"{path}: 1 packet whose body cannot be opened")


def test_columns_hold_bodies_as_bytes(run: Run, stream: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    result = run("decode", stream, "-w", target, "--body", "text")
    assert (result.exit_code, target.exists()) == (2, False)
    assert one_line(result).startswith("--payload text is for text; parquet holds bytes")


# --- secrets --------------------------------------------------------------------------------

SECRET = b"c2VjcmV0"


@pytest.mark.parametrize("out", ["table", "jsonl", "arrow", "parquet"])
@pytest.mark.parametrize("columns", [None, "body,offset"])
def test_passwords_are_left_out_unless_asked_for(
    out: str, columns: str | None, run: Run, login: Path
) -> None:
    assert SECRET in LOGIN
    words = ["decode", login, "--out", out, *(["--columns", columns] if columns else [])]
    hidden, shown = run(*words).stdout_bytes, run(*words, "--secrets").stdout_bytes
    if out == "parquet":
        hidden, shown = (
            str(parquet.read_table(io.BytesIO(data)).to_pylist()).encode()
            for data in (hidden, shown)
        )
    assert SECRET not in hidden and SECRET.hex().encode() not in hidden
    if out != "table":
        assert SECRET in shown or SECRET.hex().encode() in shown


def test_all_but_the_header_of_a_login_is_left_out(run: Run, login: Path) -> None:
    hidden, shown = rows_of(run("decode", login)), rows_of(run("decode", login, "--secrets"))
    left_out = ("body", "destination", "properties")
    for name in left_out:
        assert hidden[1][name] is None and shown[1][name] is not None
        hidden[1][name] = shown[1][name]
    assert hidden == shown
    data = run("decode", login, "--out", "arrow").stdout_bytes
    table = pa.ipc.open_stream(data).read_all()
    wanted = wireyard.read(str(login)).to_pylist()
    wanted[1] |= dict.fromkeys(left_out)
    assert table.to_pylist() == wanted


# --- columns --------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["arrow", "parquet"])
def test_columns_are_those_of_read(out: str, run: Run, stream: Path, tmp_path: Path) -> None:
    target = tmp_path / f"out.{out}"
    assert run("decode", stream, "--secrets", "-w", target).exit_code == 0
    found = (
        parquet.read_table(target)
        if out == "parquet"
        else pa.ipc.open_stream(target.read_bytes()).read_all()
    )
    assert found.to_pylist() == wireyard.read(str(stream)).to_pylist()
    assert found.schema.names == COLUMNS


def test_an_empty_stream_has_the_same_schema(run: Run, stream: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jmq"
    empty.touch()
    schemas = []
    for source in (empty, stream):
        target = tmp_path / "out.parquet"
        assert run("decode", source, "--format", "jmq", "-w", target).exit_code == 0
        schemas.append(parquet.read_schema(target))
    assert schemas[0].equals(schemas[1])


def test_row_groups_stay_small(
    run: Run, stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wireyard.cli.decoding.columnar._ROW_GROUP_BYTES", 1)
    target = tmp_path / "out.parquet"
    assert run("decode", stream, stream, "-w", target).exit_code == 0
    assert parquet.ParquetFile(target).num_row_groups == 2


@pytest.mark.parametrize("group_bytes", [1, 1 << 12, 1 << 16, 1 << 30])
def test_rows_keep_their_order_in_row_groups_of_any_size(
    run: Run, stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int
) -> None:
    """Batches that are copied first, and batches that are held as they are, among each other."""
    monkeypatch.setattr("wireyard.cli.decoding.columnar._ROW_GROUP_BYTES", group_bytes)
    short = tmp_path / "short.jmq"
    short.write_bytes(stream.read_bytes()[:700])
    sources = [short, short, stream, short, stream, *[short] * 5]
    target = tmp_path / "out.parquet"
    run("decode", *sources, "--mode", "dropmalformed", "--columns", "source,offset", "-w", target)
    expected = [
        row
        for source in sources
        for row in wireyard.read(
            str(source), "jmq", ["source", "offset"], mode="dropmalformed"
        ).to_pylist()
    ]
    assert parquet.read_table(target).to_pylist() == expected


# --- tables ---------------------------------------------------------------------------------


def test_table_shows_what_tells_rows_apart(run: Run, traffic: list[Path]) -> None:
    source = traffic[0]
    lines = run("decode", source, "--out", "table").stdout.splitlines()
    head = lines[0].split()
    assert head[:3] == ["offset", "length", "packet_type_name"]
    assert max(map(len, lines)) <= 120
    wanted = wireyard.read(str(source))
    assert [line.split()[0] for line in lines[1:]] == list(map(str, wanted["offset"].to_pylist()))


def test_table_puts_faults_in_their_place(run: Run, damaged: Path) -> None:
    lines = run("decode", damaged, "--out", "table").stdout.splitlines()
    assert lines[2].startswith("77, 72 bytes: malformed jmq: 'version' is 999")
    assert lines[4].startswith("226, 9 bytes: garbage jmq: 'magic' is not there")
    offsets = [int(line.split()[0].strip(",")) for line in lines[1:]]
    assert offsets == [0, 77, 149, 226, 235, 311]


def test_table_never_cuts_a_number(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "long.jmq"
    path.write_bytes(packet() * 300 + packet(consumer_id=-(2**63)))
    result = run("decode", path, "--out", "table", "--columns", "offset,consumer_id")
    assert result.stdout.splitlines()[-1].split() == ["21600", str(-(2**63))]


def test_what_is_cut_says_how_much_there_was(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "body.jmq"
    path.write_bytes(packet(body=bytes(1000)))
    table = run("decode", path, "--out", "table", "--columns", "body").stdout
    assert table.splitlines()[1] == f"0x{'00' * 16}.. (1,000 bytes)"


@pytest.mark.parametrize("word", ["payload_value", "payload_error"])
def test_what_payloads_carry_fits_80_columns(word: str) -> None:
    rules = ["shop/#=text", "shop/till/#=json"]
    words = [word for rule in rules for word in ("--payload", rule)]
    words = ["decode", str(CAPTURE), "--format", "mqtt", "--out", "table", *words]
    result = CliRunner().invoke(main, words, env={"COLUMNS": "80"}, prog_name="wireyard")
    lines = result.stdout.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert any(word in line.split() for line in lines)
    # A row without a payload says what it is: behind the frame, for which the time gives way.
    assert any(line.split()[1:] == ["PUBREL"] for line in lines)


def test_a_number_is_never_cut(run: Run, tmp_path: Path) -> None:
    """One behind the rows by which widths were chosen is wider: the last column gives way."""
    path = tmp_path / "long.jmq"
    path.write_bytes(packet(body=b"a") * 100 + packet(body=bytes(1_000_000)))
    lengths = [str(row["length"]) for row in rows_of(run("decode", path))]
    assert len(lengths[-1]) > len(lengths[0])
    for words in ([], ["--columns", "offset,length,packet_type_name,body"]):
        words = ["decode", str(path), "--out", "table", *words]
        for width in (100, 60):
            lines = CliRunner().invoke(main, words, env={"COLUMNS": str(width)}).stdout.splitlines()
            assert max(map(cell_len, lines)) <= width
            assert [line.split()[1] for line in lines[1:]] == lengths


def test_a_terminal_too_narrow_for_anything_has_all_rows(run: Run, stream: Path) -> None:
    words = ["decode", str(stream), "--out", "table"]
    lines = CliRunner().invoke(main, words, env={"COLUMNS": "3"}).stdout.splitlines()
    offsets = [str(row["offset"]) for row in rows_of(run("decode", stream))]
    assert [line.split()[0] for line in lines[1:]] == offsets


def test_streams_without_rows_have_no_heading(run: Run) -> None:
    where = ["--where", "topic == shop/offers/now", "--out", "table"]
    result = run("decode", CAPTURE, "--format", "mqtt", *where)
    headings = [line for line in result.stdout.splitlines() if ">127.0.0.1:" in line]
    streams = {row["stream"] for row in rows_of(run("decode", CAPTURE, *where[:2]))}
    assert {*headings} == streams and len(headings) == len(streams) > 1


def test_a_table_of_a_store_has_its_packets_by_file(run: Run) -> None:
    store = CAPTURE.parent / "store" / "fs370"
    result = run("decode", store, "--out", "table")
    rows = [row for row in rows_of(run("decode", store)) if row["status"] == "ok"]
    lines = result.stdout.splitlines()
    assert [line for line in lines if "/" in line or line == "txnlog"] == list(
        dict.fromkeys(row["stream"] for row in rows)
    )
    assert sum("_MESSAGE " in line for line in lines) == len(rows)
    assert "gap" not in result.stdout and str(store) not in result.stdout


def test_columns_of_one_format_of_a_capture(run: Run) -> None:
    capture = ROOT / "examples/traffic.pcap"
    every = rows_of(run("decode", capture, "--columns", "format,topic,message_id"))
    assert {row["format"]: set(row) for row in every} == {
        "mqtt": {"format", "topic"},
        "jmq": {"format", "message_id"},
    }
    refused = run("decode", capture, "--columns", "format,tpoic")
    assert (refused.exit_code, "has no column 'tpoic'" in one_line(refused)) == (2, True)


def test_packets_of_a_time(run: Run) -> None:
    words = ["decode", ROOT / "examples/traffic.pcap", "--columns", "frame", "--format", "mqtt"]
    every = run(*words).stdout.splitlines()
    bound = "2026-11-21T20:22:47Z"
    before = run(*words, "--until", bound).stdout.splitlines()
    since = run(*words, "--since", bound).stdout.splitlines()
    assert [*before, *since] and sorted([*before, *since]) == sorted(every)
    assert min(map(len, (before, since))) > 0
    assert run(*words, "--since", bound, "-c", 2).stdout.splitlines() == since[:2]
