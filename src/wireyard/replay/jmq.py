"""What the JMQ clients of a recording did, for another broker of JMQ.

Rules of this file:

1. A reply is known by its request, and a message by its consumer and the id that its producer gave
   it, which it keeps; the n-th that the broker made itself by n. The numbers that a broker gives to
   connections, sessions, consumers, producers and transactions, and the ids of its own messages,
   are those that it gives now, wherever a client sends them. Of consumers of a connection that
   share a queue or a subscription, another one may get a message, and acknowledges it.
2. A message has as long until it expires or is delivered as it had.
3. A login is made anew from the broker's challenge. One that was refused is sent without its
   password.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wireyard.captures.clients import opposite
from wireyard.endpoints.jmq.packets import (
    BLOCK,
    Request,
    blocks_of,
    keys_of,
    login_body,
    with_types,
)
from wireyard.errors import UsageError
from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES
from wireyard.formats.jmq.packet import Packet, encode, packet_of
from wireyard.formats.jmq_names import PACKET_CODES
from wireyard.formats.message_id import MESSAGE_ID_CODES
from wireyard.layers.jmq.rules import OK, QUEUE, REPLIES
from wireyard.replay.renaming import AS_IS, Renaming
from wireyard.replay.script import (
    Came,
    End,
    Key,
    Login,
    Recorded,
    Script,
    Send,
    Step,
    Talk,
    broker_port,
    ends_of,
    lake_rows,
    left_out,
)

if TYPE_CHECKING:
    from wireyard.answers import Tables

Ids = tuple[tuple[str, object], ...]
"""Numbers that a broker has given, each with what it is a number of."""
_NUMBERS: Final[Mapping[str, str]] = {
    "JMQConnectionID": "connection",
    "JMQSessionID": "session",
    "JMQConsumerID": "consumer",
    "JMQOldConsumerID": "consumer",
    "JMQProducerID": "producer",
    "JMQTransactionID": "transaction",
    "JMQNextTransactionID": "transaction",
}
"""What the properties are numbers of that a broker gives."""
_BLOCKS: Final = {PACKET_CODES[name] for name in ("ACKNOWLEDGE", "REDELIVER")}
_KEYS: Final = {PACKET_CODES[name] for name in ("DELETE_CONSUMER", "DELIVER")}
"""Packets of clients with consumers and messages in their bodies, and with messages alone."""
_AUTHENTICATE: Final = PACKET_CODES["AUTHENTICATE"]
_CHALLENGE: Final = PACKET_CODES["AUTHENTICATE_REQUEST"]
MESSAGE_KEY: Final = struct.Struct(">" + MESSAGE_ID_CODES)
PREFETCH: Final = 1000
"""Messages that a consumer takes ahead, where the recording does not say."""
_OWN_LOGINS: Final = {"admin": Login("admin", "admin"), "jms": Login("guest", "guest")}
"""The logins that Open MQ comes with, by service."""
_SESSIONS: Final = """
SELECT client || '>' || server AS stream, coalesce(client_id, '') AS client_id
FROM sessions WHERE protocol = 'jms' AND client IS NOT NULL AND server IS NOT NULL
"""


def key_of(packet: Packet) -> bytes:
    """Return the SysMessageID of a message."""
    return MESSAGE_KEY.pack(packet.timestamp, packet.source_ip, packet.source_port, packet.sequence)


def read_jmq_script(tables: Tables, name: str, renaming: Renaming = AS_IS) -> Script:
    """Read what the JMQ clients of a recording did; errors show it by `name`.

    A `UsageError` is raised if it has no connection to replay, or several with the same ports.
    """
    script = script_of(*recorded_rows(tables, name, renaming))
    if not script.steps:
        raise UsageError(f"{name}: has no JMQ connection with its HELLO")
    script.notes += left_out(tables, "jmq")
    return script


def recorded_rows(
    tables: Tables, name: str, renaming: Renaming = AS_IS
) -> tuple[list[Row], Mapping[str, str]]:
    """Return the packets and ends of all JMQ connections in order, and client ids by stream."""
    rows = [
        Row(row["captured_ns"], row["frame"], row["stream"], renaming.jmq(packet_of(row)))
        for row in lake_rows(tables, name, "jmq")
    ]
    for end in ends_of(tables, "jms"):
        what = End(end["by_client"], end["is_reset"])
        rows.append(Row(end["closed_ns"], end["closed_frame"], end["stream"], what))
    rows.sort(key=lambda row: row[:2])
    return rows, {row["stream"]: row["client_id"] for row in tables.rows(_SESSIONS)}


def script_of(
    rows: Sequence[Row], client_ids: Mapping[str, str], *, takes_all: bool = False
) -> Script:
    """Return the script of packets and ends in order; `client_ids` are those of streams."""
    script = Script(takes_all=takes_all)
    _Reading(script, client_ids).read(rows)
    return script


class Row(NamedTuple):
    """A packet of a capture, or the end of its connection."""

    time_ns: int
    frame: int
    stream: str
    what: Packet | End


class _Arrivals:
    """The packets of a broker on one connection, as they are known."""

    def __init__(self, number: int, sent: Set[bytes], shares: Mapping[object, str]) -> None:
        self._number, self._sent, self._shares = number, sent, shares
        self._counts: Counter[Key] = Counter()

    def key(self, packet: Packet, consumer: object) -> Key:
        """Return the key of the next packet; `consumer` is that of the recording."""
        about: Key = packet.packet_type, packet.consumer_id
        if packet.packet_type in MESSAGE_TYPES:
            id, taker = key_of(packet), self._shares.get(consumer, consumer)
            about = "message", taker, id if id in self._sent else packet.destination
        elif packet.packet_type not in REPLIES and packet.packet_type != _CHALLENGE:
            about = (packet.packet_type,)
        self._counts[about] += 1
        return self._number, *about, self._counts[about]


def _properties(packet: Packet) -> Mapping[str, Any]:
    """Return the values of a packet's properties."""
    return {name: entry.value for name, entry in (packet.properties or {}).items()}


