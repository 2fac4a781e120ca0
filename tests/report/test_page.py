"""The page: every number is what its query gives, and nothing on it runs or loads anything."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from tests.answers.talks import Talk
from tests.cli.results import Run, rows_of
from tests.make import item, items, packet
from tests.report.pages import Page, read_page
from wireyard.answers import open_tables
from wireyard.answers.evidence import find_evidence
from wireyard.layers.frame_files import FrameFiles
from wireyard.report import build_report, charts, questions
from wireyard.report.charts import graph
from wireyard.report.page import _rate, dump_of
from wireyard.report.questions import ask_all, bucket_ns
from wireyard.report.topics import topic_tree
from wireyard.text import (
    bytes_text,
    clipped,
    count_text,
    moment,
    payload_text,
    printable,
    span_text,
)

CAPTURE = str(Path(__file__).parents[2] / "examples" / "traffic.pcap")
HOSTILE = "<script>alert(1)</script>&\"'\u202e{{7*7}}"


def report(*inputs: str, format: str | None = None) -> str:
    with open_tables(inputs, format=format) as tables:
        return build_report(tables, inputs, " ".join(inputs), format=format)


@pytest.fixture(scope="module")
def html() -> str:
    return report(CAPTURE)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return read_page(html)


def publish(topic: bytes, payload: bytes, retain: bool = False) -> bytes:
    body = struct.pack(">H", len(topic)) + topic + payload
    assert len(body) < 128
    return bytes([0x31 if retain else 0x30, len(body)]) + body


def login(client: bytes, password: bytes = b"") -> bytes:
    user = b"\x00\x01u" + struct.pack(">H", len(password)) + password if password else b""
    flags = 0xC2 if password else 0x02
    body = b"\x00\x04MQTT\x04" + bytes([flags]) + b"\x00\x3c"
    body += struct.pack(">H", len(client)) + client + user
    return bytes([0x10, len(body)]) + body


def test_every_number_is_what_its_query_gives(page: Page, run: Run) -> None:
    compared = 0
    with open_tables([CAPTURE]) as tables:
        assert page.queries.keys() > ask_all(tables).keys()
        for name, sql in page.queries.items():
            rows = [json.loads(_value_of(row)) for row in tables.sql(sql).to_pylist()]
            for (query, row, column), value in page.values.items():
                if query == name:
                    assert rows[row][column] == value, (name, row, column)
                    compared += 1
    assert compared == len(page.values) > 1000
    for name in ("overview", "retained"):
        (first, *_) = rows_of(run("sql", CAPTURE, page.queries[name]))
        for (query, row, column), value in page.values.items():
            if (query, row) == (name, 0):
                assert first[column] == value


def test_many_numbers_are_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of millions of rows is read a few times, whatever is made of it."""
    scans: Counter[str] = Counter()

    with open_tables([CAPTURE]) as tables:
        define = tables._define_named

        def count(query: str) -> None:
            scans.update(re.findall(r"FROM (messages|deliveries|latencies)\b", query))
            define(query)

        monkeypatch.setattr(tables, "_define_named", count)
        ask_all(tables)
    assert scans == {"messages": 8, "deliveries": 10, "latencies": 1}


def _value_of(row: dict[str, object]) -> str:
    return json.dumps(row, default=bytes.hex)


def test_findings_are_those_of_why(page: Page, run: Run) -> None:
    said = rows_of(run("why", CAPTURE, "--out", "jsonl"))
    assert len(said) == page.text.count("Proof: ") > 5
    for row in said:
        assert row["text"] in page.text
        assert f"frame {row['frame']}" in page.text
    assert "wireyard trace" in page.text


def test_symptoms_are_looked_for_as_long_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wireyard.report.findings._SYMPTOMS_S", 0.0)
    page = read_page(report(CAPTURE))
    assert re.search(r"\d+ of \d+ symptoms were looked for", page.text)
    assert f"wireyard why {CAPTURE}" in page.text
    assert page.values["overview", 0, "packets"] == 1183


def test_numbers_are_shown_as_they_are(page: Page) -> None:
    assert page.values["overview", 0, "packets"] == 1183
    assert page.shown["overview", 0, "packets"] == "1,183"
    assert page.shown["overview", 0, "bytes_read"] == "221 kB"
    assert page.shown["overview", 0, "first_ns"] == "2026-11-21T20:22:35.865Z"
    for (_, _, column), value in page.values.items():
        if column in ("messages", "deliveries", "packets", "rows", "sent", "received"):
            assert isinstance(value, int)


def test_what_is_cut_says_so(html: str, page: Page) -> None:
    assert page.values["destinations", 14, "messages"]
    assert re.search(r"Destinations by messages, 15 of \d+", html)


