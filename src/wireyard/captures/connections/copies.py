"""Find connections that are one: captured twice, or in several networks.

Rules of this file:

1. Segments in different networks begin as segments of different connections, because two networks
   may have the same addresses, even with the same numbers at the same time.
2. Connections between the same endpoints in different networks are one if their numbers fit, no
   byte that both have differs, and something relates them: the same first number, bytes that both
   have, bytes of one that continue those of the other, or an acknowledgment of the other's bytes.
   So a connection whose directions have different VLANs is one, one that a router sends back on
   the same trunk is one, and two that only have equal numbers are two. A connection without bytes
   is not counted as another one.
3. A connection between the same endpoints that begins within `APART_NS` of the first is that one
   captured again, also after its end, if its numbers fit and no byte that both have differs. These
   are captures of several taps that were merged, which may lack different packets.
4. A connection of other endpoints is that one captured again, before and behind an address
   translator, if the numbers of both directions are the same, no byte that both have differs, and
   both last as long. A port differs only where its address does.
5. Bytes come from the segment captured first, as of all copies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from wireyard.arrays import Grid, Ints
from wireyard.captures.connections.flows import FlowTable
from wireyard.captures.connections.stream import Content, Runs
from wireyard.captures.connections.tcp_kernels import (
    LATE,
    NONE,
    Connection,
    Side,
    State,
    distance,
)
from wireyard.captures.files.places import Places
from wireyard.captures.records import NO_TIME, Placed

APART_NS: Final = 2_000_000_000
"""Time between two captures of a packet: the clocks of the machines may differ by a second."""
_LASTS_NS: Final = 100_000_000
"""Difference between the durations of a connection before and behind a translator."""
_NUMBERS: Final = (1 << 32) - 1
_MOST_BEFORE: Final = 16
"""Earlier connections that one is compared with: only made captures have more with its numbers."""
_COMPARED_BYTES: Final = 1 << 20
_CLOSING: Final = (Side.CLOSING_RECORD, Side.CLOSED_NS, Side.CLOSING_ACKNOWLEDGED)
_KNOWN: Final = State.SEEN | State.BEGUN


class Copy(NamedTuple):
    """A connection that is an earlier one."""

    number: int
    of: int
    turned: bool
    """Whether its first side is the second one of the earlier connection."""
    common_bytes: int
    """Bytes that both have."""


class Compared(NamedTuple):
    """What is compared of connections by their numbers: in no arrays, which are slow by values."""

    sides: Sequence[Sequence[int]] | Mapping[int, Sequence[int]]
    first_ns: Sequence[int] | Mapping[int, int]
    last_ns: Sequence[int] | Mapping[int, int]
    pairs: Sequence[Hashable] | Mapping[int, Hashable]
    """A value for the endpoints of each connection."""
    conversations: Sequence[int] | Mapping[int, int]


def find_copies(
    connections: Grid,
    sides: Grid,
    begins: Ints,
    bounds: Ints,
    runs: Runs,
    flows: FlowTable,
    content: Content,
) -> list[Copy]:
    """Find the connections that are one with an earlier connection, in the order of capture.

    `connections` has the shape (e, `Connection`), and their `sides` (2 e, `Side`). The stream of
    each side begins at its position in `begins`; `bounds` and `runs` have the bytes of the streams.
    """
    conversations = connections[:, Connection.CONVERSATION]
    pairs = conversations
    if flows.has_networks():
        pairs = flows.endpoint_pairs()[conversations]
    groups = [*_alike(connections, sides, pairs)]
    if not groups:
        return []
    compared = Compared(
        sides.tolist(),
        content.times_of(connections[:, Connection.FIRST_RECORD]).tolist(),
        connections[:, Connection.LATEST_NS].tolist(),
        pairs.tolist(),
        conversations.tolist(),
    )

    def runs_of(side: int) -> Runs:
        rows = slice(int(bounds[side]), int(bounds[side + 1]))
        own = Runs(*(column[rows] for column in runs))
        return own._replace(offsets=own.offsets + begins[side])

    finder = Finder(compared, runs_of, flows, content.places)
    found: dict[int, Copy] = {}
    for group in groups:
        earlier: list[int] = []
        for number in group:
            if number in found:
                continue
            copies = (finder.copy(number, one) for one in earlier[: -_MOST_BEFORE - 1 : -1])
            copy = next(filter(None, copies), None)
            if copy is None:
                earlier.append(number)
            else:
                found[number] = copy
    return [_of_first(copy, found) for _, copy in sorted(found.items())]


def _of_first(copy: Copy, found: dict[int, Copy]) -> Copy:
    """Return a copy as one of the first connection, not of another copy."""
    while (other := found.get(copy.of)) is not None:
        copy = copy._replace(of=other.of, turned=copy.turned ^ other.turned)
    return copy


def name_copy(copy: Copy, connections: Grid, flows: FlowTable) -> Placed:
    """Return the entry of a copy with its name and that of the connection captured first."""
    row, other = (connections[at] for at in (copy.number, copy.of))
    way = int(row[Connection.FIRST_WAY])
    names = (
        flows.name(int(row[Connection.CONVERSATION]), way),
        flows.name(int(other[Connection.CONVERSATION]), way ^ copy.turned),
    )
    return Placed(int(row[Connection.FIRST_RECORD]), " as ".join(dict.fromkeys(names)))


def _alike(connections: Grid, sides: Grid, pairs: Ints) -> Iterator[list[int]]:
    """Yield groups of connections that may be one, each in the order of capture."""
    states = sides[:, Side.STATE].reshape(-1, 2)
    begun = states & State.BEGUN != 0
    firsts = (sides[:, Side.BASE] + sides[:, Side.BEGIN] & _NUMBERS).reshape(-1, 2)
    lasts = (sides[:, Side.BASE] + sides[:, Side.END] & _NUMBERS).reshape(-1, 2)
    filled = (states & State.DATA != 0).any(axis=1)
    both, neither = begun.all(axis=1), ~begun.any(axis=1) & (states & State.DATA != 0).all(axis=1)
    in_part = np.flatnonzero(filled & np.isin(pairs, pairs[filled & ~both]))
    networks = _several(pairs, connections[:, Connection.CONVERSATION])
    for rows, keys in (
        (networks, pairs[networks]),
        _by_numbers(np.flatnonzero(filled & both), firsts),
        _by_numbers(np.flatnonzero(neither), lasts),
        (in_part, pairs[in_part]),
    ):
        order = np.lexsort((connections[rows, Connection.FIRST_RECORD], keys))
        cuts = np.flatnonzero(np.diff(keys[order])) + 1
        for group in np.split(rows[order], cuts):
            if len(group) > 1:
                yield group.tolist()


def _several(pairs: Ints, conversations: Ints) -> Ints:
    """Return the connections whose endpoints have conversations in several networks."""
    if pairs is conversations:
        return np.empty(0, np.int64)
    known = np.unique(np.stack([pairs, conversations], axis=1), axis=0)[:, 0]
    return np.flatnonzero((np.bincount(known) > 1)[pairs])


def _by_numbers(rows: Ints, numbers: Grid) -> tuple[Ints, Ints]:
    """Return connections with the same two numbers as others, and a key of these numbers."""
    low, high = numbers[rows].min(axis=1), numbers[rows].max(axis=1)
    keys = (low << 32 | high).astype(np.int64)
    _, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    again = counts[places] > 1
    return rows[again], keys[again]


class Finder:
    """Compares connections.

    `runs_of` returns the bytes of a side, at their positions; they are in `places`.
    """

    def __init__(
        self, compared: Compared, runs_of: Callable[[int], Runs], flows: FlowTable, places: Places
    ) -> None:
        self._compared, self._flows, self._places = compared, flows, places
        self._runs_of = runs_of

    def is_possible(self, number: int, earlier: int) -> bool:
        """Return whether a connection may be a copy of an earlier one, whatever its bytes are."""
        compared = self._compared
        turned = False
        if compared.pairs[number] != compared.pairs[earlier]:
            turned = self._is_turned(number, earlier)
            if not self._is_translated(number, earlier, turned=turned):
                return False
        elif compared.conversations[number] == compared.conversations[earlier]:
            times_ns = compared.first_ns[earlier], compared.first_ns[number]
            if NO_TIME not in times_ns and times_ns[1] - times_ns[0] > APART_NS:
                return False
        return all(
            shift_between(self._side(2 * earlier + way), self._side(2 * number + (way ^ turned)))
            is not None
            for way in (0, 1)
        )

    def copy(self, number: int, earlier: int) -> Copy | None:
        """Return a connection as a copy of an earlier one; None if it is another connection."""
        compared = self._compared
        is_timed = NO_TIME not in (compared.first_ns[number], compared.first_ns[earlier])
        after_ns = compared.first_ns[number] - compared.first_ns[earlier] if is_timed else 0
        if compared.pairs[number] == compared.pairs[earlier]:
            if compared.conversations[number] != compared.conversations[earlier]:
                late = compared.first_ns[number] - compared.last_ns[earlier] > APART_NS
                return None if is_timed and late else self._in_networks(number, earlier)
            turned = False
        else:
            lasts_ns = compared.last_ns[number] - compared.last_ns[earlier] - after_ns
            turned = self._is_turned(number, earlier)
            if is_timed and abs(lasts_ns) > _LASTS_NS:
                return None
            if not self._is_translated(number, earlier, turned=turned):
                return None
        common = self._common(number, earlier, turned=turned)
        is_one = abs(after_ns) <= APART_NS and common > 0
        return Copy(number, earlier, turned, common) if is_one else None

    def _in_networks(self, number: int, earlier: int) -> Copy | None:
        """Return a connection in another network as a copy: rule 2."""
        common = self._common(number, earlier, turned=False)
        if common < 0:
            return None
        ours, theirs = 2 * number, 2 * earlier
        related = (
            common > 0
            or self._is_empty(number)
            or self._is_empty(earlier)
            or any(
                self._is_alike(ours + way, theirs + way)
                or self._continues(ours + way, theirs + way)
                or self._acknowledges(ours + way, theirs + 1 - way)
                or self._acknowledges(theirs + way, ours + 1 - way)
                for way in (0, 1)
            )
        )
        return Copy(number, earlier, False, common) if related else None

    def _common(self, number: int, earlier: int, *, turned: bool) -> int:
        """Return the number of bytes that both connections have; -1 if they are not one."""
        total = 0
        for way in (0, 1):
            ours, theirs = 2 * number + (way ^ turned), 2 * earlier + way
            shift = shift_between(self._side(theirs), self._side(ours))
            if shift is None:
                return -1
            common = self._same_bytes(theirs, ours, shift)
            if common < 0:
                return -1
            total += common
        return total

    def _same_bytes(self, one: int, other: int, shift: int) -> int:
        """Return the number of bytes that two sides have in common; -1 if one of them differs."""
        runs, others = self._runs_of(one), self._runs_of(other)
        total = 0
        for start, stop in _overlaps(runs.pieces, others.pieces + shift):
            total += stop - start
            for begin in range(start, stop, _COMPARED_BYTES):
                end = min(begin + _COMPARED_BYTES, stop)
                ours = runs.read(self._places, begin, end)
                theirs = others.read(self._places, begin - shift, end - shift)
                if not np.array_equal(ours, theirs):
                    return -1
        return total

    def _is_empty(self, number: int) -> bool:
        """Return whether no byte of a connection was captured."""
        return not any(self._side(2 * number + way)[Side.STATE] & State.DATA for way in (0, 1))

    def _is_alike(self, one: int, other: int) -> bool:
        """Return whether sides whose numbers fit have the same first number, or the same range."""
        ours, theirs = self._side(one), self._side(other)
        shift = shift_between(ours, theirs) or 0
        is_same = all(ours[at] == theirs[at] + shift for at in (Side.LOW, Side.HIGH))
        common = ours[Side.STATE] & theirs[Side.STATE]
        return bool(common & State.BEGUN or (common & State.DATA and is_same))

    def _continues(self, one: int, other: int) -> bool:
        """Return whether bytes of a side continue those of another, or are continued by them."""
        shift = shift_between(self._side(one), self._side(other)) or 0
        ours, theirs = self._runs_of(one).pieces, self._runs_of(other).pieces + shift
        starts, stops = np.isin(ours[:, 0], theirs[:, 1]), np.isin(ours[:, 1], theirs[:, 0])
        return bool(starts.any() or stops.any())

    def _acknowledges(self, one: int, other: int) -> bool:
        """Return whether a side has acknowledged bytes of another one, or its SYN."""
        side, acknowledged = self._side(other), self._side(one)[Side.ACKNOWLEDGED]
        if acknowledged == NONE or not side[Side.STATE] & State.SEEN:
            return False
        behind = distance(acknowledged, side[Side.BASE] + side[Side.END] & _NUMBERS)
        size = side[Side.END] - side[Side.LOW]
        return -size <= behind <= LATE

    def _is_turned(self, number: int, earlier: int) -> bool:
        """Return whether the first side of a connection has the number of the second one."""
        ours, theirs = self._side(2 * number), self._side(2 * earlier)
        at = Side.BEGIN if ours[Side.STATE] & State.BEGUN else Side.END
        return (ours[Side.BASE] + ours[at] - theirs[Side.BASE] - theirs[at]) & _NUMBERS != 0

    def _is_translated(self, number: int, earlier: int, *, turned: bool) -> bool:
        """Return whether only addresses, and the ports of translated ones, differ."""
        conversations = self._compared.conversations
        ends = self._flows.endpoints(conversations[earlier])
        others = self._flows.endpoints(conversations[number])[:: -1 if turned else 1]
        translated = [one.address != other.address for one, other in zip(ends, others, strict=True)]
        same_ports = [one.port == other.port for one, other in zip(ends, others, strict=True)]
        return all(one or port for one, port in zip(translated, same_ports, strict=True))

    def _side(self, number: int) -> Sequence[int]:
        return self._compared.sides[number]


def shift_between(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return what makes positions in one side of those in another; None if they are two streams.

    Both are rows of `Side`.
    """
    if not (one[Side.STATE] & _KNOWN and other[Side.STATE] & _KNOWN):
        return 0
    if one[Side.STATE] & other[Side.STATE] & State.BEGUN:
        begin = one[Side.BASE] + one[Side.BEGIN]
        is_same = (begin - other[Side.BASE] - other[Side.BEGIN]) & _NUMBERS == 0
        return one[Side.BEGIN] - other[Side.BEGIN] if is_same else None
    number = other[Side.BASE] + other[Side.LOW] & _NUMBERS
    high = one[Side.BASE] + one[Side.HIGH] & _NUMBERS
    low = one[Side.HIGH] + distance(number, high)
    shift = low - other[Side.LOW]
    if max(low - one[Side.HIGH], one[Side.LOW] - other[Side.HIGH] - shift) > LATE:
        return None
    for side, begins, moved in ((one, low, 0), (other, one[Side.LOW], shift)):
        if side[Side.STATE] & State.BEGUN and begins < side[Side.BEGIN] + moved:
            return None
    return shift


