"""The grids of tracking: what a kernel reads about packets, its state, and its results.

Rules of this file:

1. A grid has a row for each thing of a kind and integers as columns, which an `IntEnum` names. A
   reference is the row of another grid; -1 is none.
2. Packets are sorted by key (the client of a broker), then by time. So a packet is also a time
   within its key. A *moment* is a packet, or the end of a stream (the number of packets, plus that
   of the stream), or behind these a row of `Moment`.
3. Text has numbers: topics, topic filters, and names, which are client ids or substitutes for them.
   The substitute for the client id of a connection is the number of client ids, plus that of the
   connection.
4. A queue is a linked list. What is only needed for the packets of a key begins anew with the next.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from wireyard.arrays import Grid, Grid32, Int8s, Int32s, Ints
from wireyard.layers.states import NONE

__all__ = [
    "ALWAYS",
    "NONE",
    "NO_TIME",
    "UNKNOWN",
    "Breach",
    "Bridge",
    "Client",
    "Connection",
    "Count",
    "Direction",
    "EndedBy",
    "Flag",
    "Flow",
    "Key",
    "LostSpan",
    "Moment",
    "Name",
    "Packet",
    "Rare",
    "Record",
    "Session",
    "Status",
    "Stream",
    "Subscription",
    "TopicFilter",
    "Tracking",
    "Will",
    "WillFate",
]

NO_TIME: Final = -(1 << 63)
"""The value for a missing time."""
ALWAYS: Final = (1 << 63) - 1
"""A packet, or a time, after all others."""

UNKNOWN: Final = -2
"""A value that the capture does not show, where -1 is none."""

# --- packets and their context --------------------------------------------------------------


class Packet(IntEnum):
    """Columns of a packet, as far as tracking needs it."""

    KIND = 0
    FLAGS = 1
    QOS = 2
    ID = 3
    """Packet identifier; 0 if it has none."""
    CODE = 4
    """Return or reason code; 0 if it has none."""
    TOPIC = 5
    """Number of the topic name; -1 if it has none."""
    ALIAS = 6
    """Topic alias; -1 if it has none."""


class Flag(IntEnum):
    """Bits of `Packet.FLAGS`."""

    DUP = 1
    RETAIN = 2
    FROM_CLIENT = 4
    MALFORMED = 8
    """It violates a rule but can be read."""
    IDENTIFIED = 16
    """It has a subscription identifier."""


class Rare(IntEnum):
    """Columns of the packets that deliver no messages, and of other bytes; -1 is absent."""

    IS_BYTES = 0
    """Whether it is no packet; `Packet.CODE` is unused then."""
    IS_GAP = 1
    IS_TAIL = 2
    """Whether it is an unfinished packet at the end of a stream."""
    HAS_NO_LENGTH = 3
    """Whether its Remaining Length has five bytes."""
    CLIENT_ID = 4
    """In CONNECT; that which the broker assigns in CONNACK."""
    IS_CLEAN = 5
    IS_PRESENT = 6
    """Session Present."""
    EXPIRY_S = 7
    """Session Expiry Interval."""
    RECEIVE_MAXIMUM = 8
    ALIAS_MAXIMUM = 9
    PACKET_SIZE = 10
    """Maximum Packet Size."""
    HAS_WILL = 11
    WILL_DELAY_S = 12
    FIRST = 13
    """The first of its rows of `TopicFilter`; of SUBACK the first of its return codes."""
    COUNT = 14
    IDENTIFIER = 15
    """Subscription Identifier."""
    KEEP_ALIVE_S = 16
    """Server Keep Alive."""
    BRIDGE = 17
    """Values of `Bridge`."""


class Bridge(IntEnum):
    """Whether the protocol level of a CONNECT is that of a bridge (erratum M18)."""

    NO = 0
    YES = 1
    BY_LEVEL_ALONE = 2
    """It is, and no other rule is broken."""


class TopicFilter(IntEnum):
    """Columns of a topic filter in SUBSCRIBE or UNSUBSCRIBE."""

    FILTER = 0
    """Its number; -1 if it is empty."""
    IS_SHARED = 1
    NO_LOCAL = 2
    AS_PUBLISHED = 3
    """Retain As Published."""
    HANDLING = 4
    """Retain Handling."""


class Stream(IntEnum):
    """Columns of a stream."""

    CONNECTION = 0
    FROM_CLIENT = 1
    IS_ALONE = 2
    IS_OLDER = 3
    IS_FOLLOWED = 4
    """As of `directions.Side`, like the ones before."""
    BEGUN = 5
    """Whether its beginning was captured; -1 if the capture shows no beginnings and ends."""
    ENDED_NS = 6
    ENDED_FRAME = 7
    FIRST = 8
    """Its first packet, once that was tracked."""
    CAPTURE_ENDS_NS = 9
    """The time of the last packet of its capture."""


class Key(IntEnum):
    """Columns of a key: the packets of a client of a broker."""

    FIRST = 0
    STOP = 1
    FIRST_END = 2
    STOP_END = 3
    """Its part of `Tracking.ends`."""
    SLOTS = 4
    """The number of its slots, a power of two."""
    HAS_OLDER = 5
    """Whether a connection is older than the capture, or some of its bytes were not captured, so
    that subscriptions and messages may be missing."""


class Moment(IntEnum):
    """Columns of a time that no packet has: the end of a delay."""

    NS = 0
    STREAM = 1


# --- state ----------------------------------------------------------------------------------


class EndedBy(IntEnum):
    """How a connection ended."""

    OPEN = 0
    CLIENT = 1
    SERVER = 2
    DROPPED = 3
    REFUSED = 4
    UNSEEN = 5
    """Its end was not captured."""


class Connection(IntEnum):
    """Columns of a connection; UP is to the broker, DOWN to the client."""

    FIRST = 0
    """Its first packet; -1 if there is none."""
    NEXT = 1
    """Another connection of its key."""
    STATE = 2
    """Index of a state of `CONNECTION`."""
    SESSION = 3
    CONNECT = 4
    """Its CONNECT."""
    OPENED = 5
    """Its CONNECT, or its first packet."""
    ACCEPTED = 6
    """CONNACK, or the packet that shows that there was one."""
    NAME = 7
    CLIENT_ID = 8
    CLIENT = 9
    """Its row of `Client`, once that was needed."""
    VERSION = 10
    STATUS = 11
    """Return code of CONNACK."""
    RESUMED = 12
    """Session Present."""
    IS_CLEAN = 13
    """Whether it began with a clean start."""
    IS_PERSISTENT = 14
    """Whether the session outlives the connection."""
    EXPIRES_S = 15
    """Session Expiry Interval; -1 if it never expires."""
    PACKETS = 16
    BYTES = 17
    LAST = 18
    """Its last packet."""
    CLOSED = 19
    """The moment at which it ended."""
    UNTIL = 20
    """Once it has ended: the last moment at which it was certainly open."""
    ENDED_BY = 21
    SENT = 22
    """Messages from the client in flight at its end."""
    RECEIVED = 23
    """Messages to the client in flight at its end."""
    SHOWS_IN_FLIGHT = 24
    """Whether no message or acknowledgement of its session can be missing."""
    ANSWERED = 25
    """Its last answered request; the broker had sent all messages from before it."""
    IS_DAMAGED = 26
    """Whether bytes of it were not captured or belong to no packet."""
    LOST_UP = 27
    LOST_DOWN = 28
    """By direction: the first packet behind the last of its gaps; `ALWAYS` if there is none yet."""
    LOST_SINCE_NS = 29
    """Since when packets of the client may be missing that change retained values, until its next
    packet; 0 before the first packet of the connection."""
    HAS_CLIENT = 30
    """Whether a packet of the client was captured."""
    IS_UNANSWERED = 31
    """Whether its CONNACK was not captured."""
    MOST_BYTES_UP = 32
    MOST_BYTES_DOWN = 33
    """Maximum Packet Size."""
    ALIAS_MAXIMUM_UP = 34
    ALIAS_MAXIMUM_DOWN = 35
    """Topic Alias Maximum; -1 if it is unknown."""
    ALIASES_UP = 36
    ALIASES_DOWN = 37
    """How often the topic aliases began anew."""
    EARLY_FIRST = 38
    EARLY_LAST = 39
    """Packets of the client before CONNACK."""
    PING_FIRST = 40
    PING_LAST = 41
    """Unanswered PINGREQ packets."""
    UNREAD_FIRST = 42
    UNREAD_LAST = 43
    """Messages at QoS 0 without evidence yet that the broker read them."""
    UNCONFIRMED_FIRST = 44
    UNCONFIRMED_LAST = 45
    """Subscriptions whose retained values may still follow."""
    SERVED_AS = 46
    """The first `Name` that messages to it were delivered to."""
    KEEP_ALIVE_S = 47
    """Server Keep Alive; -1 if there is none, `UNKNOWN` if CONNACK was not captured."""
    IS_BRIDGE = 48
    ENDED_WITH = 49
    """The broker's DISCONNECT."""
    ANSWERED_OPEN = 50
    """Its last answered request since which its window was never full."""
    IS_FULL = 51
    """Whether its window may have been full at its end."""
    MOST_IN_FLIGHT = 52
    """Most messages to the client that were in flight at once."""
    FILLED = 53
    """The PUBLISH with which so many were in flight first."""
    BROKEN_UP = 54
    BROKEN_DOWN = 55
    """Bytes behind the last packet of a direction that are no packets, gaps included."""
    ASKING = 56
    """How many SUBSCRIBE packets wait for their answers."""


