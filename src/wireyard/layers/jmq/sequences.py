"""What a sender numbered: every new packet that it writes has a higher number than all before it.

Two rules are about one stream: a number that goes back, and one that is on two packets. A packet
that is sent again keeps its number and its timestamp, so only one with a later timestamp than the
highest number has is certainly new (erratum 48). That takes one packet of memory for each stream.

The third rule is about a host. A program numbers all its JMQ packets with one counter, whatever
connection they go to, and other programs on its host begin anew. So a number is missing where a
connection goes on behind it, and no connection of the same host has it. A connection alone has
`Runs`. To put those of a host together, whoever has them in the order of their numbers needs to
remember none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple

from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.layers.jmq.packet_row import PacketRow
from wireyard.layers.jmq.records import Run
from wireyard.layers.records import Position

__all__ = ["Gap", "Numbers", "Runs", "gaps"]

_BITS: Final = 32
_HALF: Final = 1 << (_BITS - 1)
_IDENTITY: Final = itemgetter("timestamp", "packet_type", "source_ip", "source_port")
_GPACKET_IDENTITY: Final = itemgetter("timestamp", "packet_type")
"""With the number, what identifies a packet among those of its sender."""


class Gap(NamedTuple):
    """Numbers ``[start, stop)`` that a sender did not use, before the packet at `at`."""

    sender: str
    start: int
    stop: int
    at: Position


def _broken_rule(
    identity: tuple[Any, ...], highest: tuple[Any, ...], is_highest: bool, is_used: bool
) -> str | None:
    """Return the rule that a packet breaks whose number is not above all before it.

    Parameters
    ----------
    identity, highest
        The identity of the packet, and of the one with the highest number; timestamps first.
    is_highest, is_used
        Whether its number is the highest one, and whether any earlier packet has it.
    """
    if identity[2:] != highest[2:]:
        return None  # Another sender's.
    is_new = identity != highest if is_highest else identity[0] > highest[0]
    if not is_new:
        return None
    return "sequence_reused" if is_used else "sequence_back"


class Numbers:
    """The highest number of a stream of GPackets.

    A broker numbers the packets of all its links with one counter of 64 bits, so numbers that are
    missing are on other links.
    """

    def __init__(self) -> None:
        self._number = 0
        self._highest: tuple[Any, ...] | None = None

    def observe(self, row: PacketRow) -> str | None:
        """Observe the next packet of the stream; return the rule that its number breaks."""
        sequence, identity, highest = row["sequence"], _GPACKET_IDENTITY(row), self._highest
        if highest is None or sequence > self._number:
            self._number, self._highest = sequence, identity
            return None
        is_highest = sequence == self._number
        return _broken_rule(identity, highest, is_highest, is_highest)


class Runs:
    """The numbers of one stream of JMQ packets, where one follows the other.

    Parameters
    ----------
    host, sender
        Who sends the stream, and the endpoint of the host that it does so from.
    from_client
        Whether that is the client.
    found
        A run goes there as soon as the next one begins.
    """

    def __init__(self, host: str, sender: str, from_client: bool, found: list[Run]) -> None:
        self._host = host
        self._sender = sender
        self._from_client = from_client
        self._found = found
        self._first = self._start = self._stop = 0
        self._place: Position | None = None
        """The packet with the first number of the run; None before there is one."""
        self._highest: tuple[Any, ...] = ()
        """The identity of the packet with the last number of the run."""
        self._address: Any = None

    def observe(self, row: PacketRow) -> str | None:
        """Observe the next packet of the stream; return the rule that its number breaks."""
        if not self._from_client and not self._is_own(row):
            return None
        sequence, identity = row["sequence"], _IDENTITY(row)
        if self._place is None:
            self._first = sequence
        else:
            ahead = (sequence - self._stop + _HALF) % (1 << _BITS) - _HALF
            if ahead == 0:
                self._stop += 1
                self._highest = identity
                return None
            sequence = self._stop + ahead
            if ahead < 0:
                is_used = sequence >= self._start
                return _broken_rule(identity, self._highest, ahead == -1, is_used)
            self._add("run", self._start, self._place)
        self._start, self._stop, self._place = sequence, sequence + 1, Position.of(row)
        self._highest = identity
        return None

    def close(self) -> None:
        """Record that there are no more packets."""
        if self._place is not None:
            self._add("run", self._start, self._place)
            self._add("span", self._first, self._place)

    def _add(self, kind: str, start: int, at: Position) -> None:
        self._found.append(
            Run(kind, self._host, self._from_client, self._sender, start, self._stop, at)
        )

    def _is_own(self, row: PacketRow) -> bool:
        """Return whether a broker numbered a packet: messages have the number of who sent them."""
        address = row["source_ip"], row["source_port"]
        if row["packet_type"] not in MESSAGE_TYPES:
            self._address = address
            return True
        return bool(address == self._address)


def gaps(runs: Iterable[Run]) -> Iterator[Gap]:
    """Yield what is missing between the runs of a host, within the span of a connection.

    Parameters
    ----------
    runs
        Of all connections, and the span of each; in the order of their starts, and a span behind
        the runs that start where it does.
    """
    seen: int | None = None
    reach = 0
    for run in runs:
        if run.kind == "span":
            reach = max(reach, run.stop)
            continue
        if seen is None:
            seen = reach = run.start
        if run.start > seen and reach > run.start:
            yield Gap(run.sender, seen, run.start, run.at)
        seen = max(seen, run.stop)
