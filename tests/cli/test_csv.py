"""CSV: what a spreadsheet opens, and what goes back to bytes."""

from __future__ import annotations

import base64
import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyarrow import parquet

import wireyard
from tests.cli.results import Run, notes_of, one_line, rows_of
from tests.make import packet
from wireyard import mqtt
from wireyard.cli.decoding import large
from wireyard.cli.decoding.csv import CsvWriter, write_csv

EXAMPLES = Path(__file__).parents[2] / "examples"
PAYLOADS = [
    b"",
    b"5000",
    'grün, "so"\r\nund weiter'.encode(),
    b"\x00\x01binary",
    b"\xff\xfe",
    "€".encode()[:2],
    b"tab\there",
    b"esc\x1b[2J",
    b"0xff",
]


def cells(data: bytes | str) -> list[dict[str, str]]:
    text = data if isinstance(data, str) else data.decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.fixture
def published(tmp_path: Path) -> Path:
    path = tmp_path / "p.mqtt"
    packets = [mqtt.Publish(topic=f"t/{at}", payload=one) for at, one in enumerate(PAYLOADS)]
    login = mqtt.Connect(client_id="c", username="u", password="secret")
    path.write_bytes(b"".join(map(wireyard.encode, [login, *packets])))
    return path


def written(columns: dict[str, pa.Array], **how: object) -> str:
    batch = pa.record_batch(columns)
    file = io.BytesIO()
    write_csv([batch.slice(0, 1), batch.slice(1)], batch.schema, file, **how)
    return file.getvalue().decode()


