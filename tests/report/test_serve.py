"""The report over HTTP: filters are queries, and only this machine's own browser gets a page."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from tests.cli.results import Run
from tests.report.pages import Page, read_page
from wireyard.answers import Tables, open_tables
from wireyard.report import build_report, serve
from wireyard.report.filters import Filter
from wireyard.report.serve import ReportServer, filter_of

CAPTURE = str(Path(__file__).parents[2] / "examples" / "traffic.pcap")
FIRST, LAST = "2026-11-21T20:22:40Z", "2026-11-21T20:22:50Z"


@pytest.fixture(scope="module")
def tables() -> Iterator[Tables]:
    with open_tables([CAPTURE]) as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[ReportServer]:
    """Serve filters in words."""
    with ReportServer(lambda only: f"<p>{only}</p>", 0) as opened:
        thread = threading.Thread(target=opened.serve_forever)
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


def page_of(tables: Tables, **fields: str) -> Page:
    return read_page(build_report(tables, [CAPTURE], CAPTURE, only=filter_of(urlencode(fields))))


def get(
    server: ReportServer, path: str, host: str | None = None, site: str = "none"
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Sec-Fetch-Site", site)
    for each in [f"127.0.0.1:{server.server_port}"] if host is None else host.split("|"):
        connection.putheader("Host", each)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), dict(answer.getheaders())


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"client": "till"}, "'till' IN (producer_client_id, client)"),
        ({"topic": "shop/sales/0"}, "destination = 'shop/sales/0'"),
        ({"topic": "shop/+/0"}, "regexp_full_match(destination, 'shop/[^/]*/0')"),
        ({"topic": "shop/#"}, "starts_with(destination, 'shop/') OR destination = 'shop'"),
        ({"topic": "#"}, "true"),
        ({"since": FIRST}, f"captured_at >= TIMESTAMPTZ '{FIRST}'"),
        ({"since": FIRST, "until": LAST},
         f"captured_at >= TIMESTAMPTZ '{FIRST}' AND captured_at < TIMESTAMPTZ '{LAST}'"),
        ({"client": "it's", "topic": "a'b"}, "false"),
    ],
)  # fmt: skip
def test_a_filter_is_a_query(fields: dict[str, str], condition: str, tables: Tables) -> None:
    page = page_of(tables, **fields)
    (row,) = tables.sql(f"SELECT count(*) AS n FROM messages WHERE {condition}").to_pylist()
    assert page.values["overview", 0, "messages"] == row["n"]
    shown = tables.sql(page.queries["overview"]).to_pylist()[0]
    assert shown["messages"] == row["n"]
    assert {"rates", "flow", "topics", "sessions"} <= page.queries.keys()


def test_findings_of_a_client_are_its_own(tables: Tables) -> None:
    text = " ".join(page_of(tables, client="till").text.split())
    assert "Those of till, at any time." in text
    assert text.count("Proof: ") == 2
    (sql,) = [sql for name, sql in page_of(tables, client="till").queries.items()
              if name == "expired"]  # fmt: skip
    assert len(tables.sql(sql)) == 1
    assert page_of(tables, client="nobody").text.count("Proof: ") == 0


def test_a_filter_is_in_the_form_and_escaped(tables: Tables) -> None:
    only = filter_of(urlencode({"client": '"><script>'}))
    html = build_report(tables, [CAPTURE], CAPTURE, only=only)
    page = read_page(html)
    assert "<script" not in html
    fields = {tag["name"]: tag["value"] for tag in page.tags["input"]}
    assert fields == {"client": '"><script>', "topic": "", "since": "", "until": ""}
    assert [tag["action"] for tag in page.tags["form"]] == ["/"]


def test_only_its_own_name_is_answered(server: ReportServer) -> None:
    port = server.server_port
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/")[0] == get(server, "/", f"localhost:{port}")[0] == 200
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1:{port}|evil.example",
    ):
        status, text, _ = get(server, "/?client=a", host)
        assert (status, "Filter" in text) == (421, False)


def test_what_is_answered(server: ReportServer) -> None:
    status, text, headers = get(server, "/?client=a&topic=&since=")
    assert (status, text) == (200, f"<p>{Filter(client='a')}</p>")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert get(server, "/../etc/passwd")[0] == get(server, "/report.html")[0] == 404
    for query in (
        "since=yesterday",
        "other=1",
        "client=a&client=b",
        "&".join(["client=a"] * 99),
        "x",
    ):
        status, text, headers = get(server, f"/?{query}")
        assert (status, headers["Content-Type"]) == (400, "text/plain; charset=utf-8")
        assert "Traceback" not in text and len(text) < 200
    assert get(server, "http://[/")[0] == 400
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("POST", "/")
    assert connection.getresponse().status == 501


@pytest.mark.parametrize("value", ["\0", "\ud800", "'; DROP TABLE messages; --", "\u202e"])
def test_hostile_values_are_data(value: str, tables: Tables) -> None:
    only = filter_of(f"client={quote(value, errors='surrogatepass')}")
    html = build_report(tables, [CAPTURE], CAPTURE, only=only)
    assert read_page(html).values["overview", 0, "messages"] == 0


def test_nobody_is_waited_for(
    server: ReportServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a browser that connects ahead of its requests, nor for one that goes away."""
    monkeypatch.setattr(serve._Handler, "timeout", None)
    address = "127.0.0.1", server.server_port
    with socket.create_connection(address) as idle, socket.socket() as gone:
        idle.sendall(b"GET / HT")
        gone.connect(address)
        gone.sendall(b"GET / HTTP/1.1\r\n")
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        assert get(server, "/")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_pages_of_other_sites_are_not_answered(server: ReportServer) -> None:
    """They would learn from the time of an answer whether there is a client or a topic."""
    for site, status in (("cross-site", 421), ("same-site", 421), ("same-origin", 200)):
        assert get(server, "/?client=a", site=site)[0] == status


def test_a_port_that_is_taken_is_one_line(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("report", CAPTURE, "--serve", "--port", port)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"wireyard: --port {port}: cannot listen on 127.0.0.1 (")


def test_a_page_is_written_or_served(run: Run, tmp_path: Path) -> None:
    for words in ([], ["--serve", "-w", str(tmp_path / "x.html")]):
        result = run("report", CAPTURE, *words)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "-w FILE, or is served, --serve" in result.stderr