class Session(IntEnum):
    """Columns of a session: it belongs to a name of a broker, and outlives connections."""

    CONNECTION = 0
    """Its current connection, or the last one."""
    IS_KEPT = 1
    """Whether the broker has it under a name; otherwise it is that of one connection only."""
    IS_KNOWN = 2
    """Whether all of its subscriptions were captured."""
    IS_WHOLE = 3
    """Whether all bytes of its connections that have ended were captured."""
    WILL = 4
    EXPIRES = 5
    """The moment at which it expires, unless the client connects again before."""
    SUBSCRIPTIONS = 6
    """The last of its subscriptions, and how many are active."""
    ACTIVE = 7
    NAMES = 8
    """The last `Name` that messages were delivered to, and how many there are."""
    NAME_COUNT = 9


class Direction(IntEnum):
    """Columns of the messages of a session in one direction: row ``2 * session``, then down."""

    FLOWS = 0
    """The last of its flows."""
    IS_KNOWN = 1
    """Whether other packet identifiers are known to be free."""
    QUOTA = 2
    MAXIMUM = 3
    """Receive Maximum of the receiver."""
    IN_FLIGHT = 4
    FREED = 5
    """The last acknowledgement that came while the window may have been full; -1 if there is
    none."""


class Flow(IntEnum):
    """Columns of a packet identifier of a direction."""

    SENDER = 0
    RECEIVER = 1
    """States of `qos.SENDER` and `qos.RECEIVER`."""
    RECORD = 2
    """Its message."""
    NEXT = 3