def test_payloads_are_text_where_they_are_text(run: Run, published: Path) -> None:
    rows = cells(run("decode", published, "--out", "csv", "--format", "mqtt").stdout_bytes)
    assert [row["payload"] for row in rows[1:]] == [
        "",
        "5000",
        'grün, "so"\r\nund weiter',
        "0x000162696e617279",
        "0xfffe",
        "0xe282",
        "tab\there",
        "0x6573631b5b324a",
        "0xff",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_payloads_as_text_are_those_read_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    monkeypatch.setattr(large, "PIECE_BYTES", rng.choice((1, 2, 1 << 20)))
    alphabet = [b"a", b'"', b"\n", "ü".encode(), "😀".encode(), b"\x80", b"\xc3", b"\x00", b"\x7f"]
    values = [
        None if rng.random() < 0.1 else b"".join(rng.choices(alphabet, k=rng.randrange(4)))
        for _ in range(rng.randrange(1, 40))
    ]

    def text(data: bytes | None) -> str:
        try:
            found = (data or b"").decode()
        except UnicodeDecodeError:
            return f"0x{(data or b'').hex()}"
        bad = any((ord(one) < 32 and one not in "\t\r\n") or one == "\x7f" for one in found)
        return f"0x{found.encode().hex()}" if bad else found

    rows = cells(written({"at": pa.array(range(len(values))), "payload": pa.array(values)}))
    assert [row["payload"] for row in rows] == [text(value) for value in values]


@pytest.mark.parametrize(("choice", "back"), [("hex", bytes.fromhex), ("base64", base64.b64decode)])
def test_payloads_come_back(choice: str, back: object, run: Run, published: Path) -> None:
    assert callable(back)
    result = run("decode", published, "--out", "csv", "--payload", choice)
    rows = cells(result.stdout_bytes)[1:]
    assert [back(row["payload"]) for row in rows] == PAYLOADS


def test_payloads_are_hashes_or_left_out(run: Run, published: Path) -> None:
    rows = cells(run("decode", published, "--out", "csv", "--payload", "hash").stdout_bytes)
    jsonl = rows_of(run("decode", published, "--payload", "hash"))
    assert [row["payload"] for row in rows[1:]] == [row["payload"] for row in jsonl[1:]]
    rows = cells(run("decode", published, "--out", "csv", "--payload", "none").stdout_bytes)
    assert all("payload" not in row and row["payload_size"] != "" for row in rows[1:])
    assert one_line(run("decode", published, "--out", "csv", "--payload", "value")) == (
        "--payload value is for table and jsonl; csv has text and bytes"
    )


@pytest.mark.parametrize("out", ["csv", "jsonl"])
def test_a_cut_payload_says_how_much_was_cut(out: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "long.mqtt"
    payloads = [b"abcd", b"abcde", "abcü".encode() * 10]
    packets = [mqtt.Connect(client_id="c"), *(mqtt.Publish(topic="t", payload=p) for p in payloads)]
    path.write_bytes(b"".join(map(wireyard.encode, packets)))

    def shown(*how: str) -> list[str]:
        result = run("decode", path, "--out", out, "--payload-bytes", 4, *how)
        rows = cells(result.stdout) if out == "csv" else rows_of(result)
        return [row["payload"] for row in rows[1:]]

    assert shown("--payload", "hex") == [
        "61626364",
        "61626364...[1 byte cut]",
        "616263c3...[46 bytes cut]",
    ]
    if out == "csv":  # no character is cut in two, so the bytes of one may be missing
        assert shown() == ["abcd", "abcd...[1 byte cut]", "abc...[47 bytes cut]"]
    assert shown("--payload", "hash") == [
        row["payload"] for row in rows_of(run("decode", path, "--payload", "hash"))[1:]
    ]


def test_150000_messages_are_150001_records(run: Run, tmp_path: Path) -> None:
    path, target = tmp_path / "many.mqtt", tmp_path / "many.csv"
    some = [
        wireyard.encode(mqtt.Publish(topic="a/b", payload=payload))
        for payload in (b"1", b"two\nlines", b"\x00\xff", b'"quoted"', b"")
    ]
    path.write_bytes(b"".join(some) * 30_000)
    result = run("decode", path, "--format", "mqtt/3.1.1", "-w", target)
    said = f"wireyard: wrote {target}, 150,000 rows of mqtt\n"
    assert (result.exit_code, result.stderr) == (0, said)
    with target.open(newline="") as file:
        records = list(csv.reader(file))
    assert len(records) == 150_001
    assert {len(record) for record in records} == {len(records[0])}
    at = records[0].index("payload")
    assert [record[at] for record in records[1:6]] == ["1", "two\nlines", "0x00ff", '"quoted"', ""]


def test_null_and_empty_text_differ() -> None:
    text = written({"topic": pa.array(["", None, "x"]), "n": pa.array([1, None, 2])})
    assert text == '"topic","n"\n"",1\n,\n"x",2\n'


def test_times_are_iso_8601_in_utc() -> None:
    moment = datetime(2026, 11, 22, 7, 30, 0, 120_000, UTC)
    columns = {
        "sent_at": pa.array([moment, None], pa.timestamp("us", "UTC")),
        "captured_ns": pa.array([1_795_292_559_816_169_001, -1]),
        "timestamp": pa.array([1_795_292_559_816, 2**62]),
        "expiration": pa.array([0, None]),
    }
    times = {"captured_ns": "ns", "timestamp": "ms", "expiration": "ms"}
    first, second = cells(written(columns, times=times))
    assert first == {
        "sent_at": "2026-11-22T07:30:00.120000Z",
        "captured_ns": "2026-11-21T20:22:39.816169001Z",
        "timestamp": "2026-11-21T20:22:39.816Z",
        "expiration": "0",  # never, not 1970
    }
    assert second["captured_ns"] == "1969-12-31T23:59:59.999999999Z"
    assert second["timestamp"] == str(2**62)  # no calendar has it
    assert second["sent_at"] == second["expiration"] == ""


def test_times_of_a_capture_are_iso_8601(run: Run) -> None:
    words = ["decode", EXAMPLES / "traffic.pcap", "--format", "jmq", "--limit", 3]
    rows = cells(run(*words, "--out", "csv").stdout)
    for row, wanted in zip(rows, rows_of(run(*words)), strict=True):
        seconds, nanoseconds = divmod(wanted["captured_ns"], 10**9)
        shown = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
        assert row["captured_ns"] == shown
        sent = datetime.fromisoformat(row["timestamp"])
        assert round(sent.timestamp() * 1000) == wanted["timestamp"]


def test_nested_values_are_json(run: Run) -> None:
    rows = cells(
        run("decode", EXAMPLES / "traffic.pcap", "--format", "mqtt", "--out", "csv").stdout
    )
    wanted = rows_of(run("decode", EXAMPLES / "traffic.pcap", "--format", "mqtt"))
    assert [json.loads(row["filters"] or "null") for row in rows] == [
        row["filters"] for row in wanted
    ]
    assert sum(row["filters"] is not None for row in wanted) > 3


def test_any_nested_value_is_json_that_reads_back() -> None:
    values: list[dict[str, object] | None] = [
        {"a": None, "b": ['x"\\\n\x1b\u2028', None], "m": [("k", 1.5), ("", float("nan"))]},
        None,
        {"a": b"\x00\xff", "b": [], "m": None},
        {"a": b"", "b": None, "m": []},
    ]
    kind = pa.struct(
        [
            ("a", pa.binary()),
            ("b", pa.list_(pa.string())),
            ("m", pa.map_(pa.string(), pa.float64())),
        ]
    )
    rows = cells(written({"v": pa.array(values, kind), "at": pa.array(range(4))}))
    assert [json.loads(row["v"] or '"null"') for row in rows] == [
        {"a": None, "b": ['x"\\\n\x1b\u2028', None], "m": {"k": 1.5, "": "nan"}},
        "null",
        {"a": "00ff", "b": [], "m": None},
        {"a": "", "b": None, "m": {}},
    ]
    assert "\x1b" not in rows[0]["v"] and "\u2028" not in rows[0]["v"]


def test_a_spreadsheet_runs_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "evil.mqtt"
    payloads = [b'=HYPERLINK("http://127.0.0.1")', b"-12.5", b"+1e3", b"@SUM(A1)", b"-", b"fine"]
    payloads += [
        text.encode() for text in (" =1", "\u00a0\u200b+1", "\uff1d1", "\uff20A", "a\u202eb")
    ]
    packets = [mqtt.Publish(topic="t", payload=one) for one in payloads]
    path.write_bytes(b"".join(map(wireyard.encode, [mqtt.Connect(client_id="=1+1"), *packets])))
    plain = run("decode", path, "--out", "csv")
    assert [row["payload"].encode() for row in cells(plain.stdout)[1:]] == payloads
    result = run("decode", path, "--out", "csv", "--spreadsheet")
    assert result.stdout_bytes.startswith(b"\xef\xbb\xbf")
    rows = cells(result.stdout_bytes[3:])
    assert rows[0]["client_id"] == "'=1+1"
    assert [row["payload"] for row in rows[1:]] == [
        '\'=HYPERLINK("http://127.0.0.1")',
        "-12.5",
        "+1e3",
        "'@SUM(A1)",
        "'-",
        "fine",
        "' =1",
        "'\u00a0\u200b+1",
        "'\uff1d1",
        "'\uff20A",
        "a\\u202eb",
    ]
    assert one_line(run("decode", path, "--spreadsheet")) == "decode: --spreadsheet is for csv"


def test_nothing_moves_the_cursor_of_a_terminal() -> None:
    file = io.BytesIO()
    batch = pa.record_batch({"topic": pa.array(["a\x1b[2Jb\x9b", None, "ü"])})
    writer = CsvWriter(batch.schema, file, terminal=True)
    writer.write(batch)
    assert file.getvalue().decode() == '"topic"\n"a\\x1b[2Jb\\x9b"\n\n"ü"\n'


def test_passwords_stay_out_unless_asked_for(run: Run, published: Path, login: Path) -> None:
    secret = b"secret".hex()
    for path, column in ((published, "password"), (login, "body")):
        hidden = run("decode", path, "--out", "csv", "--payload", "hex")
        shown = run("decode", path, "--out", "csv", "--payload", "hex", "--secrets")
        assert all(row[column] == "" for row in cells(hidden.stdout) if row["packet_type"] in "1")
        assert any(
            secret in row[column] or b"c2VjcmV0".hex() in row[column] for row in cells(shown.stdout)
        )
        assert secret not in hidden.stdout and b"c2VjcmV0".hex() not in hidden.stdout


# --- which kind, and which files ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("x.csv", b'"source",'),
        ("x.jsonl", b'{"source":'),
        ("x.ndjson", b'{"source":'),
        ("x.json", b'[\n{"source":'),
        ("x.PARQUET", b"PAR1"),
        ("x.arrow", b"\xff\xff\xff\xff"),
        ("x", b'{"source":'),
    ],
)
def test_the_ending_of_a_name_decides(
    name: str, begins: bytes, run: Run, stream: Path, tmp_path: Path
) -> None:
    target = tmp_path / name
    assert run("decode", stream, "-w", target).exit_code == 0
    assert target.read_bytes().startswith(begins)


