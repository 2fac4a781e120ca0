"""What the clients of a recording did, and what the broker sent before, in order.

Packet identifiers of a broker are its own choice, so its packets are known by what they are about:
a PUBLISH by topic and payload, and the n-th of the same on a connection by n. An acknowledgement
is for the packet that was known so, whatever its identifier is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from wireyard.captures.clients import opposite
from wireyard.captures.directed import CapturedStream
from wireyard.captures.inputs import Input, Readable
from wireyard.captures.records import NO_TIME
from wireyard.errors import UsageError
from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.formats.jmq.packet import Packet as JmqPacket
from wireyard.formats.mqtt.control import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from wireyard.formats.mqtt.packet import packet_of
from wireyard.formats.mqtt.writing import encode
from wireyard.replay.renaming import AS_IS, Renaming
from wireyard.streams.blocks import StreamBundle
from wireyard.streams.decoder import decode_blocks
from wireyard.streams.framer import GAP, Framer

if TYPE_CHECKING:
    from wireyard.answers import Tables

P = TypeVar("P", bound=Packet)
Key = tuple[object, ...]
"""A packet of a broker: the number of its connection, its type, what it is about, and how many of
the same there were."""
Acknowledgement = PubAck | PubRec | PubComp
ACKNOWLEDGED_BY: Final[tuple[type[PubAck | PubRec] | None, ...]] = (None, PubAck, PubRec)
"""By QoS."""


_MASKED: Final = b"****"
"""A password that a lake does not have."""
_SHARED_STREAMS: Final = """
SELECT stream FROM packets_{format} GROUP BY stream HAVING count(DISTINCT source) > 1 LIMIT 1
"""
_PACKETS: Final = """
SELECT * FROM packets_{format}
WHERE status = 'ok' AND captured_ns IS NOT NULL AND frame IS NOT NULL AND stream IS NOT NULL
ORDER BY captured_ns, frame, stream, "offset"
"""
_UNREADABLE: Final = """
SELECT stream, count(*) AS n FROM packets_{format} WHERE status <> 'ok'
  AND stream IN (SELECT client || '>' || server FROM sessions) GROUP BY stream ORDER BY stream
"""
_ENDS: Final = """
SELECT client || '>' || server AS stream, closed_ns, closed_frame,
  ended_by <> 'server' AS by_client, ended_by = 'dropped' AS is_reset
FROM sessions WHERE protocol = '{protocol}' AND closed_ns IS NOT NULL AND closed_frame IS NOT NULL
  AND client IS NOT NULL AND server IS NOT NULL AND ended_by IN ('client', 'dropped', 'server')
"""


@dataclass(slots=True)
class Deliveries:
    """The messages that a broker sent to one client, over all of its connections."""

    keys: dict[int, Key] = field(default_factory=dict)
    """That of the last PUBLISH with a packet identifier."""
    ids: dict[Key, int] = field(default_factory=dict)
    """The packet identifier for an acknowledgement: by its type and the key of the PUBLISH."""


class Aliases:
    """The topics that stand behind aliases, in one direction of a connection."""

    def __init__(self) -> None:
        self._topics: dict[int, str] = {}

    def topic_of(self, packet: Publish) -> str:
        """Return the topic of the next PUBLISH."""
        alias = next((one.value for one in packet.properties if one.name == "topic_alias"), None)
        if not isinstance(alias, int):
            return packet.topic
        if packet.topic:
            self._topics[alias] = packet.topic
        return self._topics.get(alias, "")


class Arrivals:
    """The packets of a broker on one connection, as they are known."""

    def __init__(self, number: int, deliveries: Deliveries) -> None:
        self._number, self._deliveries = number, deliveries
        self._counts: Counter[Key] = Counter()
        self._aliases = Aliases()

    def add(self, packet: Packet) -> Key:
        """Return the key of the next packet."""
        key = self._counted(type(packet), *self._about(packet))
        if isinstance(packet, Publish) and packet.packet_id is not None:
            self._deliveries.keys[packet.packet_id] = key
            if answer := ACKNOWLEDGED_BY[packet.qos]:
                self._deliveries.ids[answer, key] = packet.packet_id
        elif isinstance(packet, PubRel) and packet.packet_id in self._deliveries.keys:
            message = self._deliveries.keys[packet.packet_id]
            self._deliveries.ids[PubComp, message] = packet.packet_id
        return key

    def _counted(self, *about: object) -> Key:
        self._counts[about] += 1
        return self._number, *about, self._counts[about]

    def _about(self, packet: Packet) -> Key:
        if isinstance(packet, Publish):
            return self._aliases.topic_of(packet), packet.payload
        packet_id = getattr(packet, "packet_id", None)
        if isinstance(packet, PubRel):
            return self._deliveries.keys.get(packet.packet_id, ())
        return () if packet_id is None else (packet_id,)  # one that the client chose


class Send(NamedTuple):
    """The client sends a packet, once all has come that it is about."""

    packet: Packet | JmqPacket | bytes
    awaits: tuple[Key, ...] = ()
    """What the `known` of its `Talk` must have."""


def acknowledging(packet: Packet, message: Key | None) -> Send:
    """Return the sending of an acknowledgement; `message` is the key of the PUBLISH."""
    return Send(packet, ((type(packet), message),))


class Came(NamedTuple):
    """The broker has sent a packet."""

    key: Key


class Pause(NamedTuple):
    """Nothing happens for a time."""

    seconds: float


class End(NamedTuple):
    """The connection ends."""

    by_client: bool
    is_reset: bool


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A connection of a recording."""

    number: int
    client: str
    """The client id, or the client's address if it has none."""
    version: int
    port: int | None = None
    """That of the broker."""


