"""Captures read while they are made give the rows that reading them whole gives.

Some are read on by another process now and then, from the state of the one before.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.captures.make import (
    ACK,
    BEGAN_NS,
    CLIENT,
    FIN,
    RST,
    SERVER,
    SYN,
    Packet,
    both_ways,
    enhanced,
    ethernet,
    interface,
    ipv4,
    one_way,
    packets,
    pcap,
    section,
    tcp,
    udp,
)
from tests.captures.test_torture import interleaved
from tests.captures.torture import make_flow
from wireyard.captures.bundled import BundledStreams
from wireyard.captures.carriers.tls_keys import KeyLog, embedded_secrets, read_key_logs
from wireyard.captures.connections.tcp_kernels import SILENCE_NS
from wireyard.captures.directed import CapturedStream
from wireyard.captures.files.slicing import slice_captures
from wireyard.captures.inputs import open_input
from wireyard.captures.live import capture as live_module
from wireyard.captures.live.capture import MAX_OPEN, LiveCapture
from wireyard.captures.live.growing import GrowingCapture
from wireyard.captures.live.state import StateError, pack_state, unpack_state
from wireyard.captures.live.stream import ACKED_HOLE_NS, HOLE_NS
from wireyard.captures.packets.unread import describe_unread, name_unread
from wireyard.captures.read import read_capture
from wireyard.captures.stream_table import describe_stream
from wireyard.formats import Format, get_format
from wireyard.streams.blocks import Grown
from wireyard.streams.plan import Plan, make_plan
from wireyard.streams.scan import read_turns, scan_streams

Row = dict[str, Any]
Facts = dict[str, Mapping[str, Any]]
MS = 1_000_000
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def in_order(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def plan_of(format: Format) -> Plan:
    return make_plan(format, captured=True)


def whole(
    data: bytes, named: Format | None = None, keylog: Sequence[Path] = ()
) -> tuple[list[Row], Facts]:
    """Return the rows and the descriptions of the streams of a whole capture."""
    rows: list[Row] = []
    facts: Facts = {}
    for stream in open_input(data, named, keylog=keylog).streams:
        opened = stream.opened
        for each in opened.streams() if isinstance(opened, BundledStreams) else [opened]:
            assert isinstance(each, CapturedStream)
            facts[each.stream] = describe_stream(each.captured)
        for batch in scan_streams([(opened, plan_of(stream.format))]):
            rows += batch.to_pylist()
    return rows, facts


@dataclass
class Fed:
    """A live capture, and the rows that it has given so far."""

    growing: GrowingCapture
    rows: list[Row] = field(default_factory=list)
    facts: Facts = field(default_factory=dict)
    """The descriptions of its streams."""

    @classmethod
    def begin(cls, named: Format | None = None, keys: KeyLog | None = None) -> Fed:
        return cls(GrowingCapture(LiveCapture("<bytes>", named, keys=keys, describes=True)))

    @property
    def capture(self) -> LiveCapture:
        return self.growing.capture

    def feed(self, data: bytes, *, idle: bool = True) -> None:
        for turn in self.growing.feed(data, idle=idle):
            self.take(turn)
        self.facts.update(self.capture.take_ended())

    def wait(self, idle_ns: int) -> None:
        self.take(self.capture.wait(idle_ns))

    def end(self) -> None:
        for turn in self.growing.end():
            self.take(turn)
        self.facts.update(self.capture.take_ended())

    def go_on(self, data: bytes, named: Format | None, keylog: Sequence[Path]) -> None:
        """Continue in another process, if there is a state to continue from.

        Parameters
        ----------
        data
            The whole file: secrets are in no state, they are read again.
        """
        state = self.growing.state()
        if state is None:
            return
        self.facts.update(self.capture.describe())
        text, arrays = pack_state(state)
        for array in arrays:
            array.flags.writeable = False  # as it comes from a file
        before = [np.frombuffer(data[: self.growing.file.offset], np.uint8)]
        keys = read_key_logs(keylog, partial(embedded_secrets, before))
        self.growing = Fed.begin(named, keys).growing
        self.growing.restore(unpack_state(text, arrays))

    def take(self, turn: list[Grown]) -> None:
        for label in {one.format.label for one in turn}:
            some = [one for one in turn if one.format.label == label]
            for batch in read_turns([some], plan_of):
                self.rows += batch.to_pylist()

    def shown(self) -> list[tuple[str, int, int]]:
        return [(row["status"], row["offset"], row["length"]) for row in self.rows]


def fed_in_pieces(
    data: bytes,
    rng: Random,
    named: Format | None = None,
    keylog: Sequence[Path] = (),
    *,
    restarts: bool | None = None,
) -> tuple[Fed, int]:
    """Return a capture that arrived in pieces and ended, and how many rows came before its end.

    Parameters
    ----------
    restarts
        Whether other processes read on; by chance if None.
    """
    fed, at = Fed.begin(named, read_key_logs(keylog)), 0
    chance = (rng.random() < 0.5 if restarts is None else restarts) * 0.3
    while at < len(data):
        size = rng.randint(1, rng.choice((3, 60, 900, 9000, 40000)))
        fed.feed(data[at : at + size], idle=rng.random() < 0.5)
        at += size
        if rng.random() < chance:
            growing = fed.growing
            fed.go_on(data, named, keylog)
            at = at if growing is fed.growing else fed.growing.file.offset
    early = len(fed.rows)
    fed.end()
    return fed, early


def assert_same(
    data: bytes,
    rng: Random,
    named: Format | None = None,
    keylog: Sequence[Path] = (),
    *,
    restarts: bool | None = None,
) -> tuple[int, int]:
    fed, early = fed_in_pieces(data, rng, named, keylog, restarts=restarts)
    rows, facts = whole(data, named, keylog)
    assert in_order(fed.rows) == in_order(rows)
    assert {name: fed.facts.get(name) for name in facts} == facts
    assert [*fed.capture.repairs.lines()] == [*read_capture(data).repairs.lines()]
    return early, len(fed.rows)


# --- the same rows --------------------------------------------------------------------------


def test_recorded_captures(shared: Path) -> None:
    folders, count = [shared / "captures", shared / "cases"], 0
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("no captures in the shared folder")
    for path in sorted(path for folder in folders for path in folder.rglob("*.pcap*")):
        if "oracle" in path.parts or path.suffix == ".xz":
            continue
        data = path.read_bytes()
        data = zlib.decompressobj(31).decompress(data) if path.suffix == ".gz" else data
        if len(data) < 400_000:
            try:
                count += assert_same(data, Random(path.name))[1]
            except AssertionError:
                raise AssertionError(path) from None
    assert count > 5000


@pytest.mark.parametrize("name", ["traffic.pcap", "ring.pcap"])
@pytest.mark.parametrize("restarts", [False, True])
def test_examples(name: str, restarts: bool) -> None:
    named, data = get_format("rmp") if name == "ring.pcap" else None, (EXAMPLES / name).read_bytes()
    early, count = assert_same(data, Random(name), named, restarts=restarts)
    assert early > count // 2


@pytest.mark.parametrize(
    ("name", "lost"),
    [("mqtt.pcap", 0), ("mqtt.pcap", 0.05), ("websocket.pcap", 0.05), ("jms.pcapng", 0)],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_encrypted_and_wrapped(name: str, lost: float, restarts: bool) -> None:
    path = EXAMPLES / "encrypted" / name
    logs = [path.with_suffix(".keys")] if path.with_suffix(".keys").exists() else []
    data, rng = path.read_bytes(), Random(name)
    if lost:
        every = range(read_capture(data).spans[0].frames)
        kept = {number for number in every if rng.random() > lost}
        data = b"".join(part.tobytes() for part in slice_captures(read_capture(data).files, kept))
    fed, _ = fed_in_pieces(data, rng, None, logs, restarts=restarts)
    rows, _ = whole(data, None, logs)
    if lost:  # a CONNECT behind lost bytes comes after its answer was read
        for row in (*fed.rows, *rows):
            row.pop("version_in_force")
    assert in_order(fed.rows) == in_order(rows)
    assert len(rows) > 70


def test_a_direction_that_comes_later_is_read_by_the_version_that_the_other_shows() -> None:
    """Of a connection whose CONNECT was not captured; DISCONNECT alone could be of any version."""
    acknowledged = b"".join(bytes([0x40, 4, 0, number, 0x10, 0]) for number in range(1, 9))
    answer = ethernet(ipv4(tcp(1883, 4000, 50, acknowledged, ACK, 10), src=SERVER, dst=CLIENT))
    leaving = ethernet(ipv4(tcp(4000, 1883, 10, b"\xe0\0", ACK, 50 + len(acknowledged))))
    data = pcap([Packet(answer, BEGAN_NS), Packet(leaving, BEGAN_NS + 900 * MS)])
    fed = Fed.begin()
    fed.feed(data[: -len(leaving) - 16])
    fed.wait(500 * MS)
    assert len(fed.rows) == 8
    fed.feed(data[-len(leaving) - 16 :])
    fed.end()
    assert {row["version_in_force"] for row in fed.rows} == {5}
    assert in_order(fed.rows) == in_order(whole(data)[0])


def connect(number: int) -> bytes:
    client = b"client-%d" % number
    body = b"\0\4MQTT\4\2\0\x3c" + len(client).to_bytes(2, "big") + client
    return bytes([0x10, len(body)]) + body


def publish(size: int) -> bytes:
    body = b"\0\3a/b" + bytes(size)
    return (
        b"\x30"
        + (bytes([len(body)]) if size < 100 else bytes([0x80 | len(body) & 127, len(body) >> 7]))
        + body
    )


def conversation(number: int, rng: Random) -> Iterator[tuple[int, bytes]]:
    """Yield the frames of a connection with the times they come at, as a network shows them."""
    port, first, other = 20000 + number, rng.randrange(1 << 32), rng.randrange(1 << 32)
    stream = connect(number) + b"".join(
        publish(rng.randrange(1500)) for _ in range(rng.randint(1, 30))
    )
    begin_ns = rng.randrange(3000) * MS
    yield begin_ns, ethernet(ipv4(tcp(port, 1883, first - 1, flags=SYN)))
    answer = tcp(1883, port, other - 1, b"", SYN | ACK, first)
    yield begin_ns + MS, ethernet(ipv4(answer, src=SERVER, dst=CLIENT))
    answer = tcp(1883, port, other, b"\x20\2\0\0", ACK, first + len(connect(number)))
    yield begin_ns + 9 * MS, ethernet(ipv4(answer, src=SERVER, dst=CLIENT))
    at, time_ns = 0, begin_ns + 5 * MS
    while at < len(stream):
        # The answer shows that the first segment arrived.
        size = rng.randint(1, 1400) if at else len(connect(number))
        segment = ethernet(ipv4(tcp(port, 1883, first + at, stream[at : at + size], ACK, other)))
        fate = rng.random() if at else 0.3
        if fate > 0.05:
            yield time_ns + rng.randrange(40) * MS * (fate < 0.4), segment
        elif fate > 0.01:  # lost, and sent again
            yield time_ns + rng.randrange(200, 900) * MS, segment
        if fate > 0.9:  # sent again without need, with what comes before or behind it
            back = max(at - rng.randrange(500), 0)
            again = tcp(port, 1883, first + back, stream[back : at + size], ACK, other)
            yield time_ns + rng.randrange(80) * MS, ethernet(ipv4(again))
        at += size
        time_ns += rng.randrange(20) * MS
        acked = tcp(1883, port, other + 4, b"", ACK, first + min(at, len(stream)))
        yield time_ns + 2 * MS, ethernet(ipv4(acked, src=SERVER, dst=CLIENT))
    if rng.random() < 0.8:
        flags = FIN | ACK if rng.random() < 0.7 else RST
        end_ns = time_ns + 1000 * MS
        yield end_ns, ethernet(ipv4(tcp(port, 1883, first + len(stream), b"", flags, other + 4)))
        last = tcp(1883, port, other + 4, b"", FIN | ACK, first + len(stream) + 1)
        yield end_ns + MS, ethernet(ipv4(last, src=SERVER, dst=CLIENT))


def network(count: int, rng: Random) -> bytes:
    frames = [each for number in range(count) for each in conversation(number, rng)]
    frames.sort(key=lambda each: each[0])
    return pcap([Packet(data, BEGAN_NS + time_ns) for time_ns, data in frames])


@pytest.mark.parametrize("seed", range(4))
def test_many_connections_with_loss_reordering_and_retransmission(seed: int) -> None:
    rng = Random(seed)
    early, count = assert_same(network(150, rng), rng)
    assert early > 0.9 * count


@pytest.mark.parametrize("seed", range(2))
def test_connections_as_a_bad_capture_shows_them(seed: int) -> None:
    rng = Random(seed)
    flows = [make_flow(number, rng) for number in range(150)]
    segments = [replace(one, silences=0) for one in interleaved(flows, rng)]
    records = [segment.packet(number) for number, segment in enumerate(segments, 1)]
    assert_same(pcap(records), rng)


@pytest.mark.parametrize("seed", range(20))
def test_pcapng_byte_by_byte(seed: int) -> None:
    rng = Random(seed)
    frames = both_ways(connect(1) + publish(50), b"\x20\2\0\0", (40000, 1883))
    blocks = [enhanced(frame, number) for number, frame in enumerate(frames)]
    data = section() + interface() + b"".join(blocks[:2])
    data += section(">") + interface(order=">")
    data += b"".join(enhanced(frame, 9, order=">") for frame in frames[2:])
    assert assert_same(data, rng)[1] == 3


@pytest.mark.parametrize("keep", range(20, 400, 7))
def test_a_capture_that_is_cut_short(keep: int) -> None:
    frames = both_ways(connect(1) + publish(50), b"\x20\2\0\0", (40000, 1883))
    data = pcap(packets(frames))[:keep]
    if keep < 25:
        fed = Fed.begin()
        fed.feed(data)
        fed.end()
        assert fed.rows == [] and fed.growing.summary().damage is not None
        return
    assert_same(data, Random(keep))


def test_what_is_no_record_ends_a_file() -> None:
    good = one_way([(0, connect(1))])
    fed = Fed.begin()
    fed.feed(good + b"\xff" * 100)
    fed.end()
    assert len(fed.rows) == 1
    damage = str(fed.growing.summary().damage)
    assert damage.startswith("pcap: 'Captured Packet Length' is 4294967295")
    assert f"at byte {len(good) + 8} " in damage and damage.endswith("; 100 bytes are not read")


def test_fragments_wait_for_the_rest() -> None:
    segment = tcp(40000, 1883, 1000, connect(1) + publish(40))
    parts = [
        ethernet(ipv4(segment[24:], identification=7, offset=24)),
        ethernet(ipv4(segment[:24], identification=7, more=True)),
    ]
    data = pcap(packets([ethernet(ipv4(tcp(40000, 1883, 999, flags=SYN))), *parts]))
    assert assert_same(data, Random(1))[1] == 2


def test_the_header_of_a_proxy_and_nothing_behind_it() -> None:
    line = b"PROXY TCP4 10.0.0.7 10.0.0.2 40000 1883\r\n"
    for answer in (b"", b"\x20\2\0\0"):
        data = pcap(packets(both_ways(line, answer, (40000, 1883))))
        assert assert_same(data, Random(2))[1] == bool(answer)


def test_the_headers_of_two_proxies_that_come_one_by_one() -> None:
    line = b"PROXY TCP4 10.0.0.7 10.0.0.2 40000 1883\r\n"
    behind = line + connect(1) + publish(5)
    for cut in (len(line), len(line) + 9, 2 * len(line)):
        stream = line + behind
        data = one_way([(0, stream[:cut]), (cut, stream[cut:])], server=1999)
        assert assert_same(data, Random(cut))[1] == 2


def test_datagrams_come_at_once() -> None:
    data = (EXAMPLES / "ring.pcap").read_bytes()
    fed = Fed.begin(get_format("rmp"))
    fed.feed(data)
    early = len(fed.rows)
    fed.end()
    assert early == len(fed.rows) > 0


# --- when rows come -------------------------------------------------------------------------


class Line:
    """A connection whose frames come one by one."""

    def __init__(self, named: Format | None = None) -> None:
        self.fed = Fed.begin(named)
        self.fed.feed(pcap([]))

    def send(
        self, sequence: int, payload: bytes = b"", flags: int = ACK, *, at_ns: int = 0
    ) -> None:
        self._add(ethernet(ipv4(tcp(40000, 1883, sequence, payload, flags, 500))), at_ns)

    def answer(self, acknowledgment: int, payload: bytes = b"", *, at_ns: int = 0) -> None:
        segment = tcp(1883, 40000, 500, payload, ACK, acknowledgment)
        self._add(ethernet(ipv4(segment, src=SERVER, dst=CLIENT)), at_ns)

    def _add(self, frame: bytes, at_ns: int) -> None:
        self.fed.feed(pcap([Packet(frame, BEGAN_NS + at_ns)])[24:])


def begun() -> tuple[Line, int]:
    line = Line()
    line.send(999, flags=SYN)
    line.send(1000, connect(1))
    assert line.fed.shown() == [("ok", 0, len(connect(1)))]
    return line, 1000 + len(connect(1))


def test_a_hole_that_was_acknowledged_is_a_gap_after_a_second() -> None:
    line, after = begun()
    lost, at = publish(30), len(connect(1))
    line.send(after + len(lost), publish(20), at_ns=MS)
    line.answer(after + len(lost) + 27, at_ns=2 * MS)
    line.fed.wait(ACKED_HOLE_NS - 10 * MS)
    assert len(line.fed.rows) == 1
    line.fed.wait(ACKED_HOLE_NS + 10 * MS)
    line.fed.end()
    assert line.fed.shown()[1:] == [("gap", at, len(lost)), ("ok", at + len(lost), 27)]


def test_a_hole_that_nobody_acknowledged_is_filled_later() -> None:
    line, after = begun()
    lost = publish(30)
    line.send(after + len(lost), publish(20), at_ns=MS)
    line.fed.wait(HOLE_NS - 10 * MS)
    assert len(line.fed.rows) == 1
    line.send(after, lost, at_ns=HOLE_NS - 5 * MS)
    assert [status for status, _, _ in line.fed.shown()] == ["ok"] * 3


def test_an_acknowledged_tail_is_a_gap_once_the_capture_ends() -> None:
    line, after = begun()
    lost, at = publish(30), len(connect(1))
    line.answer(after + len(lost), at_ns=MS)
    line.fed.wait(10 * HOLE_NS)
    assert len(line.fed.rows) == 1
    line.fed.end()
    assert line.fed.shown()[1:] == [("gap", at, len(lost))]


def test_a_stream_whose_beginning_was_not_captured_settles() -> None:
    line = Line()
    line.send(5000, publish(20) * 3)
    assert line.fed.rows == []
    line.fed.wait(300 * MS)
    line.send(5000 + 81, publish(20) * 3, at_ns=400 * MS)
    assert [status for status, _, _ in line.fed.shown()] == ["ok"] * 6
    line.send(4900, publish(20), at_ns=500 * MS)
    line.fed.end()
    assert len(line.fed.rows) == 6 and line.fed.capture.late_bytes == 27


def test_what_is_missing_at_the_beginning_is_a_gap() -> None:
    """Neither SYN was captured, nor the first bytes; all that was acknowledged of them is known."""
    line, size = Line(), len(publish(20))
    line.answer(5000)
    line.send(5000, at_ns=MS)
    line.answer(5000 + 3 * size, at_ns=2 * MS)
    line.send(5000 + 3 * size, publish(20) * 3, at_ns=3 * MS)
    line.fed.wait(2000 * MS)
    packets = [("ok", at * size, size) for at in (3, 4, 5)]
    assert line.fed.shown() == [("gap", 0, 3 * size), *packets]
    line.answer(5000 + 8 * size, at_ns=4 * MS)
    line.fed.end()
    assert line.fed.shown()[4:] == [("gap", 6 * size, 2 * size)]
    assert not any(one["begun"] for one in line.fed.facts.values())


def test_a_side_without_its_beginning_that_says_no_more_is_read_after_a_second() -> None:
    """A PUBACK alone is no proof of a packet, but that is all that comes."""
    line = Line()
    line.send(5000, b"\x40\2\0\1")
    line.answer(5004, publish(20)[:-1], at_ns=MS)
    line.fed.wait(900 * MS)
    assert line.fed.rows == []
    line.fed.wait(1100 * MS)
    assert line.fed.shown() == [("ok", 0, 4)]
    line.send(5004, b"\x40\2\0\2", at_ns=1200 * MS)
    assert line.fed.shown()[1:] == [("ok", 4, 4)]
    line.fed.end()
    # The other side has no whole packet: it stays open to its end.
    assert line.fed.shown()[2:] == [("tail", 0, 26)]


def test_a_client_shows_the_format_of_connections_that_came_before() -> None:
    server = 1999
    early = both_ways(b"\xd0\0", b"\xd0\0", (40001, server))
    late = both_ways(connect(1), b"\x20\2\0\0", (40002, server))
    later = [ethernet(ipv4(tcp(40001, server, 1002, b"\xc0\0", ACK, 502)))]
    data = pcap(
        [
            Packet(frame, BEGAN_NS + 300 * MS * number)
            for number, frame in enumerate([*early, *late, *later])
        ]
    )
    assert assert_same(data, Random(1))[1] == 5


def test_a_connection_of_another_format_is_passed_over() -> None:
    data = one_way([(0, connect(1))])
    rows = fed_in_pieces(data, Random(0), get_format("jmq"))[0].rows
    assert rows == []


def test_streams_without_a_format_are_named() -> None:
    data = pcap(packets(both_ways(b"hello", b"world", (40000, 1999))))
    fed = Fed.begin()
    fed.feed(data)
    fed.end()
    names = [each.stream.name for each in fed.capture.unknown]
    assert names == ["10.0.0.1:40000>10.0.0.2:1999", "10.0.0.2:1999>10.0.0.1:40000"]
    assert [each.stream.size for each in fed.capture.unknown] == [5, 5]


def test_datagrams_without_a_format_are_named() -> None:
    frames = [ethernet(ipv4(udp(5000, 5353, b"name"), 17)) for _ in range(3)]
    fed = Fed.begin()
    fed.feed(pcap(packets(frames[:1])))
    fed.feed(pcap(packets(frames[1:]))[24:])
    fed.end()
    assert [(each.stream.name, each.stream.size) for each in fed.capture.unknown] == [
        ("10.0.0.1:5000>10.0.0.2:5353", 12)
    ]


# --- state for another process ---------------------------------------------------------------


def test_a_damaged_state_is_refused() -> None:
    fed = Fed.begin()
    fed.feed((EXAMPLES / "traffic.pcap").read_bytes()[:50_000])
    state = fed.growing.state()
    assert state is not None
    text, arrays = pack_state(state)
    rng = Random(0)
    refused = 0
    for _ in range(300):
        some = [array.copy() for array in arrays]
        changed = text
        if rng.random() < 0.5:
            array = some[rng.randrange(len(some))]
            some[rng.randrange(len(some))] = array[: len(array) // 2]
        else:
            tree = json.loads(text)
            part = tree["capture"]
            part.pop(rng.choice([*part]))
            changed = json.dumps(tree)
        other = Fed.begin()
        try:
            other.growing.restore(unpack_state(changed, some))
        except StateError:
            refused += 1
    assert refused > 200
    with pytest.raises(StateError, match="another version"):
        GrowingCapture(LiveCapture("x")).restore({**state, "version": 0})
    with pytest.raises(StateError, match="damaged"):
        unpack_state('{"a": {"\\u0000array": 0}}', [np.zeros(1)])


# --- what is held ---------------------------------------------------------------------------


def test_packets_that_were_cut_off_are_counted() -> None:
    frame, arp = ethernet(ipv4(tcp(40000, 1883, 1, publish(30)))), ethernet(bytes(50), 0x0806)
    cut = [Packet(frame[:size], original=len(frame)) for size in (60, 58)]
    data = pcap([Packet(frame), *cut, Packet(arp)])
    note = "2 packets were cut off after 60 bytes (snaplen), 64 bytes are missing"
    assert open_input(data).frames_unread == f"frames not read: 1 ARP; {note}"
    one = "1 packet was cut off after 60 bytes (snaplen), 31 bytes are missing"
    assert open_input(pcap(cut[:1])).frames_unread == one
    tally = fed_in_pieces(data, Random(3))[0].capture.tally
    shown = describe_unread(name_unread(tally.endings), tally.cut)
    assert shown == f"frames not read: 1 ARP; {note}"


def test_connections_that_ended_are_forgotten() -> None:
    fed = Fed.begin()
    fed.feed(pcap([]))
    most = 0
    for turn in range(50):
        frames = []
        for number in range(100):
            port = 1024 + turn * 100 + number
            begins, ends = (
                tcp(port, 1883, 999, flags=SYN),
                tcp(port, 1883, 1020, b"", FIN | ACK, 500),
            )
            answers = (
                tcp(1883, port, 499, b"", SYN | ACK, 1000),
                tcp(1883, port, 500, b"", FIN | ACK, 1021),
            )
            frames += [
                ethernet(ipv4(begins)),
                ethernet(ipv4(answers[0], src=SERVER, dst=CLIENT)),
                ethernet(ipv4(tcp(port, 1883, 1000, connect(1), ACK, 500))),
                ethernet(ipv4(ends)),
                ethernet(ipv4(answers[1], src=SERVER, dst=CLIENT)),
            ]
        time_ns = BEGAN_NS + turn * 2000 * MS
        fed.feed(pcap([Packet(frame, time_ns) for frame in frames])[24:])
        most = max(most, len(fed.capture.connections.placer))
        assert not fed.capture.connections.open
    assert len(fed.rows) == 50 * 100
    assert most < 4800, most
    fed.end()
    assert len(fed.rows) == 50 * 100


def test_a_port_that_is_used_again_has_its_number() -> None:
    fed = Fed.begin()
    fed.feed(pcap([]))
    for turn in range(3):
        first = 1000 + turn * 100_000
        frames = [tcp(40000, 1883, first - 1, flags=SYN), tcp(40000, 1883, first, connect(1))]
        records = [Packet(ethernet(ipv4(one)), BEGAN_NS + turn * 60_000 * MS) for one in frames]
        fed.feed(pcap(records)[24:])
    assert [row["stream"].partition("#")[2] for row in fed.rows] == ["", "2", "3"]


def test_too_much_is_given_up_as_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MAX_HELD_BYTES", 10_000)
    line, after = begun()
    size = 40_000  # a packet that is not whole for long
    large = bytes([0x30, 0xC0, 0xB8, 0x02]) + b"\0\3a/b" + bytes(size - 5)
    data = large + b"\xc0\0" + connect(2)
    for at in range(0, len(data), 1000):
        line.send(after + at, data[at : at + 1000], at_ns=at * 1000)
        assert line.fed.capture.connections.held.size <= 12_000
    line.fed.end()
    shown = line.fed.shown()
    before = len(connect(1))
    dropped = line.fed.capture.dropped_bytes
    assert dropped == 10_000
    # What follows is garbage up to where a packet is found again.
    assert shown[1][0] == "gap" and shown[1][1:] == (before, dropped)
    assert shown[2][0] == "garbage"
    assert shown[-1] == ("ok", before + len(large) + 2, len(connect(2)))
    offsets = [offset for _, offset, _ in shown]
    assert offsets == [0, *np.cumsum([length for _, _, length in shown])[:-1].tolist()]


def test_the_oldest_of_too_many_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MAX_OPEN", 16)
    assert MAX_OPEN > 16
    fed = Fed.begin()
    fed.feed(pcap([]))
    for number in range(100):
        frames = [
            tcp(2000 + number, 1883, 999, flags=SYN),
            tcp(2000 + number, 1883, 1000, connect(1)),
        ]
        fed.feed(pcap([Packet(ethernet(ipv4(one)), BEGAN_NS + number * MS) for one in frames])[24:])
        assert len(fed.capture.connections.open) <= 17
    assert len(fed.rows) == 100


@pytest.mark.parametrize("pause_ns", [MS, SILENCE_NS // 4])
def test_conversations_of_datagrams_are_forgotten(
    pause_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture without any TCP: conversations that are silent, and the oldest of too many."""
    monkeypatch.setattr(live_module, "MAX_OPEN", 16)
    monkeypatch.setattr(live_module, "_EVICT_FROM", 8)
    fed = Fed.begin()
    fed.feed(pcap([]))
    for number in range(200):
        frame = ethernet(ipv4(udp(2000 + number, 5353, b"name"), 17))
        fed.feed(pcap([Packet(frame, BEGAN_NS + number * pause_ns)])[24:])
        assert len(fed.capture.connections.datagrams) <= 17
        assert len(fed.capture.connections.flows) <= 60
    again = ethernet(ipv4(udp(2199, 5353, b"name"), 17))
    fed.feed(pcap([Packet(again, BEGAN_NS + 199 * pause_ns)])[24:])
    fed.end()
    names = [each.stream.name for each in fed.capture.unknown]
    assert len(names) == len({*names}) == 200
