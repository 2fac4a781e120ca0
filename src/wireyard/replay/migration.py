"""What the JMQ clients of a recording did, as clients of MQTT 5.0.

Rules of this file:

1. Messages and names are those of the broker's bridge. Consumers of a queue share a subscription:
   ``$share/jmq/$Q/shop/orders`` for the queue ``shop.orders``.
2. What a client sends and acknowledges in a transaction, it does when it commits; what it rolls
   back it does not.
3. A message is waited for and acknowledged where the recording shows it, if it was sent in the
   replay. All others, such as those that a selector kept away, are acknowledged at once; so are
   those of a share with several clients, for it is the broker that chooses one.
4. What has no counterpart is left out, and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, cycle
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from wireyard.broker.bridge import property_text, to_mqtt
from wireyard.broker.jmq.destinations import QUEUES, access_name, is_name, name_of, topic_of
from wireyard.captures.clients import opposite
from wireyard.endpoints.jmq import Request
from wireyard.endpoints.jmq.packets import blocks_of
from wireyard.errors import UsageError, WireError
from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES
from wireyard.formats.jmq.message import BODY_KINDS
from wireyard.formats.jmq.packet import Packet
from wireyard.formats.message_id import message_id_text
from wireyard.formats.mqtt import control as mqtt
from wireyard.formats.mqtt.filters import Filter
from wireyard.formats.mqtt.writing import encode
from wireyard.layers.jmq.rules import DEAD_MESSAGE_QUEUE, NO_ACKNOWLEDGE, OK, QUEUE, REPLIES
from wireyard.replay.jmq import MESSAGE_KEY, Row, recorded_rows
from wireyard.replay.renaming import AS_IS, Renaming
from wireyard.replay.script import (
    Arrivals,
    Came,
    Deliveries,
    End,
    Key,
    Recorded,
    Script,
    Send,
    Step,
    acknowledging,
)

if TYPE_CHECKING:
    from wireyard.answers import Tables

P = TypeVar("P", bound=mqtt.Packet)
_VERSION: Final = 5
_NEVER: Final = 0xFFFF_FFFF
_SHARED: Final = "$share/{}/{}"
_GROUP: Final = "jmq"
_PRIORITY: Final = 4
_MOST_QOS: Final = 2
_NO_RETAINED: Final = 2
_COUNTED: Final = {
    "BROWSE": "queue browsers",
    "REDELIVER": "messages given back, or rolled back, to come again",
    "START_TRANSACTION": "transactions, whose messages are sent one by one when they are committed",
    "PREPARE_TRANSACTION": "transactions prepared by XA",
}
"""What has no counterpart whatever is in it, by the type of its packet."""


def read_migration(tables: Tables, name: str, renaming: Renaming = AS_IS) -> Script:
    """Read what the JMQ clients of a recording did, for a broker of MQTT.

    `UsageError` is raised if it has no connection to replay, or several with the same ports.
    """
    rows, client_ids = recorded_rows(tables, name)
    reading = _Reading(rows, client_ids)
    script = reading.read(rows, renaming)
    if not script.steps:
        raise UsageError(
            f"{name}: has no JMQ connection with a login that a capture shows accepted"
        )
    return script


class _Consumer(NamedTuple):
    """A consumer of JMS as a subscription."""

    filter: str
    qos: int
    is_durable: bool


@dataclass(slots=True, eq=False)
class _Client:
    """A connection, as one of MQTT."""

    recorded: Recorded
    arrivals: Arrivals
    is_lasting: bool
    """Whether its session outlives it, for durable subscriptions."""
    packet_ids: Iterator[int] = field(default_factory=lambda: cycle(range(1, 1 << 16)))
    consumers: dict[int, _Consumer] = field(default_factory=dict)
    filters: Counter[str] = field(default_factory=Counter)
    """How many consumers have each filter."""
    held: dict[str, tuple[Key, int] | None] = field(default_factory=dict)
    """Messages that came, by their ids, with what acknowledges them; None if nothing does."""
    taken: set[str] = field(default_factory=set)
    """Those of them that are acknowledged."""
    transactions: dict[int, list[Packet | str]] = field(default_factory=partial(defaultdict, list))
    """The messages sent, and the ids of those acknowledged, in each transaction."""


class _Reading:
    """Turns the packets of JMQ into steps of clients of MQTT."""

    def __init__(self, rows: list[Row], client_ids: Mapping[str, str]) -> None:
        self._script = Script(takes_all=True)
        self._lost = self._script.lost
        self._client_ids = client_ids
        self._clients: dict[str, _Client] = {}
        self._numbers = count(1)
        self._deliveries: defaultdict[str, Deliveries] = defaultdict(Deliveries)
        self._sent: dict[str, mqtt.Publish] = {}
        """The messages that are sent, by their ids."""
        self._ack_modes: dict[int, int] = {}
        self._durable: dict[tuple[str, str], str] = {}
        """The filters of durable subscriptions, by client id and name."""
        self._takers: Counter[str] = Counter()
        """How many clients have each filter."""
        self._without: Counter[str] = Counter()
        self._replies: dict[tuple[str, int], Packet] = {}
        self._lasting: set[str] = set()
        for row in rows:
            if not isinstance(row.what, Packet):
                continue
            if row.what.packet_type in REPLIES:
                self._replies[opposite(row.stream), row.what.consumer_id] = row.what
            elif "JMQDurableName" in (row.what.properties or {}):
                self._lasting.add(client_ids.get(row.stream, ""))

    def read(self, rows: list[Row], renaming: Renaming) -> Script:
        """Return the script of all rows."""
        self._renaming = renaming
        for row in rows:
            self._row = row
            client = self._clients.get(row.stream)
            receiver = self._clients.get(opposite(row.stream))
            if isinstance(row.what, End):
                self._end(row.what)
            elif client is not None:
                self._do(client, row.what)
            elif row.what.packet_type_name == "AUTHENTICATE":
                self._connect(row.what)
            elif row.what.packet_type not in MESSAGE_TYPES:
                pass
            elif receiver is not None:
                self._deliver(receiver, row.what)
            else:
                self._without[row.stream] += 1
        self._script.lost = +self._lost
        self._script.notes += [
            f"{stream}: {number} messages without the login of their connection are left out"
            for stream, number in self._without.items()
        ]
        return self._script

    def _step(self, client: _Client, what: Send | Came | End) -> None:
        self._script.steps.append(Step(self._row.time_ns, self._row.frame, client.recorded, what))

    def _send(self, client: _Client, packet: mqtt.Packet, *answers: mqtt.Packet) -> None:
        """Send a packet, and wait for what the broker answers."""
        self._step(client, Send(self._renaming.packet(packet)))
        for answer in answers:
            self._step(client, Came(client.arrivals.add(answer)))

    def _accepted(self, packet: Packet) -> Request | None:
        """Return the reply that accepts a request; None if there is none."""
        found = self._replies.get((self._row.stream, packet.consumer_id))
        reply = None if found is None else _request(found)
        return None if reply is None or reply.get("JMQStatus", int) != OK else reply

    # --- connections ----------------------------------------------------------------------

    def _connect(self, packet: Packet) -> None:
        stream = self._row.stream
        if self._accepted(packet) is None:
            self._lost["logins that were refused"] += 1
            return
        client_id = self._client_ids.get(stream, "")
        name, number = client_id or stream.partition(">")[0], next(self._numbers)
        arrivals = Arrivals(number, self._deliveries[name])
        is_lasting = bool(client_id) and client_id in self._lasting
        client = _Client(Recorded(number, name, _VERSION), arrivals, is_lasting)
        properties = {"session_expiry_interval": _NEVER} if is_lasting else {}
        connect = _made(
            mqtt.Connect, client_id=client_id, clean_start=not is_lasting, properties=properties
        )
        try:
            encode(connect)
        except WireError:
            self._lost["connections with a client id that MQTT cannot have"] += 1
            return
        self._clients[stream] = client
        self._send(client, connect, _made(mqtt.ConnAck))

    def _goodbye(self, client: _Client) -> None:
        """Disconnect; a session that outlives its connection keeps durable subscriptions only."""
        for number, consumer in list(client.consumers.items()):
            if client.is_lasting and not consumer.is_durable:
                self._remove(client, number)
        self._send(client, _made(mqtt.Disconnect))

    def _end(self, what: End) -> None:
        stream = self._row.stream
        client = self._clients.pop(stream, None) or self._clients.pop(opposite(stream), None)
        if client is not None:
            self._step(client, what)
            self._takers.subtract({one.filter for one in client.consumers.values()})

    # --- requests -------------------------------------------------------------------------

    def _do(self, client: _Client, packet: Packet) -> None:
        """Act on a packet of a client."""
        kind = packet.packet_type_name or ""
        if kind in _COUNTED:
            self._lost[_COUNTED[kind]] += 1
        if packet.packet_type in MESSAGE_TYPES:
            if packet.transaction_id is None:
                self._publish(client, packet)
            else:
                client.transactions[packet.transaction_id].append(packet)
        elif kind == "GOODBYE":
            self._goodbye(client)
        elif kind == "ACKNOWLEDGE":
            self._acknowledge(client, packet)
        elif kind in _HANDLERS and (reply := self._accepted(packet)) is not None:
            _HANDLERS[kind](self, client, _request(packet), reply)

    def _create_session(self, client: _Client, asked: Request, reply: Request) -> None:
        self._ack_modes[reply.get("JMQSessionID", int, 0)] = asked.get("JMQAckMode", int, 0)

    def _subscribe(self, client: _Client, asked: Request, reply: Request) -> None:
        name = asked.get("JMQDestination", str, "")
        is_queue = bool(asked.get("JMQDestType", int, 0) & QUEUE)
        if (is_queue and name == DEAD_MESSAGE_QUEUE) or not is_name(name):
            self._lost["consumers of the dead message queue, or of a name that is no topic"] += 1
            return
        if asked.get("JMQSelector", str):
            self._lost["selectors, whose consumers get all messages"] += 1
        filter, durable = access_name(name, is_queue), asked.get("JMQDurableName", str)
        group = durable or asked.get("JMQSharedSubscriptionName", str)
        if is_queue:
            filter = _SHARED.format(_GROUP, filter)
        elif group and asked.get("JMQJMSShare", bool):
            filter = _SHARED.format(name_of(group), filter)
        session = asked.get("JMQSessionID", int, 0)
        mode = asked.get("JMQAckMode", int, self._ack_modes.get(session, 0))
        qos = 0 if mode == NO_ACKNOWLEDGE else _MOST_QOS
        client.consumers[reply.get("JMQConsumerID", int, 0)] = _Consumer(filter, qos, bool(durable))
        if durable:
            self._durable[client.recorded.client, durable] = filter
        client.filters[filter] += 1
        if client.filters[filter] > 1:
            kind = "queue" if is_queue else "topic"
            self._lost[f"further consumers of a {kind} on one connection"] += 1
            return
        self._takers[filter] += 1
        no_local = asked.get("JMQNoLocal", bool, False) and not filter.startswith("$share/")
        wanted = Filter.of(filter, qos, no_local=no_local, retain_handling=_NO_RETAINED)
        number = next(client.packet_ids)
        self._send(
            client,
            _made(mqtt.Subscribe, packet_id=number, filters=[wanted]),
            _made(mqtt.SubAck, packet_id=number, return_codes=[qos]),
        )

    def _delete_consumer(self, client: _Client, asked: Request, reply: Request) -> None:
        if durable := asked.get("JMQDurableName", str):
            filter = self._durable.pop((client.recorded.client, durable), None)
            if filter is not None:
                self._unsubscribe(client, filter)
        else:
            self._remove(client, asked.get("JMQConsumerID", int, 0))

    def _remove(self, client: _Client, number: int) -> None:
        consumer = client.consumers.pop(number, None)
        if consumer is None:
            return
        client.filters[consumer.filter] -= 1
        if client.filters[consumer.filter]:
            return
        self._takers[consumer.filter] -= 1
        if not consumer.is_durable:
            self._unsubscribe(client, consumer.filter)

    def _unsubscribe(self, client: _Client, filter: str) -> None:
        number = next(client.packet_ids)
        self._send(
            client,
            _made(mqtt.Unsubscribe, packet_id=number, filters=[filter]),
            _made(mqtt.UnsubAck, packet_id=number, return_codes=[0]),
        )

    def _commit(self, client: _Client, asked: Request, reply: Request) -> None:
        for one in client.transactions.pop(asked.get("JMQTransactionID", int, 0), ()):
            if isinstance(one, Packet):
                self._publish(client, one)
            else:
                self._take(client, one)

    def _roll_back(self, client: _Client, asked: Request, reply: Request) -> None:
        undone = client.transactions.pop(asked.get("JMQTransactionID", int, 0), [])
        client.taken.difference_update(one for one in undone if isinstance(one, str))

    # --- messages -------------------------------------------------------------------------

    def _publish(self, client: _Client, packet: Packet) -> None:
        name, is_queue = packet.destination or "", bool(packet.bit_flags & FLAGS["Q"])
        topic = (QUEUES if is_queue else "") + topic_of(name)
        if name_of(topic_of(name)) != name or not is_name(name):
            self._lost["messages to a name that is no topic"] += 1
            return
        try:
            message = to_mqtt(packet, topic, self._row.time_ns // 1_000_000)
        except WireError:
            self._lost["messages that MQTT cannot have"] += 1
            return
        except ValueError:
            kind = BODY_KINDS[packet.packet_type].capitalize()
            self._lost[f"{kind}Messages, which are not sent"] += 1
            return
        self._count_parts(packet)
        number = next(client.packet_ids) if message.qos else None
        publish = _made(
            mqtt.Publish, topic=topic, payload=message.payload, qos=message.qos,
            packet_id=number, properties=message.properties,
        )  # fmt: skip
        if is_queue and not self._takers[_SHARED.format(_GROUP, topic)]:
            self._lost["messages to a queue that had no consumer, where MQTT keeps none"] += 1
        else:
            self._sent[packet.sys_message_id] = publish
        if number is None:
            self._send(client, publish)
            return
        self._send(client, publish, _made(mqtt.PubRec, packet_id=number))
        release = _made(mqtt.PubRel, packet_id=number)
        self._send(client, release, _made(mqtt.PubComp, packet_id=number))

    def _count_parts(self, packet: Packet) -> None:
        """Count what a message that is sent loses."""
        self._lost["priorities other than 4"] += packet.priority != _PRIORITY
        self._lost["delays of a delivery: sent at once"] += bool(packet.delivery_time)
        values = [one.value for one in (packet.properties or {}).values()]
        self._lost["properties that are no text, number or truth value"] += sum(
            property_text(one) is None for one in values
        )

    def _deliver(self, client: _Client, packet: Packet) -> None:
        """Wait for a message that the broker sent; once, for MQTT has one copy for a client."""
        id, consumer = packet.sys_message_id, client.consumers.get(packet.consumer_id)
        sent = self._sent.get(id)
        if consumer is None or sent is None or id in client.held:
            return
        if consumer.filter.startswith("$share/") and self._takers[consumer.filter] > 1:
            self._lost["messages shared by several clients, of which the broker chooses one"] += 1
            return
        qos = min(sent.qos, consumer.qos)
        number = next(client.packet_ids) if qos else None
        came = replace(sent, qos=qos, packet_id=number)
        key = client.arrivals.add(self._renaming.packet(came))
        client.held[id] = None if number is None else (key, number)
        self._step(client, Came(key))

    def _acknowledge(self, client: _Client, packet: Packet) -> None:
        for _, key in blocks_of(packet.body or b"") or ():
            id = message_id_text(*MESSAGE_KEY.unpack(key))
            if id not in client.held or id in client.taken:
                continue
            client.taken.add(id)
            if packet.transaction_id is not None:
                client.transactions[packet.transaction_id].append(id)
            else:
                self._take(client, id)

    def _take(self, client: _Client, id: str) -> None:
        """Acknowledge a message."""
        if (held := client.held[id]) is None:
            return
        key, number = held
        self._step(client, acknowledging(_made(mqtt.PubRec, packet_id=number), key))
        self._step(client, Came(client.arrivals.add(_made(mqtt.PubRel, packet_id=number))))
        self._step(client, acknowledging(_made(mqtt.PubComp, packet_id=number), key))


_HANDLERS: Final[Mapping[str, Callable[[_Reading, _Client, Request, Request], None]]] = {
    "CREATE_SESSION": _Reading._create_session,
    "ADD_CONSUMER": _Reading._subscribe,
    "DELETE_CONSUMER": _Reading._delete_consumer,
    "COMMIT_TRANSACTION": _Reading._commit,
    "ROLLBACK_TRANSACTION": _Reading._roll_back,
}
"""What a request that is accepted does; its reply is given too."""


def _made(kind: type[P], **fields: Any) -> P:
    """Return a packet of MQTT 5.0."""
    return kind(version_in_force=_VERSION, **fields)


def _request(packet: Packet) -> Request:
    """Return a packet that is no message as the sides of a connection read it."""
    values = {name: entry.value for name, entry in (packet.properties or {}).items()}
    return Request(packet.packet_type, packet.consumer_id, True, None, values, b"")
