"""What is repaired in a capture that is read while it is made is repaired as in a whole one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from random import Random

import pytest

from tests.captures.make import (
    BEGAN_NS,
    CLIENT,
    SERVER,
    Packet,
    ethernet,
    ipv4,
    packets,
    pcap,
    udp,
)
from tests.captures.test_copies import MS, NETWORKS, TRANSLATED, Segment, talk, vlan
from tests.captures.test_live import assert_same, connect, publish
from wireyard.captures.live import capture as live_module
from wireyard.captures.live.capture import LiveCapture
from wireyard.captures.live.growing import GrowingCapture
from wireyard.formats import get_format

ASKED = (connect(1), b"\x32\7\0\3a/b\0\1", b"\x32\7\0\3a/b\0\2", b"\xc0\0")
ANSWERED = (b"\x20\2\0\0", b"\x40\2\0\1", b"\x40\2\0\2", b"\xd0\0")
FIRST = 3
"""Segments before the first with bytes."""


def conversation(**settings: object) -> list[Segment]:
    """Return the segments of an MQTT connection."""
    return talk(ASKED, ANSWERED, **settings)  # type: ignore[arg-type]


def assert_as_whole(timed: Sequence[tuple[int, bytes]], rows: int) -> None:
    """Assert that frames, each so many nanoseconds after the first, give what the whole gives."""
    records = [Packet(frame, BEGAN_NS + after_ns) for after_ns, frame in timed]
    data = pcap(records, magic=0xA1B23C4D, unit_ns=1)
    for seed in range(3):
        assert assert_same(data, Random(seed))[1] >= rows


def at_each(step_ns: int, segments: Sequence[Segment]) -> list[tuple[int, bytes]]:
    return [(at * step_ns, ethernet(packet)) for at, (_, packet) in enumerate(segments)]


@pytest.mark.parametrize("early_ns", [1, 20_000, 900_000, 4 * MS, 50 * MS, 1000 * MS])
@pytest.mark.parametrize("answer", range(4))
def test_an_answer_that_was_captured_first(early_ns: int, answer: int) -> None:
    frames = at_each(2000 * MS, conversation())
    at = FIRST + 2 * answer
    request, reply = frames[at : at + 2]
    frames[at : at + 2] = [(request[0] - early_ns, reply[1]), request]
    assert_as_whole(frames, 8)


@pytest.mark.parametrize("back_ns", [1, 20_000, MS])
def test_packets_whose_times_go_back_by_little(back_ns: int) -> None:
    one = at_each(10 * MS, conversation())
    other = at_each(10 * MS, conversation(numbers=(77_000, 99_000), ports=(40001, 1883)))
    frames = sorted([*one, *other[:-1]], key=lambda each: each[0])
    assert_as_whole([*frames, (frames[-1][0] - back_ns, other[-1][1])], 16)


@pytest.mark.parametrize("after_ns", [MS, 300 * MS, 1900 * MS])
def test_other_bytes_than_were_sent_before(after_ns: int) -> None:
    segments = talk((connect(1), publish(20)), (b"\x20\2\0\0", b""), closes=False)
    changed = talk((connect(1), publish(20)[:-1] + b"x"), (b"\x20\2\0\0", b""), closes=False)
    frames = at_each(MS, segments)
    frames += [(frames[-1][0] + after_ns, ethernet(changed[-2][1]))]
    assert_as_whole(frames, 3)


OTHER = {"numbers": (77_000, 99_000)}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("settings", [{}, OTHER])
@pytest.mark.parametrize("begins", [True, False])
def test_networks_with_the_same_addresses(
    network: str, settings: dict[str, object], begins: bool
) -> None:
    one, other = NETWORKS[network]
    first = [one(packet) for _, packet in conversation(begins=begins)]
    asked = (connect(2), publish(3), publish(4), b"\xc0\0")
    answered = (b"\x20\2\0\0", b"", b"\xd0\0", b"\xd0\0")
    second = [other(packet) for _, packet in talk(asked, answered, begins=begins, **settings)]  # type: ignore[arg-type]
    frames = chain.from_iterable(zip_longest(first, second))
    assert_as_whole(every(5 * MS, [frame for frame in frames if frame]), 15)


def every(step_ns: int, frames: Sequence[bytes]) -> list[tuple[int, bytes]]:
    return [(at * step_ns, frame) for at, frame in enumerate(frames)]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("step_ns", [MS, 100 * MS])
def test_directions_in_different_networks(network: str, begins: bool, step_ns: int) -> None:
    both = NETWORKS[network]
    for ways in (both, both[::-1]):
        frames = [ways[way](packet) for way, packet in conversation(begins=begins)]
        assert_as_whole(every(step_ns, frames), 8)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("step_ns", [MS, 100 * MS])
def test_packets_that_are_in_two_networks(network: str, begins: bool, step_ns: int) -> None:
    both = NETWORKS[network]
    frames = [
        each(packet)
        for way, packet in conversation(begins=begins)
        for each in (both if way == 0 else both[::-1])
    ]
    assert_as_whole(every(step_ns, frames), 8)


def test_directions_of_datagrams_in_two_networks() -> None:
    growing = GrowingCapture(LiveCapture("<bytes>", get_format("rmp")))
    frames = [
        vlan(10)(ipv4(udp(5000, 6000, b"a"), 17)),
        vlan(20)(ipv4(udp(6000, 5000, b"b"), 17, SERVER, CLIENT)),
        vlan(30)(ipv4(udp(5000, 6000, b"c"), 17)),
    ]
    names = set()
    for data in (pcap([]), *(pcap(packets([frame]))[24:] for frame in frames)):
        for turn in growing.feed(data):
            names |= {one.opened.stream for one in turn}
    name = "10.0.0.1:5000>10.0.0.2:6000"
    assert names == {name, "10.0.0.2:6000>10.0.0.1:5000", f"{name}#2"}


@pytest.mark.parametrize("after_ns", [1_000, 5 * MS, 300 * MS, 1900 * MS])
@pytest.mark.parametrize("only", [None, 0, 1])
def test_a_connection_captured_again(after_ns: int, only: int | None) -> None:
    segments = [each for each in conversation() if only is None or each[0] == only]
    again = [(time_ns + after_ns, frame) for time_ns, frame in at_each(MS, segments)]
    later = at_each(MS, talk((connect(3), b"\xc0\0"), (b"\x20\2\0\0", b"\xd0\0"), numbers=(1, 2)))
    frames = [*at_each(MS, segments), *again, *((4000 * MS + ns, frame) for ns, frame in later)]
    assert_as_whole(sorted(frames, key=lambda each: each[0]), (8 if only is None else 4) + 4)


@pytest.mark.parametrize(
    "changed", [OTHER, {"asked": (connect(1), publish(1), b"\xc0\0", b"\xc0\0")}]
)
def test_a_port_used_again_is_another_connection(changed: dict[str, object]) -> None:
    settings = {"asked": ASKED, "answered": ANSWERED} | changed
    again = at_each(MS, talk(**settings))  # type: ignore[arg-type]
    frames = [*at_each(MS, conversation()), *((50 * MS + ns, frame) for ns, frame in again)]
    assert_as_whole(frames, 16)


@pytest.mark.parametrize("kind", TRANSLATED)
@pytest.mark.parametrize("after_ns", [20_000, MS])
@pytest.mark.parametrize("step_ns", [5 * MS, 100 * MS])
def test_a_connection_before_and_behind_a_translator(
    kind: str, after_ns: int, step_ns: int
) -> None:
    ends, ports = TRANSLATED[kind]
    before = at_each(step_ns, conversation())
    behind = at_each(step_ns, conversation(ends=ends, ports=ports))
    frames = sorted([*before, *((ns + after_ns, frame) for ns, frame in behind)])
    assert_as_whole(frames, 8)


def test_a_connection_of_other_endpoints_with_the_same_numbers() -> None:
    before = at_each(5 * MS, conversation())
    other = talk((connect(2), *ASKED[1:]), ANSWERED, ends=(CLIENT, "172.17.0.2"))
    frames = sorted([*before, *((ns + 20_000, frame) for ns, frame in at_each(5 * MS, other))])
    assert_as_whole(frames, 16)


def test_copies_while_connections_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "_EVICT_FROM", 1)
    frames, vlans = [], NETWORKS["vlan"]
    for number in range(8):
        ports, begin_ns = (40000 + number, 1883), number * 15_000 * MS
        before = conversation(ports=ports, numbers=(1000 * number, 77_000))
        behind = conversation(
            ports=ports, numbers=(1000 * number, 77_000), ends=(CLIENT, "172.17.0.2")
        )
        wide = conversation(ports=(50000 + number, 1883), numbers=(9, 2000 * number))
        for at, ((way, packet), (_, copy), (_, other)) in enumerate(
            zip(before, behind, wide, strict=True)
        ):
            each = ethernet(packet), ethernet(copy), vlans[way](other)
            frames += [
                (begin_ns + at * 50 * MS + after * 1000, one) for after, one in enumerate(each)
            ]
    assert_as_whole(frames, 8 * 16)