def _ids(packet: Packet) -> Ids:
    """Return the numbers in a packet of a broker, always in the same order."""
    if packet.packet_type in MESSAGE_TYPES:
        key = key_of(packet)
        return ("message", key), ("copy", (packet.consumer_id, key))
    properties = _properties(packet)
    return tuple((kind, properties[name]) for name, kind in _NUMBERS.items()
                 if name in properties)  # fmt: skip


def _share_of(packet: Packet) -> str | None:
    """Return the name of what a new consumer shares with others; the broker chooses among them."""
    asked = Request(packet.packet_type, 0, False, None, _properties(packet), b"")
    named = asked.get("JMQSharedSubscriptionName", str) or asked.get("JMQDurableName", str)
    is_queue = asked.get("JMQDestType", int, 0) & QUEUE
    return named or (asked.get("JMQDestination", str) if is_queue else None)


class _Reading:
    """Turns the rows of a capture into the steps of its connections."""

    def __init__(self, script: Script, client_ids: Mapping[str, str]) -> None:
        self._script, self._client_ids = script, client_ids
        self._connections: dict[str, Recorded | None] = {}
        self._arrivals: dict[Recorded, _Arrivals] = {}
        self._without: Counter[str] = Counter()
        self._given: dict[Key, Ids] = {}
        self._asked: dict[tuple[Recorded, int | None], str] = {}
        self._shares: dict[object, str] = {}
        """What consumers share: by the request that waits for its reply, and by consumer."""
        self._came: set[bytes] = set()
        self._sent: set[bytes] = set()
        """The ids of the messages that came, and of those that clients sent."""
        self._services: dict[Recorded, str] = {}
        self._refused: set[Recorded] = set()

    def read(self, rows: Sequence[Row]) -> None:
        """Add the steps of all rows, in order."""
        for row in rows:
            is_hello = isinstance(row.what, Packet) and row.what.packet_type_name == "HELLO"
            if is_hello and row.stream not in self._connections:
                number, name = len(self._connections) + 1, self._client_ids.get(row.stream)
                client = name or row.stream.partition(">")[0]
                recorded = Recorded(number, client, 0, broker_port(row.stream))
                self._connections[row.stream] = recorded
                self._arrivals[recorded] = _Arrivals(number, self._sent, self._shares)
            is_client = row.stream in self._connections
            stream = row.stream if is_client else opposite(row.stream)
            connection = self._connections.get(stream)
            if connection is None:
                if isinstance(row.what, Packet) and stream not in self._connections:
                    self._without[min(stream, row.stream)] += 1
                continue
            if isinstance(row.what, End):
                self._connections[stream] = None
                what: Send | Came | End = row.what
            elif is_client:
                if row.what.packet_type in MESSAGE_TYPES:
                    self._sent.add(key_of(row.what))
                elif row.what.packet_type_name == "ADD_CONSUMER" and (share := _share_of(row.what)):
                    self._asked[connection, row.what.consumer_id] = share
                what = Send(row.what, self._awaited(row.what))
            else:
                what = Came(self._arrived(connection, row.what))
            self._script.steps.append(Step(row.time_ns, row.frame, connection, what))
        self._script.talks = partial(
            _Talks, self._script.takes_all, self._given, self._sent, self._shares, self._services,
            self._refused,
        )  # fmt: skip
        self._script.notes += [
            f"{stream}: {count} packets without the HELLO of their connection are left out"
            for stream, count in self._without.items()
        ]

    def _arrived(self, connection: Recorded, packet: Packet) -> Key:
        key = self._arrivals[connection].key(packet, packet.consumer_id)
        self._given[key] = _ids(packet)
        properties = _properties(packet)
        if packet.packet_type in MESSAGE_TYPES:
            self._came.add(key_of(packet))
        elif packet.packet_type_name == "ADD_CONSUMER_REPLY":
            if share := self._asked.pop((connection, packet.consumer_id), None):
                self._shares[properties.get("JMQConsumerID")] = share
        elif packet.packet_type_name == "HELLO_REPLY":
            self._services[connection] = str(properties.get("JMQService", "jms"))
        elif packet.packet_type_name == "AUTHENTICATE_REPLY" and properties.get("JMQStatus") != OK:
            self._refused.add(connection)
        return key

    def _awaited(self, packet: Packet) -> tuple[Key, ...]:
        """Return the messages that a packet is about, if the recording shows them."""
        return tuple(("message", key) for key in _keys_in(packet) if key in self._came)


