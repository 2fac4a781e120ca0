"""What the MQTT clients of a recording did, as clients of JMQ.

Rules of this file:

1. Messages and names are those of the broker's bridge. What a client of MQTT did is written down as
   a recording of JMQ clients would have it, with the broker's replies, and read like one.
2. A subscription is a consumer of a topic, one of a session that outlives its connection a durable
   subscription, one of a share a shared one.
3. A message is acknowledged where the recording shows it; of QoS 0, and one that the recording does
   not show, at once.
4. What has no counterpart is left out, and counted.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from wireyard.broker.bridge import to_jms
from wireyard.broker.jmq.destinations import MOST_NAME, QUEUES, is_name, matches, name_of
from wireyard.endpoints import Message
from wireyard.endpoints.jmq.packets import BLOCK, with_types
from wireyard.errors import WireError
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq.packet import Packet, decode
from wireyard.formats.mqtt import control as mqtt
from wireyard.layers.jmq.rules import OK, QUEUE, TOPIC
from wireyard.layers.mqtt.deliveries.topics import split_shared
from wireyard.replay.jmq import PREFETCH, Row, key_of, script_of
from wireyard.replay.script import (
    Acknowledgement,
    Aliases,
    Came,
    End,
    Key,
    Recorded,
    Script,
    Send,
    Step,
)

_NO_ADDRESS: Final = bytes(16)
_LEVEL: Final = 500
_CLIENT_MODE: Final = 2
_WILDCARDS: Final = {"+": "*", "#": "**"}


@dataclass(slots=True, eq=False)
class _Consumer:
    """A subscription of MQTT as a consumer of JMS."""

    topic: str
    qos: int
    group: str | None
    durable: str | None
    id: int = 0
    """That of the present connection; 0 if there is none."""


@dataclass(slots=True)
class _Session:
    """A client by its id: its subscriptions, and the messages that they have to get."""

    consumers: dict[str, _Consumer] = field(default_factory=dict)
    waiting: defaultdict[Key, deque[tuple[Packet, _Consumer]]] = field(
        default_factory=lambda: defaultdict(deque)
    )


@dataclass(slots=True, eq=False)
class _Connection:
    stream: str
    session: _Session
    is_lasting: bool
    ack_ids: count[int] = field(default_factory=lambda: count(1))
    session_id: int = 0
    producers: dict[str, int] = field(default_factory=dict)
    aliases: Aliases = field(default_factory=Aliases)
    came: dict[Key, tuple[Packet, _Consumer]] = field(default_factory=dict)
    """The messages that came and are not acknowledged."""


def emigrated(script: Script) -> Script:
    """Return what the clients of MQTT did as what clients of JMQ do."""
    made = _Making(script)
    for step in script.steps:
        made.add(step)
    new = script_of(made.rows, made.client_ids, takes_all=True)
    new.notes += script.notes
    new.lost = +made.lost
    return new


class _Making:
    def __init__(self, script: Script) -> None:
        self.rows: list[Row] = []
        self.client_ids: dict[str, str] = {}
        self.lost = script.lost
        self._sessions: defaultdict[str, _Session] = defaultdict(_Session)
        self._connections: dict[Recorded, _Connection] = {}
        self._numbers = count(1)
        acknowledged = (step.what.awaits for step in script.steps if isinstance(step.what, Send))
        self._acknowledged = {key for awaits in acknowledged for _, key in awaits}

    def add(self, step: Step) -> None:
        """Write down a step."""
        self._step, what = step, step.what
        packet = what.packet if isinstance(what, Send) else None
        if isinstance(packet, mqtt.Connect):
            self._connect(packet)
        if (connection := self._connections.get(step.connection)) is None:
            return
        if isinstance(what, Came):
            self._come(connection, what.key)
        elif isinstance(what, End):
            self._row(connection.stream, what)
            del self._connections[step.connection]
        elif isinstance(packet, bytes):
            self.lost["bytes that are no packet"] += 1
        elif isinstance(what, Send) and isinstance(packet, Acknowledgement):
            if not isinstance(packet, mqtt.PubComp):  # after PUBREC the message is the client's
                self._acknowledge(connection, what.awaits[0][1])
        elif isinstance(packet, mqtt.Packet) and type(packet) in _HANDLERS:
            _HANDLERS[type(packet)](self, connection, packet)

    def _row(self, stream: str, what: Packet | End) -> None:
        self.rows.append(Row(self._step.time_ns, self._step.frame, stream, what))

    def _packet(self, kind: str, properties: Mapping[str, Any], **fields: Any) -> Packet:
        return Packet(
            packet_type=kind, properties=with_types(properties) or None,
            timestamp=self._step.time_ns // 1_000_000, sequence=next(self._numbers), **fields,
        )  # fmt: skip

    def _ask(
        self, connection: _Connection, kind: str, properties: Mapping[str, Any], **given: str
    ) -> int:
        """Write down a request and its reply, in which the broker gives a number; return it."""
        ack_id, number = next(connection.ack_ids), next(self._numbers)
        asked = self._packet(kind, properties, consumer_id=ack_id, bit_flags=FLAGS["A"])
        self._row(connection.stream, asked)
        answer = {"JMQStatus": OK} | dict.fromkeys(given.values(), number)
        self._reply(connection, f"{kind}_REPLY", ack_id, answer)
        return number

    def _reply(
        self, connection: _Connection, kind: str, ack_id: int, properties: Mapping[str, Any]
    ) -> None:
        client, _, broker = connection.stream.partition(">")
        self._row(f"{broker}>{client}", self._packet(kind, properties, consumer_id=ack_id))

    # --- what clients do ------------------------------------------------------------------

    def _connect(self, packet: mqtt.Connect) -> None:
        recorded = self._step.connection
        properties = {one.name: one.value for one in packet.properties}
        is_lasting = not packet.clean_start or bool(properties.get("session_expiry_interval"))
        stream = f"client:{recorded.number}>broker:0"
        old = self._sessions.pop(recorded.client, None) if packet.clean_start else None
        connection = _Connection(stream, self._sessions[recorded.client], is_lasting)
        self._connections[recorded] = connection
        self.client_ids[stream] = recorded.client
        self.lost["wills"] += packet.will_topic is not None
        hello = {"JMQProtocolLevel": _LEVEL, "JMQVersion": "6.5.0", "JMQRBufferSize": 0}
        self._ask(connection, "HELLO", hello, id="JMQConnectionID")
        self._reply(connection, "AUTHENTICATE_REQUEST", 1, {"JMQAuthType": "digest"})
        self._ask(connection, "AUTHENTICATE", {})
        if is_lasting and packet.client_id:
            self._ask(connection, "SET_CLIENTID", {"JMQClientID": packet.client_id})
        mode = {"JMQAckMode": _CLIENT_MODE}
        connection.session_id = self._ask(connection, "CREATE_SESSION", mode, id="JMQSessionID")
        for consumer in old.consumers.values() if old else ():
            if consumer.durable:
                name = {"JMQDurableName": consumer.durable}
                self._ask(connection, "DELETE_CONSUMER", name)
        for consumer in connection.session.consumers.values():
            self._consume(connection, consumer)
        self._row(stream, self._packet("START", {}))

    def _consume(
        self, connection: _Connection, consumer: _Consumer, *, no_local: bool = False
    ) -> None:
        asked = {"JMQDestination": consumer.topic, "JMQDestType": TOPIC}
        if not set(consumer.topic.split(".")) & {*_WILDCARDS.values()}:
            self._ask(connection, "CREATE_DESTINATION", asked)
        more: dict[str, Any] = {"JMQSessionID": connection.session_id, "JMQNoLocal": no_local}
        if consumer.durable:
            more["JMQDurableName"] = consumer.durable
        if consumer.group:
            more |= {"JMQJMSShare": True, "JMQSharedSubscriptionName": consumer.group}
        more |= {"JMQReconnect": False, "JMQShare": False, "JMQSize": PREFETCH}
        consumer.id = self._ask(connection, "ADD_CONSUMER", asked | more, id="JMQConsumerID")

    def _subscribe(self, connection: _Connection, packet: mqtt.Subscribe) -> None:
        for wanted in packet.filters:
            group, filter = split_shared(wanted.filter or "")
            if filter.startswith("$"):
                self.lost["subscriptions to topics that begin with $"] += 1
                continue
            topic, group = _pattern(filter), name_of(group) if group else None
            if not filter or len(topic) > MOST_NAME:
                self.lost["subscriptions to a topic that is no name"] += 1
                continue
            durable = f"{group or ''}:{topic}" if connection.is_lasting and not group else None
            consumer = _Consumer(topic, wanted.qos or 0, group, durable)
            if (wanted.filter or "") in connection.session.consumers:
                self.lost["subscriptions that are made again"] += 1
                continue
            connection.session.consumers[wanted.filter or ""] = consumer
            no_local = bool((wanted.options or 0) & 4)
            self._consume(connection, consumer, no_local=no_local)

    def _unsubscribe(self, connection: _Connection, packet: mqtt.Unsubscribe) -> None:
        for one in packet.filters:
            consumer = connection.session.consumers.pop(one.filter or "", None)
            if consumer is not None:
                id = {"JMQConsumerID": consumer.id}
                self._ask(connection, "DELETE_CONSUMER", id)
                if consumer.durable:
                    durable = {"JMQDurableName": consumer.durable}
                    self._ask(connection, "DELETE_CONSUMER", durable)

    def _publish(self, connection: _Connection, packet: mqtt.Publish) -> None:
        topic = connection.aliases.topic_of(packet)
        is_queue = topic.startswith(QUEUES)
        name = name_of(topic.removeprefix(QUEUES))
        if not is_name(name) or (topic.startswith("$") and not is_queue):
            self.lost["messages to a topic that is no name"] += 1
            return
        self.lost["retained values, which JMS has not"] += packet.retain
        seconds = next(
            (one.value for one in packet.properties if one.name == "message_expiry_interval"), None
        )
        expires_at = self._step.time_ns / 1e9 + seconds if isinstance(seconds, int) else None
        message = Message(
            topic,
            packet.payload,
            packet.qos,
            False,
            tuple(one for one in packet.properties if one.name != "topic_alias"),
            expires_at,
        )
        stamp = self._step.time_ns // 1_000_000, _NO_ADDRESS, 0, next(self._numbers)
        try:
            made = decode(to_jms(message, name, is_queue, stamp).packet)
        except WireError:
            self.lost["messages that JMS cannot have"] += 1
            return
        if topic not in connection.producers:
            where = {"JMQDestination": name, "JMQDestType": QUEUE if is_queue else TOPIC}
            self._ask(connection, "CREATE_DESTINATION", where)
            of_session = where | {"JMQSessionID": connection.session_id}
            producer = self._ask(connection, "ADD_PRODUCER", of_session, id="JMQProducerID")
            connection.producers[topic] = producer
        fields: dict[str, Any] = {"producer_id": connection.producers[topic]}
        if packet.qos:
            fields |= {"consumer_id": next(connection.ack_ids)}
            fields |= {"bit_flags": made.bit_flags | FLAGS["A"]}
        made = replace(made, **fields)
        self._row(connection.stream, made)
        if packet.qos:
            self._reply(connection, "SEND_REPLY", made.consumer_id, {"JMQStatus": OK})
        for session in self._sessions.values():
            for consumer in session.consumers.values():
                if not is_queue and matches(consumer.topic, name):
                    session.waiting[topic, packet.payload].append((made, consumer))

    def _goodbye(self, connection: _Connection, packet: mqtt.Packet) -> None:
        self._ask(connection, "GOODBYE", {"JMQBlock": False})

    # --- what comes -----------------------------------------------------------------------

    def _come(self, connection: _Connection, key: Key) -> None:
        if key[1] is not mqtt.Publish:
            return
        waiting = connection.session.waiting[key[2:4]]
        if not waiting:
            self.lost["retained values, wills and copies that JMS does not send"] += 1
            return
        sent, consumer = waiting.popleft()
        client, _, broker = connection.stream.partition(">")
        self._row(f"{broker}>{client}", replace(sent, consumer_id=consumer.id))
        connection.came[key] = sent, consumer
        if key not in self._acknowledged and not (sent.bit_flags & FLAGS["P"] and consumer.qos):
            self._acknowledge(connection, key)

    def _acknowledge(self, connection: _Connection, key: Any) -> None:
        if key in connection.came:
            sent, consumer = connection.came.pop(key)
            body = BLOCK.pack(consumer.id, key_of(sent))
            self._row(connection.stream, self._packet("ACKNOWLEDGE", {}, body=body))


def _pattern(filter: str) -> str:
    """Return the name of a topic filter, with the wildcards of JMS."""
    first, *others = filter.split("/")
    names = [_WILDCARDS.get(first) or name_of(first)]
    names += [_WILDCARDS.get(level) or name_of(f"x/{level}")[2:] for level in others]
    return ".".join(names)


_HANDLERS: Final[Mapping[type[mqtt.Packet], Callable[[_Making, _Connection, Any], None]]] = {
    mqtt.Subscribe: _Making._subscribe,
    mqtt.Unsubscribe: _Making._unsubscribe,
    mqtt.Publish: _Making._publish,
    mqtt.Disconnect: _Making._goodbye,
}