class Client(IntEnum):
    """Columns of a client as messages and subscriptions name it."""

    CONNECTION = 0
    NAME = 1
    CLIENT_ID = 2


class Subscription(IntEnum):
    """Columns of a subscription, from its SUBSCRIBE to its end; `Subscribed` describes them."""

    CLIENT = 0
    FILTER = 1
    """Row of `TopicFilter`."""
    PLACE = 2
    """Index of the filter in its SUBSCRIBE."""
    IS_SHARED = 3
    QOS = 4
    IDENTIFIER = 5
    ASKED = 6
    GRANTED = 7
    SINCE = 8
    SINCE_PLACE = 9
    LEAVING = 10
    GONE = 11
    VERSION = 12
    IS_KNOWN = 13
    GETS_VALUES = 14
    PACKET_SIZE = 15
    CONFIRMED = 16
    IS_ACTIVE = 17
    NEXT = 18
    """Another subscription of its session."""
    NEXT_UNCONFIRMED = 19


class Name(IntEnum):
    """Columns of a name that messages of a session are delivered to."""

    NAME = 0
    """Number of the client's name; -1 for a group."""
    FILTER = 1
    """Row of `TopicFilter`, for a group."""
    NEXT = 2


class WillFate(IntEnum):
    """Whether a will is published."""

    OPEN = 0
    PUBLISHED = 1
    WAITING = 2
    """Its delay ends after the last packet of its client."""


class Will(IntEnum):
    """Columns of a will."""

    CONNECT = 0
    CLIENT = 1
    STATE = 2
    """Index of a state of `WILL`."""
    DUE = 3
    """The end of its delay, once the delay has begun."""
    RELEASED = 4
    """The last packet of its connection."""
    ACCEPTED = 5
    FATE = 6


# --- results --------------------------------------------------------------------------------