def _keys_in(packet: Packet) -> Iterator[bytes]:
    """Yield the SysMessageIDs in the body of a client's packet."""
    if packet.packet_type in _BLOCKS:
        yield from (key for _, key in blocks_of(packet.body or b"") or ())
    elif packet.packet_type in _KEYS:
        yield from keys_of(packet.body or b"") or ()


class _Talks:
    """What all connections of a replay have in common."""

    def __init__(
        self,
        takes_all: bool,
        given: Mapping[Key, Ids],
        sent: Set[bytes],
        shares: Mapping[object, str],
        services: Mapping[Recorded, str],
        refused: Set[Recorded],
        logins: Mapping[str, Login],
    ) -> None:
        self.takes_all, self.given, self._logins = takes_all, given, logins
        self.sent, self.shares = sent, shares
        self._services, self._refused = services, refused
        self.known: dict[Key, Any] = {}
        """The numbers and ids of this broker, by those of the recording."""
        self.before: dict[Key, Any] = {}
        """The reverse."""

    def __call__(self, recorded: Recorded) -> Talk:
        """Return what is said on a connection."""
        service = self._services.get(recorded, "jms")
        login = (
            self._logins.get(recorded.client) or self._logins.get("") or _OWN_LOGINS.get(service)
        )
        is_refused = recorded in self._refused
        if login is None or is_refused:
            login = Login("guest" if login is None else login.username, "")
        return _Talk(self, recorded, service, login, is_refused)


