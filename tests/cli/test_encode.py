"""encode: what decode printed comes back byte for byte, anything else is one clear line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wireyard
from tests.cli.results import Run, one_line, rows_of
from tests.make import item, items, packet, section, variety
from wireyard.formats import get_format
from wireyard.schema import pick_columns

JMQ = get_format("jmq")
COLUMNS = [column.name for column in pick_columns(JMQ, None)]


def there_and_back(run: Run, source: Path) -> bytes:
    """Return a stream after decode and encode."""
    printed = run("decode", source, "--out", "jsonl", "--secrets")
    assert (printed.exit_code, printed.stderr) == (0, "")
    result = run("encode", stdin=printed.stdout_bytes)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout_bytes


def test_recorded_streams_come_back(
    run: Run, traffic: list[Path], mqtt_traffic: list[Path]
) -> None:
    for source in [*traffic, *mqtt_traffic]:
        assert there_and_back(run, source) == source.read_bytes(), source.name


def test_real_streams_come_back(run: Run, shared: Path) -> None:
    sources = [*sorted((shared / "streams/real").glob("*.jmq")), shared / "streams/jmq_5000.stream"]
    assert len(sources) == 27
    for source in sources:
        assert there_and_back(run, source) == source.read_bytes(), source.name


@pytest.mark.parametrize("number", range(len(variety())))
def test_every_kind_of_packet_comes_back(number: int, run: Run, tmp_path: Path) -> None:
    source, data = tmp_path / "one.jmq", variety()[number]
    source.write_bytes(data)
    assert there_and_back(run, source) == data


def test_a_row_needs_no_more_than_a_type(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "ping.jmq"
    line = '\n  {"packet_type": 54, "consumer_id": 7, "destination": null}  \n\n'
    result = run("encode", "--format", "jmq", "-w", target, stdin=line)
    assert (result.exit_code, result.stderr) == (0, "")
    made = wireyard.decode(target.read_bytes(), "jmq")
    assert (made.packet_type, made.consumer_id, made.destination) == (54, 7, None)


def test_lines_may_be_compressed_and_as_long_as_they_like(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl.gz"
    rows = [{"format": "jmq", "packet_type": 1, "body": "ab" * size} for size in (3_000_000, 1)]
    source.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    result = run("encode", source)
    assert result.exit_code == 0
    table = wireyard.read(result.stdout_bytes, format="jmq")
    assert table["body_size"].to_pylist() == [3_000_000, 1]


def test_a_line_without_end_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wireyard.cli.encode._MAX_LINE_BYTES", 1000)
    source = tmp_path / "rows.jsonl"
    source.write_text('{"packet_type":54}\n' + "x" * 2000)
    result = run("encode", source, "--format", "jmq")
    assert (result.exit_code, one_line(result)) == (3, f"{source}, line 2: is over 1000 bytes")


def test_faults_have_no_bytes_to_write(run: Run, damaged: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "out.jmq"
    assert run("decode", damaged, "-w", source).exit_code == 1
    result = run("encode", source, "-w", target)
    assert (result.exit_code, target.exists()) == (3, False)
    assert one_line(result).endswith(f"in {source}, line 2")
    result = run("encode", source, "-w", target, "--skip-faults")
    assert (result.exit_code, one_line(result)) == (
        0,
        f"{source}: 4 rows left out, being no packets",
    )
    assert target.read_bytes() == packet(body=b"first") + packet(body=b"last")


@pytest.mark.parametrize("words", [(), ("--secrets", "--body", "none")])
def test_a_body_that_was_taken_out_is_missed(words: tuple[str, ...], run: Run, login: Path) -> None:
    rows = run("decode", login, *words)
    result = run("encode", stdin=rows.stdout_bytes)
    assert result.exit_code == 3
    assert one_line(result).startswith("'body' cannot be None: body_size is 17;")
    edited = [{k: v for k, v in row.items() if k != "body_size"} for row in rows_of(rows)]
    assert run("encode", stdin="\n".join(map(json.dumps, edited))).exit_code == 0


BAD_LINES = {
    "{bad": "is no JSON: Expecting property name enclosed in double quotes, column 2",
    "[1]": "is no row: an object with columns is needed",
    "[" * 100_000: "is no JSON: bytes that are not UTF-8, or too many brackets",
    '{"packet_type":54}': "the row has no 'format'; name it with --format",
    '{"format":"jmq"}': "'packet_type' cannot be None: every packet has a type",
    '{"format":"hmq"}': "unknown format 'hmq'; there are:",
    '{"format":"jmq","destinaton":"x"}': "'column' cannot be 'destinaton': there are source,",
    '{"format":"jmq","packet_type":"1"}': "'packet_type' cannot be '1': an integer is needed",
    '{"format":"jmq","packet_type":true}': "'packet_type' cannot be True: an integer is needed",
    '{"format":"jmq","packet_type":1,"body":"xy"}': "'body' cannot be 'xy': bytes are written as",
    '{"format":"jmq","packet_type":1,"properties":[]}': "'properties' cannot be []",
    '{"format":"jmq","packet_type":1,"properties":{"a":1}}': "'property a' cannot be 1",
    '{"format":"jmq","packet_type":70000}': "'packet_type' cannot be 70000",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named(line: str, run: Run, tmp_path: Path) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "out.jmq"
    source.write_text(f'{{"format":"jmq","packet_type":54}}\n\n{line}\n')
    result = run("encode", source, "-w", target)
    assert result.exit_code == (2 if "hmq" in line else 3)
    assert one_line(result).startswith(BAD_LINES[line])
    assert one_line(result).endswith(f"in {source}, line 3")
    assert not target.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from(["type", "value"]), inner, max_size=3)
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["integer", "float", "object", "string", "x"]), "value": inner}
        )
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=st.dictionaries(st.sampled_from(COLUMNS), JSON, max_size=6))
def test_any_json_is_a_packet_or_one_line(run: Run, row: dict[str, Any]) -> None:
    words = "encode", "--format", "jmq", "--skip-faults"
    result = run(*words, stdin=json.dumps({"packet_type": 1, **row}))
    if result.exit_code == 0:
        assert not result.stdout_bytes or wireyard.decode(result.stdout_bytes, "jmq")
    else:
        assert result.exit_code == 3
        assert one_line(result).endswith("in -, line 1")


def test_columns_of_other_names_do_not_matter(run: Run, tmp_path: Path) -> None:
    """The derived columns are not looked at: changing a row is changing what they follow from."""
    source = tmp_path / "one.jmq"
    source.write_bytes(packet(items=items(item(1, "old")), properties=section(("n", 4, 1))))
    (row,) = rows_of(run("decode", source))
    row["destination"] = "a much longer name than before"
    result = run("encode", stdin=json.dumps(row))
    assert result.exit_code == 0
    assert wireyard.decode(result.stdout_bytes, "jmq").destination == row["destination"]
