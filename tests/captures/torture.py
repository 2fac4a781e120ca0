"""Connections as a bad network and a worse capture show them, and what is in their streams.

The generator knows which connection every segment belongs to and which byte of it stands where;
the model only writes bytes into dictionaries, in the order of capture.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from random import Random

from tests.captures.make import ACK, BEGAN_NS, FIN, RST, SYN, Packet, ethernet, ipv4, tcp
from wireyard.captures.connections.tcp_kernels import SILENCE_NS

WRAP = 1 << 32
FAR = (1 << 30) + (1 << 26)
"""Further than a window: numbers so far apart are never of one connection."""
NEAR = 1 << 25
"""In a window, but too far for a connection that has ended, or was silent for long."""


@dataclass(frozen=True)
class Segment:
    """A segment as captured; `position` counts from the first byte of its stream."""

    flow: int
    connection: int
    way: int
    position: int
    sequence: int
    flags: int
    payload: bytes = b""
    acknowledgment: int = 0
    acknowledged: int | None = None
    """Position in the other stream that it acknowledges."""
    cut: int = 0
    """Bytes that the snapshot cut off."""
    silences: int = 0
    """How often nothing at all was captured for long before it."""
    vlan: int | None = None
    """The VLAN that it was captured in."""
    again: bool = False
    """Whether it is a copy of the segment before it, in another VLAN."""

    @property
    def control(self) -> bool:
        return bool(self.flags & (SYN | FIN | RST))

    @property
    def ends(self) -> list[tuple[str, int]]:
        client = f"10.1.{self.flow >> 8}.{self.flow & 255}", 1024 + self.flow % 7
        server = "10.0.0.2", 1883
        return [server, client] if self.way else [client, server]

    @property
    def name(self) -> str:
        return ">".join(f"{address}:{port}" for address, port in self.ends)

    def packet(self, number: int) -> Packet:
        (src, src_port), (dst, dst_port) = self.ends
        numbers = self.sequence, self.payload, self.flags, self.acknowledgment
        whole = ethernet(ipv4(tcp(src_port, dst_port, *numbers), 6, src, dst))
        if self.vlan is not None:
            tag = self.vlan.to_bytes(2, "big") + b"\x08\0"
            whole = ethernet(tag + whole[14:], 0x8100)
        return Packet(whole[: len(whole) - self.cut], self.time_ns(number), len(whole))

    def time_ns(self, number: int) -> int:
        """Return when the segment was captured, as packet `number`."""
        return BEGAN_NS + 1000 * number + self.silences * (SILENCE_NS + 1000)


def make_flow(flow: int, rng: Random) -> list[Segment]:
    """Return the segments of all connections between two endpoints, in the order of capture."""
    numbers = [rng.choice((rng.randrange(WRAP), WRAP - rng.randrange(600))) for _ in range(2)]
    captured: list[Segment] = []
    silences = 0
    for connection in range(rng.choice((1, 1, 1, 2, 3))):
        segments = _capture(_exchange(flow, connection, numbers, rng), rng)
        segments = [replace(one, silences=silences) for one in segments]
        if segments and rng.random() < 0.2:
            # It goes on after a while; a SYN with the number of before would be a new one.
            after = max((at for at, one in enumerate(segments) if one.flags & SYN), default=0) + 1
            after = rng.randint(after, len(segments))
            silences += 1
            segments[after:] = [replace(one, silences=silences) for one in segments[after:]]
        if captured and captured[-1].silences == silences and rng.random() < 0.3:
            # Segments of the old connection, known from others, arrive after the new one has begun.
            late = [at for at, one in enumerate(captured) if one.payload and not one.control][-2:]
            earlier = captured[: late[0]] if late else []
            known = {(one.connection, one.way) for one in earlier if one.payload}
            late = [at for at in late if (captured[at].connection, captured[at].way) in known]
            head = next((at for at, one in enumerate(segments) if _opens(one)), None)
            if head is not None:
                segments[head + 1 : head + 1] = [captured[at] for at in late]
                captured = [one for at, one in enumerate(captured) if at not in late]
        captured += segments
        silent = rng.random() < 0.3
        silences += silent
        far = NEAR if silent else FAR
        numbers = [(number + far + rng.randrange(1 << 28)) % WRAP for number in numbers]
    return _keep_alive(captured, rng)


def spread(captured: list[Segment], rng: Random) -> list[Segment]:
    """Return the segments of a flow as they are captured in one VLAN, or two, or twice."""
    kind = rng.choice(("one", "each way", "both", "both"))
    if kind == "each way" and any(one.connection or one.silences for one in captured):
        kind = "both"  # the directions of several connections are related by their bytes alone
    first, second = rng.choice(((10, 20), (None, 20), (10, None)))
    out = []
    for segment in captured:
        out.append(replace(segment, vlan=first))
        if kind == "each way" and segment.way:
            out[-1] = replace(segment, vlan=second)
        elif kind == "both":
            out.append(replace(segment, vlan=second, again=True))
    return out


def _opens(segment: Segment) -> bool:
    return bool(segment.flags & SYN or segment.payload) and not segment.flags & RST


def _exchange(flow: int, connection: int, numbers: list[int], rng: Random) -> list[Segment]:
    """Return the segments of one connection in the order in which they were sent."""
    content = [rng.randbytes(rng.choice((0, 1, 2, 50, 300))) for _ in range(2)]
    sent = [0, 0]
    made: list[Segment] = []

    def send(way: int, position: int, flags: int, payload: bytes = b"") -> None:
        sequence = (numbers[way] + 1 + position - bool(flags & SYN)) % WRAP
        acknowledged = sent[1 - way] if flags & ACK else None
        acknowledgment = 0 if acknowledged is None else numbers[1 - way] + 1 + acknowledged
        numbered = sequence, flags, payload, acknowledgment % WRAP, acknowledged
        made.append(Segment(flow, connection, way, position, *numbered))
        if not flags & SYN:
            sent[way] = max(sent[way], position + len(payload))

    early = content[0][:20] if rng.random() < 0.1 else b""
    send(0, 0, SYN, early)
    send(1, 0, SYN | ACK)
    sent[0] = len(early)
    send(0, sent[0], ACK)
    while sent[0] < len(content[0]) or sent[1] < len(content[1]):
        way = rng.randrange(2)
        if sent[way] < len(content[way]):
            size = rng.choice((1, 2, 7, 40))
            send(way, sent[way], ACK, content[way][sent[way] : sent[way] + size])
            if rng.random() < 0.3:
                send(1 - way, sent[1 - way], ACK)
        if rng.random() < 0.15 and sent[way]:
            # Sent again, in other pieces, sometimes with other bytes.
            start = rng.randrange(sent[way])
            payload = content[way][start : start + rng.choice((1, 5, 30))][: sent[way] - start]
            if rng.random() < 0.3:
                payload = rng.randbytes(len(payload))
            send(way, start, ACK, payload)
    ending = rng.choice(("none", "fin", "fin", "rst"))
    if ending == "fin":
        for way in (0, 1):
            send(way, sent[way], FIN | ACK)
    elif ending == "rst":
        send(rng.randrange(2), sent[0], RST, rng.choice((b"", b"no more")))
    return made


def _capture(sent: list[Segment], rng: Random) -> list[Segment]:
    """Lose, repeat, reorder and cut segments."""
    loss, disorder, cut = (rng.choice((0, 0, 0.05, 0.3)) for _ in range(3))
    only = rng.choice((None, None, None, 0, 1))
    hello = rng.random() < 0.2
    seen = []
    for segment in sent:
        lost = rng.random() < loss or (hello and segment.flags & SYN)
        if lost or (only is not None and segment.way != only):
            continue
        if segment.payload and rng.random() < cut:
            segment = replace(segment, cut=rng.randint(1, len(segment.payload)))
        seen += [segment] * (2 if rng.random() < 0.03 else 1)
    for at in range(len(seen) - 1):
        other = at + rng.choice((1, 1, 2, 4))
        if rng.random() < disorder and other < len(seen):
            # What ends or resets a connection stays behind what it ends.
            between = seen[at : other + 1]
            if not any(one.flags & (RST | FIN) for one in between):
                seen[at], seen[other] = seen[other], seen[at]
    return seen


def _keep_alive(captured: list[Segment], rng: Random) -> list[Segment]:
    """Put a byte that was sent before, with any value, behind the newest data of some streams."""
    high: dict[tuple[int, int], int] = {}
    opened: dict[tuple[int, int], Segment] = {}
    last: dict[tuple[int, int], Segment] = {}
    out = []
    newest = -1
    for segment in captured:
        out.append(segment)
        newest = max(newest, segment.connection)
        key = segment.connection, segment.way
        if segment.flags & SYN:
            opened[key] = segment
        if segment.connection == newest and key in opened and rng.random() < 0.02:
            # One before the first byte, with padding that its length takes for payload.
            padding = rng.choice((b"", b"?", b"?\0\0\0\0\0", b"?" * 46))
            number = opened[key].sequence
            flags = segment.flags & ACK
            below = replace(
                segment, position=-1, sequence=number, flags=flags, payload=padding, cut=0
            )
            out.append(below)
        if segment.payload and not segment.flags & RST:
            stop = segment.position + len(segment.payload)
            if stop >= high.get(key, stop):
                high[key], last[key] = stop, segment
        if segment.connection == newest and key in last and rng.random() < 0.05:
            stop = high[key]
            probe = replace(
                last[key],
                position=stop - 1,
                sequence=(last[key].sequence + stop - 1 - last[key].position) % WRAP,
                flags=ACK,
                payload=b"?",
                cut=0,
            )
            if not last[key].flags & SYN:
                out.append(probe)
    return out


@dataclass
class Expected:
    """A stream as it has to come out: byte and frame of each position that was captured."""

    content: dict[int, tuple[int, int]] = field(default_factory=dict)
    low: int | None = None
    high: int | None = None
    end: int | None = None
    begun: bool = False
    start: int | None = None
    """Position at which it begins; known once it is closed."""
    seen: bool = False
    at: int | None = None
    """Position of its first segment."""
    finished: bool = False
    acknowledged: int | None = None
    """Position that the other side acknowledged last."""
    opened: bool = False
    first_acknowledged: int | None = None
    """Position that the other side acknowledged first.

    That is before its bytes or before those of this one.
    """
    acknowledged_in: int | None = None
    """The VLAN of that acknowledgment."""
    vlan: int | None = None
    """That of the first segment of this stream."""
    answers: bool = False
    """Whether that is of the other side's opening, so that this one has begun there."""
    ignored: int = 0

    def close(self, other: Expected) -> None:
        """Move the begin and the end to where the other side's acknowledgments show them."""
        first, low = self.first_acknowledged, self.at if self.low is None else self.low
        if self.begun:
            self.start = 0
        elif first is not None and low is not None and low >= first and self.is_confirmed:
            self.begun, self.start = self.answers, first
            self.end = low if self.end is None else self.end
        else:
            self.start = self.low
        end = 0 if self.end is None else self.end
        if self.finished or not self.seen or self.start is None:
            return
        if self.acknowledged is not None and self.acknowledged > end:
            is_fin = other.finished or self.acknowledged == end + 1
            self.end = self.acknowledged - is_fin

    @property
    def is_confirmed(self) -> bool:
        """Whether the other side has acknowledged another number too, or its opening."""
        if self.answers or self.vlan != self.acknowledged_in:
            return self.answers
        return self.low is not None or self.acknowledged != self.first_acknowledged

    @property
    def size(self) -> int:
        return 0 if self.start is None else max((self.end or 0) - self.start, 0)

    def rows(self) -> list[tuple[int, int, int]]:
        """Return offset, byte and frame of each byte that was captured."""
        start = self.start or 0
        return [(at - start, *self.content[at]) for at in sorted(self.content)]


