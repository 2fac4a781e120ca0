"""Sequence numbers: every new packet of a sender has a higher number than all before it.

Two rules are about one stream: a number that is lower than before (`sequence_back`), and one that
two packets have (`sequence_reused`). A packet that is sent again keeps its number and its
timestamp, so a packet is certainly new only if its timestamp is later than that of the highest
number (erratum 48). To check this takes one packet of memory for each stream.

The third rule is about a host (`sequence_gap`). A program numbers the JMQ packets of all its
connections with one counter; other programs on the host have their own. So a number is missing if
the numbers of a connection continue after it and no connection of the host has it. `Runs` are the
numbers of one connection. `gaps` compares the runs of a host in the order of their numbers, and
needs no memory of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple

from tests.reference.jmq_chain.records import Run
from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.layers.jmq.packet_row import PacketRow
from wireyard.layers.records import Position

__all__ = ["GPacketNumbers", "Gap", "Runs", "gaps"]

_BITS: Final = 32
_HALF: Final = 1 << (_BITS - 1)
_IDENTITY: Final = itemgetter("timestamp", "packet_type", "source_ip", "source_port")
_GPACKET_IDENTITY: Final = itemgetter("timestamp", "packet_type")
"""The fields that, with the number, identify a packet of a sender."""


class Gap(NamedTuple):
    """Missing numbers ``[start, stop)`` of a sender, before the packet at `at`."""

    sender: str
    start: int
    stop: int
    at: Position


def _broken_rule(
    identity: tuple[Any, ...], highest: tuple[Any, ...], is_highest: bool, is_used: bool
) -> str | None:
    """Return the rule that a packet violates if its number is not higher than all before it.

    Parameters
    ----------
    identity, highest
        The identity of the packet, and of the one with the highest number; timestamps first.
    is_highest, is_used
        Whether its number is the highest one, and whether any earlier packet has it.
    """
    if identity[2:] != highest[2:]:
        return None  # from another sender
    is_new = identity != highest if is_highest else identity[0] > highest[0]
    if not is_new:
        return None
    return "sequence_reused" if is_used else "sequence_back"


class GPacketNumbers:
    """The highest sequence number of a stream of GPackets.

    A broker numbers the packets of all its links with one counter of 64 bits, so a number that is
    missing on one link is on another.
    """

    def __init__(self) -> None:
        self._number = 0
        self._highest: tuple[Any, ...] | None = None

    def observe(self, row: PacketRow) -> str | None:
        """Observe the next packet of the stream; return the rule that its number violates."""
        sequence, identity, highest = row["sequence"], _GPACKET_IDENTITY(row), self._highest
        if highest is None or sequence > self._number:
            self._number, self._highest = sequence, identity
            return None
        is_highest = sequence == self._number
        return _broken_rule(identity, highest, is_highest, is_highest)


class Runs:
    """The runs of consecutive sequence numbers in one stream of JMQ packets.

    Parameters
    ----------
    host, sender
        The host that sends the stream, and its endpoint.
    from_client
        Whether the sender is the client.
    runs
        The output: a run is appended when the next one begins.
    """

    def __init__(self, host: str, sender: str, from_client: bool, runs: list[Run]) -> None:
        self._host = host
        self._sender = sender
        self._from_client = from_client
        self._runs = runs
        self._first = self._start = self._stop = 0
        self._run_at: Position | None = None
        """The packet with the first number of the run; None before the first run."""
        self._highest: tuple[Any, ...] = ()
        """The identity of the packet with the last number of the run."""
        self._address: Any = None

    def observe(self, row: PacketRow) -> str | None:
        """Observe the next packet of the stream; return the rule that its number violates."""
        if not self._from_client and not self._is_own(row):
            return None
        sequence, identity = row["sequence"], _IDENTITY(row)
        if self._run_at is None:
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
            self._add("run", self._start, self._run_at)
        self._start, self._stop, self._run_at = sequence, sequence + 1, Position.of(row)
        self._highest = identity
        return None

    def close(self) -> None:
        """Append the last run, and the span, at the end of the packets."""
        if self._run_at is not None:
            self._add("run", self._start, self._run_at)
            self._add("span", self._first, self._run_at)

    def _add(self, kind: str, start: int, at: Position) -> None:
        self._runs.append(
            Run(kind, self._host, self._from_client, self._sender, start, self._stop, at)
        )

    def _is_own(self, row: PacketRow) -> bool:
        """Return whether a broker numbered a packet; a message has the number of its producer."""
        address = row["source_ip"], row["source_port"]
        if row["packet_type"] not in MESSAGE_TYPES:
            self._address = address
            return True
        return bool(address == self._address)


def gaps(runs: Iterable[Run]) -> Iterator[Gap]:
    """Yield the numbers of a host that are missing between its runs, within the span of a stream.

    Parameters
    ----------
    runs
        The runs and spans of all streams of the host, ordered by their starts, a span after the
        runs with the same start.
    """
    runs_stop: int | None = None
    spans_stop = 0
    for run in runs:
        if run.kind == "span":
            spans_stop = max(spans_stop, run.stop)
            continue
        if runs_stop is None:
            runs_stop = spans_stop = run.start
        if run.start > runs_stop and spans_stop > run.start:
            yield Gap(run.sender, runs_stop, run.start, run.at)
        runs_stop = max(runs_stop, run.stop)
