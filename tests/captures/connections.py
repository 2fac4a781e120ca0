"""Captures of many short connections, whole and damaged, made from a number."""

from __future__ import annotations

from random import Random

from tests.captures.make import Packet, ethernet, ipv4, ipv6, packets, pcap, tcp, udp
from tests.make import random_packet
from wireyard.errors import DecodeError
from wireyard.formats import get_format, sniff

__all__ = ["ACK", "SYN", "make_capture"]

SYN, FIN, RST, ACK = 2, 1, 4, 16
_TOPICS = (b"a", b"plant/3/temperature", b"\xc3\xa9", b"a/+", b"bad\xff", b"nul\0", b"", b"x" * 130)
_CLIENTS = (b"c", b"sensor-17", b"", b"x" * 24, b"\xff")
_FILTERS = (b"#", b"a/#", b"+/b", b"a#", b"a+/b", b"$share/g/t", b"$SYS/x", b"", b"plain")
_OTHERS = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes.fromhex("16030100c8010000c40303") + bytes(60),
    b"101 imqbroker 6.5.0\ncluster_discovery tcp CLUSTER_DISCOVERY 0\n",
    b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
    bytes(30),
)
_FEW = (
    b"", b"\x10", b"\x10", b"\x1b", b"\x16", b"G", b"P", b"1", b"\xff", b"\0", b"\xc0", b"\x30\x7f",
    b"\x10\x20\0\4MQ", b"\x20\2", b"\x1b\xff\xe3\xd8", b"\x30\5\0", b"\xe0\0\x30", bytes(3),
)  # fmt: skip
"""Too few bytes for a packet, or for the second one."""


_PROPERTIES = tuple(
    bytes.fromhex(text)
    for text in (
        "00 00 00 00 00 00",  # none, mostly
        "03 23 00 01",  # a topic alias, of PUBLISH only
        "05 11 00 00 00 ff",
        "06 1f 00 03 62 61 64",
        "07 26 00 01 6b 00 01 76",
        "0e 26 00 01 6b 00 01 76 26 00 01 6b 00 01 22",
        "06 11 00 00 00 ff 21",
        "02 0b 07",
        "03 16 00 00",
        "03 21 00 00",
        "09 02 00 00 00 05 03 00 01 74",
        "04 26 00 05 6b",
        "80 01",
        "7f 00",
    )
)
"""Sections of properties that some packet type may have, or none."""
_REASONS = (0, 0, 4, 16, 17, 24, 128, 131, 135, 142, 145, 146, 162, 3, 255)