def test_a_page_loads_and_runs_nothing(html: str, page: Page) -> None:
    assert not {"script", "link", "img", "iframe", "object", "embed", "form"} & page.tags.keys()
    for tag, several in page.tags.items():
        for attributes in several:
            assert not any(name.startswith("on") for name in attributes), tag
            for name in ("href", "src", "xlink:href"):
                assert (attributes.get(name) or "#").startswith("#"), tag
    assert "http:" not in html and "https:" not in html
    assert "@import" not in html
    assert "url(" not in html
    (policy,) = [one for one in page.tags["meta"] if one.get("http-equiv")]
    assert (policy["content"] or "").startswith("default-src 'none'; style-src")


def test_hostile_topics_and_payloads_are_text(tmp_path: Path) -> None:
    path = tmp_path / "hostile<b>.mqtt"
    topic = HOSTILE.encode()
    path.write_bytes(
        login(topic)
        + publish(topic, b"<img src=x onerror=alert(1)>", retain=True)
        + publish(topic, b"</script><!--")
        + b"\x00\x00<svg onload=alert(1)>"
    )
    html = report(str(path), format="mqtt")
    page = read_page(html)
    assert "<script" not in html
    assert "<img" not in html
    assert "hostile<b>" not in html
    assert "\u202e" not in page.text.replace(page.values["destinations", 0, "destination"], "")
    assert "<script>alert(1)</script>" in page.text
    assert "49" not in page.shown["destinations", 0, "destination"]
    assert page.values["destinations", 0, "destination"] == HOSTILE
    assert not any("onload" in tag for several in page.tags.values() for tag in several)


def test_no_password_is_on_a_page(tmp_path: Path) -> None:
    path = tmp_path / "login.mqtt"
    # Two logins: the second is a violation, whose bytes are shown.
    path.write_bytes(login(b"a", b"very-secret") * 2 + b"\xf0\x00")
    html = report(str(path), format="mqtt")
    assert "very-secret" not in html
    assert b"very-secret".hex() not in html.replace(" ", "")
    assert b"very-sec".hex(" ") not in html


def test_no_password_is_in_bytes_that_are_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "login.mqtt")
    Path(path).write_bytes(login(b"a", b"very-secret"))
    (found,) = find_evidence([(path, path, 0)], FrameFiles(), format="mqtt").values()
    lines = dump_of(found).lines
    assert [line.field for line in lines if line.hex.startswith("--")] == ["password"]
    assert b"very".hex(" ") not in str(lines)
    assert "very-secret" not in str(lines)
    assert (
        find_evidence([(path, path, 5), ("nowhere.pcap", "x", 0)], FrameFiles(), format="mqtt")
        == {}
    )


def test_bytes_of_what_is_broken_are_annotated(tmp_path: Path) -> None:
    path = tmp_path / "damaged.jmq"
    path.write_bytes(packet() + packet(items=items(item(1, "x", length=600))) + b"no packet")
    page = read_page(report(str(path)))
    assert page.values["quarantined", 0, "rows"] == 1
    assert "The bytes of the proof: jmq" in page.text
    assert "FROM quarantine WHERE status = " in page.text
    assert "magic" in page.text
    assert "6e 6f 20 70" not in page.text  # bytes between packets may be a part of a secret


def test_a_capture_without_packets(tmp_path: Path) -> None:
    path = tmp_path / "empty.pcap"
    path.write_bytes(Path(CAPTURE).read_bytes()[:24])
    page = read_page(report(str(path)))
    assert page.values["overview", 0, "bytes_read"] == 0
    assert "ledger balances" in page.text
    assert "Nothing is stuck, lost or broken" in page.text


def test_messages_of_a_ring() -> None:
    ring = str(Path(CAPTURE).parent / "ring.pcap")
    with open_tables([ring], decode_as=["udp.port==7078,rmp"]) as tables:
        page = read_page(build_report(tables, [ring], f"{ring} -d udp.port==7078,rmp"))
    assert page.values["overview", 0, "messages"] > 0
    assert "-d udp.port==7078,rmp" in page.text
    assert page.values["formats", 0, "format"] == "rmp"


def test_captures_and_streams_together() -> None:
    folder = Path(CAPTURE).parent
    store = str(folder / "store" / "fs370")
    page = read_page(report(CAPTURE, str(folder / "traffic"), store))
    assert page.values["overview", 0, "inputs"] > 10
    given = f"{CAPTURE} {folder / 'traffic'} {store}"
    assert f"wireyard trace {given} shop.quotes" in page.text
    assert "@its-input@" not in page.text


def test_nothing_to_say(tmp_path: Path) -> None:
    path = tmp_path / "quiet.jmq"
    path.write_bytes(packet(packet_type=10))
    page = read_page(report(str(path)))
    assert "Nothing is stuck, lost or broken" in page.text
    assert "no times" in page.text
    assert page.values["overview", 0, "packets"] == 1
    assert not page.tags["svg"]


