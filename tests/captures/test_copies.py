"""Connections that are one, captured twice or in several networks, and those that are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import pytest

from tests.captures.links import gre, in_udp
from tests.captures.make import (
    ACK,
    BEGAN_NS,
    CLIENT,
    FIN,
    SERVER,
    SYN,
    Packet,
    enhanced,
    ethernet,
    interface,
    ipv4,
    packets,
    pcap,
    section,
    tcp,
    udp,
)
from tests.captures.test_tcp import shown
from wireyard.captures.read import Capture, read_capture

NAME, BACK = "10.0.0.1:40000>10.0.0.2:1883", "10.0.0.2:1883>10.0.0.1:40000"
MS = 1_000_000
Segment = tuple[int, bytes]
"""A direction, 0 for the client's, and an IP packet."""


def talk(
    asked: Sequence[bytes] = (b"ask", b"more"),
    answered: Sequence[bytes] = (b"answer", b"!"),
    *,
    numbers: tuple[int, int] = (1000, 5000),
    ends: tuple[str, str] = (CLIENT, SERVER),
    ports: tuple[int, int] = (40000, 1883),
    begins: bool = True,
    closes: bool = True,
) -> list[Segment]:
    """Return the segments of a connection whose sides take turns."""
    sent = [number + 1 for number in numbers]
    made: list[Segment] = []

    def send(way: int, payload: bytes = b"", flags: int = ACK) -> None:
        number = sent[way] - bool(flags & SYN)
        other = sent[1 - way] if flags & ACK else 0
        src, dst = (ports[way], ports[1 - way])
        segment = tcp(src, dst, number, payload, flags, other)
        made.append((way, ipv4(segment, 6, ends[way], ends[1 - way])))
        sent[way] += len(payload) + bool(flags & FIN)

    if begins:
        send(0, flags=SYN)
        send(1, flags=SYN | ACK)
        send(0)
    for one, other in zip(asked, answered, strict=True):
        send(0, one)
        send(1, other)
    if closes:
        send(0, flags=FIN | ACK)
        send(1, flags=FIN | ACK)
    return made


def vlan(number: int, kind: int = 0x8100) -> Callable[[bytes], bytes]:
    return lambda packet: ethernet(number.to_bytes(2, "big") + b"\x08\0" + packet, kind)


def stacked(outer: int, inner: int) -> Callable[[bytes], bytes]:
    tags = outer.to_bytes(2, "big") + b"\x81\0" + inner.to_bytes(2, "big") + b"\x08\0"
    return lambda packet: ethernet(tags + packet, 0x88A8)


def service(number: int) -> Callable[[bytes], bytes]:
    return lambda packet: ethernet(number.to_bytes(4, "big") + ethernet(packet), 0x88E7)


def tunnel(port: int, header: str, number: int) -> Callable[[bytes], bytes]:
    head = bytes.fromhex(header) + (number << 8).to_bytes(4, "big")
    return lambda packet: ethernet(in_udp(port, head + ethernet(packet)))


def keyed(number: int) -> Callable[[bytes], bytes]:
    return lambda packet: ethernet(gre(0x0800, number.to_bytes(4, "big") + packet, 0x2000))


def mirrored(number: int) -> Callable[[bytes], bytes]:
    head = bytes(4) + (0x1000 | number).to_bytes(2, "big") + bytes(6)
    return lambda packet: ethernet(gre(0x88BE, head + ethernet(packet), 0x1000))


def tags(number: int) -> bytes:
    return number.to_bytes(2, "big")


NETWORKS = {
    "vlan": (vlan(10), vlan(20)),
    "one of them untagged": (ethernet, vlan(20)),
    "qinq, outer": (stacked(10, 7), stacked(20, 7)),
    "qinq, inner": (stacked(7, 10), stacked(7, 20)),
    "qinq, exchanged": (stacked(10, 20), stacked(20, 10)),
    "802.1ah": (service(10), service(20)),
    "vxlan": (tunnel(4789, "08000000", 10), tunnel(4789, "08000000", 20)),
    "geneve": (tunnel(6081, "00006558", 10), tunnel(6081, "00006558", 20)),
    "gre": (keyed(10), keyed(20)),
    "erspan": (mirrored(10), mirrored(20)),
}


def streams(capture: Capture) -> dict[str, str]:
    return {stream.name: shown(stream) for stream in capture.streams}


def read(frames: Sequence[bytes]) -> dict[str, str]:
    return streams(read_capture(pcap(packets(frames))))


