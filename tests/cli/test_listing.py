"""The list of packets: a line each, in order of time, with clients, topics, payloads as text."""

from __future__ import annotations

import re
from contextlib import closing
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.results import Run, one_line, rows_of
from tests.make import packet
from wireyard.cli import main
from wireyard.cli.decoding import listing

CAPTURE = Path(__file__).resolve().parents[2] / "examples" / "traffic.pcap"
LIST = ("--out", "list")
SHELF = "shop/shelf/7/temperature"


def lines_of(run: Run, *words: object) -> list[str]:
    """Return the lines below the header."""
    result = run("decode", *words, *LIST)
    assert result.exit_code == 0, result.stderr
    return [str(line) for line in result.stdout.splitlines()[1:]]


def test_packets_of_all_streams_come_in_the_order_of_capture(run: Run) -> None:
    lines = lines_of(run, CAPTURE)
    rows = rows_of(run("decode", CAPTURE, "--columns", "captured_ns,frame,packet_type_name"))
    wanted = sorted(rows, key=lambda row: row["frame"])
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)
    assert [line.split()[3] for line in lines] == [row["packet_type_name"] for row in wanted]
    assert run("decode", CAPTURE, *LIST).stdout.startswith("2026-11-21 UTC ")


@pytest.mark.parametrize(
    ("format", "data", "shown"),
    [
        ("jmq", packet(packet_type=999), "999"),
        ("rmp", b"\0\x09data", "layer 9"),
        ("rmp", b"\x12\x34data", "0x1234"),
    ],
)
def test_a_type_without_a_name_has_its_number(
    run: Run, tmp_path: Path, format: str, data: bytes, shown: str
) -> None:
    (tmp_path / "in").write_bytes(data)
    (line,) = lines_of(run, tmp_path / "in", "--format", format)
    assert f" {shown} " in line


def test_a_client_has_its_id_in_both_directions(run: Run) -> None:
    lines = lines_of(run, CAPTURE, "--format", "mqtt")
    clients = {(line.split()[1], line.split()[2]) for line in lines}
    names = {"monitor", "office", "shelf", "till"}
    assert {(name, arrow) for name in names for arrow in "<>"} <= clients
    assert not any(name.startswith("127.0.0.1") for name, _ in clients)


def test_a_filter_of_topics_keeps_the_names_of_clients(run: Run) -> None:
    """A CONNECT does not match, and its client id is known nevertheless."""
    lines = lines_of(run, CAPTURE, "-t", "shop/prices/#", "-t", "shop/offers/+")
    rows = rows_of(run("decode", CAPTURE, "-t", "shop/prices/#", "-t", "shop/offers/+"))
    assert len(lines) == len(rows) > 10
    assert {row["topic"].split("/")[1] for row in rows} == {"prices", "offers"}
    assert {line.split()[1] for line in lines} >= {"monitor", "office"}
    assert "shop/prices/apples      0 R  2.40 €" in lines[0]
    # A limit is that of the first by time, not of the first stream.
    first = [line.split() for line in lines_of(run, CAPTURE, "-t", "shop/prices/#", "-c", 3)]
    assert first == [line.split() for line in lines[:3]]
    every = [line.split()[0] for line in lines_of(run, CAPTURE)]
    assert [line.split()[0] for line in lines_of(run, CAPTURE, "-c", 9)] == every[:9]
    # Of JMQ it is the name of the destination.
    (orders,) = {row["destination"] for row in rows_of(run("decode", CAPTURE, "-t", "shop.orders"))}
    assert orders == "shop.orders"