class _Talk:
    """One connection of a client."""

    format = "jmq"
    service: str | None
    known: dict[Key, Any]

    def __init__(
        self, all: _Talks, recorded: Recorded, service: str, login: Login, is_refused: bool
    ) -> None:
        self.service, self.known = service, all.known
        self._all, self._login, self._is_refused = all, login, is_refused
        self._arrivals = _Arrivals(recorded.number, all.sent, all.shares)
        self._challenge: Request | None = None

    def add(self, packet: Packet) -> Key:
        """Return the key of the next packet from the broker, and learn its numbers."""
        consumer = self._all.before.get(("consumer", packet.consumer_id))
        key = self._arrivals.key(packet, consumer)
        for old, (kind, new) in zip(self._all.given.get(key, ()), _ids(packet), strict=False):
            self.known[old], self._all.before[kind, new] = new, old[1]
        if packet.packet_type == _CHALLENGE:
            self._challenge = Request(
                _CHALLENGE, 0, False, None, _properties(packet), packet.body or b""
            )
        return key

    def answer(self, key: Key, packet: Packet) -> bytes | None:
        """Return what a script that `takes_all` leaves out.

        These are RESUME_FLOW, and acknowledgements of messages that the recording does not show.
        """
        if packet.packet_type not in MESSAGE_TYPES or not self._all.takes_all:
            return None
        answers = []
        if key not in self._all.given:
            body = BLOCK.pack(packet.consumer_id, key_of(packet))
            answers.append(Packet(packet_type="ACKNOWLEDGE", body=body))
        if packet.bit_flags & FLAGS["C"]:
            more = {"JMQConsumerID": packet.consumer_id, "JMQSize": PREFETCH}
            answers.append(Packet(packet_type="RESUME_FLOW", properties=with_types(more)))
        return b"".join(map(encode, answers))

    def refusal(self, packet: Packet) -> str | None:
        """Return why the broker refuses a connection that is not refused in the recording."""
        status = _properties(packet).get("JMQStatus")
        if packet.packet_type_name != "AUTHENTICATE_REPLY" or self._is_refused or status == OK:
            return None
        return f"status {status}"

    def send(self, what: Send) -> bytes:
        """Return the bytes to send now."""
        packet = what.packet
        assert isinstance(packet, Packet)
        numbers = {
            "transaction_id": ("transaction", packet.transaction_id),
            "producer_id": ("producer", packet.producer_id),
        }
        fields: dict[str, Any] = {
            name: self.known[old] for name, old in numbers.items() if old in self.known
        }
        if packet.properties:
            fields["properties"] = {
                name: entry._replace(value=self._now(_NUMBERS.get(name, ""), entry.value))
                for name, entry in packet.properties.items()
            }
        later_ms = time.time_ns() // 1_000_000 - packet.timestamp
        for name in ("expiration", "delivery_time"):
            if moment := getattr(packet, name):
                fields[name] = moment + later_ms
        if packet.packet_type == _AUTHENTICATE and self._challenge is not None:
            kind = self._challenge.get("JMQAuthType", str, "basic")
            fields["body"] = login_body(kind, *self._login, self._challenge)
            fields["properties"] = {"JMQAuthType": kind}
        elif packet.packet_type in _BLOCKS:
            fields["body"] = b"".join(
                BLOCK.pack(*self._taken(*block)) for block in blocks_of(packet.body or b"") or ()
            )
        elif packet.packet_type in _KEYS and packet.body:
            fields["body"] = b"".join(self._now("message", key) for key in _keys_in(packet))
        return encode(replace(packet, **fields) if fields else packet)

    def _taken(self, consumer: int, key: bytes) -> tuple[int, bytes]:
        """Return the consumer that got a message, and the id that it has."""
        old = self._now("consumer", consumer), self._now("message", key)
        now: tuple[int, bytes] = self.known.get(("copy", (consumer, key)), old)
        return now

    def _now(self, kind: str, value: Any) -> Any:
        return self.known.get((kind, value), value)