def model(segments: list[Segment], *, newest: bool = False) -> dict[str, Expected]:
    """Return the streams of captured segments, by name; frame numbers are their order."""
    streams: defaultdict[tuple[int, int, int], Expected] = defaultdict(Expected)
    order: defaultdict[int, list[int]] = defaultdict(list)
    for frame, segment in enumerate(segments, 1):
        if segment.again:
            continue
        connections = order[segment.flow]
        # Of a lone reset nobody can tell which connection it ends.
        opens = _opens(segment) or not (connections or segment.flags & RST)
        if segment.connection not in connections and opens:
            connections.append(segment.connection)
        stream = streams[segment.flow, segment.connection, segment.way]
        if segment.flags & RST:
            continue
        other = streams[segment.flow, segment.connection, 1 - segment.way]
        if segment.flags & SYN:
            stream.begun = True
            other.begun |= bool(segment.flags & ACK)
            (other if segment.flags & ACK else stream).opened = True
        elif stream.opened and stream.begun and not segment.position and other.acknowledged is None:
            other.first_acknowledged, other.answers = segment.acknowledged, True
        elif other.acknowledged is None and other.low is None and segment.connection in connections:
            other.first_acknowledged, other.acknowledged_in = segment.acknowledged, segment.vlan
        if segment.connection in connections:
            stream.seen = True
            stream.vlan = segment.vlan if stream.at is None else stream.vlan
            stream.at = segment.position if stream.at is None else stream.at
            if segment.acknowledged is not None:
                other.acknowledged = segment.acknowledged
        _take(stream, segment, frame, newest)
    for (flow, connection, way), stream in [*streams.items()]:
        stream.close(streams[flow, connection, 1 - way])
    named = {}
    sample = {segment.flow: segment for segment in segments}
    for (flow, connection, way), stream in streams.items():
        if not stream.size or connection not in order[flow]:
            continue
        number = order[flow].index(connection) + 1
        base = replace(sample[flow], way=way).name
        named[base if number == 1 else f"{base}#{number}"] = stream
    return named


def _take(stream: Expected, segment: Segment, frame: int, newest: bool) -> None:
    size = len(segment.payload)
    last = size == 1 and stream.high == segment.position + 1
    if (last or segment.position < 0) and not segment.control:
        return  # keeps the connection alive
    stream.finished |= bool(segment.flags & FIN)
    if size or segment.flags & FIN:
        stop = segment.position + size
        stream.end = stop if stream.end is None else max(stream.end, stop)
    if not size:
        return
    if stream.low is None and not stream.is_confirmed:
        stream.first_acknowledged = None
    stream.low = segment.position if stream.low is None else min(stream.low, segment.position)
    stream.high = max(stream.high or stop, stop)
    for at, byte in enumerate(segment.payload[: size - segment.cut], segment.position):
        if newest or at not in stream.content:
            stream.content[at] = byte, frame
