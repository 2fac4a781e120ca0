"""No output shows a secret of a packet or of a URL, whole or in part, however damaged it is."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import wireyard
from tests.cli.results import Run, rows_of
from tests.make import packet
from tests.marked import DECODE_AS, PLACES, URL_MARK, capture, leaks, mark, variants
from tests.tap.sockets import serving
from tests.tap.test_screen import no_port
from wireyard.answers import open_tables
from wireyard.answers.evidence import find_evidence
from wireyard.captures.bundled import BundledStreams
from wireyard.captures.inputs import open_input
from wireyard.cli.packets.hexdump import find_frames, show_frame
from wireyard.report import build_report
from wireyard.report.page import dump_of
from wireyard.streams.framer import TAIL
from wireyard.tap.faults import Faults
from wireyard.tap.packets import PacketReader
from wireyard.tap.relay import Connection, Passing
from wireyard.tap.screen import Screen

DECODED = tuple(chain.from_iterable(("-d", one) for one in DECODE_AS))
FORMATS = ("mqtt", "jmq", "gpacket")


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a capture of all places, malformations and cuts, a connection each."""
    path = tmp_path_factory.mktemp("marked") / "marked.pcap"
    path.write_bytes(capture(variants()))
    return path


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a capture of those of MQTT inside of WebSockets."""
    streams = (each for each in variants(cuts=False) if each.place.format == "mqtt")
    path = tmp_path_factory.mktemp("inside") / "inside.pcap"
    path.write_bytes(capture(streams, websocket=True))
    return path


def test_marks_are_found_in_every_notation() -> None:
    """The judge itself: a part of a mark of eight bytes is found, however it is written."""
    for number in range(len(PLACES)):
        secret = mark(number)
        for at in range(len(secret) - 7):
            part = secret[at : at + 8]
            if b"%02d" % number in part:
                continue
            assert leaks(b"x" + part), part
            assert leaks(part.hex(" ")) and leaks(part.hex())
            assert leaks(part.decode().encode("utf-16-le"))
    assert not leaks("Zq 7# 5a 71 38 23")


@pytest.mark.parametrize("form", ["jsonl", "csv", "table", "nested", "value"])
@pytest.mark.parametrize("format", FORMATS)
def test_decode(form: str, format: str, run: Run, marked: Path) -> None:
    options: tuple[str, ...] = ("--out", form)
    if form == "nested":
        options = ("--nested", "--out", "jsonl")
    elif form == "value":
        options = ("--payload", form, "--out", "jsonl")
    result = run("decode", marked, *DECODED, "--format", format, *options)
    assert result.stdout_bytes.count(b"\n") > 500
    assert not leaks(result.stdout_bytes)
    assert not leaks(result.stderr)


@pytest.mark.parametrize("format", FORMATS)
def test_decode_to_tables(format: str, run: Run, marked: Path, tmp_path: Path) -> None:
    parquet, arrow = tmp_path / "rows.parquet", tmp_path / "rows.arrow"
    for path in (parquet, arrow):
        run("decode", marked, *DECODED, "--format", format, "-w", path)
    rows = pq.read_table(parquet)
    assert rows.num_rows > 500
    assert not leaks(str(rows.to_pylist()))
    assert not leaks(str(pa.ipc.open_stream(arrow).read_all().to_pylist()))
    for path in (parquet, arrow):
        assert not leaks(path.read_bytes())


@pytest.mark.parametrize("columns", ["client_id", "username,will_payload", "properties,verdict"])
def test_decode_of_some_columns(columns: str, run: Run, marked: Path) -> None:
    result = run("decode", marked, *DECODED, "--format", "mqtt", "--columns", columns)
    assert not leaks(result.stdout_bytes)


def test_streams(run: Run, tmp_path: Path) -> None:
    """Bare streams, in which packets follow each other."""
    for format in FORMATS:
        path = tmp_path / f"all.{format}"
        streams = (each.data for each in variants(cuts=False) if each.place.format == format)
        path.write_bytes(b"".join(streams))
        for out in ("jsonl", "csv"):
            result = run("decode", path, "--format", format, "--out", out)
            assert result.stdout_bytes.count(b"\n") > 50
            assert not leaks(result.stdout_bytes)
            assert not leaks(result.stderr)


def _inspections(path: Path) -> Iterator[str]:
    """Yield what `inspect` prints of the rows of a capture; of unfinished packets one a size."""
    seen: set[tuple[str, int | bytes]] = set()
    with closing(open_input(str(path), None, DECODE_AS, ())) as found:
        for format, opened in found.readables:
            streams = opened.streams() if isinstance(opened, BundledStreams) else [opened]
            for one in streams:
                for frame in find_frames(one, format, 0, 1 << 40, None):
                    key = frame.status, len(frame.data) if frame.status == TAIL else frame.data
                    if key in seen:
                        continue
                    seen.add(key)
                    out = io.StringIO()
                    console = Console(file=out, width=100)
                    show_frame(frame, format, console, whole=True, secrets=False, stream="s")
                    yield out.getvalue()


def test_inspect(marked: Path, run: Run) -> None:
    shown = list(_inspections(marked))
    assert len(shown) > 900
    for one in shown:
        assert not leaks(one), one
    for frame in (3, 6, 9):
        assert not leaks(run("inspect", marked, *DECODED, "--frame", frame).output)
    assert not leaks(run("inspect", marked, *DECODED).output)


def test_inspect_shows_secrets_if_requested(run: Run, marked: Path) -> None:
    assert leaks(run("inspect", marked, *DECODED, "--frame", 3, "--secrets").output)


@pytest.mark.parametrize("command", ["flows", "why", "slow", "trace"])
def test_answers(command: str, run: Run, marked: Path, inside: Path) -> None:
    for path in (marked, inside):
        more = ("gone",) if command == "trace" else ()
        result = run(command, path, *DECODED, *more)
        # There are no messages in either: that one is asked for is a mistake.
        assert result.exit_code in ((2,) if command == "trace" else (0, 1)), result.output
        assert result.stdout_bytes or result.stderr
        assert not leaks(result.stdout_bytes)
        assert not leaks(result.stderr)


def test_reading_while_it_is_captured(run: Run, marked: Path, inside: Path) -> None:
    """A pipe is read as its packets arrive, by other code than a file."""
    for path in (marked, inside):
        for out in ("jsonl", "csv"):
            words = ("decode", "-", *DECODED, "--format", "mqtt", "--out", out)
            result = run(*words, stdin=path.read_bytes())
            assert result.stdout_bytes.count(b"\n") > 200
            assert not leaks(result.stdout_bytes)
            assert not leaks(result.stderr)


def test_other_outputs(run: Run, inside: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for words in (
        ("flows", inside, *DECODED, "--segments", "--out", "jsonl"),
        ("sql", inside, *DECODED, "SELECT * FROM quarantine", "--out", "csv"),
        ("report", inside, *DECODED, "-o", page),
    ):
        result = run(*words)
        assert result.exit_code in (0, 1), words
        assert not leaks(result.stdout_bytes), words
        assert not leaks(result.stderr), words
    assert not leaks(page.read_bytes())


@pytest.mark.parametrize("out", ["text", "jsonl", "csv"])
def test_a_comparison(out: str, run: Run, marked: Path, tmp_path: Path) -> None:
    """Two captures that have about half of the clients in common."""
    other, page = tmp_path / "other.pcap", tmp_path / "page.html"
    streams = (each for number, each in enumerate(variants(cuts=False)) if number % 5 < 3)
    other.write_bytes(capture(streams))
    words = ("--limit", 1000) if out == "text" else ()
    result = run("shadow", marked, other, *DECODED, "--out", out, *words, "-w", page)
    assert result.exit_code in (0, 1), result.output
    assert not leaks(result.stdout_bytes) and not leaks(result.stderr)
    assert not leaks(page.read_bytes())


def test_clients_again_with_another_broker(run: Run, tmp_path: Path) -> None:
    """Their passwords are sent, as the capture has them, and shown and recorded nowhere."""
    path, record = tmp_path / "marked.pcap", tmp_path / "record"
    path.write_bytes(capture(variants(cuts=False)))
    with wireyard.broker() as broker:
        words = ("--to", broker.url, "--speed", "max", "--record", record)
        result = run("replay", path, *DECODED, *words)
    assert result.exit_code == 1 and "sent" in result.stdout
    assert not leaks(result.stdout_bytes) and not leaks(result.stderr)
    (written,) = record.iterdir()
    assert written.stat().st_size > 50_000 and not leaks(written.read_bytes())


def test_what_a_broker_answers(run: Run) -> None:
    """Clients that get authentication data, whole and malformed, which they did not ask for."""
    answers = [each.data for each in variants(cuts=False) if "data of " in each.place.name][::5]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(answers.pop())
        await reader.read(1 << 16)

    async def ask() -> None:
        async with serving(handle) as port:
            address = ("-p", port, "-t", "a")
            while answers:
                words = ("pub", *address) if len(answers) % 3 else ("sub", *address, "-W", 0.5)
                result = await asyncio.to_thread(run, *words)
                assert not leaks(result.output), result.output

    asyncio.run(ask())


def test_the_screen_of_a_proxy() -> None:
    said: list[str] = []
    for place, data in variants(cuts=False):
        if place.format == "gpacket":
            continue
        screen = Screen()
        passing = Passing(said.append, no_port, Faults(()), screen, lambda _: None, lambda _: None)
        one = Connection(passing, 1883)
        screen.connections = partial(list, [one])
        screen.passed(one, True, *PacketReader(one.talk, True, 9999).read(data))
        said += screen.lines("tap", 200, 50)
    assert len(said) > 5000 and not leaks("\n".join(said))


def test_every_table(marked: Path, inside: Path) -> None:
    for path in (marked, inside):
        with open_tables([str(path)], decode_as=DECODE_AS) as tables:
            for name in tables.names:
                rows = tables.sql(f"SELECT * FROM {name}").to_pylist()
                assert not leaks(str(rows)), name
                if name == "quarantine" and path == marked:
                    assert len(rows) > 1000
                    positions = {(r["source"], r["stream"], r["offset"]) for r in rows}
            assert not leaks("\n".join(tables.notes))
            if path == marked:
                found = find_evidence(positions, tables.frame_files, decode_as=DECODE_AS)
                assert len(found) == len(positions)
                assert not leaks(str([dump_of(one) for one in found.values()]))
            page = build_report(tables, [str(path)], str(path), decode_as=DECODE_AS)
            assert not leaks(page)


def test_urls_of_inputs(run: Run, tmp_path: Path) -> None:
    """The name of a source has no credentials, wherever it is shown."""
    url = f"memory://ann:{URL_MARK}@host/{{}}?token={URL_MARK}&{URL_MARK}"
    data = capture(each for number, each in enumerate(variants(cuts=False)) if number % 40 == 0)
    with fsspec.open(url.format("a.pcap"), "wb") as file:
        file.write(data)
    with fsspec.open(url.format("b.jmq"), "wb") as file:
        file.write(packet(packet_type=10) + b"noise")
    page, lake = tmp_path / "page.html", tmp_path / "lake"
    for name in ("a.pcap", "b.jmq", "missing.pcap"):
        for words in (
            ("decode", url.format(name), *DECODED, "--out", "jsonl"),
            ("flows", url.format(name), *DECODED),
            ("why", url.format(name)),
            ("sql", url.format(name), "SELECT * FROM files"),
            ("sql", url.format(name), "SELECT * FROM ledger"),
            ("inspect", url.format(name)),
            ("report", url.format(name), "-o", page),
            ("run", url.format(name), "--lake", lake),
            ("run", tmp_path, "--lake", url.format(name)),
        ):
            result = run(*words)
            assert "host" in result.output or result.exit_code in (0, 1), result.output
            assert not leaks(result.output), words
            assert not leaks(result.stderr)
    assert "a.pcap" not in page.read_text() and not leaks(page.read_bytes())
    assert not lake.exists()
    rows = rows_of(run("decode", url.format("a.pcap"), *DECODED, "--out", "jsonl"))
    assert {row["source"] for row in rows} == {"memory://host/a.pcap?token=***&***"}
