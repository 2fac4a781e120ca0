"""While a capture grows, its newest messages are in the lake before all facts are made anew."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.answers.talks import ends_before
from tests.captures.make import (
    BEGAN_NS,
    QUIET,
    Packet,
    both_ways,
    ethernet,
    go_on,
    ipv4,
    packets,
    pcap,
    udp,
)
from tests.spark import lakes
from tests.spark.lakes import HEADER_BYTES, records
from wireyard.lake.writer import Lake
from wireyard.layers import newest
from wireyard.pipeline.growing import growth as spark_growth
from wireyard.pipeline.growing.growth import Growth
from wireyard.pipeline.growing.input import make_state
from wireyard.pipeline.growing.states import NONE_MADE, FactsMade, Part, read_progress
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake

CAPTURE = Path(__file__).resolve().parents[2] / "examples" / "traffic.pcap"
PARTS = 9
OneRun = Callable[[int], Path]
"""Returns the lake of one run over so many first parts of the example."""
COLUMNS = "message_key", "consumer_client_id", "verdict", "delivered_frame"


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> OneRun:
    """Return what gives those lakes, each of which is filled once."""
    folder = tmp_path_factory.mktemp("whole")
    data = CAPTURE.read_bytes()
    frames = records(data)

    @cache
    def lake_of(parts: int) -> Path:
        path, lake = folder / "begins.pcap", folder / f"lake-{parts}"
        path.write_bytes(data[:HEADER_BYTES] + b"".join(frames[: len(frames) * parts // PARTS]))
        lakes.run(lake, None, path)
        return lake

    return lake_of


@pytest.fixture(autouse=True)
def long_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few packets be many."""
    monkeypatch.setattr(spark_growth, "_SHORT_S", 0.0)
    monkeypatch.setattr(spark_growth, "_PAUSES_AFTER_LONG", 1e6)
    monkeypatch.setattr(newest, "MAX_NEWEST", 64)


def rows_of(protocol: str, lake: Path, table: str, *columns: str) -> list[tuple[str, ...]]:
    """Return columns of rows, sorted."""
    found = lakes.rows(lake, table, "protocol", *columns)
    return [row[1:] for row in found if row[0] == protocol]


def judge_mqtt(lake: Path, whole: Path) -> int:
    """Compare what there is of MQTT with one run; return how many messages there are."""
    found, expected = ({*rows_of("mqtt", one, "messages", "message_key")} for one in (lake, whole))
    assert found <= expected
    # A resend of what is in the gap comes with all facts.
    assert len(expected - found) <= 1
    messages = len(found)
    for table in ("deliveries", "latencies"):
        found, expected = ({*rows_of("mqtt", one, table, *COLUMNS)} for one in (lake, whole))
        consumers = {row[:2] for row in expected}
        for row in found - expected:
            assert row[2] == "undecided"
            # Of equal messages behind a gap it is not known who got them.
            assert row[1] is None or row[:2] in consumers
    return messages


def judge_jms(lake: Path, whole: Path) -> int:
    """Compare what there is of JMS with one run; return how many messages there are."""
    key, sent = "message_key", "first_seen"
    found, expected = (rows_of("jms", one, "messages", key, sent) for one in (lake, whole))
    assert len({*found}) == len(found)
    assert {*found} <= {*expected}
    # What nobody was seen to send comes with all facts.
    assert all(row[1] != "sent" for row in {*expected} - {*found})
    of_message = "message_key", "consumer", "delivered_frame"
    # Two messages have a delivery delay, which is no time in the queue.
    for table, more in (("deliveries", "accepted_frame"), ("latencies", "queue_ns")):
        there, one_run = (rows_of("jms", one, table, *of_message, more) for one in (lake, whole))
        assert len({*there}) == len(there)
        assert {*there} <= {*one_run}
    hops = [{*rows_of_hops(one)} for one in (lake, whole)]
    assert hops[0] <= hops[1]
    return len(found)


