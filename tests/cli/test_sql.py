"""``wireyard sql``: what is asked, and how the answer is written."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.cli.results import Run, one_line, rows_of
from tests.make import packet
from wireyard.cli import main

CAPTURE = Path(__file__).parents[2] / "examples" / "traffic.pcap"
VERDICTS = "SELECT verdict, count(*) AS deliveries FROM deliveries GROUP BY 1 ORDER BY 2 DESC, 1"


def test_an_answer_is_json_lines(run: Run) -> None:
    rows = rows_of(run("sql", CAPTURE, VERDICTS))
    assert rows[0] == {"verdict": "acknowledged", "deliveries": 100}
    assert sum(row["deliveries"] for row in rows) == 226


def test_values_are_exact(run: Run) -> None:
    query = (
        "SELECT 'é' AS text, 9223372036854775807 AS big, sum(x) AS sum, 1.5 AS half, NULL AS none,"
        " 'ab'::BLOB AS bytes, {'a': [1, 2]} AS nested,"
        " TIMESTAMPTZ '2026-01-02 03:04:05.678+01' AS time FROM (VALUES (1::BIGINT), (2)) v(x)"
    )
    assert rows_of(run("sql", CAPTURE, query)) == [
        {
            "text": "é",
            "big": 2**63 - 1,
            "sum": 3,
            "half": "1.5",
            "none": None,
            "bytes": "6162",
            "nested": {"a": [1, 2]},
            "time": "2026-01-02T02:04:05.678Z",
        }
    ]


@pytest.mark.parametrize("out", ["jsonl", "csv", "table", "parquet"])
def test_every_output_has_every_type(run: Run, tmp_path: Path, out: str) -> None:
    query = (
        "SELECT DATE '2026-01-02' AS day, TIME '01:02:03' AS time, INTERVAL 1 DAY AS span,"
        " uuid() AS id, [INTERVAL 2 DAY] AS spans, 'NaN'::DOUBLE AS none, [DATE '2026-01-02'] AS l,"
        " 9223372036854775808::HUGEINT AS big, TIMESTAMP '2026-01-02 03:04:05' AS local,"
        " MAP {'a': 1} AS m, '101'::BIT AS bits, 'a'::ENUM ('a', 'b') AS one, {'x': 'y'} AS s"
    )
    path = tmp_path / "x"
    result = run("sql", CAPTURE, query, "--out", out, "-w", path)
    assert (result.exit_code, result.stderr) == (0, f"wireyard: wrote {path}, 1 row\n")
    if out == "jsonl":
        row = json.loads(path.read_text())
        assert (row["day"], row["time"], row["span"]) == ("2026-01-02", "01:02:03", "1 day")
        assert (row["none"], row["l"], row["big"]) == ("NaN", ["2026-01-02"], str(2**63))
        assert (row["bits"], row["one"], row["s"]) == ("101", "a", {"x": "y"})


def test_columns_of_one_name_are_numbered(run: Run) -> None:
    query = "SELECT 1 AS a, 2 AS a, 3 AS a_1 FROM ledger LIMIT 1"
    assert rows_of(run("sql", CAPTURE, query)) == [{"a": 1, "a_1": 2, "a_1_1": 3}]


def test_a_table_for_people(run: Run) -> None:
    lines = run("sql", CAPTURE, VERDICTS, "--out", "table").stdout.splitlines()
    assert lines[0].split() == ["verdict", "deliveries"]
    assert lines[1].split() == ["acknowledged", "100"]


def test_terminals_are_not_moved(run: Run) -> None:
    shown = run("sql", CAPTURE, "SELECT chr(27) || '[2J' AS x", "--out", "table").stdout
    assert "\x1b" not in shown
    assert r"\x1b[2J" in shown


def test_the_ending_decides(run: Run, tmp_path: Path) -> None:
    run("sql", CAPTURE, VERDICTS, "-w", tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 7
    run("sql", CAPTURE, VERDICTS, "-w", tmp_path / "x.jsonl")
    lines = (tmp_path / "x.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["deliveries"] == 100
    run("sql", CAPTURE, VERDICTS, "-w", tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text().startswith('"verdict","deliveries"\n"acknowledged",100')
    refused = run("sql", CAPTURE, VERDICTS, "-w", tmp_path / "x.xlsx")
    assert refused.exit_code == 2
    assert "'.xlsx' is the ending of no output; there are .csv" in one_line(refused)
    assert not (tmp_path / "x.xlsx").exists()


def test_without_a_query_the_tables_are_listed(run: Run) -> None:
    tables = {row["table"]: row for row in rows_of(run("sql", CAPTURE))}
    assert tables["packets_jmq"]["rows"] == 882
    assert "bytes_read BIGINT" in tables["ledger"]["columns"]
    shown = run("sql", CAPTURE, "--out", "table").stdout
    assert "packets_jmq  882 rows\n    source, stream, offset, length," in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("query", ["SHOW TABLES", " show all tables ; "])
def test_tables_are_listed_as_duckdb_is_asked_for_them(query: str, run: Run) -> None:
    assert run("sql", CAPTURE, query).stdout == run("sql", CAPTURE).stdout


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("SELECT * FROM nowhere", "there is no table nowhere; there are conversations, deliveries"),
        ("DROP TABLE streams", "a query is one statement that selects"),
        ("SELECT * FROM read_text('/etc/hosts')", "Cannot access file"),
        ("SELECT\nFROM", "SQL: Parser Error"),
        ("SELECT topik FROM messages", "there is no column topik; there are message_key,"),
        ("SELECT verdit FROM deliveries", "there is no column verdit; there is verdict"),
        ("SELECT topic, retained FROM deliveries", "column topic; there are message_key,"),
    ],
)
def test_mistakes_are_one_line(run: Run, query: str, problem: str) -> None:
    refused = run("sql", CAPTURE, query)
    assert refused.exit_code == 2
    assert problem in one_line(refused)


def test_inputs_that_cannot_be_read(run: Run) -> None:
    missing = run("sql", "nowhere.pcap", "SELECT 1")
    assert (missing.exit_code, one_line(missing)) == (
        3,
        "nowhere.pcap: there is no such file or folder",
    )
    nothing = run("sql", "SELECT 1")
    assert nothing.exit_code == 2
    assert "name an INPUT or a LAKE" in one_line(nothing)


def test_a_file_that_is_called_like_a_query(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "from here.jmq"
    path.write_bytes(packet() * 2)
    assert rows_of(run("sql", path, "FROM ledger SELECT packets_ok"))[0]["packets_ok"] == 2
    assert {row["table"]: row["rows"] for row in rows_of(run("sql", path))}["packets_jmq"] == 2


def test_what_was_not_read_is_said(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(CAPTURE.read_bytes()[:-100])
    result = run("sql", path, "SELECT count(*) AS n FROM streams")
    assert result.exit_code == 1
    assert rows_of(result)[0]["n"] == 28
    assert "are not read" in result.stderr


def test_a_wide_table_is_shown_as_records() -> None:
    env = {"COLUMNS": "80"}
    given = ["sql", str(CAPTURE), "FROM messages ORDER BY frame LIMIT 2", "--out", "table"]
    lines = CliRunner(env=env).invoke(main, given).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("row ")] == ["row 1", "row 2"]
    assert sum(line.startswith("message_key  ") for line in lines) == 2
    assert not any(line.startswith("reply_to") for line in lines)  # null


def test_columns_share_a_line() -> None:
    env = {"COLUMNS": "80"}
    query = (
        "SELECT destination, message_key, producer, verdict FROM deliveries"
        " ORDER BY destination <> 'shop/prices/apples' LIMIT 9"
    )
    given = ["sql", str(CAPTURE), query, "--out", "table"]
    lines = CliRunner(env=env).invoke(main, given).stdout.splitlines()
    assert lines[0].split() == ["destination", "message_key", "producer", "verdict"]
    assert len(lines) == 10 and max(map(len, lines)) <= 80
    assert "shop/prices/apples" in lines[1] and "…" in lines[1]
