"""Packets and capture files made by hand, from the headers' specifications alone."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

FIN, SYN, RST, ACK = 1, 2, 4, 16
CLIENT, SERVER = "10.0.0.1", "10.0.0.2"
CLIENT6, SERVER6 = "2001:db8::1", "2001:db8::2"
BEGAN_NS = 1_700_000_000_123_456_000


class Packet(NamedTuple):
    """A record: what was captured, how long it was on the wire, when it came."""

    data: bytes
    time_ns: int = BEGAN_NS
    original: int | None = None


def tcp(
    src_port: int,
    dst_port: int,
    sequence: int,
    payload: bytes = b"",
    flags: int = ACK,
    acknowledgment: int = 0,
    options: bytes = b"",
) -> bytes:
    numbers = (src_port, dst_port, sequence & 0xFFFFFFFF, acknowledgment & 0xFFFFFFFF)
    words = 5 + len(options) // 4
    return struct.pack(">HHIIBBHHH", *numbers, words << 4, flags, 0, 0, 0) + options + payload


def udp(src_port: int, dst_port: int, payload: bytes = b"", size: int | None = None) -> bytes:
    size = 8 + len(payload) if size is None else size
    return struct.pack(">HHHH", src_port, dst_port, size, 0) + payload


def ipv4(
    payload: bytes,
    protocol: int = 6,
    src: str = CLIENT,
    dst: str = SERVER,
    *,
    identification: int = 0,
    offset: int = 0,
    more: bool = False,
    total: int | None = None,
    options: bytes = b"",
) -> bytes:
    header = 20 + len(options)
    total = header + len(payload) if total is None else total
    place = offset // 8 | more << 13
    fields = (0x40 | header // 4, 0, total, identification, place, 64, protocol, 0)
    addresses = ip_address(src).packed + ip_address(dst).packed
    return struct.pack(">BBHHHBBH", *fields) + addresses + options + payload


def ipv6(
    payload: bytes,
    protocol: int = 6,
    src: str = CLIENT6,
    dst: str = SERVER6,
    size: int | None = None,
) -> bytes:
    size = len(payload) if size is None else size
    addresses = ip_address(src).packed + ip_address(dst).packed
    return struct.pack(">IHBB", 6 << 28, size, protocol, 64) + addresses + payload


def ethernet(payload: bytes, kind: int = 0x0800) -> bytes:
    return bytes.fromhex("020000000002 020000000001") + kind.to_bytes(2, "big") + payload


def packets(payloads: Iterable[bytes]) -> list[Packet]:
    """Return packets a microsecond apart."""
    return [Packet(data, BEGAN_NS + 1000 * number) for number, data in enumerate(payloads)]


def pcap(
    records: Sequence[Packet],
    link: int = 1,
    *,
    order: str = "<",
    magic: int = 0xA1B2C3D4,
    unit_ns: int = 1000,
    filler: bytes = b"",
    snapshot: int = 65535,
) -> bytes:
    """Return a capture file; `filler` stands behind each record's four fields."""
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, snapshot, link)]
    for record in records:
        seconds, rest = divmod(record.time_ns, 1_000_000_000)
        original = len(record.data) if record.original is None else record.original
        fields = (seconds, rest // unit_ns, len(record.data), original)
        parts += [struct.pack(f"{order}IIII", *fields), filler, record.data]
    return b"".join(parts)


def one_way(pieces: list[tuple[int, bytes]], port: int = 40000, server: int = 1883) -> bytes:
    """Return a capture of a client's direction: pieces of its stream at their offsets."""
    return pcap(packets(one_way_frames(pieces, port, server)))


def one_way_frames(
    pieces: list[tuple[int, bytes]], port: int = 40000, server: int = 1883
) -> list[bytes]:
    """Return the frames of a client's direction: pieces of its stream at their offsets."""
    segments = [tcp(port, server, 999, flags=SYN)]
    segments += [tcp(port, server, 1000 + at, data) for at, data in pieces]
    return [ethernet(ipv4(segment)) for segment in segments]


def both_ways(client: bytes, server: bytes, ports: tuple[int, int] = (40000, 1999)) -> list[bytes]:
    """Return the frames of a connection in which each side says one thing."""
    one, other = ports
    return [
        ethernet(ipv4(tcp(one, other, 999, flags=SYN))),
        ethernet(ipv4(tcp(other, one, 499, b"", SYN | ACK, 1000), src=SERVER, dst=CLIENT)),
        ethernet(ipv4(tcp(one, other, 1000, client, ACK, 500))),
        ethernet(ipv4(tcp(other, one, 500, server, ACK, 1000), src=SERVER, dst=CLIENT)),
    ]


QUIET = {
    "ack": ethernet(ipv4(tcp(50_000, 80, 7, acknowledgment=7))),
    "syn": ethernet(ipv4(tcp(50_000, 80, 7, flags=SYN))),
    "udp": ethernet(ipv4(udp(50_000, 53), 17)),
    "arp": ethernet(bytes(28), 0x0806),
}
"""Frames that bring no bytes of a stream."""


def go_on(path: Path, seconds: int, frame: bytes = QUIET["arp"]) -> Path:
    """Append a frame to a pcap file, so long behind its last one."""
    data, at = path.read_bytes(), 24
    while at < len(data):
        last, *_, size, _ = struct.unpack_from("<IIII", data, at)
        at += 16 + size
    head = struct.pack("<IIII", max(last + seconds, 0), 0, len(frame), len(frame))
    path.write_bytes(data + head + frame)
    return path


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    size = struct.pack(f"{order}I", 12 + len(body))
    return struct.pack(f"{order}I", kind) + size + body + size


def section(order: str = "<", major: int = 1) -> bytes:
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, major, 0, -1), order)


def interface(link: int = 1, snapshot: int = 0, options: bytes = b"", order: str = "<") -> bytes:
    return block(1, struct.pack(f"{order}HHI", link, 0, snapshot) + options, order)


def enhanced(
    data: bytes, ticks: int = 0, number: int = 0, original: int | None = None, order: str = "<"
) -> bytes:
    original = len(data) if original is None else original
    fields = (number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), original)
    return block(6, struct.pack(f"{order}IIIII", *fields) + data + bytes(-len(data) % 4), order)


def obsolete(data: bytes, ticks: int = 0, number: int = 0, order: str = "<") -> bytes:
    fields = (number, 0, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
    return block(2, struct.pack(f"{order}HHIIII", *fields) + data + bytes(-len(data) % 4), order)


def simple(data: bytes, original: int | None = None, order: str = "<") -> bytes:
    original = len(data) if original is None else original
    return block(3, struct.pack(f"{order}I", original) + data + bytes(-len(data) % 4), order)
