"""A screen of what passes the proxy: rates, destinations, connections, and what is stuck.

Stuck is, for `_PATIENCE_S` and more: a login or a message of QoS 1 or 2 that is not answered, and a
side that does not read.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from wireyard.errors import DecodeError
from wireyard.formats.base import Format
from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.formats.marks import shown
from wireyard.formats.mqtt.cursor import read_integer
from wireyard.formats.mqtt.layout import CONNACK, CONNECT, PUBACK, PUBCOMP, PUBLISH, VERSION_BITS
from wireyard.tap.packets import Span
from wireyard.tap.relay import Connection, Side

_PATIENCE_S: Final = 5.0
_MOST_TOPICS: Final = 1000
_MOST_IN_FLIGHT: Final = 1000
"""Messages that are followed in one direction of a connection."""
_MOST_LOOKED_AT: Final = 1000
"""Connections that are searched for what is stuck, each time."""
_OTHERS: Final = "others"


class _Waiting(NamedTuple):
    """A message or a login that is not answered yet."""

    text: str
    since: float


class _Followed:
    """What is known of one connection."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.login: _Waiting | None = None
        self.in_flight: tuple[dict[int, _Waiting], dict[int, _Waiting]] = ({}, {})
        """Messages by packet id: those to clients, those of clients."""
        self.unread_since: list[float | None] = [None, None]