def judge_others(lake: Path, whole: Path) -> int:
    """Compare what there is of sessions and so on with one run; return how many rows there are."""
    of_session = "stream", "offset", "client_id", "packets", "bytes", "ended_by"
    found, expected = (lakes.rows(one, "sessions", *of_session) for one in (lake, whole))
    assert found == expected
    # The FIN of one side closes a session; that of the other side may come with all facts only.
    ends = {frame for (frame,) in lakes.rows(whole, "streams", "ended_frame")}
    found, expected = (
        lakes.rows(one, "sessions", *of_session, "closed_frame") for one in (lake, whole)
    )
    for (*_, frame), (*_, last) in zip(found, expected, strict=True):
        assert frame == last or (frame in ends and frame < last)
    count = len(found)
    for table, columns in (
        ("violations", ("stream", "offset", "rule", "message_key", "client_id")),
        ("conversations", ("request_key", "reply_key", "kind", "replied_frame")),
        ("transactions", ("stream", "offset", "transaction_id", "outcome", "acknowledged")),
    ):
        found, expected = (lakes.rows(one, table, *columns) for one in (lake, whole))
        assert {*found} <= {*expected}
        count += len(found)
    return count


def rows_of_hops(lake: Path) -> list[tuple[str, ...]]:
    return lakes.rows(lake, "hops", "message_key", "hop", "kind", "took_ns", "frame")


