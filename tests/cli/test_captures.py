"""``wireyard decode`` of captures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from pyarrow import parquet

import wireyard
from tests.captures import rfc8448
from tests.captures.connections import make_capture
from tests.captures.make import SYN, both_ways, ethernet, ipv4, one_way, packets, pcap, tcp
from tests.captures.test_directed import CONNECT, PUBLISH
from tests.cli.results import Run, notes_of, one_line, rows_of
from tests.make import packet
from wireyard.captures.files.file import read_records

_QUESTIONS = (
    ("decode", None),
    ("why", None, "--no-cache"),
    ("why", None),
    ("slow", None),
    ("trace", None, "t"),
    ("sql", None, "SELECT count(*) FROM sessions"),
    ("report", None, "-o", "-"),
)


def test_the_command_line_takes_captures(run: Run, tmp_path: Path) -> None:
    frames = both_ways(CONNECT, PUBLISH) + both_ways(packet(), b"?", (50001, 50002))
    path = tmp_path / "both"
    path.write_bytes(pcap(packets(frames)))
    result = run("decode", str(path))
    rows = rows_of(result)
    assert [row["format"] for row in rows] == ["mqtt", "mqtt", "jmq", "jmq"]
    assert [row["src_port"] for row in rows] == [40000, 1999, 50001, 50002]
    assert (result.exit_code, rows[3]["status"]) == (1, "garbage")
    options = ("--format", "mqtt", "--where", "frame == 4", "--columns", "topic,dst_port")
    assert rows_of(run("decode", str(path), *options)) == [{"topic": "t", "dst_port": 40000}]
    refused = run("convert", str(path))
    assert "is a capture, not one stream" in refused.stderr


def test_a_ring_of_files_in_any_order_is_the_whole_capture(run: Run, tmp_path: Path) -> None:
    """Byte for byte, with connections that go on from file to file, and damaged ones."""
    rng = Random(5)
    whole = make_capture(rng, 120)
    found = read_records(np.frombuffer(whole, np.uint8), "")
    ends = np.concatenate([each.starts + each.captured for each in found]).tolist()
    cuts = [24, *sorted(rng.sample(ends[:-1], 199)), len(whole)]
    names = rng.sample(range(1000), 200)
    files = [tmp_path / f"{name}.pcap" for name in names]
    for file, (start, stop) in zip(files, pairwise(cuts), strict=True):
        file.write_bytes(whole[:24] + whole[start:stop])
    merged = tmp_path / "merged.pcap"
    merged.write_bytes(whole)

    def written(*words: object) -> bytes:
        out = tmp_path / "rows.parquet"
        assert run("decode", "--format", "mqtt", "-w", out, *words).exit_code == 1
        return out.read_bytes()

    in_order = written("--rotated", *files)
    columns = parquet.read_schema(tmp_path / "rows.parquet").names
    rng.shuffle(files)
    assert written("--rotated", *files) == in_order
    columns.remove("source")
    named = ("--columns", ",".join(columns))
    once = written(*named, merged)
    assert parquet.read_table(tmp_path / "rows.parquet").num_rows > 400
    for _ in range(2):
        rng.shuffle(files)
        assert written(*named, "--rotated", *files) == once
        assert written(*named, merged) == once


def test_faults_of_very_many_streams_are_counted(run: Run, tmp_path: Path) -> None:
    frames = [ethernet(ipv4(tcp(2000 + port, 1883, 1000, b"x"))) for port in range(300)]
    path = tmp_path / "hostile"
    path.write_bytes(pcap(packets(frames)))
    result = run("decode", str(path))
    notes = notes_of(result.stderr).splitlines()
    assert (result.exit_code, len(rows_of(result)), len(notes)) == (1, 300, 257)
    assert (
        f"{path}: 44 more streams: 44 runs of bytes that belong to no packet, 44 bytes" in notes[-1]
    )


def test_files_are_not_both_rotated_and_followed(run: Run, tmp_path: Path) -> None:
    result = run("decode", "--rotated", "--follow", tmp_path / "a")
    assert result.exit_code == 2
    assert one_line(result).endswith("reads the files of a capture one after the other itself")


def test_damage_is_told(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(one_way([(0, CONNECT + PUBLISH)]) + bytes(7))
    result = run("decode", str(path))
    assert (result.exit_code, len(rows_of(result))) == (1, 2)
    assert "7 bytes are not read" in result.stderr


def test_gaps_are_told(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "lost.pcap"
    path.write_bytes(one_way([(0, CONNECT), (len(CONNECT) + 7, PUBLISH)]))
    result = run("decode", str(path))
    assert result.exit_code == 1
    assert "1 gap in the capture, 7 bytes" in result.stderr


@pytest.mark.parametrize("limit", [[], ["--limit", "150"]])
def test_a_table_of_many_short_streams_has_their_rows_and_names_what_is_wrong(
    run: Run, tmp_path: Path, limit: list[str]
) -> None:
    frames = []
    for port in range(40_000, 40_100):
        data = CONNECT + PUBLISH + (b"\x31\x01\x00" if port % 50 == 7 else PUBLISH)
        frames += [tcp(port, 1883, 999, flags=SYN), tcp(port, 1883, 1000, data[:20])]
        behind = 23 if port % 50 == 9 else 20
        frames.append(tcp(port, 1883, 1000 + behind, data[behind:]))
    path, table = tmp_path / "many.pcap", tmp_path / "many.parquet"
    path.write_bytes(pcap(packets(ethernet(ipv4(frame)) for frame in frames)))
    result = run("decode", str(path), "-w", str(table), *limit)
    assert result.exit_code == 1
    whole = wireyard.read(path, "mqtt").to_pylist()
    read = parquet.read_table(table).to_pylist()
    assert read == whole[: len(read)]
    assert len(read) == (150 if limit else len(whole))
    named = {line.split(">")[0].rpartition(":")[2] for line in notes_of(result.stderr).splitlines()}
    assert named == ({"40007", "40009"} if limit else {"40007", "40009", "40057", "40059"})


def test_bytes_of_no_known_format_are_lost_data(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "both.pcap"
    frames = both_ways(CONNECT, PUBLISH) + both_ways(b"GET /", b"200 OK", (50001, 8884))
    path.write_bytes(pcap(packets(frames)))
    result = run("decode", str(path))
    assert (result.exit_code, len(rows_of(result))) == (1, 2)
    assert one_line(result) == (
        f"{path}: 2 streams, 11 bytes (10.0.0.1:50001>10.0.0.2:8884, 10.0.0.2:8884>10.0.0.1:50001):"
        " unknown format; to decode it as MQTT: --decode-as tcp.port==8884,mqtt"
    )
    by_name = run("decode", str(path), "--decode-as", "tcp.port==8884,mqtt")
    assert "unknown format" not in by_name.stderr


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_capture_of_no_known_format_makes_no_table(run: Run, tmp_path: Path, kind: str) -> None:
    path, table = tmp_path / "other.pcap", tmp_path / f"other.{kind}"
    path.write_bytes(pcap(packets(both_ways(b"GET /", b"200 OK", (50001, 8884)))))
    result = run("decode", str(path), "-w", str(table))
    assert result.exit_code == 1
    lost, problem = notes_of(result.stderr).splitlines()
    assert lost.startswith(f"wireyard: {path}: 2 streams, 11 bytes")
    assert problem.startswith("wireyard: there is no stream of a known format, so no table")
    assert not table.exists()
    result = run("decode", str(path), "--format", "mqtt", "-w", str(table))
    assert (result.exit_code, one_line(result).startswith(f"{path}: 2 streams")) == (1, True)
    if kind == "parquet":
        assert parquet.read_table(table).num_rows == 0


def test_bytes_that_a_snaplen_cut_off_are_counted(run: Run, tmp_path: Path) -> None:
    path, most = tmp_path / "cut.pcap", 60
    data = pcap(packets(both_ways(CONNECT, PUBLISH)))
    head, at, out, cut = data[:24], 24, b"", 0
    while at < len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "little")
        kept = min(size, most)
        out += data[at : at + 8] + kept.to_bytes(4, "little") + data[at + 12 : at + 16 + kept]
        cut += size - kept
        at += 16 + size
    path.write_bytes(head + out)
    said = f"cut off after {most} bytes (snaplen), {cut:,} bytes are missing"
    assert cut
    for words in _QUESTIONS:
        result = run(*(path if word is None else word for word in words))
        assert (result.exit_code, said in result.stderr) == (1, True), words
    lake = ("--lake", tmp_path / "lake", "--engine", "process")
    result = run("run", path, *lake)
    assert (result.exit_code, said in result.stderr) == (1, True)


def test_a_capture_that_is_all_tls_without_keys_is_not_read(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tls.pcap"
    closed = both_ways(rfc8448.CLIENT_STREAM, rfc8448.SERVER_STREAM, (50001, 8883))
    path.write_bytes(pcap(packets(closed)))
    said = "2 streams, "
    for words in _QUESTIONS:
        result = run(*(path if word is None else word for word in words))
        assert (result.exit_code, said in result.stderr) == (1, True), words
    result = run("decode", "-", stdin=path.read_bytes())
    assert (result.exit_code, said in result.stderr) == (1, True)
    lake = ("--lake", tmp_path / "lake", "--engine", "process")
    result = run("run", path, *lake)
    assert (result.exit_code, said in result.stderr) == (1, True)
    path.write_bytes(pcap(packets([*both_ways(CONNECT, b"\x20\x02\0\0"), *closed])))
    for words in _QUESTIONS[:2]:
        result = run(*(path if word is None else word for word in words))
        assert (result.exit_code, said in result.stderr) == (0, True), words


def test_plain_http_is_a_note_of_commands_about_captures_only(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "http.pcap"
    request, answer = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"
    streams = (*both_ways(CONNECT, b"\x20\x02\0\0"), *both_ways(request, answer, (50001, 80)))
    path.write_bytes(pcap(packets(streams)))
    assert "2 streams" in run("decode", path).stderr and "HTTP" in run("decode", path).stderr
    for words in (["why"], ["slow"], ["sql"]):
        query = ["SELECT count(*) FROM sessions"] if words == ["sql"] else []
        assert "HTTP" not in run(*words, path, *query, "--no-cache").stderr


@pytest.mark.parametrize(
    "words",
    [["decode"], ["flows"], ["flows", "--segments"], ["inspect"], ["slice", "-w"]],
    ids=" ".join,
)
def test_frames_that_are_not_read_are_named(run: Run, tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "arp.pcap"
    others = [ethernet(bytes(28), 0x0806)] * 2 + [ethernet(bytes(28), 0x88E5)]
    path.write_bytes(pcap(packets([*both_ways(CONNECT, PUBLISH), *others])))
    words = [*words, str(tmp_path / "out.pcap")] if "-w" in words else words
    result = run(*words, str(path))
    assert result.exit_code == 0
    assert f"{path}: frames not read: 2 ARP, 1 MACsec\n" in result.stderr


def test_where_nothing_is_found_what_was_not_read_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "arp.pcap"
    path.write_bytes(pcap(packets([ethernet(bytes(28), 0x0806)])))
    unread = f"wireyard: {path}: frames not read: 1 ARP"
    nothing = f"wireyard: {path}: no packet was read, so nothing is known"
    for words in (("trace", path, "plant/7"), ("why", path)):
        result = run(*words)
        assert (result.exit_code, notes_of(result.stderr).splitlines()) == (1, [nothing, unread])


def test_headers_of_proxies_are_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "proxy.pcap"
    path.write_bytes(pcap(packets(both_ways(b"PROXY UNKNOWN\r\n" + CONNECT, PUBLISH))))
    note = f"{path}: headers of proxies, 15 bytes in no row: 1 of PROXY protocol 1"
    for command in ("decode", "flows"):
        result = run(command, str(path))
        assert (result.exit_code, one_line(result)) == (0, note)