def _text(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


def _packet(first: int, body: bytes, rng: Random) -> bytes:
    size, out = len(body), bytearray([first])
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    if rng.random() < 0.01:  # one byte more than it takes
        out[-1] |= 0x80
        out.append(0)
    return bytes(out) + body


def _properties(rng: Random) -> bytes:
    return b"\0" if rng.random() < 0.6 else rng.choice(_PROPERTIES)


def _reason(rng: Random) -> bytes:
    """Return a reason code with or without properties, or nothing."""
    code = bytes([rng.choice(_REASONS)])
    return rng.choice((b"", b"", code, code + _properties(rng)))


def _connect(version: int, rng: Random) -> bytes:
    flags = rng.choice((2, 2, 2, 0, 0xC2, 0x82, 0x06, 0x2E, 0x42, 0x01, 0x1E, rng.randrange(256)))
    level = version | (0x80 if rng.random() < 0.05 else 0)
    body = _text(b"MQIsdp" if version == 3 else b"MQTT") + bytes([level, flags, 0, 60])
    body += _properties(rng) if version == 5 else b""
    body += _text(rng.choice((*3 * _CLIENTS[:2], *_CLIENTS)))
    if flags & 4:
        body += (
            (_properties(rng) if version == 5 else b"")
            + _text(rng.choice(_TOPICS))
            + _text(b"gone")
        )
    body += _text(b"user") if flags & 0x80 else b""
    body += _text(b"secret") if flags & 0x40 else b""
    return _packet(0x10, body, rng)


def _one(version: int, client: bool, rng: Random) -> bytes:
    """Return one packet that one side sends, which may break a rule."""
    number = rng.choice((1, 2, 77, 65535, 0)).to_bytes(2, "big")
    newest = _properties(rng) if version == 5 else b""
    match rng.randrange(9):
        case 0 | 1 | 2:
            flags = rng.choice((0, 1, 2, 3, 4, 10, 6, 8))
            named = _text(rng.choice((*6 * _TOPICS[:3], *_TOPICS)))
            identified = number if flags & 6 else b""
            body = named + identified + newest + rng.randbytes(rng.choice((0, 3, 30, 200)))
            return _packet(0x30 | flags, body, rng)
        case 3:
            kind = rng.choice((0x40, 0x50, 0x62, 0x70))
            reason = _reason(rng) if version == 5 or rng.random() < 0.02 else b""
            return _packet(kind | (rng.random() < 0.05), number + reason, rng)
        case 4:
            return _packet(0xC0 if client else 0xD0, b"", rng)
        case 5 if client:
            filters = rng.choices((*4 * (b"#", b"a/#", b"+/b"), *_FILTERS), k=rng.randint(0, 3))
            kind = rng.choice((0x82, 0x82, 0xA2, 0x80))
            options = (b"\0", b"\1", b"\2", b"\3", b"\x2c", b"\x19", b"\x35", b"\x40")
            asked = rng.choice(options[: 8 if version == 5 else 5]) if kind & 0x20 == 0 else b""
            return _packet(kind, number + newest + b"".join(_text(f) + asked for f in filters), rng)
        case 5 | 6 if not client:
            codes = bytes(rng.choices((0, 1, 2, 0x80, 0, 3, 17, 135), k=rng.randint(0, 3)))
            return _packet(rng.choice((0x90, 0x90, 0xB0)), number + newest + codes, rng)
        case 7:
            if rng.random() < 0.5:
                return _packet(0xE0, _reason(rng), rng)
            return rng.choice((b"\xe0\0", b"\xe0\1\4", b"\xf0\2\0\0", b"\0\0"))
        case 8 if rng.random() < 0.1:
            return _connect(rng.choice((3, 4, 5)), rng)
    return _packet(0x30, _text(b"t") + newest + b"x", rng)


def _later(version: int, client: bool, rng: Random) -> bytes:
    """Return one packet of a connection under way, which mostly breaks no rule."""
    number, newest = rng.choice((b"\0\1", b"\x12\x34")), b"\0" * (version == 5)
    match rng.randrange(20):
        case 0:
            return _one(version, client, rng)
        case 1:
            return b"\xc0\0" if client else b"\xd0\0"
        case 2 | 3 | 4 | 5:
            return rng.choice((b"\x40\2", b"\x50\2", b"\x62\2", b"\x70\2")) + number
        case 6:
            options = b"\0" if client else b""
            kind = 0x82 if client else 0x90
            return _packet(
                kind, number + newest + (_text(b"a/#") if client else b"\1") + options, rng
            )
    flags = rng.choice((0, 1, 2, 3))
    payload = rng.choice(
        (b"", b"\0", b"on", b'{"value":1.5}', b"\2\1\1x", b"\x16\3\1" * 9, b"\5ab")
    )
    named = _text(rng.choice(_TOPICS[:3])) + (number if flags & 6 else b"")
    if version == 5:
        newest = b"\0" if rng.random() < 0.9 else b"\2\1\1"
    return _packet(0x30 | flags, named + newest + payload, rng)


def _jmq_streams(rng: Random) -> tuple[bytes, bytes]:
    """Return what a client and a broker say to each other in JMQ."""
    client, broker = (
        b"".join(random_packet(rng) for _ in range(rng.randint(least, 5))) for least in (1, 0)
    )
    if rng.random() < 0.05:
        other = rng.choice((*_OTHERS, _connect(4, rng), _packet(0x20, b"\0\0", rng)))
        client, broker = rng.choice(((client, other), (other, broker)))
    return _damaged(client, rng), _damaged(broker, rng)


def _streams(rng: Random) -> tuple[bytes, bytes]:
    """Return what a client and a server say to each other."""
    if rng.random() < 0.2:
        return _jmq_streams(rng)
    if rng.random() < 0.1:
        return rng.choice(_FEW), rng.choice(_FEW)
    version = rng.choice((3, 4, 4, 4, 5, 5))
    if rng.random() < 0.2:  # it began earlier than the capture
        count = rng.choice((1, 2, 3, 8, 40))
        kept = [
            b"".join(_later(version, client, rng) for _ in range(rng.randint(least, count)))
            for least, client in ((1, True), (0, False))
        ]
        return _damaged(kept[0], rng), _damaged(kept[1], rng)
    flags, code = rng.choice(
        (
            (0, 0),
            (0, 0),
            (0, 0),
            (1, 0),
            (0, 5),
            (1, 1),
            (2, 0),
            (0, 9),
            (0, 135),
            (1, 135),
            (0, 160),
        )
    )
    newest = b""
    if version == 5:
        newest = rng.choice((_properties(rng), bytes.fromhex("03 21 00 0a")))
    client = _connect(version, rng)
    server = _packet(0x20, bytes([flags, code]) + newest, rng)
    if rng.random() < 0.02:
        server = _connect(rng.choice((3, 4, 5)), rng)
    client += b"".join(_one(version, True, rng) for _ in range(rng.randrange(6)))
    server += b"".join(_one(version, False, rng) for _ in range(rng.randrange(6)))
    if rng.random() < 0.08:
        other = rng.choice(_OTHERS)
        client, server = rng.choice(((other, server), (client, other), (other, b""), (b"", other)))
    return _damaged(client, rng), _damaged(server, rng)


def _damaged(stream: bytes, rng: Random) -> bytes:
    chance, out = rng.random(), bytearray(stream)
    if chance > 0.25 or not out:
        return stream
    at = rng.randrange(len(out))
    if chance < 0.1:
        out[at] = rng.choice((0, 0x80, 0xFF, rng.randrange(256)))
    elif chance < 0.15:
        del out[at:]
    elif chance < 0.2:
        del out[:at]
    else:
        out[at:at] = rng.randbytes(3)
    return bytes(out)


def _packet_ends(stream: bytes) -> list[int]:
    """Return where the packets end of which a stream consists, as far as it does."""
    format, at, ends = sniff(stream) or get_format("mqtt"), 0, list[int]()
    while at < len(stream):
        try:
            size = format.framing.frame_size(memoryview(stream), at, len(stream), 1 << 20, 0, True)
        except DecodeError:
            break
        if size is None or at + size >= len(stream):
            break
        at += size
        ends.append(at)
    return ends


def _connection(number: int, rng: Random, *, lossy: bool) -> list[bytes]:
    """Return the frames of a connection; if it is lossy, most segments end with a packet."""
    port, host, shown = 20000 + number, number, rng.random() < 0.8
    if rng.random() < 0.1:  # endpoints that others have too, before it or at the same time
        port, host = 30000, number & 3
    server_port = rng.choice((1883, 1883, 1883, 11883))
    client, server = _streams(rng)
    if rng.random() < 0.2:
        server = b""
    newer = rng.random() < 0.1
    ends = (f"10.1.{host >> 8}.{host & 255}", "10.0.0.1")
    if newer:
        ends = (f"fd00::1:{host:x}", "fd00::2")

    def wrap(data: bytes, src: str, dst: str) -> bytes:
        if newer:
            return ethernet(ipv6(data, 6, src, dst), 0x86DD)
        return ethernet(ipv4(data, 6, src, dst))

    if rng.random() < 0.02:
        return [ethernet(ipv4(udp(port, server_port, client[:50]), 17, *ends))] if not newer else []
    first = rng.randrange(1 << 32)
    frames = []
    if shown:
        frames.append(wrap(tcp(port, server_port, first - 1, flags=SYN), *ends))
        frames.append(wrap(tcp(server_port, port, first + 98, b"", SYN | ACK, first), *ends[::-1]))
    ways = [(client, first, first + 99, port, server_port, ends),
            (server, first + 99, first + len(client), server_port, port, ends[::-1])]  # fmt: skip
    segments = []
    for stream, begin, answered, src, dst, way in ways:
        cuts = sorted(
            rng.sample(range(len(stream) + 1), min(rng.choice((0, 0, 1, 3)), len(stream)))
        )
        if lossy and rng.random() < 0.7:
            cuts = _packet_ends(stream)
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            if start < stop:
                segment = tcp(src, dst, begin + start, stream[start:stop], ACK, answered)
                piece = wrap(segment, *way)
                segments += [piece] * rng.choice((1, 1, 1, 1, 1, 1, 1, 1, 2))
    if rng.random() < 0.2:
        rng.shuffle(segments)
    losses = rng.choice((1, 1, 2, 5)) if lossy else rng.random() < 0.1
    for _ in range(min(losses, len(segments))):
        del segments[rng.randrange(len(segments))]
    frames += segments
    if rng.random() < 0.5:
        end = rng.choice((FIN | ACK, RST))
        frames.append(wrap(tcp(port, server_port, first + len(client), flags=end), *ends))
    return frames


def make_capture(rng: Random, connections: int, *, lossy: bool = False) -> bytes:
    """Return a capture whose connections are interleaved, most of them whole unless it is lossy."""
    alive = [iter(_connection(number, rng, lossy=lossy)) for number in range(connections)]
    frames = []
    while alive:
        at = rng.randrange(min(len(alive), 5))
        frame = next(alive[at], None)
        if frame is None:
            del alive[at]
        else:
            frames.append(frame)
    records: list[Packet] = packets(frames)
    return pcap(records)