class Step(NamedTuple):
    """Something that happened on a connection."""

    time_ns: int
    frame: int
    connection: Recorded
    what: Send | Came | Pause | End


class Login(NamedTuple):
    """What a client logs in with."""

    username: str
    password: str


class Talk(Protocol):
    """What is said on one connection of a replay, in one protocol."""

    format: str
    service: str | None
    """That of a port mapper; None if the protocol has none."""

    @property
    def known(self) -> Mapping[Key, object]:
        """What the broker has sent so far, as `Send.awaits` names it."""

    def add(self, packet: Any) -> Key:
        """Take note of the next packet of the broker; return its key."""

    def answer(self, key: Key, packet: Any) -> bytes | None:
        """Return what is sent at once when a packet has come."""

    def refusal(self, packet: Any) -> str | None:
        """Return why the broker refuses the connection, if the packet does."""

    def send(self, what: Send) -> bytes:
        """Return the bytes of a packet as they have to be now."""


Talks = Callable[[Mapping[str, Login]], Callable[[Recorded], Talk]]
"""With the logins of a replay, by client id or user name: what its connections say."""


@dataclass(slots=True)
class Script:
    """What happened in a recording, in the order of the capture."""

    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What cannot be replayed: a line each."""
    lost: Counter[str] = field(default_factory=Counter)
    """What has no counterpart in another protocol, by kind."""
    takes_all: bool = False
    """Whether clients acknowledge at once what they were not sent in the recording."""
    talks: Talks | None = None
    """What the connections say in another protocol than MQTT."""

    @property
    def clients(self) -> set[str]:
        """The names of all clients."""
        return {step.connection.client for step in self.steps}

    def sent(self, kind: type[P]) -> Iterator[tuple[Recorded, P]]:
        """Yield the packets of a type that clients send, each with its connection."""
        for step in self.steps:
            if isinstance(step.what, Send) and isinstance(step.what.packet, kind):
                yield step.connection, step.what.packet

    @property
    def seconds(self) -> float:
        """From the first step to the last."""
        return (self.steps[-1].time_ns - self.steps[0].time_ns) / 1e9

    @property
    def connections(self) -> list[Recorded]:
        """All connections, in order."""
        return [*dict.fromkeys(step.connection for step in self.steps)]

    @property
    def messages(self) -> int:
        """The number of messages that clients send."""
        packets = (step.what.packet for step in self.steps if isinstance(step.what, Send))
        return sum(
            one.packet_type in MESSAGE_TYPES if isinstance(one, JmqPacket)
            else isinstance(one, Publish)
            for one in packets
        )  # fmt: skip


def clearing(script: Script) -> Script:
    """Return a script that ends the sessions of these clients, and deletes their retained values.

    With it, a broker that cannot be started anew is as it was before the first replay.
    """
    kept: defaultdict[str, set[str | None]] = defaultdict(set)
    for sender, message in script.sent(Publish):
        kept[sender.client].update([message.topic] if message.retain and message.topic else ())
    logins = {}
    for sender, connect in script.sent(Connect):
        logins[sender.client] = sender, connect
        kept[sender.client].update([connect.will_topic] if connect.will_retain else ())
    clear = Script()
    for sender, connect in logins.values():
        version, number = connect.version_in_force, sender.number
        clean = Connect(
            version_in_force=version, client_id=connect.client_id, username=connect.username,
            password=connect.password,
        )  # fmt: skip
        steps: list[Send | Came | End] = [Send(clean), Came((number, ConnAck, 1))]
        for packet_id, topic in enumerate(filter(None, kept[sender.client]), 1):
            empty = Publish(
                version_in_force=version, topic=topic, qos=1, packet_id=packet_id, retain=True
            )
            steps += [Send(empty), Came((number, PubAck, packet_id, 1))]
        steps += [Send(Disconnect(version_in_force=version)), End(True, False)]
        clear.steps += [Step(0, 0, sender, what) for what in steps]
    return clear


class _Row(NamedTuple):
    """A packet of a capture, bytes that are none, or None for the end of its direction."""

    time_ns: int
    frame: int
    stream: str
    packet: Packet | bytes | None


def read_script(source: Input, renaming: Renaming = AS_IS) -> Script:
    """Read what the MQTT clients of a capture did, on topics that may be renamed.

    A `UsageError` is raised if it is no capture, or has no connection to replay. All packets of the
    capture are in memory.
    """
    if not source.captured:
        raise UsageError(f"{source.name}: is one direction without times; replay needs a capture")
    script = Script([], [note for note in (source.broken, *source.problems) if note])
    rows: list[_Row] = []
    ends: dict[str, str | None] = {}
    for format, opened in source.readables:
        if format.name != "mqtt":
            continue
        streams = opened.streams() if isinstance(opened, StreamBundle) else (opened,)
        for stream in streams:
            assert isinstance(stream, CapturedStream)
            rows += _rows(Readable(format, stream), renaming, script.notes)
            ends[stream.stream] = stream.captured.ended
            if stream.captured.closed is not None:
                frame, time_ns = stream.captured.closed
                rows.append(_Row(time_ns, frame, stream.stream, None))
    return _read(script, rows, ends, source.name)


def read_lake_script(tables: Tables, name: str, renaming: Renaming = AS_IS) -> Script:
    """Read what the MQTT clients of a lake did; errors show it by `name`.

    A `UsageError` is raised if it has no connection to replay, or several with the same ports.
    """
    rows = []
    for row in lake_rows(tables, name, "mqtt"):
        if row["has_password"]:
            row["password"] = row["password"] or _MASKED
        packet = renaming.packet(packet_of(row))
        rows.append(_Row(row["captured_ns"], row["frame"], row["stream"], packet))
    ends: dict[str, str | None] = {}
    for row in ends_of(tables, "mqtt"):
        ends[row["stream"]] = "rst" if row["is_reset"] else "fin"
        rows.append(_Row(row["closed_ns"], row["closed_frame"], row["stream"], None))
    return _read(Script(notes=left_out(tables, "mqtt")), rows, ends, name)


def lake_rows(tables: Tables, name: str, format: str) -> list[dict[str, Any]]:
    """Return the packets of a format in the order of their capture.

    `UsageError` is raised if several connections have the same ports.
    """
    if shared := tables.rows(_SHARED_STREAMS.format(format=format)):
        raise UsageError(f"{name}: {shared[0]['stream']} is in several inputs; replay one of them")
    return tables.rows(_PACKETS.format(format=format))


def left_out(tables: Tables, format: str) -> list[str]:
    """Return a line for each client with bytes that are no packets: tables do not have them."""
    return [
        f"{row['stream']}: {row['n']} packets that are malformed or not whole are left out"
        for row in tables.rows(_UNREADABLE.format(format=format))
    ]


def broker_port(stream: str) -> int:
    """Return the port of the broker in the name of a client's stream."""
    return int(stream.partition("#")[0].rpartition(":")[2])