def in_turns(*flows: Sequence[bytes]) -> list[bytes]:
    return [*chain.from_iterable(zip(*flows, strict=True))]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("numbers", [(1000, 5000), (90_000, 2_000_000)])
@pytest.mark.parametrize("begins", [True, False])
def test_networks_with_the_same_addresses_are_apart(
    network: str, numbers: tuple[int, int], begins: bool
) -> None:
    one, other = NETWORKS[network]
    first = [one(packet) for _, packet in talk(begins=begins)]
    packet = talk((b"ASKED", b"x"), (b"no", b"?"), numbers=numbers, begins=begins)
    second = [other(packet) for _, packet in packet]
    assert read(in_turns(first, second)) == {
        NAME: "askmore",
        BACK: "answer!",
        f"{NAME}#2": "ASKEDx",
        f"{BACK}#2": "no?",
    }


def interfaces(*frames: tuple[int, bytes]) -> bytes:
    blocks = [
        enhanced(frame, BEGAN_NS // 1000 + at, number) for at, (number, frame) in enumerate(frames)
    ]
    return section() + interface() * 2 + b"".join(blocks)


def test_interfaces_with_the_same_addresses_are_apart() -> None:
    first = [(0, ethernet(packet)) for _, packet in talk()]
    second = [(1, ethernet(packet)) for _, packet in talk((b"ASKED", b"x"), (b"no", b"?"))]
    capture = read_capture(interfaces(*chain.from_iterable(zip(first, second, strict=True))))
    assert streams(capture) == {
        NAME: "askmore",
        BACK: "answer!",
        f"{NAME}#2": "ASKEDx",
        f"{BACK}#2": "no?",
    }


ONE = {NAME: "askmore", BACK: "answer!"}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("begins", [True, False])
def test_directions_in_different_networks_are_one_connection(network: str, begins: bool) -> None:
    both = NETWORKS[network]
    for ways in (both, both[::-1]):
        assert read([ways[way](packet) for way, packet in talk(begins=begins)]) == ONE


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("begins", [True, False])
def test_packets_that_are_in_two_networks_count_once(network: str, begins: bool) -> None:
    """A router on a stick, or a host with an interface for each VLAN."""
    both = NETWORKS[network]
    frames = [
        each(packet)
        for way, packet in talk(begins=begins)
        for each in (both if way == 0 else both[::-1])
    ]
    assert read(frames) == ONE


@pytest.mark.parametrize("begins", [True, False])
def test_packets_that_take_turns_on_two_links_are_one_connection(begins: bool) -> None:
    segments = talk((b"ask", b"more", b"and", b"more"), (b"1", b"2", b"3", b"4"), begins=begins)
    frames = [(at // 2 & 1, ethernet(packet)) for at, (_, packet) in enumerate(segments)]
    assert streams(read_capture(interfaces(*frames))) == {NAME: "askmoreandmore", BACK: "1234"}


def test_a_priority_tag_names_no_network() -> None:
    frames = [(vlan(0x6000) if at & 1 else ethernet)(one) for at, (_, one) in enumerate(talk())]
    capture = read_capture(pcap(packets(frames)))
    assert streams(capture) == ONE
    assert capture.repairs.copies == 0


def test_fragments_of_different_networks_are_apart() -> None:
    frames = []
    for number, payload in ((10, b"a" * 32), (20, b"b" * 32)):
        segment = tcp(40000, 1883, 1000, payload)
        parts = [
            ipv4(segment[:24], identification=7, more=True),
            ipv4(segment[24:], identification=7, offset=24),
        ]
        frames.append([vlan(number)(part) for part in parts])
    assert read(in_turns(*frames)) == {NAME: "a" * 32, f"{NAME}#2": "b" * 32}


def test_datagrams_of_different_networks_are_apart() -> None:
    frames = [
        vlan(number)(ipv4(udp(5000, 6000, payload), 17))
        for number, payload in ((10, b"a"), (20, b"b"), (10, b"c"))
    ]
    name = "10.0.0.1:5000>10.0.0.2:6000"
    assert read(frames) == {name: "ac", f"{name}#2": "b"}


def test_directions_of_datagrams_in_two_networks_are_one_conversation() -> None:
    frames = [
        vlan(10)(ipv4(udp(5000, 6000, b"a"), 17)),
        vlan(20)(ipv4(udp(6000, 5000, b"b"), 17, SERVER, CLIENT)),
        vlan(10)(ipv4(udp(5000, 6000, b"c"), 17)),
    ]
    assert read(frames) == {"10.0.0.1:5000>10.0.0.2:6000": "ac", "10.0.0.2:6000>10.0.0.1:5000": "b"}


# --- captured twice -------------------------------------------------------------------------


def timed(*parts: tuple[int, Sequence[Segment]], step_ns: int = MS) -> bytes:
    """Return a capture of connections that begin so many nanoseconds after the first."""
    records = [
        Packet(ethernet(packet), BEGAN_NS + begin_ns + at * step_ns)
        for begin_ns, segments in parts
        for at, (_, packet) in enumerate(segments)
    ]
    return pcap(sorted(records, key=lambda record: record.time_ns))


@pytest.mark.parametrize("after_ns", [1_000, MS, 5 * MS, 50 * MS, 300 * MS, 1000 * MS])
@pytest.mark.parametrize("only", [None, 0, 1])
def test_a_connection_captured_again_counts_once(after_ns: int, only: int | None) -> None:
    segments = [each for each in talk() if only is None or each[0] == only]
    capture = read_capture(timed((0, segments), (after_ns, segments)))
    kept = {name: text for name, text in ONE.items() if only in (None, [NAME, BACK].index(name))}
    assert streams(capture) == kept
    later = talk((b"x", b""), (b"y", b""), numbers=(1, 2))
    named = read_capture(timed((0, segments), (after_ns, segments), (4000 * MS, later)))
    assert list(streams(named)) == [*kept, f"{NAME}#2", f"{BACK}#2"]


@pytest.mark.parametrize(
    ("after_ns", "again"),
    [
        (3000 * MS, {}),
        (50 * MS, {"numbers": (1000, 5001)}),
        (50 * MS, {"asked": (b"ask", b"MORE")}),
        (50 * MS, {"answered": (b"Answer", b"!")}),
    ],
)
def test_a_port_used_again_is_another_connection(after_ns: int, again: dict[str, object]) -> None:
    capture = read_capture(timed((0, talk()), (after_ns, talk(**again))))  # type: ignore[arg-type]
    assert list(streams(capture)) == [NAME, BACK, f"{NAME}#2", f"{BACK}#2"]
    assert capture.repairs.copies == 0


def test_a_copy_fills_the_gaps_of_the_first_capture() -> None:
    whole = talk()
    capture = read_capture(timed((0, whole[:5] + whole[6:]), (50 * MS, whole[:3] + whole[4:])))
    assert streams(capture) == ONE


TRANSLATED = {
    "server": ((CLIENT, "172.17.0.2"), (40000, 1883)),
    "server and its port": ((CLIENT, "172.17.0.2"), (40000, 11883)),
    "client": (("192.168.1.1", SERVER), (40000, 1883)),
    "client and its port": (("192.168.1.1", SERVER), (61234, 1883)),
    "both": (("172.17.0.1", "172.17.0.2"), (40000, 1883)),
    "both and their ports": (("172.17.0.1", "172.17.0.2"), (61234, 31883)),
    "turned": (("10.0.0.1", "9.0.0.2"), (40000, 1883)),
}


@pytest.mark.parametrize("kind", TRANSLATED)
@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("after_ns", [20_000, MS])
def test_a_connection_before_and_behind_a_translator_counts_once(
    kind: str, begins: bool, after_ns: int
) -> None:
    ends, ports = TRANSLATED[kind]
    before, behind = talk(begins=begins), talk(begins=begins, ends=ends, ports=ports)
    capture = read_capture(timed((0, before), (after_ns, behind), step_ns=5 * MS))
    assert streams(capture) == ONE
    (copy,) = capture.repairs.copied
    assert copy.text == f"{ends[0]}:{ports[0]}>{ends[1]}:{ports[1]} as {NAME}"


@pytest.mark.parametrize(
    "other",
    [
        {"ends": (CLIENT, "172.17.0.2"), "numbers": (1001, 5000)},
        {"ends": (CLIENT, "172.17.0.2"), "answered": (b"answer", b"?")},
        {"ports": (40001, 1883)},
        {"ends": (CLIENT, "172.17.0.2"), "ports": (40001, 1883)},
    ],
)
def test_connections_of_other_endpoints_are_apart(other: dict[str, object]) -> None:
    capture = read_capture(timed((0, talk()), (20_000, talk(**other))))  # type: ignore[arg-type]
    assert len(capture.streams) == 4


def test_a_connection_that_lasts_longer_is_none_before_a_translator() -> None:
    """A client that comes back from another address says the same."""
    other = talk(ends=("10.0.0.7", SERVER))
    first = timed((0, talk()), (20 * MS, other[:-2]), (2000 * MS, other[-2:]))
    assert len(read_capture(first).streams) == 4