def _overlaps(pieces: Grid, others: Grid) -> Iterator[tuple[int, int]]:
    """Yield the ranges that are in both of two lists of ranges, which ascend."""
    ours, theirs = pieces.tolist(), others.tolist()
    one = other = 0
    while one < len(ours) and other < len(theirs):
        start = max(ours[one][0], theirs[other][0])
        stop = min(ours[one][1], theirs[other][1])
        if start < stop:
            yield start, stop
        if ours[one][1] < theirs[other][1]:
            one += 1
        else:
            other += 1


def join(
    copies: Sequence[Copy], connections: Grid, sides: Grid, targets: Ints, shifts: Ints
) -> None:
    """Add what is known of copies to the connections that they are copies of.

    Sets in `targets` and `shifts`, for each side of a copy, the side that its segments belong to,
    and what is added to their positions.
    """
    for copy in copies:
        for way in (0, 1):
            other, one = 2 * copy.number + (way ^ copy.turned), 2 * copy.of + way
            shift = shift_between(sides[one].tolist(), sides[other].tolist())
            targets[other], shifts[other] = one, shift or 0
            is_apart = not sides[one, Side.STATE] & _KNOWN
            _join_sides(sides[one], sides[other], shift or 0)
            for side in (one, one ^ 1):
                # Each direction was captured apart: which of them came first is not known.
                if is_apart and not sides[side, Side.STATE] & State.OPENING:
                    sides[side, Side.FIRST_ACKNOWLEDGED] = NONE
        ours, theirs = connections[copy.of], connections[copy.number]
        ours[Connection.ENDED] |= theirs[Connection.ENDED]
        ours[Connection.LATEST_NS] = max(ours[Connection.LATEST_NS], theirs[Connection.LATEST_NS])