class Record(IntEnum):
    """Columns of a message that one side published, and its outcome."""

    PACKET = 0
    """Its first PUBLISH."""
    TOPIC = 1
    """Its topic, also if the packet has only an alias of it."""
    CLIENT = 2
    """Number of the client that published it, or that it was delivered to."""
    TO_BROKER = 3
    ACCEPTED = 4
    """For a client's message, the packet that shows that the broker accepted it; for a broker's,
    its acknowledgement."""
    RELEASED = 5
    """PUBREL of a client's message."""
    REFUSED = 6
    """Reason code of its refusal."""
    AGAIN = 7
    """Its last PUBLISH, if it was sent again."""
    COPIES = 8
    """For a client's message, the most messages that the broker may have taken its copies for; for
    a broker's, the number of its deliveries."""
    STATUS = 9
    """Bits of `Status`."""
    NEXT = 10
    """The next message of its connection without evidence that the broker accepted it."""


class Status(IntEnum):
    """Bits of `Record.STATUS`; the fields of `Message` and `Attempt` describe them."""

    AGAIN = 1
    LOST_ACK = 2
    ABANDONED = 4
    UNTRACED = 8
    REPEATED = 16
    MAY_BE_LIVE = 32
    RECEIVED = 64
    """The broker answered it with PUBREC."""
    LASTING = 128
    """Without payload and with RETAIN, it is a value: the version of 1999 has no deletion."""
    SPARSE = 256
    """It came in a session of which packets, and so subscriptions, may be missing."""


class Breach(IntEnum):
    """Columns of a protocol violation."""

    RULE = 0
    """Index in `RULE_NAMES`; -1 if the packet itself is malformed."""
    FROM_CLIENT = 1
    PACKET = 2
    RECORD = 3
    """The message that it concerns."""
    CONNECTION = 4
    VERSION = 5


class LostSpan(IntEnum):
    """Columns of a span of time in which packets of a client were sent that were not captured."""

    KEY = 0
    FIRST_NS = 1
    LAST_NS = 2
    BYTES = 3
    """How many bytes they may have had."""


class Count(IntEnum):
    """Numbers of rows in use, and the progress of tracking."""

    KEY = 0
    PACKET = 1
    """The next packet; -1 before the packets of a key."""
    END = 2
    """The next end of a stream."""
    OPENING = 3
    """The packet by which a connection opens, before anything else."""
    REPLAY = 4
    """The next early packet that takes effect, before anything else."""
    CONNECTIONS = 5
    """The last new connection of the key."""
    HAS_OLDER = 6
    """As of `Key`, up to now."""
    FLOWS = 7
    SESSIONS = 8
    CLIENTS = 9
    SUBSCRIPTIONS = 10
    NAMES = 11
    WILLS = 12
    MOMENTS = 13
    LOST = 14
    RECORDS = 15
    BREACHES = 16
    DROPPED = 17
    """Subscriptions above `MAX_FILTERS`."""
    CLIENT_IDS = 18
    """How many client ids have numbers."""
    EMPTY_ID = 19
    EMPTY_TOPIC = 20
    """Number of the empty client id, and of the empty topic name; -2 if there is none."""


class Tracking(NamedTuple):
    """All arrays of tracking."""

    packets: Grid32
    """Columns of `Packet`."""
    contents: Grid
    """Two hashes of each payload."""
    length: Ints
    version: Int8s
    """The version in force."""
    stream: Int32s
    ns: Ints
    reached_ns: Ints
    reached_frame: Ints
    kept_row: Ints
    rare_row: Int32s
    """By kept row: its row of `Rare`."""
    rare: Grid
    filters: Grid
    """Columns of `TopicFilter`."""
    codes: Ints
    """Return codes of SUBACK."""
    streams: Grid
    keys: Grid
    ends: Ints
    """Streams that end, by key in the order of their ends."""
    slot_keys: Ints
    slot_values: Ints
    """A hash table: see `slots`."""
    link: Int32s
    """By packet: the next one in the queue that it is in."""
    flows: Grid
    directions: Grid
    sessions: Grid
    connections: Grid
    clients: Grid
    subscriptions: Grid
    names: Grid
    wills: Grid
    moments: Grid
    lost: Grid
    """Columns of `LostSpan`."""
    records: Grid32
    """Columns of `Record`."""
    breaches: Grid
    counts: Ints
    """Values of `Count`."""