def test_another_process_goes_on_with_the_newest(tmp_path: Path, one_run: OneRun) -> None:
    data = CAPTURE.read_bytes()
    frames = records(data)
    path, root = tmp_path / "in" / "grows.pcap", tmp_path / "lake"
    path.parent.mkdir()
    name, positions, counts, others = str(path), list[int](), list[int](), list[int]()
    # The first commit has no state that says how long it takes to make all facts.
    for parts in ((0, 1, 2), (3,), (4, 5), (6,), (7, 8)):
        with Lake.open(str(root)) as lake:
            growth = Growth(lake, None)
            for part in parts:
                some = frames[len(frames) * part // PARTS : len(frames) * (part + 1) // PARTS]
                with path.open("ab") as file:
                    file.write(b"".join(some) if part else data[:HEADER_BYTES] + b"".join(some))
                if part == parts[0]:
                    assert growth.open_input(list_inputs([name]).inputs[0])
                assert growth.refresh(name, [name])
                growth.commit({name: growth.unread_bytes(name)}, ())
                positions.append(growth._inputs[name].facts.position)
                whole = one_run(part + 1)
                counts.append(judge_mqtt(root, whole) + judge_jms(root, whole))
                others.append(judge_others(root, whole))
            growth.close()
    assert len({*positions}) == 1
    assert counts[-1] > 3 * counts[0]
    assert others[-1] > 2 * others[0]
    lakes.run(root, None, path)
    lakes.assert_as_one_run(path.parent, root)


@pytest.mark.parametrize("is_rotated", [False, True])
def test_time_passes_with_a_frame_that_brings_nothing(tmp_path: Path, is_rotated: bool) -> None:
    folder, root = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    path = ends_before("session").write(folder / "1.pcap")
    name = str(folder if is_rotated else path)
    for expected in ("queued", "queued", "discarded", "discarded"):
        files = sorted(map(str, folder.iterdir()))
        with Lake.open(str(root)) as lake:
            growth = Growth(lake, None)
            assert growth.open_input(list_inputs([name], rotated=is_rotated).inputs[0])
            assert growth.refresh(name, files)
            growth.commit({name: growth.unread_bytes(name)}, ())
            growth.close()
        assert lakes.rows(root, "deliveries", "verdict") == [(expected,)]
        if is_rotated:
            frame = Packet(QUIET["arp"], BEGAN_NS + 4 * len(files) * 10**9)
            (folder / f"{len(files) + 1}.pcap").write_bytes(pcap([frame]))
        else:
            go_on(path, 4)
    lakes.run(root, None, Path(name), rotated=is_rotated)
    lakes.assert_as_one_run(Path(name), root, rotated=is_rotated)


@pytest.mark.parametrize("partition_by", [None, "day"])
def test_messages_are_there_before_all_facts_are(
    tmp_path: Path, partition_by: str | None, one_run: OneRun
) -> None:
    data = CAPTURE.read_bytes()
    frames = records(data)
    folder, root = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    path = folder / "grows.pcap"
    path.write_bytes(data[:HEADER_BYTES])
    name, times, counts, others = str(path), set[float](), list[int](), list[int]()
    with Lake.open(str(root), partition_by=partition_by) as lake:
        growth = Growth(lake, None)
        for part in range(PARTS):
            first, stop = (len(frames) * number // PARTS for number in (part, part + 1))
            with path.open("ab") as file:
                file.write(b"".join(frames[first:stop]))
            if part:
                assert growth.refresh(name, [name])
            else:
                assert growth.open_input(list_inputs([name]).inputs[0])
            growth.commit({name: growth.unread_bytes(name)}, ())
            times.add(growth._inputs[name].facts_at_s)
            whole = one_run(part + 1)
            counts.append(judge_mqtt(root, whole) + judge_jms(root, whole))
            others.append(judge_others(root, whole))
        growth.commit({name: 0}, {name})
        growth.close()
    lakes.assert_as_one_run(folder, root)
    assert len(times) == 1
    assert counts[-1] > 3 * counts[0]
    assert others[-1] > 2 * others[0]


def test_messages_that_two_captures_show_have_one_row(tmp_path: Path) -> None:
    data = CAPTURE.read_bytes()
    frames = records(data)
    paths = [tmp_path / "in" / name for name in ("a.pcap", "b.pcap")]
    paths[0].parent.mkdir()
    one, other = map(str, paths)
    counts = list[int]()
    with Lake.open(str(tmp_path / "lake")) as lake:
        growth = Growth(lake, None)
        for part in range(6):
            some = frames[len(frames) * part // 6 : len(frames) * (part + 1) // 6]
            for path in paths:
                with path.open("ab") as file:
                    file.write(b"".join(some) if part else data[:HEADER_BYTES] + b"".join(some))
            growing = [one, other] if part < 4 else [other]
            for name in growing:
                if part:
                    assert growth.refresh(name, [name])
                else:
                    assert growth.open_input(list_inputs([name]).inputs[0])
            # Where the first ends, facts of the second are made too.
            unread = {name: growth.unread_bytes(name) for name in growing}
            growth.commit(unread, {one} if part == 3 else ())
            root = tmp_path / "lake"
            messages = rows_of("jms", root, "messages", "message_key")
            assert len({*messages}) == len(messages)
            messages = rows_of("mqtt", root, "messages", "source", "message_key")
            assert len({*messages}) == len(messages)
            deliveries = lakes.rows(
                root, "deliveries",
                *("protocol", "source", "message_key", "consumer", "offset", "subscription"),
            )  # fmt: skip
            assert len({*deliveries}) == len(deliveries)
            sessions = lakes.rows(root, "sessions", "source", "stream", "offset")
            assert len({*sessions}) == len(sessions)
            counts.append(len(deliveries))
        growth.commit({other: 0}, {other})
        growth.close()
    assert counts[-1] > counts[0] > 0


@pytest.mark.parametrize("killed", [False, True])
def test_messages_of_a_file_that_comes_meanwhile_have_one_row(tmp_path: Path, killed: bool) -> None:
    data = CAPTURE.read_bytes()
    frames = records(data)
    path, whole = tmp_path / "in" / "grows.pcap", tmp_path / "in" / "whole.pcap"
    path.parent.mkdir()
    name, root = str(path), tmp_path / "lake"
    counts = list[int]()
    with Lake.open(str(root)) as lake:
        growth = Growth(lake, None)
        for part in range(5):
            some = frames[len(frames) * part // 5 : len(frames) * (part + 1) // 5]
            with path.open("ab") as file:
                file.write(b"".join(some) if part else data[:HEADER_BYTES] + b"".join(some))
            if part:
                assert growth.refresh(name, [name])
            else:
                assert growth.open_input(list_inputs([name]).inputs[0])
            growth.commit({name: growth.unread_bytes(name)}, ())
            if part == 2:
                whole.write_bytes(path.read_bytes())
                lake.begin_run()
                found = list_inputs([str(whole)]).inputs
                fill_lake(lake, found, None, lakes.Silent())
                if killed:
                    growth.close()
                    growth = Growth(lake, None)
                    assert growth.open_input(list_inputs([name]).inputs[0])
            for protocol in ("jms", "mqtt"):
                messages = rows_of(protocol, root, "messages", "source", "message_key")
                assert len({*messages}) == len(messages)
                counts.append(len(messages))
            sessions = lakes.rows(root, "sessions", "source", "stream", "offset")
            assert len({*sessions}) == len(sessions)
        growth.commit({name: 0}, {name})
        growth.close()
    assert counts[-1] > counts[3] > 0
    lakes.assert_as_one_run(path.parent, root)


def test_a_part_without_an_open_session(tmp_path: Path) -> None:
    connect = bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 63 e000")
    session = packets([*both_ways(connect, bytes.fromhex("20020000"), (40000, 1883))])
    later = BEGAN_NS + 10**9
    others = [
        Packet(ethernet(ipv4(udp(9, 9, b"x"), 17)), later + ns) for ns in range(3000, 0, -1000)
    ]
    path = tmp_path / "in" / "grows.pcap"
    path.parent.mkdir()
    name, root = str(path), tmp_path / "lake"
    with Lake.open(str(root)) as lake:
        growth = Growth(lake, None)
        for part in range(4):
            path.write_bytes(pcap([*session, *others[:part]]))
            if part:
                assert growth.refresh(name, [name])
            else:
                assert growth.open_input(list_inputs([name]).inputs[0])
            growth.commit({name: growth.unread_bytes(name)}, ())
            assert lakes.rows(root, "sessions", "client_id", "ended_by") == [("c", "client")]
        growth.commit({name: 0}, {name})
        growth.close()
    lakes.assert_as_one_run(path.parent, root)


@pytest.mark.parametrize("first", range(3))
def test_a_session_that_closed_later_than_facts_said_has_one_row(
    tmp_path: Path, first: int
) -> None:
    """Facts of a capture cut behind a CONNECT have it take over; the broker closes later."""
    data = (CAPTURE.parent / "symptoms" / "mqtt-taken_over.pcap").read_bytes()
    path = tmp_path / "in" / "grows.pcap"
    path.parent.mkdir()
    path.write_bytes(data[:HEADER_BYTES])
    name, root = str(path), tmp_path / "lake"
    with Lake.open(str(root)) as lake:
        growth = Growth(lake, None)
        assert growth.open_input(list_inputs([name]).inputs[0])
        for number, record in enumerate(records(data), first):
            with path.open("ab") as file:
                file.write(record)
            assert growth.refresh(name, [name])
            one = growth._inputs[name]
            one.facts_at_s = time.monotonic() if number % 3 else float("-inf")
            growth.commit({name: growth.unread_bytes(name)}, ())
            found = lakes.rows(root, "sessions", "stream", "offset")
            assert len({*found}) == len(found)
        growth.commit({name: 0}, {name})
        growth.close()
    lakes.assert_as_one_run(path.parent, root)


def test_facts_of_a_damaged_state_are_refused(tmp_path: Path) -> None:
    good: dict[str, Any] = {
        "read": 120, "position": 100, "seconds": 2.0, "until_ns": {"jms": 5}, "has_open": True,
        "are_made": True,
    }  # fmt: skip
    part = Part("grows.pcap", None, ("grows.pcap",), (str(tmp_path / "state"),))

    def read(state: dict[str, Any], **known: bool) -> tuple[int, FactsMade] | None:
        rows = [("json", [2], b"{}"), ("facts", [1], json.dumps(state).encode())]
        pq.write_table(make_state(part.path, rows), part.states[0])
        return read_progress(part, **{"has_provisional": True, **known})

    facts = FactsMade(100, 2.0, {"jms": 5})
    assert read(good) == (120, facts)
    assert read(good, has_provisional=False) == (120, NONE_MADE)
    assert read(good | {"are_made": False}) == (120, NONE_MADE)
    assert read(good | {"are_made": False}, in_progress=True) == (120, facts)
    damage: list[dict[str, Any]] = [
        {"position": -2}, {"position": None}, {"position": 121}, {"read": "all"}, {"seconds": -1.0},
        {"seconds": float("nan")}, {"until_ns": [5]}, {"until_ns": {"jms": "soon"}},
    ]  # fmt: skip
    for values in damage:
        assert read(good | values) is None
    assert read({}) is None