def _join_sides(one: Any, other: Any, shift: int) -> None:
    """Add what is known of a side to another row of `Side`."""
    if not other[Side.STATE] & (_KNOWN | State.FIN | State.RST):
        return
    if not one[Side.STATE] & _KNOWN:
        closing = [one[field] for field in _CLOSING]
        state = one[Side.STATE]
        one[:] = other
        one[Side.STATE] |= state
        if closing[0] != NONE:
            for field, value in zip(_CLOSING, closing, strict=True):
                one[field] = value
        return
    if other[Side.STATE] & State.BEGUN and not one[Side.STATE] & State.BEGUN:
        one[Side.BEGIN] = other[Side.BEGIN] + shift
    if other[Side.STATE] & State.DATA:
        has_data = one[Side.STATE] & State.DATA
        low, high = other[Side.LOW] + shift, other[Side.HIGH] + shift
        one[Side.LOW] = min(one[Side.LOW], low) if has_data else low
        one[Side.HIGH] = max(one[Side.HIGH], high) if has_data else high
    if other[Side.STATE] & _KNOWN:
        one[Side.END] = max(one[Side.END], other[Side.END] + shift)
        ours, theirs = int(one[Side.ACKNOWLEDGED]), int(other[Side.ACKNOWLEDGED])
        if ours == NONE or (theirs != NONE and distance(theirs, ours) > 0):
            one[Side.ACKNOWLEDGED] = theirs
    if other[Side.CLOSING_RECORD] != NONE and not (
        NONE != one[Side.CLOSING_RECORD] <= other[Side.CLOSING_RECORD]
    ):
        for field in _CLOSING:
            one[field] = other[field]
    one[Side.STATE] |= other[Side.STATE]