class Screen:
    """Counts what passes, and shows it as lines of text.

    `connections` returns the open connections. Destinations after the first 1,000 are counted
    together, and of each direction of a connection 1,000 messages are followed.
    """

    def __init__(self, connections: Callable[[], Sequence[Connection]] = tuple) -> None:
        self.connections = connections
        self._began = self._shown_at = time.monotonic()
        self._totals = Counter[tuple[str, bool]]()
        self._news = Counter[tuple[str, bool]]()
        self._packets, self._bytes = [0, 0], [0, 0]
        self._followed: dict[Connection, _Followed] = {}

    # --- what passes ----------------------------------------------------------------------

    def passed(
        self, connection: Connection, from_client: bool, data: bytes, spans: Sequence[Span]
    ) -> None:
        """Count the packets in bytes that were passed on."""
        self._bytes[from_client] += len(data)
        format = connection.talk.format
        if format is None:
            return
        followed = self._of(connection)
        for span in spans:
            if span.packet_type >= 0:
                self._packets[from_client] += 1
                if format.name == "mqtt":
                    self._see_mqtt(connection, followed, from_client, data, span)
                elif span.packet_type in MESSAGE_TYPES:
                    self._count(_decoded(connection, format, data, span, from_client), from_client)

    def _of(self, connection: Connection) -> _Followed:
        followed = self._followed.get(connection)
        if followed is None:
            open_ones = set(self.connections())
            self._followed = {one: each for one, each in self._followed.items() if one in open_ones}
            followed = self._followed[connection] = _Followed(time.monotonic())
        return followed

    def _count(self, destination: str | None, from_client: bool) -> None:
        key = destination or "", from_client
        if key not in self._totals and len(self._totals) >= _MOST_TOPICS:
            key = _OTHERS, from_client
        self._totals[key] += 1
        self._news[key] += 1

    def _see_mqtt(
        self, connection: Connection, followed: _Followed, from_client: bool, data: bytes,
        span: Span,
    ) -> None:  # fmt: skip
        kind, format = span.packet_type, connection.talk.format
        assert format is not None
        if kind == PUBLISH:
            topic, packet_id = _topic_of(connection, format, data, span, from_client)
            self._count(topic, from_client)
            sent = followed.in_flight[from_client]
            if packet_id and len(sent) < _MOST_IN_FLIGHT:
                sent.setdefault(packet_id, _Waiting(topic, time.monotonic()))
        elif kind in (PUBACK, PUBCOMP):
            at = read_integer(data, span.start + 1, span.stop)[1]
            packet_id = int.from_bytes(data[at : at + 2], "big")
            followed.in_flight[not from_client].pop(packet_id, None)
        elif kind == CONNECT:
            _decoded(connection, format, data, span, from_client)
            followed.login = _Waiting("CONNECT", time.monotonic())
        elif kind == CONNACK:
            _decoded(connection, format, data, span, from_client)
            followed.login = None

    # --- the screen -----------------------------------------------------------------------

    def lines(self, title: str, width: int, height: int) -> list[str]:
        """Return the screen since the last call, at most as wide and as high as given."""
        now = time.monotonic()
        seconds = max(now - self._shown_at, 0.001)
        open_ones = self.connections()
        head = [
            f"{title}   {len(open_ones):,} connections   {_span(now - self._began)}",
            *(
                f"{name:12} {self._packets[side] / seconds:12,.1f} packets/s"
                f" {self._bytes[side] / seconds / 1e6:12,.3f} MB/s"
                for name, side in (("to broker", 1), ("to clients", 0))
            ),
            "",
        ]
        stuck = self._stuck(open_ones, now)
        room = max(1, (height - len(head) - 5) // 2)
        below = _limited(stuck, room, "stuck") if stuck else ["nothing is stuck"]
        rows = self._destinations(seconds, width, max(1, height - len(head) - len(below) - 3))
        self._news.clear()
        self._packets, self._bytes, self._shown_at = [0, 0], [0, 0], now
        return [_cut(line, width) for line in (*head, *rows, "", *below)][:height]

    def _destinations(self, seconds: float, width: int, room: int) -> list[str]:
        name_width = width - 42
        names = {name for name, _ in self._totals}
        busiest = sorted(
            names,
            key=lambda name: (
                -self._news[name, True] - self._news[name, False],
                -self._totals[name, True] - self._totals[name, False],
                name,
            ),
        )
        rows = [
            f"{_cut(shown(name), name_width):{name_width}}"
            f" {self._news[name, True] / seconds:12,.1f} {self._news[name, False] / seconds:12,.1f}"
            f" {self._totals[name, True] + self._totals[name, False]:14,}"
            for name in busiest
        ]
        title = f"{'destination':{name_width}} {'to broker/s':>12} {'to clients/s':>12} {'all':>14}"
        return [title, *_limited(rows, room, "destinations")]

    def _stuck(self, connections: Sequence[Connection], now: float) -> list[str]:
        """Return what is stuck, the oldest first."""
        found: list[tuple[float, str]] = []
        for connection in connections[:_MOST_LOOKED_AT]:
            followed = self._of(connection)
            name = shown(str(connection))
            waits = [] if followed.login is None else [(followed.login, "has no answer to CONNECT")]
            for from_client, sent in enumerate(followed.in_flight):
                if sent:
                    way = "from" if from_client else "to"
                    oldest = min(sent.values(), key=lambda each: each.since)
                    text = f"{len(sent):,} {way} it not acknowledged, first on {shown(oldest.text)}"
                    waits.append((oldest, text))
            for at, side in enumerate((connection.client, connection.broker)):
                waits += self._unread(followed, at, side, now)
            found += [(wait.since, f"{_span(now - wait.since)}  {name}: {text}")
                      for wait, text in waits if now - wait.since >= _PATIENCE_S]  # fmt: skip
        return [line for _, line in sorted(found)]

    def _unread(
        self, followed: _Followed, at: int, side: Side, now: float
    ) -> list[tuple[_Waiting, str]]:
        since = followed.unread_since
        since[at] = (since[at] or now) if side.is_unread else None
        who = "the client" if side.is_client else "the broker"
        return (
            [] if since[at] is None else [(_Waiting("", since[at] or now), f"{who} does not read")]
        )


def every(seconds: float, draw: Callable[[], None]) -> None:
    """Call a function now and then again and again, as long as the loop runs."""
    draw()
    asyncio.get_running_loop().call_later(seconds, every, seconds, draw)


def _decoded(
    connection: Connection, format: Format, data: bytes, span: Span, from_client: bool
) -> str | None:
    """Read a packet for the names of the connection; return its destination."""
    try:
        packet = format.decode(data[span.start : span.stop], span.context)
    except DecodeError:
        return None
    if getattr(packet, "packet_type", None) in (CONNECT, CONNACK) and format.name == "mqtt":
        connection.names.learn(packet)
    return connection.names.destination(packet, from_client)


def _topic_of(
    connection: Connection, format: Format, data: bytes, span: Span, from_client: bool
) -> tuple[str, int]:
    """Return the topic of a PUBLISH, and its packet id, 0 at QoS 0."""
    at = read_integer(data, span.start + 1, len(data))[1]
    stop = at + 2 + int.from_bytes(data[at : at + 2], "big")
    topic = data[at + 2 : stop].decode(errors="replace")
    packet_id = int.from_bytes(data[stop : stop + 2], "big") if data[span.start] & 6 else 0
    behind = stop + 2 * bool(data[span.start] & 6)
    if span.context & VERSION_BITS == 5 and data[behind : behind + 1] not in (b"", b"\0"):
        topic = _decoded(connection, format, data, span, from_client) or topic
    return topic, packet_id


def _limited(rows: Sequence[str], room: int, what: str) -> list[str]:
    if len(rows) <= room:
        return [*rows]
    return [*rows[: room - 1], f"and {len(rows) - room + 1:,} other {what}"]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"