@pytest.mark.parametrize("name", ["x.xlsx", "x.jsonl.gz", "x.pcap", "x.mqtt"])
def test_an_unknown_ending_is_refused(name: str, run: Run, stream: Path, tmp_path: Path) -> None:
    result = run("decode", stream, "-w", tmp_path / name)
    assert (result.exit_code, list(tmp_path.glob("x*"))) == (2, [])
    line = one_line(result)
    assert ("wireyard encode" if name == "x.mqtt" else ".csv, .jsonl") in line
    assert run("decode", stream, "-w", tmp_path / name, "--out", "csv").exit_code == 0


def test_json_is_one_array(run: Run, stream: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    run("decode", stream, "-w", target)
    assert json.loads(target.read_bytes()) == rows_of(run("decode", stream))
    run("decode", stream, "-w", target, "--where", "packet_type == 999999")
    assert json.loads(target.read_bytes()) == []


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_each_format_of_a_capture_has_its_file(kind: str, run: Run, tmp_path: Path) -> None:
    target, capture = tmp_path / f"x.{kind}", EXAMPLES / "traffic.pcap"
    result = run("decode", capture, "-w", target)
    assert result.exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"x.jmq.{kind}", f"x.mqtt.{kind}"]
    assert result.stderr.splitlines() == [
        f"wireyard: wrote {tmp_path}/x.mqtt.{kind}, 301 rows of mqtt",
        f"wireyard: wrote {tmp_path}/x.jmq.{kind}, 882 rows of jmq",
    ]
    for name in ("mqtt", "jmq"):
        wanted = run("decode", capture, "--format", name, "-w", tmp_path / f"one.{kind}")
        assert (wanted.exit_code, notes_of(wanted.stderr)) == (0, "")
        ours, theirs = tmp_path / f"x.{name}.{kind}", tmp_path / f"one.{kind}"
        if kind == "parquet":
            assert parquet.read_table(ours).equals(parquet.read_table(theirs))
        elif kind == "arrow":
            tables = [pa.ipc.open_stream(one.read_bytes()).read_all() for one in (ours, theirs)]
            assert tables[0].equals(tables[1])
        else:
            assert ours.read_bytes() == theirs.read_bytes()


def test_standard_output_takes_one_table(run: Run) -> None:
    result = run("decode", EXAMPLES / "traffic.pcap", "--out", "csv")
    assert result.exit_code == 2
    assert one_line(result) == (
        "one table has one format, here are mqtt and jmq; --format names one, and -w FILE.csv"
        " writes a file for each"
    )


def test_nothing_is_written_where_a_row_cannot_be(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.jmq"
    path.write_bytes(packet() + packet(version=999))
    result = run("decode", path, "-w", tmp_path / "x.csv", "--mode", "failfast")
    assert result.exit_code == 1
    assert [one.name for one in tmp_path.iterdir()] == ["bad.jmq"]


def test_captures_and_streams_are_no_one_table(run: Run, tmp_path: Path) -> None:
    stream = next((EXAMPLES / "traffic").glob("*.mqtt"))
    words = ["decode", EXAMPLES / "traffic.pcap", stream, "--format", "mqtt"]
    result = run(*words, "-w", tmp_path / "x.csv")
    assert result.exit_code == 2
    assert "one table takes captures or streams, not both" in one_line(result)