def test_five_hundred_clients_are_twelve_and_the_others() -> None:
    connection = duckdb.connect(":memory:")
    connection.execute(
        "CREATE TABLE counted_messages AS SELECT 'client' || (i % 500) AS client,"
        " 'topic' || (i % 40) AS destination, 1 AS messages FROM range(9999) numbers(i)"
    )
    connection.execute(
        "CREATE TABLE counted_deliveries AS SELECT destination, client, 1 AS delivered"
        " FROM counted_messages"
    )
    asked = dict(questions._questions(1))
    producers, consumers = (
        questions.Answer(
            name, asked[name], connection.sql(asked[name]).to_arrow_table().to_pylist()
        )
        for name, sql in asked.items()
        if name in ("producers", "consumers")
    )
    assert sum(row["messages"] for row in producers.rows) == 9999
    assert len({row["client"] for row in producers.rows}) == 13
    assert len({row["destination"] for row in producers.rows}) == 13
    (others,) = [
        row for row in producers.rows if row["client"] is None and row["destination"] is None
    ]
    assert (others["clients"], others["destinations"]) == (488, 28)
    svg = graph(producers, consumers)
    assert svg.count(">all other clients<") == 2
    assert len(svg) < 500_000


def test_intervals_are_few_and_round() -> None:
    assert bucket_ns(None, None) == 10**6
    for span in (0, 1, 10**9, 73 * 10**9, 86_400 * 10**9, 10**17):
        assert span / bucket_ns(0, span) < 97
    assert bucket_ns(0, 73 * 10**9) == 10**9


@pytest.mark.parametrize("most", [0, 0.25, 1, 7, 23, 134, 22_000, 7_300_000])
def test_axes_of_counts_have_few_round_texts(most: float) -> None:
    axis = charts._counts(most, "packets a second")
    assert axis.high >= most and 2 <= len(axis.texts) <= 6
    shown = [float(text.replace(",", "")) for text in axis.texts.values()]
    assert shown == pytest.approx([*axis.texts])
    assert all(len(text.replace(",", "")) <= 8 for text in axis.texts.values())


@pytest.mark.parametrize("span", [10**6, 73 * 10**9, 86_000 * 10**9, 9 * 86_400 * 10**9])
def test_axes_of_times_have_few_texts(span: int) -> None:
    texts = list(
        charts._times(1_795_292_559_816_000_000, 1_795_292_559_816_000_000 + span).texts.values()
    )
    assert 1 <= len(texts) <= 6 and len({*texts}) == len(texts)


def test_texts() -> None:
    assert bytes_text(0) == "0 B"
    assert bytes_text(999) == "999 B"
    assert bytes_text(12_345) == "12.3 kB"
    assert bytes_text(1_234_567_890) == "1.2 GB"
    assert span_text(0) == "0"
    assert span_text(1_500) == "1.5 µs"
    assert span_text(60 * 10**9) == "1 min"
    assert moment(1_700_000_000_123_999_999, 3) == "2023-11-14T22:13:20.123Z"
    assert moment(10**21) == f"{10**21}"
    assert clipped("a" * 30 + "b" * 30, 10) == "aaa…bbbbbb"
    assert printable("a\u202eb\x1b") == "a\\u202eb\\x1b"
    assert payload_text("24 €".encode()) == "24 €"
    assert payload_text("24 €".encode()[:-1], is_whole=False) == "24 "
    assert payload_text(b"\xff\xfe") == "0xfffe"
    assert payload_text(b"") == ""


def test_the_command_writes_a_page(run: Run, tmp_path: Path) -> None:
    assert run("report", CAPTURE, "-o", tmp_path / "r.html").exit_code == 0
    page = read_page((tmp_path / "r.html").read_text())
    assert page.values["overview", 0, "packets"] == 1183
    missing = run("report", "nowhere.pcap", "-o", tmp_path / "x.html")
    assert missing.exit_code == 3
    assert not (tmp_path / "x.html").exists()


def test_many_clients_do_not_make_a_large_page(tmp_path: Path) -> None:
    sizes = []
    for clients in (40, 400):
        talk = Talk()
        talk.login(3, 5002, "sends")
        for number in range(1, clients + 1):
            port, topic = 6000 + number, f"plant/device{number:05d}"
            talk.login(4, port, f"gets{number:03d}")
            talk.subscribe(5, port, topic)
            talk.publish(10 + number, 5002, topic, b"x", number)
            talk.deliver(10.5 + number, port, topic, b"x", number, acknowledged_ms=None)
        talk.publish(9000, 5002, "end", b"", clients + 1)
        page = report(str(talk.write(tmp_path / f"{clients}.pcap")))
        assert f"{clients} findings" in page
        assert f"24 of {clients}, the worst first" in page
        assert f"Rows of unacknowledged, 30 of {clients}" in page
        assert f"<b>{clients}</b> stuck" in page
        sizes.append(len(page))
    assert sizes[1] < 1.2 * sizes[0]