def ends_of(tables: Tables, protocol: str) -> list[dict[str, Any]]:
    """Return the ends of connections, each with the stream of the side that ended it."""
    rows = tables.rows(_ENDS.format(protocol=protocol))
    for row in rows:
        row["stream"] = row["stream"] if row["by_client"] else opposite(row["stream"])
    return rows


def _read(script: Script, rows: list[_Row], ends: dict[str, str | None], name: str) -> Script:
    rows.sort(key=lambda row: row[:2])
    _Reading(script, ends).read(rows)
    if not script.steps:
        raise UsageError(
            f"{name}: has no MQTT connection with its CONNECT; replay --as mqtt plays JMQ ones"
        )
    return script


def _rows(readable: Readable, renaming: Renaming, notes: list[str]) -> Iterator[_Row]:
    format, stream = readable
    lost, latest = 0, (NO_TIME, 0)
    with closing(stream):
        for block in stream.blocks(Framer(format, context=stream.context), None):
            columns = stream.columns(block)
            places = zip(columns["captured_ns"].tolist(), columns["frame"].tolist(), strict=True)
            events = decode_blocks([block], format)
            for row, (place, event) in enumerate(zip(places, events, strict=True)):
                latest = max(latest, place)  # an earlier packet may have been captured later
                if event.packet is not None:
                    yield _Row(*latest, stream.stream, renaming.packet(event.packet))
                elif event.status != GAP and len(data := bytes(block.view(row))) == event.length:
                    yield _Row(*latest, stream.stream, data)
                else:
                    lost += 1
    if lost:
        notes.append(f"{stream.stream}: bytes are missing in {lost} places")


