"""Assign TCP segments to connections, and their sequence numbers to positions in streams.

Rules of this file:

1. A position is a sequence number of 64 bits: of those that end in the 32 bits of the segment, the
   one nearest to the end of the stream so far. So no other code handles wrapping.
2. A segment belongs to the latest connection between its endpoints that its numbers fit. A SYN, or
   data, that fits none begins a new connection. So a port may be used again although no FIN, RST
   or SYN was captured, and while the last segments of the old connection are still arriving. A
   connection that was silent for `SILENCE_NS` counts as ended: segments that continue where it
   stopped still belong to it, others do not.
3. Acknowledgments never decide about data, as captures may have data after its acknowledgment. They
   tell connections apart, show where a stream begins whose SYN was not captured, and show the order
   in which both sides sent: see `times`.

Axes: r = segments in the order of capture; e = connections; s = their sides, 2 e + direction.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Grid, Int32s, Ints, UInt32s
from wireyard.captures.layout import Flag
from wireyard.captures.records import NO_TIME

NONE: Final = -1
NOWHERE: Final = -(1 << 62)
"""The end of a stream without segments."""
WINDOW: Final = 1 << 30
"""Largest window of TCP (RFC 7323, 2.3): a segment further away is of another connection."""
AFTERMATH: Final = 1 << 24
"""The same limit for a connection that has ended, and for a segment that only its acknowledgment
number relates to a connection."""
LATE: Final = 1 << 20
"""Bytes of data that may be captured before their SYN, and the most that a SYN itself carries."""
SILENCE_NS: Final = 124 * 60 * 1_000_000_000
"""Silence after which a connection counts as ended: keep-alives come every two hours at the latest
(RFC 1122, 4.2.3.6), and address translators keep a connection as long (RFC 5382, REQ-5)."""


_SPACE: Final = (1 << 32) - 1
_HALF: Final = 1 << 31
_BACK: Final = 3
"""Number of latest connections between the same endpoints that a segment may belong to."""


class Side(IntEnum):
    """Columns of the table of sides: one direction of a connection each."""

    STATE = 0
    BASE = 1
    """The sequence number of position 0."""
    BEGIN = 2
    """Position of the first byte of the stream; valid with `State.BEGUN`."""
    SPARE = 3
    """Another sequence number the stream may begin at: a SYN may get two different answers."""
    LOW = 4
    HIGH = 5
    """Positions where the data seen so far begins and ends."""
    END = 6
    """Position where the stream ends, including truncated bytes and those that a FIN shows to be
    missing."""
    ACKNOWLEDGED = 7
    """Number in the last acknowledgment that this side sent."""
    CLOSING_RECORD = 8
    """Record of the first packet with a FIN or RST; `NONE` without one."""
    CLOSED_NS = 9
    """Capture time of that packet."""
    HIGH_NS = 10
    """Capture time of the segment that ends at `HIGH`."""
    CLOSING_ACKNOWLEDGED = 11
    """Number that the packet of `CLOSING_RECORD` acknowledges; `NONE` without one."""
    FIRST_ACKNOWLEDGED = 12
    """Number in the first acknowledgment of this side; `NONE` without one.

    Without `State.OPENING` only if it and another number were acknowledged before all bytes of the
    other side: made captures may have any number in all packets."""


class State(IntEnum):
    """Bits of `Side.STATE`."""

    SEEN = 1
    """There are segments, and `Side.BASE` is set."""
    BEGUN = 2
    """It is known where the stream begins."""
    DATA = 4
    FIN = 8
    RST = 16
    OPENED = 32
    """Its SYN, or the answer to it, shows that this side opened the connection."""
    OPENING = 64
    """It opened the connection, and `Side.FIRST_ACKNOWLEDGED` precedes all of its own bytes."""


class Connection(IntEnum):
    """Columns of the table of connections."""

    CONVERSATION = 0
    BEFORE = 1
    """The connection between the same endpoints before this one."""
    ENDED = 2
    FIRST_RECORD = 3
    """Record of its first packet."""
    FIRST_WAY = 4
    """The direction of that packet."""
    LATEST_NS = 5
    """Capture time of its latest segment."""


class Count(IntEnum):
    """Numbers that are counted while segments are placed."""

    CONNECTIONS = 0
    EARLY_ACKS = 1
    """Acknowledgments behind their data in the file, but before it by their times."""
    LATE_DATA = 2
    """Data behind its acknowledgment in the file, but before it by their times."""


class Verdict(IntEnum):
    """How the payload of a segment is used."""

    EMPTY = 0
    """There is none."""
    TAKEN = 1
    """It is part of the stream."""
    KEEP_ALIVE = 2
    """A byte of any value at a position sent before, to get an answer (RFC 9293, 3.8.4); before the
    first byte of the stream also padding behind it."""
    RESET = 3
    """The text of an RST, not part of the stream (RFC 9293, 3.5.3)."""


def distance(sequence: int, base: int) -> int:
    """Return how far a sequence number is ahead of another, negative if it is behind."""
    return ((sequence - base + _HALF) & _SPACE) - _HALF


_distance: Final = inlined(distance)
"""The same for kernels; Python would compile it when it calls it."""


@inlined
def ahead_of_begin(sides: Grid, side: int, sequence: int) -> int:
    """Return how far a sequence number is ahead of the first of its stream."""
    return _distance(sequence, int(sides[side, Side.BASE]) + int(sides[side, Side.BEGIN]))


@inlined
def position_of(sides: Grid, side: int, sequence: int) -> int:
    """Return the position of a sequence number."""
    high = int(sides[side, Side.HIGH])
    return high + _distance(sequence, int(sides[side, Side.BASE]) + high)


@inlined
def has_ended(connections: Grid, connection: int, time_ns: int) -> bool:
    """Return whether a connection has ended before a segment of `time_ns`."""
    if connections[connection, Connection.ENDED] != 0:
        return True
    latest_ns = int(connections[connection, Connection.LATEST_NS])
    timed = latest_ns != NO_TIME and time_ns > NO_TIME + SILENCE_NS
    return timed and latest_ns < time_ns - SILENCE_NS


@inlined
def fits_syn(
    sides: Grid, side: int, ended: bool, sequence: int, acknowledgment: int, acknowledges: bool
) -> bool:
    """Return whether a SYN fits a connection."""
    first = (sequence + 1) & _SPACE
    other, state = side ^ 1, sides[side, Side.STATE]
    if state & State.BEGUN and ahead_of_begin(sides, side, first) == 0:
        # The same number after data and an end: the port is used again.
        return not ended or (state | sides[other, Side.STATE]) & State.DATA == 0
    if acknowledges and sides[other, Side.STATE] & State.BEGUN:
        if not 0 <= ahead_of_begin(sides, other, acknowledgment) <= LATE:
            return False
        if state & State.DATA == 0:
            return True
    if state & State.BEGUN:
        return False
    if state & State.DATA:
        lowest = int(sides[side, Side.BASE]) + int(sides[side, Side.LOW])
        return 0 <= _distance(lowest, first) <= LATE
    if state & State.SEEN:
        return 0 <= _distance(int(sides[side, Side.BASE]), first) <= LATE
    acknowledged = int(sides[other, Side.ACKNOWLEDGED])
    return acknowledged == NONE or 0 <= _distance(acknowledged, first) <= LATE


@inlined
def fits(
    sides: Grid,
    side: int,
    ended: bool,
    sequence: int,
    acknowledgment: int,
    flags: int,
    length: int,
) -> bool:
    """Return whether a segment fits a connection."""
    if flags & Flag.RST:
        return True
    if flags & Flag.SYN:
        return fits_syn(sides, side, ended, sequence, acknowledgment, flags & Flag.ACK != 0)
    state, other = sides[side, Side.STATE], side ^ 1
    if state & (State.SEEN | State.BEGUN) == 0:
        # An acknowledgment of data that the other side never sent is of an older connection.
        if flags & Flag.ACK == 0 or sides[other, Side.STATE] & (State.SEEN | State.BEGUN) == 0:
            return True
        position = position_of(sides, other, acknowledgment)
        if sides[other, Side.STATE] & State.BEGUN and position < int(sides[other, Side.BEGIN]):
            return False
        return abs(position - int(sides[other, Side.HIGH])) <= AFTERMATH
    position = position_of(sides, side, sequence)
    reach = AFTERMATH if ended else WINDOW
    if abs(position - int(sides[side, Side.HIGH])) > reach:
        return False
    if state & State.BEGUN == 0:
        return True
    # One byte before the first is a keep-alive of a stream without data; the padding of its frame
    # may be counted as payload.
    before = 0 if length and flags & Flag.FIN else 1
    return position >= int(sides[side, Side.BEGIN]) - before


@inlined
def begin_side(sides: Grid, side: int, first: int) -> None:
    """Set the sequence number that a stream begins at, before or after data of it was seen."""
    if sides[side, Side.STATE] & State.DATA:
        sides[side, Side.BEGIN] = _distance(first, int(sides[side, Side.BASE]))
    else:
        sides[side, Side.BASE] = first
        for field in (Side.BEGIN, Side.LOW, Side.HIGH, Side.END):
            sides[side, field] = 0
    sides[side, Side.STATE] = sides[side, Side.STATE] | State.BEGUN


@inlined
def take_syn(
    sides: Grid, connections: Grid, side: int, sequence: int, acknowledgment: int, flags: int
) -> None:
    """Handle a SYN: set where its stream begins and, with an ACK, where the other stream begins."""
    first, other = (sequence + 1) & _SPACE, side ^ 1
    opener = other if flags & Flag.ACK else side
    sides[opener, Side.STATE] = sides[opener, Side.STATE] | State.OPENED
    known = sides[side, Side.STATE] & State.BEGUN
    if known == 0 or ahead_of_begin(sides, side, first) != 0:
        if known:
            begin = int(sides[side, Side.BASE]) + int(sides[side, Side.BEGIN])
            sides[side, Side.SPARE] = begin & _SPACE
        begin_side(sides, side, first)
    if flags & Flag.ACK:
        connections[side >> 1, Connection.ENDED] = 0
        state = sides[other, Side.STATE]
        lowest = int(sides[other, Side.BASE]) + int(sides[other, Side.LOW])
        agrees = state & State.DATA == 0 or 0 <= _distance(lowest, acknowledgment) <= LATE
        if state & State.BEGUN == 0 and agrees:
            begin_side(sides, other, acknowledgment)


@inlined
def choose_begin(sides: Grid, side: int, sequence: int) -> None:
    """Choose between two numbers that a stream may begin at, by the first segment after them."""
    spare = int(sides[side, Side.SPARE])
    if spare != NONE:
        sides[side, Side.SPARE] = NONE
        if abs(_distance(sequence, spare)) < abs(ahead_of_begin(sides, side, sequence)):
            sides[side, Side.BASE] = spare


@inlined
def begin_connection(
    connections: Grid, sides: Grid, latest: Int32s, count: int, flow: int, record: int
) -> None:
    """Add a connection with number `count`, the latest of its conversation."""
    conversation = flow >> 1
    connections[count, Connection.CONVERSATION] = conversation
    connections[count, Connection.BEFORE] = latest[conversation]
    connections[count, Connection.ENDED] = 0
    connections[count, Connection.FIRST_RECORD] = record
    connections[count, Connection.FIRST_WAY] = flow & 1
    connections[count, Connection.LATEST_NS] = NO_TIME
    for side in range(2 * count, 2 * count + 2):
        for field in range(sides.shape[1]):
            sides[side, field] = 0
        sides[side, Side.SPARE] = NONE
        sides[side, Side.ACKNOWLEDGED] = NONE
        sides[side, Side.CLOSING_RECORD] = NONE
        sides[side, Side.CLOSED_NS] = NO_TIME
        sides[side, Side.CLOSING_ACKNOWLEDGED] = NONE
        sides[side, Side.FIRST_ACKNOWLEDGED] = NONE
        sides[side, Side.HIGH_NS] = NO_TIME
        sides[side, Side.END] = NOWHERE
    latest[conversation] = count


@inlined
def take_payload(
    sides: Grid, side: int, position: int, flags: int, length: int, time_ns: int
) -> int:
    """Advance a stream by a segment; return the verdict on its payload."""
    state = sides[side, Side.STATE]
    if flags & (Flag.FIN | Flag.SYN) == 0:
        last = state & State.DATA and position == int(sides[side, Side.HIGH]) - 1
        below = state & State.BEGUN and position < int(sides[side, Side.BEGIN])
        if below or (last and length <= 1):
            return Verdict.KEEP_ALIVE if length else Verdict.EMPTY
    if length == 0 and flags & Flag.FIN == 0:
        return Verdict.EMPTY
    stop = position + length
    if flags & Flag.FIN:
        sides[side, Side.END] = max(int(sides[side, Side.END]), stop)
        state |= State.FIN
    if length:
        first = state & State.DATA == 0
        if first or stop > int(sides[side, Side.HIGH]):
            sides[side, Side.HIGH_NS] = time_ns
        if first and sides[side ^ 1, Side.STATE] & State.OPENING == 0:
            number = int(sides[side ^ 1, Side.FIRST_ACKNOWLEDGED])
            if number == int(sides[side ^ 1, Side.ACKNOWLEDGED]):
                sides[side ^ 1, Side.FIRST_ACKNOWLEDGED] = NONE
        sides[side, Side.LOW] = position if first else min(int(sides[side, Side.LOW]), position)
        sides[side, Side.HIGH] = stop if first else max(int(sides[side, Side.HIGH]), stop)
        sides[side, Side.END] = max(int(sides[side, Side.END]), stop)
        state |= State.DATA
    sides[side, Side.STATE] = state
    return Verdict.TAKEN if length else Verdict.EMPTY


@inlined
def take_acknowledgment(
    sides: Grid, side: int, sequence: int, acknowledgment: int, time_ns: int, counts: Ints
) -> bool:
    """Set the number that a side acknowledged last, and the first one.

    Returns whether it had acknowledged more before, as where packets of two taps were merged.
    """
    other = side ^ 1
    known = int(sides[side, Side.ACKNOWLEDGED])
    if known == acknowledgment:
        return False
    if known == NONE:
        both, state = State.BEGUN | State.OPENED, int(sides[side, Side.STATE])
        if state & both == both and ahead_of_begin(sides, side, sequence) == 0:
            sides[side, Side.STATE] = state | State.OPENING
            sides[side, Side.FIRST_ACKNOWLEDGED] = acknowledgment
        elif sides[other, Side.STATE] & State.DATA == 0:
            sides[side, Side.FIRST_ACKNOWLEDGED] = acknowledgment
    sides[side, Side.ACKNOWLEDGED] = acknowledgment
    if time_ns < int(sides[other, Side.HIGH_NS]) and time_ns != NO_TIME:
        high = int(sides[other, Side.BASE]) + int(sides[other, Side.HIGH])
        counts[Count.EARLY_ACKS] += _distance(acknowledgment, high) >= 0
    return known != NONE and 0 < _distance(known, acknowledgment) <= AFTERMATH


@inlined
def is_late(sides: Grid, side: int, sequence: int, length: int, time_ns: int, counts: Ints) -> bool:
    """Return whether data, or the first bytes of it, was acknowledged before it came."""
    acknowledged = int(sides[side ^ 1, Side.ACKNOWLEDGED])
    if acknowledged == NONE:
        return False
    ahead = _distance(acknowledged, sequence)
    if not 0 < ahead <= AFTERMATH:
        return False
    is_earlier = time_ns < int(sides[side ^ 1, Side.HIGH_NS]) and time_ns != NO_TIME
    counts[Count.LATE_DATA] += ahead >= length and is_earlier
    return True


@kernel
def place_segments(
    first_row: int,
    records: Int32s,
    flows: Int32s,
    times_ns: Ints,
    sequences: UInt32s,
    acknowledgments: UInt32s,
    all_flags: Bytes,
    lengths: Int32s,
    latest: Int32s,
    connections: Grid,
    sides: Grid,
    counts: Ints,
    streams: Int32s,
    positions: Ints,
    verdicts: Bytes,
    late: Bytes,
) -> int:
    """Fill in the side, the position and the verdict of each segment from `first_row` on.

    Fills in, too, whether its bytes, or more than it acknowledges, were acknowledged before.
    `latest` has the latest connection of each conversation; `counts`, as numbered by `Count`, goes
    on.
    Returns the number of rows, or the row at which `connections` is full: to be called again from
    there with more room.
    """
    for row in range(first_row, len(flows)):
        if counts[Count.CONNECTIONS] == len(connections):
            return row
        conversation, way = int(flows[row]) >> 1, int(flows[row]) & 1
        sequence, acknowledgment = int(sequences[row]), int(acknowledgments[row])
        flags, length, time_ns = int(all_flags[row]), int(lengths[row]), int(times_ns[row])
        connection, chosen = int(latest[conversation]), NONE
        if connection != NONE and flags & (Flag.SYN | Flag.RST) == 0:
            choose_begin(sides, 2 * connection + way, sequence)
        for _ in range(_BACK):
            if connection == NONE or chosen != NONE:
                break
            ended = has_ended(connections, connection, time_ns)
            side = 2 * connection + way
            if fits(sides, side, ended, sequence, acknowledgment, flags, length):
                chosen = connection
            connection = int(connections[connection, Connection.BEFORE])
        positions[row] = 0
        verdicts[row] = Verdict.EMPTY
        late[row] = 0
        if chosen == NONE:
            if latest[conversation] != NONE and length == 0 and flags & Flag.SYN == 0:
                streams[row] = 2 * latest[conversation] + way
                continue
            chosen = int(counts[Count.CONNECTIONS])
            begin_connection(connections, sides, latest, chosen, int(flows[row]), int(records[row]))
            counts[Count.CONNECTIONS] = chosen + 1
        latest_ns = int(connections[chosen, Connection.LATEST_NS])
        connections[chosen, Connection.LATEST_NS] = max(latest_ns, time_ns)
        side = 2 * chosen + way
        streams[row] = side
        if flags & (Flag.FIN | Flag.RST) and sides[side, Side.CLOSING_RECORD] == NONE:
            sides[side, Side.CLOSING_RECORD] = records[row]
            sides[side, Side.CLOSED_NS] = time_ns
            if flags & Flag.ACK:
                sides[side, Side.CLOSING_ACKNOWLEDGED] = acknowledgment
        if flags & Flag.RST:
            connections[chosen, Connection.ENDED] = 1
            sides[side, Side.STATE] = sides[side, Side.STATE] | State.RST
            verdicts[row] = Verdict.RESET if length else Verdict.EMPTY
            continue
        if flags & Flag.SYN:
            take_syn(sides, connections, side, sequence, acknowledgment, flags)
            sequence += 1
        elif sides[side, Side.STATE] & (State.SEEN | State.BEGUN) == 0:
            sides[side, Side.BASE] = sequence
        sides[side, Side.STATE] = sides[side, Side.STATE] | State.SEEN
        if flags & Flag.ACK:
            late[row] = take_acknowledgment(sides, side, sequence, acknowledgment, time_ns, counts)
        positions[row] = position_of(sides, side, sequence)
        if length and is_late(sides, side, sequence, length, time_ns, counts):
            late[row] = 1
        verdicts[row] = take_payload(sides, side, int(positions[row]), flags, length, time_ns)
        if sides[side, Side.STATE] & sides[side ^ 1, Side.STATE] & State.FIN:
            connections[chosen, Connection.ENDED] = 1
    return len(flows)