# --- what an operator looks for -------------------------------------------------------------------


def test_the_numbers_that_matter_come_first(html: str) -> None:
    assert html.index('id="now"') < html.index('id="findings"') < html.index('id="numbers"')
    assert re.search(r"<b>4</b> lost.*<b>2</b> stuck.*<b>1</b> slow", html, re.DOTALL)


def test_queries_are_in_one_place(html: str) -> None:
    assert html.index("data-sql=") > html.index('id="check"')
    assert html.count('class="query"') == 1


def test_a_finding_of_many_topics_is_one_line(tmp_path: Path) -> None:
    talk = Talk()
    talk.login(1, 5001, "gets")
    talk.subscribe(2, 5001, "plant/#")
    talk.login(3, 5002, "sends")
    for number in range(1, 8):
        topic = f"plant/{number}"
        talk.publish(10 + number, 5002, topic, b"x", number)
        talk.deliver(10.5 + number, 5001, topic, b"x", number, acknowledged_ms=None)
    talk.publish(9000, 5002, "end", b"", 9)
    html = report(str(talk.write(tmp_path / "in.pcap")))
    assert "1 finding<" in html
    assert html.count('<summary><span class="mark">stuck</span>') == 1
    assert "<b>gets</b>: 7 messages on 7 topics delivered" in html
    assert "from sends to gets" in html


def test_a_session_begins_with_its_first_packet(tmp_path: Path) -> None:
    talk = Talk()
    talk.login(1, 5001, "first")
    talk.publish(5000, 5003, "a", b"x", 1)  # its login is not in the capture
    talk.publish(9000, 5001, "a", b"x", 1)
    page = read_page(report(str(talk.write(tmp_path / "in.pcap"))))
    (bar,) = [
        tag["style"] or ""
        for tag in page.tags["b"]
        if tag.get("style") and "margin-inline-start:5" in (tag["style"] or "")
    ]
    assert re.match(r"margin-inline-start:5[0-9.]+%", bar)


def test_an_age_does_not_fall_at_the_end_of_the_capture() -> None:
    rows = [{"at_ns": at, "destination": "q", "waiting": 1, "oldest_ns": at} for at in (10, 20, 30)]
    answer = questions.Answer("ages", "", rows)
    marks = charts.ages(answer, 10, 34)
    falling = charts.ages(answer, 10, 60)
    assert marks != falling
    (line,) = re.findall(r'stroke="var\(--c1\)"[^>]* d="M([^"]*)"', marks)
    heights = [float(point.split(",")[1]) for point in line.split("L")]
    assert heights == sorted(heights, reverse=True)


def test_topics_are_a_tree_with_last_values(page: Page) -> None:
    rows = {row: page.values["topics", row, "begins"] for _, row, column in page.values
            if _ == "topics" and column == "begins"}  # fmt: skip
    assert len(rows) == 25
    words = " ".join(page.text.split())
    assert re.search(r"shop \d+ topics, \d+ messages", words)
    assert re.search(r"temperature .* 30 messages 0\.41\d/s", words)


def test_a_topic_of_thousands_of_levels() -> None:
    deep = "/".join("a" * 9000)
    root = topic_tree([{"destination": deep, "messages": 2}, {"destination": "a", "messages": 1}])
    (node,) = root.below.values()
    assert (node.messages, node.topics, node.row) == (3, 2, 1)
    (below,) = node.below.values()
    assert below.name == deep[2:] and below.row == 0


def test_numbers_have_separators_and_charts_whole_names() -> None:
    assert count_text(8005, "message") == "8,005 messages"
    assert _rate(3, 2 * 10**9) == "1.5/s"
    assert _rate(10**6, 10**9) == "1,000,000/s"
    assert _rate(1, 0) == ""
    name = "plant/area2/device00000/temperature/measured"
    rows = [{"destination": name, "p50_ns": 1, "p90_ns": 2, "p99_ns": 3}]
    assert f">{name}<" in charts.quantiles(questions.Answer("slowest", "", rows))
    ends = {"client": "sensor-of-a-long-name-in-building-7", "destination": name}
    producers = questions.Answer("producers", "", [{**ends, "messages": 1}])
    consumers = questions.Answer("consumers", "", [{**ends, "deliveries": 1}])
    svg = graph(producers, consumers)
    assert svg.count(f">{name}<") == 1 and svg.count(f">{ends['client']}<") == 2
