"""The first phase of the columnar engine, key: source and connection.

The kernel (``kernels``) tracks all connections by their packets. Here its results
become columns: facts that are final, and records for later phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wireyard.accelerate import kernel
from wireyard.arrays import Int8s, Int32s, Ints
from wireyard.formats.base import Row
from wireyard.formats.gpacket.layout import LINK_VERSION
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.message_id import message_id_text
from wireyard.layers.endpoints import endpoint
from wireyard.layers.grouping import decode_texts, dense_ids, text_codes
from wireyard.layers.jmq.kernels import codes as k
from wireyard.layers.jmq.packet_columns import (
    GPACKET,
    JMQ,
    ROW_NUMBER,
    PacketColumns,
    rows_in_parts,
)
from wireyard.layers.jmq.packet_row import (
    MESSAGE_ACK,
    MESSAGE_DATA,
    NEEDED,
    Relay,
    properties_of,
    relays,
    text,
    user_of,
)
from wireyard.layers.jmq.record_columns import violation_rows
from wireyard.layers.jmq.rules import DEAD_REASON, DONE_BEFORE, OK, RULES
from wireyard.layers.jmq.tracking import Ends, Tracking
from wireyard.layers.records import Position
from wireyard.layers.tables import as_fact_table, fact_table, join_tables, packet_keys

NO_ENDS: Final[Ends] = MappingProxyType({})
RESENT: Final = FLAGS["I"] | FLAGS["R"]
"""Flags of a message that may have been sent before."""
_OF_REQUEST: Final = ("message_key", "packet_type", "resent")
"""What is known of a request besides the columns of its conversation."""
_NS_PER_MS: Final = 1_000_000
_GPACKET_RULES: Final = ("sequence_back", "sequence_reused")
_PARTS: Final = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")


class ConnectionResult(NamedTuple):
    """The result of the first phase: final rows by table, and records for later phases.

    `requests` are those that may be sent again elsewhere; `dropped` is the number of items that
    caps dropped.
    """

    facts: dict[str, pa.Table]
    sendings: pa.Table
    deliveries: pa.Table
    relays: pa.Table
    uses: pa.Table
    requests: pa.Table
    dropped: Counter[str]


def _masked(values: Any, is_valid: Any) -> pa.Array:
    return pa.array(values, mask=~np.asarray(is_valid, bool))


def follow_connections(
    tables: Mapping[str, pa.Table], ended: Ends = NO_ENDS, sliced: Collection[str] = ()
) -> ConnectionResult:
    """Track whole connections by their packets.

    `tables` has the bronze columns of each format (``jmq``, ``gpacket``): those of `NEEDED` that
    the format has. The rows of a stream are contiguous and in the order of its bytes. Messages may
    have null `properties` and `body`: only the reason why a message is dead is read. `ended` are
    the streams that end with a FIN or a reset; `sliced` are the inputs that are slices, which lack
    other connections of a client.
    """
    return _ConnectionTables(PacketColumns(tables), ended, sliced).run()


class _ConnectionTables(Tracking):
    """The results of tracking as tables."""

    def run(self) -> ConnectionResult:
        """Track the packets and return the results as columns."""
        self.track()
        requests, may_be_resent = self._requests()
        final = requests.filter(pa.array(~may_be_resent)).drop_columns(_OF_REQUEST)
        facts: dict[str, list[pa.Table]] = {
            "conversations": [final],
            "violations": [self._violations()],
            "sessions": [self._sessions()],
        }
        gpackets = np.flatnonzero(self.columns.rows >= self._jmq_rows())
        gpackets = gpackets[self.kind[gpackets] == k.SEEN]
        facts["violations"].append(self._gpacket_violations(gpackets))
        return ConnectionResult(
            {table: join_tables(parts) for table, parts in facts.items()},
            self._sendings(),
            self._deliveries(),
            self._relays(gpackets),
            self._uses(),
            requests.filter(pa.array(may_be_resent)),
            self.dropped,
        )

    # --- columns of the results ---------------------------------------------------------------

    def _positions(self, places: Any, prefix: str = "") -> dict[str, Any]:
        """Return the positions of packets as columns: stream, offset, frame and time."""
        columns, exists = self.columns, places >= 0
        at = np.where(exists, places, 0)
        if not exists.any():
            at, codes = np.zeros(len(places), np.int64), np.full(len(places), -1)
            offset = stream_frame = ns = pa.nulls(len(places), pa.int64())
        else:
            codes = np.where(exists, self.stream_code[columns.stream[at]], -1)
            offset = _masked(columns.offset[at], exists)
            stream_frame = _masked(columns.frame[at], exists & columns.has_frame[at])
            ns = _masked(columns.ns[at], exists & columns.timed[at])
        return {
            f"{prefix}stream": decode_texts(codes, self.stream_texts),
            f"{prefix}offset": offset,
            f"{prefix}frame": stream_frame,
            f"{prefix}ns": ns,
        }

    def _source(self, places: Any) -> pa.Array:
        return decode_texts(self.source_code[self.columns.stream[places]], self.sources)

    def _client_and_server(self, places: Any) -> tuple[pa.Array, pa.Array]:
        """Return the endpoints of the client and of the broker of packets."""
        of = self.connection[places]
        return (
            decode_texts(self.client[of], self.endpoint_texts),
            decode_texts(self.server[of], self.endpoint_texts),
        )

    def _endpoints(self, codes: Any) -> pa.Array:
        """Return endpoints by their codes; null for the unknown end of a raw stream."""
        return decode_texts(np.where(codes == self.no_endpoint, -1, codes), self.endpoint_texts)

    def _status(self, places: Any) -> tuple[Any, Any]:
        """Return the status of replies, and which of them have one."""
        if len(self.control) == 0:
            return np.zeros(len(places), np.int64), np.zeros(len(places), bool)
        at = np.where(places >= 0, self.property[places], -1)
        has_status = (at >= 0) & self.numbers.present["status"][at]
        return np.where(has_status, self.q.status[at], 0), has_status

    @cached_property
    def _keys(self) -> tuple[Any, pa.Array]:
        """Return the message key of each sent and delivered message as a code, and the keys."""
        rows = np.concatenate([self.sent, self.delivered])
        return text_codes(self.columns.jmq("sys_message_id", rows))

    def _sendings(self) -> pa.Table:
        rows = self.sent
        codes, keys = self._keys
        client, server = self._client_and_server(rows)
        reply = self.p.reply[rows]
        status, has_status = self._status(reply)
        accepted = np.where(has_status & np.isin(status, (OK, DONE_BEFORE)), reply, -1)
        transaction = self.p.transaction[rows]
        return pa.table(
            {
                "message_key": decode_texts(codes[: len(rows)], keys),
                "producer": client,
                "server": server,
                "client_id": self._client_ids(self.p.client_id[rows]),
                "user": self._users_of(rows),
                **self._message_texts(rows),
                "transaction_id": _masked(transaction, transaction != 0),
                "status": _masked(status, has_status),
                "resent": (self.flags[rows] & RESENT) != 0,
                "is_whole": self.is_whole[self.connection[rows]],
                ROW_NUMBER: self.columns.row_number[rows],
                "source": self._source(rows),
                **self._positions(rows),
                **self._positions(accepted, "accepted_"),
            }
        )

    def _message_texts(self, rows: Any) -> dict[str, Any]:
        """Return the columns of messages that match replies to requests."""
        destination, reply_to, correlation = (
            self.columns.texts(name, rows) for name in ("destination", "reply_to", "correlation_id")
        )
        is_request = reply_to.is_valid().to_numpy(zero_copy_only=False)
        chosen = pa.nulls(len(rows), pa.string())
        if is_request.any():
            message_id = self.columns.texts("message_id", rows[is_request])
            places = np.where(is_request, np.cumsum(is_request) - 1, 0)
            chosen = message_id.take(pa.array(places, mask=~is_request))
        return {
            "destination": decode_texts(*text_codes(destination)),
            "reply_to": decode_texts(*text_codes(reply_to)),
            "correlation_id": correlation,
            "message_id": chosen,
        }

    def _client_ids(self, codes: Any) -> pa.Array:
        return decode_texts(codes, pa.array(self.client_ids, pa.string()))

    def _deliveries(self) -> pa.Table:
        rows, p = self.delivered, self.p
        codes, keys = self._keys
        client, server = self._client_and_server(rows)
        joined = p.joined[rows]
        counts = self.columns.ints("delivery_count")[rows]
        return pa.table(
            {
                "message_key": decode_texts(codes[len(self.sent) :], keys),
                "producer": self._addresses(rows),
                "consumer": client,
                "server": server,
                "consumer_id": self.consumer_id[rows],
                "client_id": self._client_ids(p.client_id[rows]),
                "subscription": decode_texts(
                    p.subscription[rows], pa.array(self.subscriptions, pa.string())
                ),
                "redelivered": (self.flags[rows] & FLAGS["R"]) != 0,
                "delivery_count": _masked(counts, self.columns.valid("delivery_count")[rows]),
                "state": decode_texts(p.state[rows], pa.array(k.DELIVERY_STATES, pa.string())),
                "dead_reason": self._dead_reasons(rows),
                **self._message_texts(rows),
                "transaction_id": _masked(joined, joined != 0),
                "resent": (self.flags[rows] & RESENT) != 0,
                "is_whole": self.is_whole[self.connection[rows]],
                ROW_NUMBER: self.columns.row_number[rows],
                "source": self._source(rows),
                **self._positions(rows),
                **self._positions(p.acknowledged[rows], "acknowledged_"),
            }
        )

    def _addresses(self, rows: Any) -> pa.Array:
        codes, texts = text_codes(self.columns.jmq("source_ip_text", rows))
        ports = self.port[rows]
        both, count = dense_ids(codes, ports)
        first = np.zeros(count, np.int64)
        first[both[::-1]] = np.arange(len(rows))[::-1]
        hosts = texts.take(pa.array(codes[first])).to_pylist()
        shown = [
            endpoint(host.partition("(")[0], port)
            for host, port in zip(hosts, ports[first].tolist(), strict=True)
        ]
        return decode_texts(both, pa.array(shown, pa.string()))

    def _dead_reasons(self, rows: Any) -> pa.Array:
        dead_rows = np.flatnonzero(self.p.from_dead_queue[rows])
        reasons: dict[str, int] = {}
        codes = np.full(len(rows), -1, np.int32)
        dead = self.columns.python_rows(JMQ, rows[dead_rows], ("properties",))
        for at, row in zip(dead_rows.tolist(), dead, strict=True):
            reason = text(properties_of(row), DEAD_REASON)
            if reason is not None:
                codes[at] = reasons.setdefault(reason, len(reasons))
        return decode_texts(codes, pa.array(list(reasons), pa.string()))

    def _requests(self) -> tuple[pa.Table, Any]:
        """Return conversations with the columns `_OF_REQUEST`, and which may be sent again."""
        rows = np.flatnonzero(self.p.is_request)
        reply = self.p.reply[rows]
        client, server = self.client[self.connection[rows]], self.server[self.connection[rows]]
        from_client = self.from_client[self.columns.stream[rows]] != 0
        status, has_status = self._status(reply)
        requested, replied = self._positions(rows), self._positions(reply, "r")
        columns, has_reply = self.columns, reply >= 0
        at = np.where(has_reply, reply, 0)
        timed = has_reply & columns.timed[at] & columns.timed[rows] if len(rows) else has_reply
        latency = (columns.ns[at] - columns.ns[rows]) // _NS_PER_MS if len(rows) else reply
        names = text_codes(columns.jmq("packet_type_name", rows))
        resent = (self.flags[rows] & FLAGS["I"]) != 0
        conversations = as_fact_table(
            "conversations",
            {
                "kind": decode_texts(np.zeros(len(rows)), pa.array(["control"])),
                "request_key": packet_keys(requested["stream"], requested["offset"]),
                "reply_key": packet_keys(replied["rstream"], replied["roffset"]),
                "requester": self._endpoints(np.where(from_client, client, server)),
                "responder": self._endpoints(np.where(from_client, server, client)),
                "requested_ns": requested["ns"],
                "replied_ns": replied["rns"],
                "latency_ms": _masked(latency, timed),
                "status": _masked(status, has_status),
                "request": self._type_names(rows, *names, "{}"),
                "requested_frame": requested["frame"],
                "replied_frame": replied["rframe"],
                "source": self._source(rows),
                "stream": requested["stream"],
                "offset": requested["offset"],
            },
        )
        of_request = {
            "message_key": columns.jmq("sys_message_id", rows).cast(pa.string()),
            "packet_type": self.packet_type[rows],
            "resent": resent,
        }
        for name, column in of_request.items():
            conversations = conversations.append_column(name, pa.array(column))
        return conversations, from_client & (resent | ~has_reply)

    def _type_names(self, rows: Any, codes: Any, names: pa.Array, unnamed: str) -> pa.Array:
        """Return the names of packet types; `unnamed` formats the number of a type without one."""
        known: list[str] = names.to_pylist()
        type_codes = codes.copy()
        for packet_type in np.unique(self.packet_type[rows[codes < 0]]).tolist():
            type_codes[(codes < 0) & (self.packet_type[rows] == packet_type)] = len(known)
            known.append(unnamed.format(packet_type))
        return decode_texts(type_codes, pa.array(known, pa.string()))

    def _violations(self) -> pa.Table:
        rule, rows, block, times, client_id = self.violations or _no_columns(5)
        names = text_codes(self.columns.jmq("packet_type_name", rows))
        shown = self._type_names(rows, *names, "packet type {}")
        type_code, of_type = text_codes(shown)
        both, count = dense_ids(rule, type_code, times)
        first = np.zeros(count, np.int64)
        first[both[::-1]] = np.arange(len(rows))[::-1]
        rules, types = list(RULES), of_type.to_pylist()
        shown_texts = [
            f"{types[type_code[at]]}: {RULES[rules[rule[at]]]}"
            + (f", {times[at]} times" if times[at] > 1 else "")
            for at in first.tolist()
        ]
        return violation_rows(
            decode_texts(rule, pa.array(rules)),
            {**self._positions(rows), "source": self._source(rows)},
            client=self._endpoints(self.src[self.columns.stream[rows]]),
            message_key=self._keys_of_violations(rows, block),
            text=decode_texts(both, pa.array(shown_texts, pa.string())),
            client_id=self._client_ids(client_id),
        )

    def _keys_of_violations(self, rows: Any, block: Any) -> pa.Array:
        own = np.flatnonzero(block == -1)
        keys: list[str | None] = [None] * len(rows)
        for part in rows_in_parts(own):
            shown = self.columns.jmq("sys_message_id", rows[part]).to_pylist()
            for at, key in zip(part.tolist(), shown, strict=True):
                keys[at] = key
        for at in np.flatnonzero(block >= 0).tolist():
            _, timestamp, high, low, port, sequence = self.blocks.words[:, block[at]].tolist()
            address = b"".join(half.to_bytes(8, "big", signed=True) for half in (high, low))
            keys[at] = message_id_text(timestamp, address, port, sequence)
        return pa.array(keys, pa.string())

    def _sessions(self) -> pa.Table:
        """Return a row for each connection, made one by one because they are few."""
        parts = []
        active = np.flatnonzero(self.connections.active)
        for part in rows_in_parts(active):
            parts.append(fact_table("sessions", list(map(self._session, part.tolist()))))
        return pa.concat_tables(parts or [fact_table("sessions", [])])

    @cached_property
    def _users(self) -> dict[int, str | None]:
        """The user of each connection whose login was captured."""
        logged_in = np.flatnonzero(self.connections.user >= 0)
        rows = self.columns.python_rows(JMQ, self.connections.user[logged_in], NEEDED)
        return {c: user_of(row) for c, row in zip(logged_in.tolist(), rows, strict=True)}

    def _users_of(self, rows: Any) -> pa.Array:
        """Return the user of the connection of each packet."""
        names = [*{name for name in self._users.values() if name is not None}]
        code = {name: at for at, name in enumerate(names)}
        of = np.full(len(self.connections.user), -1, np.int32)
        for connection, name in self._users.items():
            of[connection] = -1 if name is None else code[name]
        return decode_texts(of[self.connection[rows]], pa.array(names, pa.string()))

    def _session(self, c: int) -> Row:
        connections = self.connections
        first = self._position(int(connections.opened[c]))
        opened = first if connections.login_known[c] else None
        closed_ns, closed_frame = self.ended_at[c]
        if self.is_open[c] or connections.one_sided[c]:
            closed_ns = closed_frame = None
        code, hello = int(connections.client_id[c]), int(connections.hello[c])
        status, has_status = self._status(np.array([connections.status[c]]))
        at = int(self.property[hello]) if hello >= 0 else -1
        has_level = at >= 0 and self.numbers.present["level"][at]
        counts = {
            "in_flight_sent": self.in_flight_sent,
            "in_flight_received": self.in_flight_received,
            "pauses": connections.pauses,
            "paused_ns": connections.paused_ns,
        }
        return {
            "protocol": "jms",
            "client": self.endpoints[self.client[c]] or None,
            "server": self.endpoints[self.server[c]] or None,
            "client_id": self.client_ids[code] if code >= 0 else None,
            "user": self._users.get(c),
            "opened_ns": opened and opened.ns,
            "opened_frame": opened and opened.frame,
            "closed_ns": closed_ns,
            "closed_frame": closed_frame,
            "status": int(status[0]) if has_status[0] else None,
            "ended_by": self.ended_by[c],
            "packets": int(connections.packets[c]),
            "bytes": int(connections.size[c]),
            "version": int(self.numbers.values["level"][at]) if has_level else None,
            # Unknown where bytes of the connection were not captured.
            **{name: None if self.has_gap[c] else int(of[c]) for name, of in counts.items()},
            **first.lead,
        }

    def _position(self, row: int) -> Position:
        columns = self.columns
        stream = columns.streams[int(columns.stream[row])]
        return Position.of(
            {
                "source": stream["source"],
                "stream": stream["stream"],
                "offset": int(columns.offset[row]),
                "frame": int(columns.frame[row]) if columns.has_frame[row] else None,
                "captured_ns": int(columns.ns[row]) if columns.timed[row] else None,
            }
        )

    # --- records for transactions, brokers -------------------------------------------

    def _uses(self) -> pa.Table:
        used = self.used or _no_columns(6)
        rows, event, transaction, messages, client_id, is_sure = (
            np.concatenate(pair) for pair in zip(used, self._left_transactions(), strict=True)
        )
        client, server = self._client_and_server(rows)
        return pa.table(
            {
                "server": server,
                "transaction_id": transaction,
                "event": decode_texts(event, pa.array(k.USE_EVENTS)),
                "messages": messages,
                "client": client,
                "client_id": self._client_ids(client_id),
                "is_sure": is_sure != 0,
                "order": np.arange(len(rows)),
                "source": self._source(rows),
                **self._positions(rows),
            }
        )

    def _left_transactions(self) -> tuple[Any, ...]:
        """Return an event ``leave`` for each transaction that a connection left open at its end."""
        named, following, slots = self.transaction_key
        of_slot = np.empty(self.transactions, np.int64)
        numbers = self.numbers.values
        at = self.control[np.concatenate([named, following])]
        ids = np.concatenate(
            [numbers["transaction"][named], numbers["next_transaction"][following]]
        )
        connection = np.empty(self.transactions, np.int64)
        of_slot[slots], connection[slots] = ids, self.connection[at]
        left = np.flatnonzero(self.held.begun)
        missed = self.missed[connection[left]]
        left = left[(self.held.begun_at[left] >= missed) & ~self.is_open[connection[left]]]
        of = connection[left]
        event = np.full(len(left), k.USE_EVENTS.index("leave"), np.int32)
        last = self.connections.last[of]
        is_sure = (self.connections.known[of] != 0) & ((self.flags[last] & FLAGS["I"]) == 0)
        nothing = np.zeros(len(left), np.int64)
        return last, event, of_slot[left], nothing, self.connections.client_id[of], is_sure

    def _gpacket_violations(self, rows: Any) -> pa.Table:
        count = len(self.columns.streams)
        highest, broken = np.full(count, -1, np.int64), np.full(len(rows), -1, np.int8)
        _number_gpackets(
            self.columns.stream[rows], self.sequence[rows], self.timestamp[rows],
            self.packet_type[rows], highest, broken,
        )  # fmt: skip
        at = np.flatnonzero(broken >= 0)
        bad = rows[at]
        rules = [_GPACKET_RULES[code] for code in broken[at].tolist()]
        texts = [
            f"GPacket {sequence}: {RULES[rule]}"
            for sequence, rule in zip(self.sequence[bad].tolist(), rules, strict=True)
        ]
        return violation_rows(
            pa.array(rules, pa.string()),
            {**self._positions(bad), "source": self._source(bad)},
            client=self._endpoints(self.src[self.columns.stream[bad]]),
            text=pa.array(texts, pa.string()),
        )

    def _relays(self, gpackets: Any) -> pa.Table:
        """Return the messages and acknowledgements between brokers, read row by row."""
        types = self.packet_type[gpackets]
        about = (types == MESSAGE_DATA) | (types == MESSAGE_ACK)
        chosen = gpackets[about & (self.version[gpackets] != LINK_VERSION)]
        names = (*_PARTS, "offset", "frame", "captured_ns", "version", "packet_type",
                 "property_size", "properties", "payload")  # fmt: skip
        parts = []
        for part in rows_in_parts(chosen):
            rows = self.columns.python_rows(GPACKET, part, names)
            numbers = self.columns.row_number[part].tolist()
            numbered = [
                (relay, number)
                for row, number in zip(rows, numbers, strict=True)
                for relay in relays(row)
            ]
            parts.append(_relay_table(numbered))
        return pa.concat_tables(parts or [_relay_table([])])


_RELAY: Final = pa.schema(
    [
        ("message_key", pa.string()),
        ("consumer_id", pa.int64()),
        ("broker", pa.string()),
        ("sender", pa.string()),
        ("receiver", pa.string()),
        ("kind", pa.string()),
        ("source", pa.string()),
        ("stream", pa.string()),
        ("offset", pa.int64()),
        ("frame", pa.int64()),
        ("ns", pa.int64()),
        (ROW_NUMBER, pa.int64()),
    ]
)


def _relay_table(relays: Sequence[tuple[Relay, int]]) -> pa.Table:
    """Return relays, each with its row number, as a table of records."""
    rows = [
        (relay.message_key, relay.consumer_id, relay.broker, relay.sender, relay.receiver,
         relay.kind, relay.at.source, relay.at.stream, relay.at.offset, relay.at.frame,
         relay.at.ns, number)
        for relay, number in relays
    ]  # fmt: skip
    columns = zip(*rows, strict=True) if rows else [()] * len(_RELAY)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _RELAY.types, strict=True)]
    return pa.table(arrays, schema=_RELAY)


@kernel
def _number_gpackets(
    stream: Int32s,
    sequence: Ints,
    timestamp: Ints,
    packet_type: Int32s,
    highest: Ints,
    broken: Int8s,
) -> None:
    """Check the sequence numbers of GPackets, stream by stream.

    A broker numbers the packets of all its links with one counter of 64 bits, so a number that is
    missing on one link is on another.
    """
    for i in range(len(stream)):
        top = highest[stream[i]]
        if top < 0 or sequence[i] > sequence[top]:
            highest[stream[i]] = i
        elif sequence[i] == sequence[top]:
            if timestamp[i] != timestamp[top] or packet_type[i] != packet_type[top]:
                broken[i] = 1
        elif timestamp[i] > timestamp[top]:
            broken[i] = 0


def _no_columns(count: int) -> list[Any]:
    return [np.empty(0, np.int64) for _ in range(count)]
