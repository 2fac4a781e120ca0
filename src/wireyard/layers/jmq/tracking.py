"""JMQ connections tracked in columns: the input of the kernel, and the state that it leaves.

The columns of packets (``packet_columns.py``) get numbers for what packets name: requests,
consumers, messages, transactions, sessions. Then the kernel (``connection_kernels.py``) runs over
them, and what is still under way at the end is ended. ``connection_columns.py`` makes tables of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wireyard.formats.jmq.layout import FLAGS, HEADERS, MESSAGE_TYPES
from wireyard.layers.endpoints import endpoints_of
from wireyard.layers.grouping import dense_ids, text_codes
from wireyard.layers.jmq import codes as k
from wireyard.layers.jmq import connection_state as records
from wireyard.layers.jmq.connection_kernels import track_packets
from wireyard.layers.jmq.delivery import DELIVERY
from wireyard.layers.jmq.packet_columns import (
    GPACKET,
    JMQ,
    Frame,
    read_addresses,
    read_blocks,
    read_numbers,
)
from wireyard.layers.jmq.packet_row import as_packet
from wireyard.layers.jmq.receiver import DEAD_MESSAGE_QUEUE
from wireyard.layers.jmq.records import properties_of, text
from wireyard.layers.jmq.session import SESSION
from wireyard.layers.jmq.walk import BY_BROKER, BY_CLIENT

__all__ = ["Tracking"]

_ROOM: Final = 1 << 16
_NUMBERED: Final = {
    "status": "JMQStatus",
    "consumer": "JMQConsumerID",
    "producer": "JMQProducerID",
    "session": "JMQSessionID",
    "transaction": "JMQTransactionID",
    "next_transaction": "JMQNextTransactionID",
    "ack_mode": "JMQAckMode",
    "ack_type": "JMQAckType",
    "dead_reason": "JMQDeadReason",
    "count_only": "JMSXDeliveryCountUpdateOnly",
    "set_redelivered": "JMQSetRedelivered",
    "size": "JMQSize",
    "level": "JMQProtocolLevel",
}
_ADD_CONSUMER, _SET_CLIENTID, _RESUME_FLOW = 14, 50, 52
_ACKNOWLEDGE, _REDELIVER, _DELETE_CONSUMER, _DELETE_PRODUCER = 24, 32, 16, 66
_MARKS: Final = FLAGS["F"] | FLAGS["C"]
_CLOSED: Final = np.array(
    [DELIVERY.states.index(DELIVERY.lookup(state, "close").state) for state in DELIVERY.states],
    np.int8,
)


class Tracking:
    """The packets of some connections, their keys, and what the kernel found, step after step.

    Parameters
    ----------
    frame
        The packets, in order.
    ended
        Source and name of the streams that end with a FIN or a reset.
    """

    def __init__(self, frame: Frame, ended: frozenset[tuple[str, str]]) -> None:
        self.frame = frame
        self.rows = len(frame.rows)
        sources, streams = ([row[name] for row in frame.streams] for name in ("source", "stream"))
        ends = [endpoints_of(row) for row in frame.streams]
        self.endpoints: list[str] = []
        known: dict[str, int] = {}
        for end in (end for pair in ends for end in pair):
            if end not in known:
                known[end] = len(known)
                self.endpoints.append(end)
        self.src = np.array([known[src] for src, _ in ends], np.int32)
        self.dst = np.array([known[dst] for _, dst in ends], np.int32)
        self.endpoint_texts = pa.array(self.endpoints, pa.string())
        self.no_endpoint = known.get("", -2)
        self.source_code, self.sources = text_codes(pa.array(sources, pa.string()))
        self.stream_code, self.stream_texts = text_codes(pa.array(streams, pa.string()))
        self.ended = np.array([key in ended for key in zip(sources, streams, strict=True)], bool)
        self.client_ids: list[str] = []
        self.subscriptions: list[str] = []

    def _jmq_rows(self) -> int:
        table = self.frame.tables.get(JMQ)
        return 0 if table is None else int(table.num_rows)

    # --- columns of packets -------------------------------------------------------------------

    def follow(self) -> None:
        """Read the columns, give numbers to what packets name, and follow the packets."""
        self._take_packets()
        self._take_keys()
        self._follow()

    def _take_packets(self) -> None:
        frame = self.frame
        self.connection = frame.connection_of_stream[frame.stream]
        kind = frame.mapped("format", _kind_of_format)
        ok = frame.mapped("status", lambda status: status in (None, "ok"))
        kind[(kind > 0) & (ok == 0)] = k.MISSED
        self.kind = np.ascontiguousarray(kind)
        self.packet_type = frame.ints("packet_type", np.int32)
        self.flags = frame.ints("bit_flags").astype(np.int32)
        self._find_clients()
        cells = self.packet_type.copy()
        cells[(cells < 0) | (cells >= k.TYPES)] = k.TYPES - 1
        from_client = self.from_client[frame.stream] != 0
        self.handler = np.where(from_client, k.FROM_CLIENT[cells], k.FROM_SERVER[cells])
        packets = self.kind == k.PACKET
        self.sent = np.flatnonzero(packets & (self.handler == k.SENDS))
        self.delivered = np.flatnonzero(packets & (self.handler == k.DELIVERS))
        messages = (self.handler == k.SENDS) | (self.handler == k.DELIVERS)
        self.control = np.flatnonzero(packets & ~messages)

    def _find_clients(self) -> None:
        """Find which end of each connection is the client's, and from which packet on it shows."""
        frame = self.frame
        says = np.full(k.TYPES, -1, np.int8)
        for by, types in ((1, BY_CLIENT), (0, BY_BROKER), (2, MESSAGE_TYPES)):
            says[[code for code in types if 0 <= code < k.TYPES]] = by
        known = (self.packet_type >= 0) & (self.packet_type < k.TYPES)
        by_client = says[np.where(known, self.packet_type, k.TYPES - 1)]
        by_client = np.where(by_client == 2, ~frame.valid("delivery_count"), by_client)
        shows = np.flatnonzero((self.kind == k.PACKET) & (by_client >= 0))
        first = np.full(frame.connections, self.rows, np.int64)
        first[self.connection[shows][::-1]] = shows[::-1]
        self.client = np.full(frame.connections, -1, np.int32)
        self.server = np.full(frame.connections, -1, np.int32)
        active = np.flatnonzero(first < self.rows)
        at = first[active]
        streams, is_client = frame.stream[at], by_client[at] == 1
        self.client[active] = np.where(is_client, self.src[streams], self.dst[streams])
        self.server[active] = np.where(is_client, self.dst[streams], self.src[streams])
        self.from_client = (self.src == self.client[frame.connection_of_stream]).astype(np.int8)
        early = (self.kind == k.PACKET) & (np.arange(self.rows) < first[self.connection])
        self.kind[early] = k.SEEN

    def _take_properties(self) -> records.Properties:
        """Read the properties of control packets."""
        maps = self.frame.jmq("properties", self.control)
        numbers = read_numbers(maps, _NUMBERED)
        self.property = np.full(self.rows, -1, np.int32)
        self.property[self.control] = np.arange(len(self.control))
        count = len(self.control)
        present = np.zeros(count, np.int32)
        for name in ("status", "consumer", "producer", "session", "transaction",
                     "next_transaction", "size"):  # fmt: skip
            present |= np.where(numbers.present[name], np.int32(k.has(name)), np.int32(0))
        self.numbers = numbers
        values = numbers.values
        named = ("status", "transaction", "next_transaction", "ack_mode", "ack_type", "dead_reason",
                 "count_only", "set_redelivered", "size")  # fmt: skip
        q = records.blank(
            records.Properties, count, present=present, **{name: values[name] for name in named}
        )
        self._read_names(q)
        return q

    def _read_names(self, q: records.Properties) -> None:
        """Read the text properties of the few packets that have them."""
        types = self.packet_type[self.control]
        chosen = np.flatnonzero((types == _ADD_CONSUMER) | (types == _SET_CLIENTID))
        ids: dict[str, int] = {}
        names: dict[str, int] = {}
        rows = self.frame.python_rows(JMQ, self.control[chosen], ("packet_type", "properties"))
        for at, row in zip(chosen.tolist(), map(as_packet, rows), strict=True):
            properties = properties_of(row)
            if row["packet_type"] == _SET_CLIENTID:
                client_id = text(properties, "JMQClientID")
                if client_id is not None:
                    q.client_id[at] = ids.setdefault(client_id, len(ids))
                continue
            subscription = text(properties, "JMQDurableName") or text(
                properties, "JMQSharedSubscriptionName"
            )
            if subscription is not None:
                q.subscription[at] = names.setdefault(subscription, len(names))
            q.of_dead[at] = text(properties, "JMQDestination") == DEAD_MESSAGE_QUEUE
        self.client_ids, self.subscriptions = list(ids), list(names)

    # --- keys ---------------------------------------------------------------------------------

    def _take_keys(self) -> None:
        """Give numbers to requests, consumers, messages, transactions and sessions."""
        frame, q = self.frame, self._take_properties()
        self.q = q
        of = self.connection
        self.consumer_id = frame.ints("consumer_id")
        control = self.control

        # Requests: the side that asks and the id that it chose.
        handler = self.handler
        answers = (handler == k.ANSWERS) | (handler == k.ANSWERS_BACK)
        wants = (self.flags & FLAGS["A"]) != 0
        asking = np.flatnonzero((self.kind == k.PACKET) & (wants | answers))
        by_broker = (self.from_client[frame.stream[asking]] == 0) != answers[asking]
        slots, requests = dense_ids(2 * of[asking] + by_broker, self.consumer_id[asking])
        self.request = np.full(self.rows, -1, np.int32)
        self.request[asking] = slots
        self.waiting = records.blank(records.Waiting, requests)

        # Transactions and sessions.
        number, there = self.numbers.values, self.numbers.present
        named = np.flatnonzero(there["transaction"])
        following = np.flatnonzero(there["next_transaction"])
        slots, self.transactions = dense_ids(
            of[control[np.concatenate([named, following])]],
            np.concatenate([number["transaction"][named], number["next_transaction"][following]]),
        )
        q.transaction_slot[named] = slots[: len(named)]
        q.next_slot[following] = slots[len(named) :]
        self.transaction_key = (named, following, slots)
        sessions = np.flatnonzero(there["session"])
        slots, session_count = dense_ids(of[control[sessions]], number["session"][sessions])
        q.session_slot[sessions] = slots

        # Consumers, and the messages that they hold.
        blocks = self._take_blocks()
        owner = np.repeat(self.block_rows, np.diff(blocks.starts))
        named = np.flatnonzero(there["consumer"])
        slots, consumers = dense_ids(
            np.concatenate([of[self.delivered], of[control[named]], of[owner]]),
            np.concatenate(
                [self.consumer_id[self.delivered], number["consumer"][named], blocks.words[0]]
            ),
        )
        first, second = len(self.delivered), len(self.delivered) + len(named)
        self.consumer = np.full(self.rows, -1, np.int32)
        self.consumer[self.delivered] = slots[:first]
        q.consumer_slot[named] = slots[first:second]
        consumer_of_block = slots[second:]
        self.consumers = records.blank(records.Consumers, max(consumers, session_count))

        seen_last = self._last_seen(there["consumer"])
        last_words = self.last_blocks.words
        address = read_addresses(frame.tables[JMQ]["source_ip"]) if JMQ in frame.tables else None
        pad = np.zeros(self.rows - self._jmq_rows(), np.int64)
        self.ip = [np.concatenate([half, pad])[frame.rows] for half in address or (pad, pad)]
        self.port = frame.ints("source_port", np.int32)
        self.sequence, self.timestamp = frame.ints("sequence"), frame.ints("timestamp")
        at = self.delivered
        message = [self.timestamp[at], self.ip[0][at], self.ip[1][at], self.port[at],
                   self.sequence[at]]  # fmt: skip
        slots, held = dense_ids(
            np.concatenate([self.consumer[at], consumer_of_block,
                            q.consumer_slot[self.property[seen_last]]]),
            *(np.concatenate([column, blocks.words[1 + word], last_words[1 + word]])
              for word, column in enumerate(message)),
        )  # fmt: skip
        self.message = np.full(self.rows, -1, np.int32)
        self.message[at] = slots[: len(at)]
        behind = len(at) + len(owner)
        self.message[seen_last] = slots[behind:]
        self.held = records.blank(
            records.Held,
            held,
            block_message=slots[len(at) : behind].copy(),
            pending=np.zeros(len(owner), np.int8),
            begun=np.zeros(self.transactions, np.int8),
        )
        self.blocks = blocks
        self._take_pauses()

    def _take_blocks(self) -> Any:
        """Read the blocks of packets that clients send about messages."""
        listed = np.flatnonzero(
            (self.kind == k.PACKET)
            & ((self.packet_type == _ACKNOWLEDGE) | (self.packet_type == _REDELIVER))
            & (self.from_client[self.frame.stream] != 0)
        )
        self.block_rows = listed
        self.version = self.frame.ints("version", np.int32)
        widths = np.array(
            [{"i": 4, "q": 8}[HEADERS[v]["consumer_id"].code] for v in sorted(HEADERS)], np.int64
        )
        wide = widths[np.searchsorted(sorted(HEADERS), self.version[listed])]
        blocks = read_blocks(_octets(self.frame.jmq("body", listed)), wide)
        self.block_start = np.zeros(self.rows + 1, np.int64)
        counts = np.zeros(self.rows, np.int64)
        counts[listed] = np.diff(blocks.starts)
        np.cumsum(counts, out=self.block_start[1:])
        self.malformed = np.zeros(self.rows, np.int8)
        self.malformed[listed] = blocks.malformed
        return blocks

    def _last_seen(self, has_consumer: Any) -> Any:
        """Return the DELETE_CONSUMER packets that name the last message seen, and read those."""
        chosen = np.flatnonzero(
            (self.packet_type[self.control] == _DELETE_CONSUMER)
            & (self.from_client[self.frame.stream[self.control]] != 0)
            & has_consumer
        )
        rows = self.control[chosen]
        bodies = _octets(self.frame.jmq("body", rows))
        found = read_blocks(bodies, np.zeros(len(rows), np.int64))
        one = np.diff(found.starts) == 1
        self.last_blocks = found._replace(words=found.words[:, found.starts[:-1][one]])
        return rows[one]

    def _take_pauses(self) -> None:
        """Give numbers to consumers, producers and connections where something may be paused."""
        of, frame = self.connection, self.frame
        from_client = self.from_client[frame.stream] != 0
        packets = self.kind == k.PACKET
        messages = packets & ((self.handler == k.SENDS) | (self.handler == k.DELIVERS))
        resumes = packets & (self.packet_type == _RESUME_FLOW)
        # Those to consumers are flow 0: messages from the broker, RESUME_FLOW from the client.
        flow = 2 * of + np.where(messages | (self.packet_type == _DELETE_PRODUCER),
                                 from_client, ~from_client)  # fmt: skip
        flow = np.where(self.packet_type == _DELETE_CONSUMER, 2 * of, flow)
        paused = np.zeros(2 * frame.connections, bool)
        paused[flow[messages & ((self.flags & _MARKS) != 0)]] = True
        paused[flow[resumes]] = True
        self.pause = np.full(self.rows, -1, np.int32)
        flows = np.flatnonzero(paused)
        whole = np.full(2 * frame.connections, -1, np.int32)
        values, there = self.numbers.values, self.numbers.present
        rows, who = [], []
        sent = np.flatnonzero(messages & from_client & paused[flow])
        sent = sent[frame.valid("producer_id")[sent]]
        rows.append(sent)
        who.append(frame.ints("producer_id")[sent])
        delivered = np.flatnonzero(messages & ~from_client & paused[flow])
        rows.append(delivered)
        who.append(self.consumer_id[delivered])
        types, client = self.packet_type[self.control], from_client[self.control]
        of_consumer = ((types == _RESUME_FLOW) | (types == _DELETE_CONSUMER)) & client
        of_producer = ((types == _RESUME_FLOW) & ~client) | ((types == _DELETE_PRODUCER) & client)
        for name, which in (("consumer", of_consumer), ("producer", of_producer)):
            chosen = np.flatnonzero(which & there[name] & paused[flow[self.control]])
            rows.append(self.control[chosen])
            who.append(values[name][chosen])
        found = np.concatenate(rows)
        slots, count = dense_ids(
            np.concatenate([flows, flow[found]]),
            np.concatenate([np.zeros(len(flows), np.int64), np.ones(len(found), np.int64)]),
            np.concatenate([np.zeros(len(flows), np.int64), *who]),
        )
        whole[flows] = slots[: len(flows)]
        self.pause[found] = slots[len(flows) :]
        self.whole = whole
        self.pauses = records.blank(records.Pauses, count)

    # --- following ----------------------------------------------------------------------------

    def _follow(self) -> None:
        frame = self.frame
        self.p = p = records.blank(
            records.Packets,
            self.rows,
            kind=self.kind,
            handler=np.ascontiguousarray(self.handler, np.int8),
            stream=frame.stream,
            packet_type=self.packet_type,
            flags=self.flags,
            version=self.version,
            size=frame.ints("size"),
            sequence=self.sequence,
            timestamp=self.timestamp,
            ip_high=self.ip[0],
            ip_low=self.ip[1],
            port=self.port,
            ns=frame.ns,
            timed=frame.timed.astype(np.int8),
            transaction=frame.ints("transaction_id"),
            properties=self.property,
            request=self.request,
            consumer=self.consumer,
            message=self.message,
            pause=self.pause,
            blocks=self.block_start,
            malformed=self.malformed,
        )
        self.streams = records.blank(
            records.Streams,
            len(frame.streams),
            connection=frame.connection_of_stream,
            from_client=self.from_client,
        )
        count = frame.connections
        lists = ("first_waiting", "last_waiting", "first_paused", "last_paused")
        self.connections = records.blank(
            records.Connections,
            count,
            state=np.full(count, SESSION.states.index("new"), np.int8),
            open=np.zeros(len(k.CAPS) * count, np.int64),
            pause=self.whole,
            **{name: np.full(2 * count, -1, np.int32) for name in lists},
        )
        found = records.blank(
            records.Found,
            _ROOM,
            counts=np.zeros(3, np.int64),
            dropped=np.zeros(len(k.CAPS), np.int64),
        )
        tables = k.compiled()
        kept: list[list[Any]] = [[], [], []]
        row = 0
        while row < self.rows:
            row = track_packets(
                row, tables, p, self.q, self.streams, self.connections, self.waiting,
                self.consumers, self.held, self.pauses, found, _ROOM,
            )  # fmt: skip
            for which, (first, stop) in enumerate(((2, 7), (7, 12), (12, 16))):
                count = int(found.counts[which])
                kept[which].append([column[:count].copy() for column in found[first:stop]])
            found.counts[:] = 0
        self.breaches, self.used, self.ran = (
            [np.concatenate(parts) for parts in zip(*found_of, strict=True)] if found_of else None
            for found_of in kept
        )
        self.dropped = Counter(
            {cap: int(many) for cap, many in zip(k.CAPS, found.dropped, strict=True) if many}
        )
        self._finish()

    def _finish(self) -> None:
        """Record that there are no more packets."""
        connections, frame = self.connections, self.frame
        seen_ended = np.zeros(frame.connections, bool)
        seen_ended[frame.connection_of_stream[(self.streams.seen != 0) & self.ended]] = True
        states = SESSION.states
        refused = connections.state == states.index("refused")
        names = np.array(["refused", "client", "server", "dropped", "open"])
        by = np.where(refused, 0, np.where(connections.ended_by > 0, connections.ended_by,
                                           np.where(seen_ended, 3, 4)))  # fmt: skip
        self.ended_by = names[by]
        self.is_open = by == 4
        waiting = self.waiting.row[self.waiting.row >= 0]
        messages = waiting[self.handler[waiting] == k.SENDS]
        self.in_flight_sent = np.bincount(self.connection[messages], minlength=frame.connections)
        held = self.held.row[self.held.row >= 0]
        self.in_flight_received = np.bincount(self.connection[held], minlength=frame.connections)
        gone = held[~self.is_open[self.connection[held]]]
        self.p.state[gone] = _CLOSED[self.p.state[gone]]
        for flow in range(2):
            self._end_pauses(flow)

    def _end_pauses(self, flow: int) -> None:
        connections = self.connections
        for c in np.flatnonzero(connections.first_paused[flow::2] >= 0).tolist():
            who, last = int(connections.first_paused[2 * c + flow]), int(connections.last[c])
            while who >= 0:
                since = int(self.pauses.since[who])
                if self.p.timed[since] and self.p.timed[last]:
                    connections.paused_ns[c] += max(int(self.p.ns[last]) - int(self.p.ns[since]), 0)
                who = int(self.pauses.after[who])


def _kind_of_format(format: str | None) -> int:
    name = (format or JMQ).partition("/")[0]
    return {JMQ: k.PACKET, GPACKET: k.SEEN}.get(name, 0)


def _octets(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())