class _Reading:
    """Turns the rows of a capture into the steps of its connections."""

    def __init__(self, script: Script, ends: dict[str, str | None]) -> None:
        self._script, self._ends = script, ends
        self._connections: dict[str, Recorded | None] = {}
        """By the stream of the client; None once one side has ended it."""
        self._arrivals: dict[Recorded, Arrivals] = {}
        self._deliveries: defaultdict[str, Deliveries] = defaultdict(Deliveries)
        self._without: Counter[str] = Counter()
        """Packets without a connection, by stream."""
        self._count = 0

    def read(self, rows: Sequence[_Row]) -> None:
        """Add the steps of all rows, in order."""
        for row in rows:
            if isinstance(row.packet, Connect) and row.stream not in self._connections:
                self._open(row.stream, row.packet)
            is_client = row.stream in self._connections
            stream = row.stream if is_client else opposite(row.stream)
            connection = self._connections.get(stream)
            if connection is None:
                if row.packet is not None and stream not in self._connections:
                    self._without[min(stream, row.stream)] += 1
                continue
            if row.packet is None:
                self._connections[stream] = None
                what: Send | Came | End = End(is_client, self._ends[row.stream] == "rst")
            elif is_client:
                what = self._send(connection, row.packet)
            elif isinstance(row.packet, bytes):
                continue
            else:
                what = Came(self._arrivals[connection].add(row.packet))
            self._script.steps.append(Step(row.time_ns, row.frame, connection, what))
        self._script.notes += [
            f"{stream}: {count} packets without the CONNECT of their connection are left out"
            for stream, count in self._without.items()
        ]

    def _open(self, stream: str, packet: Connect) -> None:
        client = packet.client_id or stream.partition(">")[0]
        self._count += 1
        version, port = packet.version_in_force or 4, broker_port(stream)
        connection = Recorded(self._count, client, version, port)
        self._connections[stream] = connection
        self._arrivals[connection] = Arrivals(self._count, self._deliveries[client])

    def _send(self, connection: Recorded, packet: Packet | bytes) -> Send:
        if not isinstance(packet, Acknowledgement):
            return Send(packet)
        message = self._deliveries[connection.client].keys.get(packet.packet_id)
        if message is None and not self._script.notes:
            return Send(encode(packet))  # it acknowledges nothing that was sent
        return acknowledging(packet, message)
