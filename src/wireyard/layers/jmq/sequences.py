"""Gaps in what a sender numbered: every packet that it writes has the next number.

A program numbers all its packets with one counter, whatever connection they go to, and other
programs on its host begin anew. So a number is missing where a connection goes on behind it, and no
connection of the same host has it.

A connection alone has `Runs`. To put those of a host together, whoever has them in the order of
their numbers needs to remember none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.layers.jmq.facts import Place, Run, place_of

__all__ = ["Gap", "Runs", "gaps"]

_BITS: Final = 32
_HALF: Final = 1 << (_BITS - 1)


class Gap(NamedTuple):
    """Numbers ``[start, stop)`` that a sender did not use, before the packet at `place`."""

    sender: str
    start: int
    stop: int
    place: Place


class Runs:
    """The numbers of one stream, where one follows the other.

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
        self._place: Place | None = None
        """The packet with the first number of the run; None before there is one."""
        self._address: Any = None

    def take(self, row: Row) -> None:
        """Take the row of the next packet of the stream."""
        if not self._from_client and not self._is_own(row):
            return
        sequence = row["sequence"]
        if self._place is None:
            self._first = sequence
        else:
            ahead = (sequence - self._stop + _HALF) % (1 << _BITS) - _HALF
            if ahead == 0:
                self._stop += 1
                return
            if ahead < 0:  # Sent again as it was.
                return
            sequence = self._stop + ahead
            self._add("run", self._start, self._place)
        self._start, self._stop, self._place = sequence, sequence + 1, place_of(row)

    def close(self) -> None:
        """Take that there are no more packets."""
        if self._place is not None:
            self._add("run", self._start, self._place)
            self._add("span", self._first, self._place)

    def _add(self, kind: str, start: int, place: Place) -> None:
        self._found.append(
            Run(kind, self._host, self._from_client, self._sender, start, self._stop, place)
        )

    def _is_own(self, row: Row) -> bool:
        """Tell whether a broker numbered a packet: messages have the number of who sent them."""
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
            yield Gap(run.sender, seen, run.start, run.place)
        seen = max(seen, run.stop)
