"""Small captures of situations that people report, with the right answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.results import Run
from wireyard.captures.inputs import Input, open_input

pytestmark = pytest.mark.shared


@pytest.fixture(scope="session")
def cases(shared: Path) -> Path:
    folder = shared / "cases"
    if not folder.is_dir():
        pytest.skip("no cases in ../shared")
    return folder


def opened(path: Path) -> Input:
    return open_input(str(path))


def rows(path: Path, query: str, run: Run) -> tuple[list[str], str, int]:
    """Return the lines of a query over a capture, the notes, and the exit status."""
    found = run("sql", path, query, "--out", "csv")
    return found.stdout.replace(chr(34), "").splitlines()[1:], found.stderr, found.exit_code


VERDICTS = "SELECT verdict, count(*) FROM deliveries GROUP BY 1 ORDER BY 1"
BROKEN = "SELECT rule FROM violations"


def test_networks_with_the_same_addresses(cases: Path, run: Run) -> None:
    path = cases / "vlan-same-sequence.pcap"
    assert len([*opened(path).stream_names()]) == 4
    sent, _, status = rows(
        path, "SELECT producer_client_id, destination FROM messages ORDER BY 2", run
    )
    assert (sent, status) == (["v10,t10", "v20x,t20"], 0)


@pytest.mark.parametrize(
    ("name", "verdicts", "note"),
    [
        ("order-connack-first", ["no_subscriber,1"], "out of order by up to 20 us"),
        ("order-forward-first", ["delivered,5"], "out of order by up to 20 us"),
        ("merged-taps", ["delivered,3"], "3 connections were captured again and count once"),
        ("dnat-twice", ["delivered,5"], "10.0.0.1:40001>172.17.0.2:1883 as 10.0.0.1:40001>10.0.0."),
    ],
)
def test_packets_out_of_order_and_twice(
    cases: Path,
    name: str,
    verdicts: list[str],
    note: str,
    run: Run,
) -> None:
    path = cases / f"{name}.pcap"
    found, notes, status = rows(path, VERDICTS, run)
    assert (found, status) == (verdicts, 0)
    assert note in notes and len(notes.splitlines()) == 1
    assert rows(path, BROKEN, run)[0] == []


def test_other_bytes_that_were_sent_again(cases: Path) -> None:
    (note,) = opened(cases / "conflicting-retransmission.pcap").notes
    assert "1 segment brings other bytes" in note and "frame 7" in note


def test_websocket_after_another_request(cases: Path) -> None:
    found = opened(cases / "websocket-get-then-upgrade.pcap")
    assert [each.format.name for each in found.streams] == ["mqtt", "mqtt"]


def test_websocket_without_a_handshake(cases: Path, run: Run) -> None:
    path = cases / "websocket-no-upgrade.pcap"
    unknown = run("decode", path)
    assert unknown.exit_code == 1
    advice = unknown.stderr.split("as MQTT: ")[1].split()
    known = run("decode", path, *advice, "--columns", "packet_type_name", "--out", "csv")
    assert known.exit_code == 0
    assert known.stdout.replace(chr(34), "").split()[1:] == [
        *["PUBLISH"] * 6,
        "PINGREQ",
        "PINGRESP",
        "PUBLISH",
    ]


@pytest.mark.parametrize("name", ["truncated-exit-status.pcap", "gz-cut.pcap.gz"])
@pytest.mark.parametrize("command", ["decode", "flows", "why", "sql"])
def test_what_is_cut_off_gives_its_rows_and_status_1(
    cases: Path, name: str, command: str, run: Run
) -> None:
    query = ["FROM messages"] if command == "sql" else []
    found = run(command, cases / name, *query)
    assert found.exit_code == 1
    assert found.stdout and "bytes are not read" in found.stderr


def test_a_compressed_capture(cases: Path) -> None:
    assert len([*opened(cases / "compressed.pcap.xz").stream_names()]) == 4
