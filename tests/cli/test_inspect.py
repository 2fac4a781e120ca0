"""inspect: every byte of a packet with its field, and where the neighbours are."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from random import Random

import pytest

import wireyard
from tests.captures.make import one_way_frames, packets, pcap
from tests.cli.results import LOGIN, Run, one_line, rows_of
from tests.make import packet, variety
from tests.mutations import damaged_stream
from wireyard import mqtt
from wireyard.captures.stores.read import read_store

EXAMPLES = Path(__file__).parents[2] / "examples"

FIELD = re.compile(r"^ *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2}) ")
MORE = re.compile(r"^ {8}((?:[0-9a-f]{2} )*[0-9a-f]{2})(?: |$)")


def shown_bytes(text: str) -> bytes:
    """Return the bytes that an inspection shows, and check that none is left out between."""
    found = b""
    for line in text.splitlines():
        if field := FIELD.match(line):
            assert int(field[1]) == len(found)
            found += bytes.fromhex(field[2])
        elif more := MORE.match(line):
            found += bytes.fromhex(more[1])
    return found


@pytest.mark.parametrize("number", range(len(variety())))
def test_every_byte_is_shown(number: int, run: Run, stream: Path) -> None:
    at = sum(map(len, variety()[:number]))
    result = run("inspect", stream, "--at", at, "--all", "--secrets")
    assert (result.exit_code, result.stderr) == (0, "")
    assert shown_bytes(result.stdout) == variety()[number]


def test_a_field_has_its_value_under_its_section(run: Run, stream: Path) -> None:
    at = len(variety()[0])
    lines = run("inspect", stream, "--at", at).stdout.splitlines()
    assert lines[0] == f"jmq packet at offset {at} ({at:#x}), {len(variety()[1])} bytes"
    sections = [line for line in lines if line.startswith("JMQ 3.0.1c, ")]
    assert sections[0] == "JMQ 3.0.1c, fixed header"
    assert "JMQ 3.0.1c, property data" in sections
    assert "    60  05                       priority                  5" in lines
    destination = next(line for line in lines if " destination  " in line)
    assert destination.split()[-1] == "queue.of.work"


@pytest.mark.parametrize("place", ["first byte", "middle", "last byte"])
def test_any_offset_shows_the_packet_that_holds_it(place: str, run: Run, stream: Path) -> None:
    sizes = list(map(len, variety()))
    start, stop = sizes[0], sizes[0] + sizes[1]
    at = {"first byte": start, "middle": (start + stop) // 2, "last byte": stop - 1}[place]
    for offset in (at, hex(at)):
        lines = run("inspect", stream, "--at", offset).stdout.splitlines()
        assert f"at offset {start} " in lines[0]
        assert lines[-1] == f"previous: --at 0, next: --at {stop}"


def test_the_ends_of_a_stream_are_told(run: Run, stream: Path) -> None:
    sizes = list(map(len, variety()))
    first = run("inspect", stream).stdout.splitlines()[-1]
    last = run("inspect", stream, "--at", sum(sizes) - 1).stdout.splitlines()[-1]
    assert first == f"the first, next: --at {sizes[0]}"
    assert last == f"previous: --at {sum(sizes[:-2])}, the last"


def test_neighbours_are_found_in_other_windows(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "windows.jmq"
    size = len(variety()[2])
    count, seam = (9 << 20) // size, (4 << 20) // size
    path.write_bytes(variety()[2] * count)
    for number in (0, seam, seam + 1, count // 2, count - 1):
        last = run("inspect", path, "--at", number * size).stdout.splitlines()[-1]
        before = "the first" if number == 0 else f"previous: --at {(number - 1) * size}"
        after = "the last" if number == count - 1 else f"next: --at {(number + 1) * size}"
        assert last == f"{before}, {after}"


def test_bytes_of_no_packet_are_shown_as_such(run: Run, damaged: Path) -> None:
    lines = run("inspect", damaged, "--at", 230, "--secrets").stdout.splitlines()
    assert lines[0] == "jmq bytes that belong to no packet at offset 226 (0xe2), 9 bytes"
    assert lines[1].startswith("jmq: 'magic' is not there at byte 0")
    assert lines[2].split() == ["0", *b"no packet".hex(" ").split(), "no", "packet"]
    assert lines[-1] == "previous: --at 149, next: --at 235"
    assert b"no p".hex(" ") not in run("inspect", damaged, "--at", 230).stdout


def test_malformed_and_unfinished_packets_say_why(run: Run, damaged: Path) -> None:
    lines = run("inspect", damaged, "--at", 77).stdout.splitlines()
    assert lines[0].startswith("jmq malformed packet at offset 77")
    assert lines[1].startswith("jmq: 'version' is 999")
    result = run("inspect", damaged, "--at", 311, "--secrets")
    assert result.stdout.startswith("jmq unfinished packet at offset 311")
    assert shown_bytes(result.stdout) == damaged.read_bytes()[311:]


def test_password_bytes_are_hidden(run: Run, login: Path) -> None:
    hidden = run("inspect", login, "--at", 80).stdout
    shown = run("inspect", login, "--at", 80, "--secrets").stdout
    assert shown_bytes(shown) == LOGIN
    assert shown_bytes(hidden) == LOGIN[:-17]
    assert "-- (17 bytes)" in hidden
    assert not any(text in hidden for text in ("c2VjcmV0", "63 32 56"))


def test_long_fields_are_cut_and_say_so(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "long.jmq"
    path.write_bytes(packet(packet_type=2, body=bytes(5000)))
    result = run("inspect", path)
    assert ".. 4872 more (--all)" in result.stdout
    assert len(shown_bytes(result.stdout)) == 72 + 128
    assert len(shown_bytes(run("inspect", path, "--all").stdout)) == 72 + 5000


def test_compressed_and_piped_streams_are_walked(run: Run, stream: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(stream.read_bytes()))
    wanted = run("inspect", stream, "--at", 100).stdout
    assert run("inspect", packed, "--at", 100).stdout == wanted
    assert run("inspect", "-", "--at", 100, stdin=stream.read_bytes()).stdout == wanted


@pytest.mark.parametrize(
    ("at", "line"),
    [
        ("10000", "--at 10000: {} has {} bytes"),
        ("-1", "--at -1: offsets count from the start of the stream, from 0"),
    ],
)
def test_an_offset_outside_is_refused(at: str, line: str, run: Run, stream: Path) -> None:
    result = run("inspect", stream, "--at", at)
    assert result.exit_code == 2
    assert one_line(result) == line.format(stream, stream.stat().st_size)


def test_an_offset_is_a_number(run: Run, stream: Path) -> None:
    result = run("inspect", stream, "--at", "x")
    assert (result.exit_code, one_line(result)[:33]) == (2, "inspect: Invalid value for '--at'")


@pytest.mark.parametrize("seed", range(10))
def test_no_stream_is_too_damaged(seed: int, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "any.jmq"
    rng = Random(seed)
    path.write_bytes(damaged_stream("jmq", rng, 20))
    at, more = 0, True
    while more:
        result = run("inspect", path, "--at", at, "--all", "--secrets", "--format", "jmq")
        assert result.exit_code == 0
        found = re.search(r"next: --at (\d+)$", result.stdout)
        stop = int(found[1]) if found else path.stat().st_size
        if not result.stdout.startswith("jmq bytes that belong"):
            assert shown_bytes(result.stdout) == path.read_bytes()[at:stop]
        at, more = stop, found is not None


# --- captures and stores --------------------------------------------------------------------


def accounts(text: str) -> dict[str, list[str]]:
    """Return the numbers of each stream that an account has."""
    lines = [line.split() for line in text.splitlines()]
    return {words[0]: words[1:] for words in lines if words and words[0].count(":") == 2}


def test_the_bytes_of_a_capture_add_up(run: Run, tmp_path: Path) -> None:
    connect, publish = wireyard.encode(mqtt.Connect(client_id="c")), bytes.fromhex("3003000174")
    frames = [*one_way_frames([(0, connect), (len(connect) + 9, publish), (50, b"\xff")], 40000)]
    frames += one_way_frames([(0, b"hello")], 40001, 4000)
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(packets(frames)))
    result = run("inspect", path)
    found = accounts(result.stdout)
    known, unknown = found.values()
    assert unknown == ["unknown", "0", "5", "0", "5"]
    gap = 9 + 50 - (len(connect) + 9 + len(publish))
    sent = len(connect) + len(publish)
    assert known == ["mqtt", str(sent), "1", str(gap), str(sent + 1 + gap)]
    line = result.stdout.splitlines()[-1]
    assert line.startswith(f"balances: {sent} in messages + 6 undecoded + {gap} in gaps = ")
    assert result.exit_code == 1 and "unknown format" in result.stderr


@pytest.mark.parametrize("name", ["traffic.pcap", "points/broker.pcap", "encrypted/mqtt.pcap"])
def test_the_account_of_a_capture_is_that_of_its_rows(name: str, run: Run) -> None:
    words: list[object] = [EXAMPLES / name]
    if "mqtt" in name:
        words += ["--keylog", EXAMPLES / "encrypted" / "mqtt.keys"]
    result = run("inspect", *words)
    assert "\nbalances: " in result.stdout
    sizes: dict[str, int] = {}
    for row in rows_of(run("decode", *words, "--columns", "stream,status,length")):
        assert row["status"] == "ok"
        sizes[row["stream"]] = sizes.get(row["stream"], 0) + row["length"]
    for stream, (format, sent, undecoded, gaps, payload) in accounts(result.stdout).items():
        if format in ("portmapper", "tls"):
            assert sent == gaps == "0" and undecoded == payload
        else:
            assert [sent, undecoded, gaps, payload] == [str(sizes[stream]), "0", "0", sent]


def test_an_account_that_does_not_add_up_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireyard.captures.accounts._payload_bytes", lambda stream: 1)
    result = run("inspect", EXAMPLES / "traffic.pcap")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("does not balance: 220,998 in messages + ")


def test_a_frame_shows_the_packets_that_it_brought(run: Run) -> None:
    path = EXAMPLES / "traffic.pcap"
    rows = rows_of(run("decode", path, "--columns", "stream,offset,length,frame,format"))
    for frame in sorted({row["frame"] for row in rows})[::50]:
        result = run("inspect", path, "--frame", frame)
        titles = [line for line in result.stdout.splitlines() if " packet at offset " in line]
        for row in rows:
            if row["frame"] == frame:
                place = f"{row['offset']} ({row['offset']:#x}), {row['length']} bytes"
                assert f"{row['format']} packet at offset {place}" in titles
        assert result.exit_code == 0


def test_a_packet_in_two_frames_is_shown_for_both(run: Run, tmp_path: Path) -> None:
    connect = wireyard.encode(mqtt.Connect(client_id="client"))
    path = tmp_path / "a.pcap"
    parts = [(0, connect[:9]), (9, connect[9:] + b"\xc0\x00")]
    path.write_bytes(pcap(packets(one_way_frames(parts, 40000))))
    frames = {row["frame"] for row in rows_of(run("decode", path))}
    first, second = (run("inspect", path, "--frame", max(frames) - at).stdout for at in (1, 0))
    title = f"mqtt packet at offset 0 (0x0), {len(connect)} bytes"
    assert title in first and title in second
    assert "PINGREQ" in second and "PINGREQ" not in first
    stream = rows_of(run("decode", path))[0]["stream"]
    result = run("inspect", path, "--stream", stream, "--at", len(connect))
    assert result.stdout.splitlines()[-1] == f"previous: --stream '{stream}' --at 0, the last"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["traffic.pcap", "--frame", "1"], "--frame 1: brought no byte of a stream of a known"),
        (["traffic.pcap", "--at", "1"], "has several streams; --stream names one"),
        (["traffic.pcap", "--stream", "x"], "has no such stream of a known format"),
        (["traffic/shop-c2b.jmq", "--frame", "1"], "has no frames, it is no capture"),
        (["store", "--stream", "x"], "has no such stream of a known format"),
    ],
)
def test_what_is_not_there_to_inspect(words: list[str], said: str, run: Run) -> None:
    result = run("inspect", EXAMPLES / words[0], *words[1:])
    assert result.exit_code == 2 and said in one_line(result)


def test_a_store_has_an_account_too(run: Run) -> None:
    result = run("inspect", EXAMPLES / "store")
    assert (result.exit_code, result.stderr) == (0, "")
    total = result.stdout.splitlines()[-1]
    files = list(read_store(EXAMPLES / "store"))
    size = sum(len(file.data) for file in files)
    assert total.startswith("balances: 10,138 in messages + 0 undecoded + ")
    assert total.endswith(f" = {size:,} bytes in files")
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()[1:-2]}
    assert rows.keys() == {file.name for file in files}
    assert rows["fs370/message/Qfreight/0"] == ["Q:freight", "0", "0", "6192", "0", "6192"]
    assert rows["fs370/message/Qfreight/1"] == ["Q:freight", "6154", "0", "0", "38", "6192"]
    assert rows["fs370/configrecord"] == ["configuration", "0", "0", "0", "4", "4"]
    result = run("inspect", EXAMPLES / "store", "--stream", "fs370/message/Qorders/vrfile")
    assert result.exit_code == 0 and "gap at offset 0" in result.stdout
    for command in ("convert", "check-splits"):
        for path in (EXAMPLES / "store", EXAMPLES / "store/fs370/message/Qorders/vrfile"):
            result = run(command, path)
            assert (result.exit_code, result.stdout) == (2, "")
            assert "is a file store, not one stream; 'wireyard decode' reads" in one_line(result)