def test_an_alias_is_shown_as_the_topic_that_it_stands_for(run: Run) -> None:
    rows = rows_of(run("decode", CAPTURE, "--format", "mqtt", "--where", "packet_type == 3"))
    lines = [line.split() for line in lines_of(run, CAPTURE) if "  PUBLISH  " in line]
    assert any(not row["topic"] for row in rows)
    assert len(lines) == len(rows) and all("/" in words[4] for words in lines)
    sent = sum(words[4] == SHELF for words in lines)
    assert sent > sum(row["topic"] == SHELF for row in rows) > 0


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"12.5 \xc2\xb0C", "12.5 °C"),
        (b"\x00\x01", "0x0001"),
        (b"\xff\xfe", "0xfffe"),
        (b"two\nlines", "two\\nlines"),
        (b"x" * 1025, "x" * 1024 + "...[1 byte cut]"),
        (b"x" * 1023 + b"\xc2\xb0", "x" * 1023 + "...[2 bytes cut]"),
    ],
)
def test_payloads_are_text_where_they_are_text(
    data: bytes, shown: str, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "one.jmq"
    path.write_bytes(packet(body=data))
    (line,) = lines_of(run, path)
    assert line.endswith(f"  {shown}")
    if len(data) < 20:
        assert (
            run("decode", path, "--out", "table", "--columns", "body").stdout == f"body\n{shown}\n"
        )


def test_parts_of_a_large_list_are_the_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lines_of(run, CAPTURE)
    monkeypatch.setattr(listing, "_FRAMES_AT_ONCE", 7)
    monkeypatch.setattr(listing, "_HELD_ROWS", 3)
    assert lines_of(run, CAPTURE) == whole


def test_bad_rows_are_lines_with_their_reason(run: Run, damaged: Path) -> None:
    result = run("decode", damaged, *LIST)
    assert result.exit_code == 1
    bad = [line.split("  ")[-1].strip() for line in result.stdout.splitlines() if "  !" in line]
    assert [line.split(":")[0] for line in bad] == ["malformed", "malformed", "garbage", "tail"]
    assert "'version' is 999" in result.stdout


def test_a_store_has_its_packets_by_file(run: Run) -> None:
    store = CAPTURE.parent / "store" / "fs370"
    result = run("decode", store, *LIST)
    rows = [row for row in rows_of(run("decode", store)) if row["status"] == "ok"]
    lines = result.stdout.splitlines()
    assert [line for line in lines if "/" in line or line == "txnlog"] == list(
        dict.fromkeys(row["stream"] for row in rows)
    )
    assert sum("_MESSAGE " in line for line in lines) == len(rows)
    assert "gap" not in result.stdout


def test_files_have_clients_of_their_own(run: Run, tmp_path: Path) -> None:
    """The ports of one capture are those of another client in the next."""
    other = tmp_path / "other.pcap"
    other.write_bytes(CAPTURE.read_bytes().replace(b"monitor", b"another"))
    lines = run("decode", CAPTURE, other, "--format", "mqtt", *LIST).stdout.splitlines()
    names = [line.split()[1] for line in lines]
    assert names.count("monitor") == names.count("another") > 0


def test_all_columns_on_request(run: Run) -> None:
    lines = lines_of(run, CAPTURE, "-t", "shop/prices/#", "-c", 1, "-v")
    assert lines[0].endswith("2.40 €") and lines[1].startswith("    ")
    assert {"frame", "packet_type", "properties"} <= {line.split()[0] for line in lines[1:]}
    assert "--out list" in one_line(run("decode", CAPTURE, "-v"))


@pytest.mark.parametrize(("plain", "term"), [("1", "xterm"), ("", "dumb"), ("", "xterm")])
def test_colours_are_for_terminals_and_optional(
    plain: str, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(BytesIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("NO_COLOR", plain)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "100")
    shown = CliRunner().invoke(main, ["decode", str(CAPTURE), *LIST]).stdout
    assert "\x1b" not in shown
    from wireyard.cli.tables import console_on

    with console_on(Terminal()) as console, closing(listing.PacketList(console)) as held:
        assert ("\x1b" in held._styled("text", "1")) == (not plain and term == "xterm")


@pytest.mark.parametrize(
    ("width", "line"),
    [(80, r"shop/prices/apples +0 R  2\.40 €$"), (40, r"^    shop/prices/apples  0 R  2\.40 €$")],
)
def test_a_terminal_has_the_payload_of_a_narrow_list(width: int, line: str, run: Run) -> None:
    shown = CliRunner().invoke(
        main, ["decode", str(CAPTURE), "--format", "mqtt", *LIST], env={"COLUMNS": str(width)}
    )
    lines = shown.stdout.splitlines()
    assert any(re.search(line, each) for each in lines)
