"""JMQ connections tracked on columns: the input of the kernel, and its final state.

Requests, consumers, messages, transactions and sessions in the columns of packets
(``packet_columns.py``) get slots. Then the kernel (``kernels``) runs over the
packets, and items that are still open at the end are ended. ``connection_columns.py`` makes tables
of the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wireyard.formats.jmq.layout import FLAGS, HEADERS, MESSAGE_TYPES, PACKET_TYPES
from wireyard.layers.endpoints import endpoints_of
from wireyard.layers.grouping import dense_ids, text_codes
from wireyard.layers.jmq.kernels import codes as k
from wireyard.layers.jmq.kernels import state as records
from wireyard.layers.jmq.kernels.connections import track_packets
from wireyard.layers.jmq.packet_columns import (
    GPACKET,
    JMQ,
    PacketColumns,
    read_addresses,
    read_blocks,
    read_numbers,
)
from wireyard.layers.jmq.packet_row import properties_of, text
from wireyard.layers.jmq.rules import BY_BROKER, BY_CLIENT, DEAD_MESSAGE_QUEUE
from wireyard.layers.jmq.states import DELIVERY, SESSION
from wireyard.layers.records import GAP

Ends = Mapping[tuple[str, str], tuple[int | None, int | None]]
"""By source and name of a stream that ends with a FIN or a reset, the time and frame of that."""

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
_CLOSED, _MISSED, _REPLY_LOST = (
    np.array(
        [DELIVERY.states.index(DELIVERY.lookup(state, event).state) for state in DELIVERY.states],
        np.int8,
    )
    for event in ("close", "miss", "reply_lost")
)
"""The state of a delivery after an event that ends the packets."""


class Tracking:
    """The packets of connections in order, the slots of their keys, and the results of the kernel.

    `ended` are the streams that end with a FIN or a reset.
    """

    def __init__(self, columns: PacketColumns, ended: Ends, sliced: Collection[str]) -> None:
        self.columns = columns
        self.rows = len(columns.rows)
        sources, streams = ([row[name] for row in columns.streams] for name in ("source", "stream"))
        ends = [endpoints_of(row) for row in columns.streams]
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
        self.of_slice = np.array([source in sliced for source in sources], bool)
        self.source_code, self.sources = text_codes(pa.array(sources, pa.string()))
        self.stream_code, self.stream_texts = text_codes(pa.array(streams, pa.string()))
        keys = list(zip(sources, streams, strict=True))
        self.ended = np.array([key in ended for key in keys], bool)
        self.ends = [ended.get(key, (None, None)) for key in keys]
        self.client_ids: list[str] = []
        self.subscriptions: list[str] = []

    def _jmq_rows(self) -> int:
        table = self.columns.tables.get(JMQ)
        return 0 if table is None else int(table.num_rows)

    # --- columns of packets -------------------------------------------------------------------

    def track(self) -> None:
        """Read the columns, assign slots to the keys of packets, and track the packets."""
        self._read_packets()
        self._assign_slots()
        self._run_kernel()

    def _read_packets(self) -> None:
        columns = self.columns
        self.connection = columns.connection_of_stream[columns.stream]
        kind = columns.mapped("format", _kind_of_format)
        ok = columns.mapped("status", lambda status: status in (None, "ok"))
        kind[(kind > 0) & (ok == 0)] = k.MISSED
        lost = columns.mapped("status", lambda status: status == GAP)
        kind[(kind == k.MISSED) & (lost != 0)] = k.LOST
        self.kind = np.ascontiguousarray(kind)
        self.packet_type = columns.ints("packet_type", np.int32)
        self.flags = columns.ints("bit_flags").astype(np.int32)
        self._find_clients()
        cells = self.packet_type.copy()
        cells[(cells < 0) | (cells >= k.TYPES)] = k.TYPES - 1
        from_client = self.from_client[columns.stream] != 0
        self.handler = np.where(from_client, k.CLIENT_HANDLERS[cells], k.BROKER_HANDLERS[cells])
        # A type that is not known may be that of a reply: the id shows which request it answers.
        may_answer = ~np.isin(self.packet_type, list(PACKET_TYPES))
        may_answer &= (self.flags & FLAGS["A"]) == 0
        reply = np.where(from_client, k.CLIENT_REPLIES, k.REPLIES)
        self.handler = np.where(may_answer, reply, self.handler)
        packets = self.kind == k.PACKET
        self._find_repeated(packets & from_client)
        self.sent = np.flatnonzero(packets & (self.handler == k.SENDS))
        self.delivered = np.flatnonzero(packets & (self.handler == k.DELIVERS))
        messages = (self.handler == k.SENDS) | (self.handler == k.DELIVERS)
        self.control = np.flatnonzero(packets & ~messages)

    def _find_repeated(self, from_client: Any) -> None:
        """Read the ids of packets, and find those that clients send again on their connection."""
        columns = self.columns
        jmq = columns.tables.get(JMQ)
        address = None if jmq is None else read_addresses(jmq["source_ip"])
        pad = np.zeros(self.rows - self._jmq_rows(), np.int64)
        self.ip = [np.concatenate([half, pad])[columns.rows] for half in address or (pad, pad)]
        self.port = columns.ints("source_port", np.int32)
        self.sequence, self.timestamp = columns.ints("sequence"), columns.ints("timestamp")
        self.again = np.full(self.rows, -1, np.int32)
        is_resent = (self.flags & FLAGS["I"]) != 0
        if not (is_resent & from_client).any():
            return
        rows = np.flatnonzero(from_client)
        same, _ = dense_ids(
            *(column[rows] for column in (self.connection, self.packet_type, self.timestamp,
                                          *self.ip, self.port, self.sequence))
        )  # fmt: skip
        order = np.argsort(same, kind="stable")
        is_first = np.diff(same[order], prepend=-1) != 0
        is_new = is_first | ~is_resent[rows[order]]
        newest = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
        self.again[rows[order[~is_new]]] = rows[order[newest[~is_new]]]

    def _find_clients(self) -> None:
        """Find the client's end of each connection, by the first packet that shows it."""
        columns = self.columns
        by_type = np.full(k.TYPES, -1, np.int8)
        for by, types in ((1, BY_CLIENT), (0, BY_BROKER), (2, MESSAGE_TYPES)):
            by_type[[code for code in types if 0 <= code < k.TYPES]] = by
        known = (self.packet_type >= 0) & (self.packet_type < k.TYPES)
        from_client = by_type[np.where(known, self.packet_type, k.TYPES - 1)]
        packets, is_message = self.kind == k.PACKET, from_client == 2
        of_broker = columns.valid("delivery_count") | ((self.flags & FLAGS["B"]) != 0)
        from_client[is_message] = ~of_broker[is_message]
        first = np.full(columns.connections, self.rows, np.int64)
        # Of several rows of a connection, the last assignment counts.
        for shows in (is_message & ~of_broker, (from_client >= 0) & ~(is_message & ~of_broker)):
            rows = np.flatnonzero(packets & shows)[::-1]
            first[self.connection[rows]] = rows
        self.client = np.full(columns.connections, -1, np.int32)
        self.server = np.full(columns.connections, -1, np.int32)
        active = np.flatnonzero(first < self.rows)
        at = first[active]
        streams, is_client = columns.stream[at], from_client[at] == 1
        self.client[active] = np.where(is_client, self.src[streams], self.dst[streams])
        self.server[active] = np.where(is_client, self.dst[streams], self.src[streams])
        self.from_client = (self.src == self.client[columns.connection_of_stream]).astype(np.int8)
        self.kind[packets & (first[self.connection] == self.rows)] = k.SEEN

    def _read_properties(self) -> records.Properties:
        """Read the properties of control packets."""
        maps = self.columns.jmq("properties", self.control)
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
        rows = self.columns.python_rows(JMQ, self.control[chosen], ("packet_type", "properties"))
        for at, row in zip(chosen.tolist(), rows, strict=True):
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
            q.from_dead_queue[at] = text(properties, "JMQDestination") == DEAD_MESSAGE_QUEUE
        self.client_ids, self.subscriptions = list(ids), list(names)

    # --- keys ---------------------------------------------------------------------------------

    def _assign_slots(self) -> None:
        """Assign slots to requests, transactions, sessions, consumers, messages and pauses."""
        self.q = self._read_properties()
        self.consumer_id = self.columns.ints("consumer_id")
        self.blocks = self._read_blocks()
        self._assign_request_slots()
        self._assign_transaction_slots()
        consumer_of_block = self._assign_consumer_slots(self._assign_session_slots())
        self._assign_message_slots(consumer_of_block)
        self._assign_pause_slots()

    def _assign_request_slots(self) -> None:
        """Assign slots to requests by the side that sends them and their id."""
        handler = self.handler
        is_reply = (handler == k.REPLIES) | (handler == k.CLIENT_REPLIES)
        is_request = (self.flags & FLAGS["A"]) != 0
        rows = np.flatnonzero((self.kind == k.PACKET) & (is_request | is_reply))
        by_broker = (self.from_client[self.columns.stream[rows]] == 0) != is_reply[rows]
        slots, requests = dense_ids(2 * self.connection[rows] + by_broker, self.consumer_id[rows])
        self.request = np.full(self.rows, -1, np.int32)
        self.request[rows] = slots
        self.waiting = records.blank(records.Waiting, requests)

    def _assign_transaction_slots(self) -> None:
        number, present = self.numbers.values, self.numbers.present
        named = np.flatnonzero(present["transaction"])
        following = np.flatnonzero(present["next_transaction"])
        slots, self.transactions = dense_ids(
            self.connection[self.control[np.concatenate([named, following])]],
            np.concatenate([number["transaction"][named], number["next_transaction"][following]]),
        )
        self.q.transaction_slot[named] = slots[: len(named)]
        self.q.next_slot[following] = slots[len(named) :]
        self.transaction_key = (named, following, slots)

    def _assign_session_slots(self) -> int:
        """Assign slots to sessions; return the number of sessions."""
        named = np.flatnonzero(self.numbers.present["session"])
        slots, sessions = dense_ids(
            self.connection[self.control[named]], self.numbers.values["session"][named]
        )
        self.q.session_slot[named] = slots
        return sessions

    def _assign_consumer_slots(self, sessions: int) -> Any:
        """Assign slots to consumers; return the slot of the consumer of each block."""
        of = self.connection
        named = np.flatnonzero(self.numbers.present["consumer"])
        owner = np.repeat(self.block_rows, np.diff(self.blocks.starts))
        slots, consumers = dense_ids(
            np.concatenate([of[self.delivered], of[self.control[named]], of[owner]]),
            np.concatenate(
                [
                    self.consumer_id[self.delivered],
                    self.numbers.values["consumer"][named],
                    self.blocks.words[0],
                ]
            ),
        )
        first, second = len(self.delivered), len(self.delivered) + len(named)
        self.consumer = np.full(self.rows, -1, np.int32)
        self.consumer[self.delivered] = slots[:first]
        self.q.consumer_slot[named] = slots[first:second]
        self.consumers = records.blank(records.Consumers, max(consumers, sessions))
        return slots[second:]

    def _assign_message_slots(self, consumer_of_block: Any) -> None:
        """Assign slots to the messages of consumers: delivered, in blocks, or seen last."""
        words = self.blocks.words
        seen_last = self._last_seen(self.numbers.present["consumer"])
        last_words = self.last_blocks.words
        at = self.delivered
        message = [self.timestamp[at], self.ip[0][at], self.ip[1][at], self.port[at],
                   self.sequence[at]]  # fmt: skip
        slots, held = dense_ids(
            np.concatenate([self.consumer[at], consumer_of_block,
                            self.q.consumer_slot[self.property[seen_last]]]),
            *(np.concatenate([column, words[1 + word], last_words[1 + word]])
              for word, column in enumerate(message)),
        )  # fmt: skip
        blocks_end = len(at) + len(consumer_of_block)
        self.message = np.full(self.rows, -1, np.int32)
        self.message[at] = slots[: len(at)]
        self.message[seen_last] = slots[blocks_end:]
        self.held = records.blank(
            records.Held,
            held,
            block_message=slots[len(at) : blocks_end].copy(),
            pending=np.zeros(len(consumer_of_block), np.int8),
            begun=np.zeros(self.transactions, np.int8),
            begun_at=np.full(self.transactions, -1, np.int32),
        )

    def _read_blocks(self) -> Any:
        """Read the blocks of ACKNOWLEDGE and REDELIVER packets of clients."""
        listed = np.flatnonzero(
            (self.kind == k.PACKET)
            & ((self.packet_type == _ACKNOWLEDGE) | (self.packet_type == _REDELIVER))
            & (self.from_client[self.columns.stream] != 0)
        )
        self.block_rows = listed
        self.version = self.columns.ints("version", np.int32)
        widths = np.array(
            [{"i": 4, "q": 8}[HEADERS[v]["consumer_id"].code] for v in sorted(HEADERS)], np.int64
        )
        wide = widths[np.searchsorted(sorted(HEADERS), self.version[listed])]
        blocks = read_blocks(_octets(self.columns.jmq("body", listed)), wide)
        self.block_start = np.zeros(self.rows + 1, np.int64)
        counts = np.zeros(self.rows, np.int64)
        counts[listed] = np.diff(blocks.starts)
        np.cumsum(counts, out=self.block_start[1:])
        self.malformed = np.zeros(self.rows, np.int8)
        self.malformed[listed] = blocks.malformed
        return blocks

    def _last_seen(self, has_consumer: Any) -> Any:
        """Return the DELETE_CONSUMER packets with the id of the last message seen; read that id."""
        chosen = np.flatnonzero(
            (self.packet_type[self.control] == _DELETE_CONSUMER)
            & (self.from_client[self.columns.stream[self.control]] != 0)
            & has_consumer
        )
        rows = self.control[chosen]
        bodies = _octets(self.columns.jmq("body", rows))
        blocks = read_blocks(bodies, np.zeros(len(rows), np.int64))
        is_single = np.diff(blocks.starts) == 1
        self.last_blocks = blocks._replace(words=blocks.words[:, blocks.starts[:-1][is_single]])
        return rows[is_single]

    def _assign_pause_slots(self) -> None:
        """Assign slots to consumers, producers and connections of flows that may be paused."""
        of, columns = self.connection, self.columns
        from_client = self.from_client[columns.stream] != 0
        packets = self.kind == k.PACKET
        messages = packets & ((self.handler == k.SENDS) | (self.handler == k.DELIVERS))
        resumes = packets & (self.packet_type == _RESUME_FLOW)
        # Flow 0 is to the consumers: messages from the broker, RESUME_FLOW from the client.
        flow = 2 * of + np.where(messages | (self.packet_type == _DELETE_PRODUCER),
                                 from_client, ~from_client)  # fmt: skip
        flow = np.where(self.packet_type == _DELETE_CONSUMER, 2 * of, flow)
        paused = np.zeros(2 * columns.connections, bool)
        paused[flow[messages & ((self.flags & _MARKS) != 0)]] = True
        paused[flow[resumes]] = True
        self.pause = np.full(self.rows, -1, np.int32)
        flows = np.flatnonzero(paused)
        whole = np.full(2 * columns.connections, -1, np.int32)
        values, present = self.numbers.values, self.numbers.present
        rows, targets = [], []
        sent = np.flatnonzero(messages & from_client & paused[flow])
        sent = sent[columns.valid("producer_id")[sent]]
        rows.append(sent)
        targets.append(columns.ints("producer_id")[sent])
        delivered = np.flatnonzero(messages & ~from_client & paused[flow])
        rows.append(delivered)
        targets.append(self.consumer_id[delivered])
        types, client = self.packet_type[self.control], from_client[self.control]
        of_consumer = ((types == _RESUME_FLOW) | (types == _DELETE_CONSUMER)) & client
        of_producer = ((types == _RESUME_FLOW) & ~client) | ((types == _DELETE_PRODUCER) & client)
        for name, which in (("consumer", of_consumer), ("producer", of_producer)):
            chosen = np.flatnonzero(which & present[name] & paused[flow[self.control]])
            rows.append(self.control[chosen])
            targets.append(values[name][chosen])
        named = np.concatenate(rows)
        slots, count = dense_ids(
            np.concatenate([flows, flow[named]]),
            np.concatenate([np.zeros(len(flows), np.int64), np.ones(len(named), np.int64)]),
            np.concatenate([np.zeros(len(flows), np.int64), *targets]),
        )
        whole[flows] = slots[: len(flows)]
        self.pause[named] = slots[len(flows) :]
        self.whole = whole
        self.pauses = records.blank(records.Pauses, count)

    # --- tracking -----------------------------------------------------------------------------

    def _run_kernel(self) -> None:
        columns = self.columns
        self.p = p = records.blank(
            records.Packets,
            self.rows,
            kind=self.kind,
            handler=np.ascontiguousarray(self.handler, np.int8),
            stream=columns.stream,
            packet_type=self.packet_type,
            flags=self.flags,
            version=self.version,
            size=columns.ints("size"),
            sequence=self.sequence,
            timestamp=self.timestamp,
            ip_high=self.ip[0],
            ip_low=self.ip[1],
            port=self.port,
            ns=columns.ns,
            timed=columns.timed.astype(np.int8),
            transaction=columns.ints("transaction_id"),
            properties=self.property,
            request=self.request,
            consumer=self.consumer,
            message=self.message,
            pause=self.pause,
            blocks=self.block_start,
            malformed=self.malformed,
            again=self.again,
        )
        self.streams = records.blank(
            records.Streams,
            len(columns.streams),
            connection=columns.connection_of_stream,
            from_client=self.from_client,
        )
        count = columns.connections
        silent = np.ones(2 * count, np.int8)
        silent[2 * columns.connection_of_stream + self.from_client] = 0
        lists = ("first_waiting", "last_waiting", "first_paused", "last_paused")
        self.connections = records.blank(
            records.Connections,
            count,
            state=np.full(count, SESSION.states.index("new"), np.int8),
            open=np.zeros(len(k.CAPS) * count, np.int64),
            pause=self.whole,
            one_sided=silent.reshape(-1, 2).any(axis=1).astype(np.int8),
            in_gap=silent,
            missed=np.full(2 * count, -1, np.int32),
            **{name: np.full(2 * count, -1, np.int32) for name in lists},
        )
        buffers = records.blank(
            records.Buffers,
            _ROOM,
            counts=np.zeros(2, np.int64),
            dropped=np.zeros(len(k.CAPS), np.int64),
        )
        tables = k.compiled()
        kept: list[list[Any]] = [[], []]
        row = 0
        while row < self.rows:
            row = track_packets(
                row, tables, p, self.q, self.streams, self.connections, self.waiting,
                self.consumers, self.held, self.pauses, buffers, _ROOM,
            )  # fmt: skip
            for which, (first, stop) in enumerate(((2, 7), (7, 13))):
                count = int(buffers.counts[which])
                kept[which].append([column[:count].copy() for column in buffers[first:stop]])
            buffers.counts[:] = 0
        self.violations, self.used = (
            [np.concatenate(parts) for parts in zip(*parts_of, strict=True)] if parts_of else None
            for parts_of in kept
        )
        self.dropped = Counter(
            {cap: int(many) for cap, many in zip(k.CAPS, buffers.dropped, strict=True) if many}
        )
        self._finish()

    def _finish(self) -> None:
        """End what is still open at the end of the packets."""
        connections, columns = self.connections, self.columns
        lacks_end = self._lacks_end()
        connections.missed[connections.in_gap != 0] = self.rows
        self.missed = connections.missed.reshape(-1, 2).max(axis=1)
        """The last row at which packets of a connection may be missing."""
        self.has_gap = self.missed >= 0
        self.is_whole = (connections.known != 0) & ~self.has_gap
        seen_ended = np.zeros(columns.connections, bool)
        seen_ended[columns.connection_of_stream[self.ended]] = True
        refused = connections.state == SESSION.states.index("refused")
        goodbye = connections.ended_by > 0
        names = np.array(["refused", "client", "server", "dropped", "open", None])
        other = np.stack([connections.ended_by != 2, connections.ended_by != 1], axis=1)
        unseen = (connections.may_be_refused != 0) | (connections.state == k.NEW)
        unknown = (connections.one_sided != 0) | unseen | (lacks_end & other).any(axis=1)
        by = np.where(unknown, 5, np.where(goodbye, connections.ended_by, 3))
        by = np.where(refused, 0, np.where(goodbye | seen_ended, by, 4))
        self.ended_by = names[by]
        self.is_open = by == 4
        self._find_ends()
        waiting = np.unique(self.waiting.row[self.waiting.row >= 0])
        waiting = waiting[self.p.reply[waiting] < 0]
        messages = waiting[self.handler[waiting] == k.SENDS]
        self.in_flight_sent = np.bincount(self.connection[messages], minlength=columns.connections)
        held = self.held.row[self.held.row >= 0]
        self.in_flight_received = np.bincount(self.connection[held], minlength=columns.connections)
        missed = self.missed[self.connection[held]]
        for since, following in ((held, _MISSED), (self.p.acknowledged[held], _REPLY_LOST)):
            unsure = held[since < missed]
            self.p.state[unsure] = following[self.p.state[unsure]]
        gone = held[~self.is_open[self.connection[held]]]
        self.p.state[gone] = _CLOSED[self.p.state[gone]]
        for flow in range(2):
            self._end_pauses(flow)

    def _lacks_end(self) -> Any:
        """Return whether packets behind the last one of a side may be missing.

        Axes: connection, and whether it is the client's side. A slice may lack packets behind the
        last one of a stream, unless it has the end.
        """
        connections, columns = self.connections, self.columns
        cut = np.flatnonzero(self.of_slice & ~self.ended)
        connections.in_gap[2 * columns.connection_of_stream[cut] + self.from_client[cut]] = 1
        rows = np.flatnonzero(np.isin(self.kind, (k.PACKET, k.LOST, k.MISSED)))
        lacks = np.zeros(2 * columns.connections, bool)
        # Of several rows of a side, the last assignment counts.
        sides = 2 * self.connection[rows] + self.from_client[columns.stream[rows]]
        lacks[sides] = self.kind[rows] != k.PACKET
        return (lacks | (connections.in_gap != 0)).reshape(-1, 2)

    def _find_ends(self) -> None:
        """Find the time and frame of the end of each connection: its last packet, or its FIN."""
        columns, last = self.columns, self.connections.last
        self.ended_at: list[tuple[int | None, int | None]] = [
            (int(columns.ns[row]) if columns.timed[row] else None,
             int(columns.frame[row]) if columns.has_frame[row] else None)
            if row >= 0 else (None, None)
            for row in last.tolist()
        ]  # fmt: skip
        ends = [(ns, frame or 0, s) for s, (ns, frame) in enumerate(self.ends) if ns is not None]
        for ns, _, s in sorted(ends):
            c = int(columns.connection_of_stream[s])
            if not self.is_open[c] and ns >= (self.ended_at[c][0] or 0):
                self.ended_at[c] = self.ends[s]

    def _end_pauses(self, flow: int) -> None:
        connections = self.connections
        for c in np.flatnonzero(connections.first_paused[flow::2] >= 0).tolist():
            targets, end = int(connections.first_paused[2 * c + flow]), self.ended_at[c][0]
            while targets >= 0:
                since = int(self.pauses.since[targets])
                if self.p.timed[since] and end is not None:
                    connections.paused_ns[c] += max(end - int(self.p.ns[since]), 0)
                targets = int(self.pauses.after[targets])


def _kind_of_format(format: str | None) -> int:
    name = (format or JMQ).partition("/")[0]
    return {JMQ: k.PACKET, GPACKET: k.SEEN}.get(name, 0)


def _octets(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())
