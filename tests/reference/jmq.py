"""The rules of JMQ as a page that runs: what packets of clients and brokers say, in plain lists.

This is a model to read beside the specification (3.0.1c), docs/layers/jmq.md and docs/errata.md. It
has no limits and no speed, and shares no code with ``wireyard.layers``. Its input is rows of JMQ
packets and GPackets, as readers yield them; its output is rows of tables. A sentence with a number
is a rule; the code below it is the rule again.

Not in this model: clock offsets between several capture points. Messages that several captures show
have no rows of `hops` here (`of_several` has their keys).
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from wireyard.errors import DecodeError
from wireyard.formats.gpacket.layout import LINK_VERSION
from wireyard.formats.gpacket.payload import payload_value
from wireyard.formats.jmq.body import body_value
from wireyard.formats.jmq.layout import (
    BROKER_TYPES,
    CLIENT_TYPES,
    FLAGS,
    HEADER_BYTES,
    PACKET_TYPES,
    SYS_MESSAGE_ID,
)
from wireyard.formats.jmq.packet import read_row
from wireyard.formats.message_id import message_id_text

__all__ = ["Facts", "facts_of"]

Row = dict[str, Any]
Key = tuple[Any, ...]
Ends = Mapping[tuple[str, str], tuple[int | None, int | None]]
"""By source and name of a stream that ends with a FIN or a reset, the time and frame of that."""
MS: Final = 1_000_000
OK: Final = 200
ACCEPTED: Final = 200, 304
MESSAGES: Final = range(1, 7)
MOST_TEXT: Final = 1024
"""The characters of a name or id that tables have."""
NO_ENDS: Final[Ends] = {}

# --- packets --------------------------------------------------------------------------------


class Facts:
    """The rows of all tables, and the records of messages between them."""

    def __init__(self) -> None:
        self.sessions: list[Row] = []
        self.violations: list[Row] = []
        self.conversations: list[Row] = []
        self.transactions: list[Row] = []
        self.deliveries: list[Row] = []
        self.hops: list[Row] = []
        self.messages: list[Row] = []
        self.producers: list[Row] = []
        self.of_several: set[str] = set()
        self.sent: list[Row] = []
        self.delivered: list[Row] = []
        self.relayed: list[Row] = []
        self.exchanges: list[tuple[Row, Row]] = []
        """Requests, and their rows among the conversations."""
        self.uses: list[Use] = []
        self.sliced: Collection[str] = ()


class Use(NamedTuple):
    """An event of a transaction, in a packet of a connection."""

    source: str
    server: str
    transaction: int
    event: str
    messages: int
    client: str
    client_id: str | None
    is_sure: bool
    """Whether no packet is missing that may explain it, and the packet was not sent again."""
    row: Row


def facts_of(rows: Iterable[Row], ended: Ends = NO_ENDS, sliced: Collection[str] = ()) -> Facts:
    """Return what packets of captures say.

    Parameters
    ----------
    rows
        JMQ packets and GPackets, in any order.
    ended
        The streams that end with a FIN or a reset.
    sliced
        The sources that are slices of captures.
    """
    facts = Facts()
    facts.sliced = sliced
    for connection in connections_of(rows):
        links = [row for row in connection if format_of(row) == "gpacket" and is_packet(row)]
        number_gpackets(links, facts)
        for row in links:
            facts.relayed += relays_of(row)
        Connection(connection, ended, facts).follow()
    join_resent(facts)
    end_transactions(facts)
    join_deliveries(facts)
    match_replies(facts)
    order_hops(facts)
    represent_messages(facts)
    return facts


def format_of(row: Row) -> str:
    name: str = row.get("format") or "jmq"
    return name.partition("/")[0]


def is_packet(row: Row) -> bool:
    """Return whether a row is a packet: not damaged bytes, nor a gap."""
    return row.get("status") in (None, "ok")


# J-1 A connection is the two streams between two endpoints. When the same ones connect again, the
# ordinal in the names of the streams distinguishes the connections. A bare stream has no endpoints:
# it is a connection of its own, sent by its name.
def connection_of(row: Row) -> Key:
    src, dst = ends_of(row)
    ordinal = row["stream"].partition("#")[2] if dst else row["stream"]
    return row["source"], frozenset((src, dst)), ordinal


def ends_of(row: Row) -> tuple[str, str]:
    ends = [row.get(name) for name in ("src_addr", "src_port", "dst_addr", "dst_port")]
    if None in ends:
        return row["stream"], ""
    return endpoint(ends[0], ends[1]), endpoint(ends[2], ends[3])


def endpoint(address: Any, port: Any) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


# J-2 A receiver reads a stream in order. So a packet arrives when it and all before it in its
# stream have been captured. The packets of a connection are in that order.
def connections_of(rows: Iterable[Row]) -> Iterator[list[Row]]:
    reached: dict[Key, tuple[float, int]] = {}
    arrivals: dict[Key, list[tuple[Key, int, Row]]] = defaultdict(list)
    stream_order = sorted(
        (row for row in rows if row.get("parent_offset") is None),
        key=lambda row: (row["source"], row["stream"], row["offset"]),
    )
    for place, row in enumerate(stream_order):
        stream = row["source"], row["stream"]
        ns = row.get("captured_ns")
        now = -float("inf") if ns is None else ns, row.get("frame") or 0
        reached[stream] = max(now, reached.get(stream, now))
        order = *reached[stream], row["stream"], row["offset"]
        arrivals[connection_of(row)].append((order, place, row))
    for packets in arrivals.values():
        yield [row for _, _, row in sorted(packets, key=lambda packet: packet[:2])]


def order_of(row: Row) -> Key:
    ns, frame = row.get("captured_ns") or 0, row.get("frame") or 0
    return ns, frame, row["stream"], row["offset"]


def place_of(row: Row) -> Row:
    return {name: row[name] for name in ("source", "stream", "offset")}


def time_of(row: Row | None, name: str) -> Row:
    row = row or {}
    return {f"{name}_ns": row.get("captured_ns"), f"{name}_frame": row.get("frame")}


def between(row: Row, later: Row) -> int | None:
    begun, over = row.get("captured_ns"), later.get("captured_ns")
    return None if begun is None or over is None else over - begun


def number(row: Row | None, name: str) -> int | None:
    """Return an integer or boolean property of a packet."""
    entry = ((row or {}).get("properties") or {}).get(name)
    if entry is None or entry["value"] is None:
        return None
    if entry["type"] == "boolean":
        return int(entry["value"] == "true")
    is_whole = entry["type"] in ("byte", "short", "integer", "long")
    return int(entry["value"]) if is_whole and re.fullmatch(r"-?\d+", entry["value"]) else None


def text(row: Row, name: str) -> str | None:
    entry = (row.get("properties") or {}).get(name)
    if entry is None or entry["type"] != "string" or entry["value"] is None:
        return None
    value: str = entry["value"]
    return value[:MOST_TEXT]


def item(row: Row, name: str) -> str | None:
    """Return a name or an id in the variable header of a packet."""
    value: str | None = row.get(name)
    has_long_items = row["property_offset"] > HEADER_BYTES + MOST_TEXT
    return value[:MOST_TEXT] if value is not None and has_long_items else value


def is_message(row: Row) -> bool:
    return format_of(row) == "jmq" and is_packet(row) and row["packet_type"] in MESSAGES


def has(row: Row, flag: str) -> bool:
    return bool(row["bit_flags"] & FLAGS[flag])


def message_of(row: Row) -> Key:
    return tuple(row[name] for name in SYS_MESSAGE_ID)


# J-3 (errata 20, 22) A message is identified by its SysMessageID. Its producer is the address and
# port in it; stock clients put a MAC address in parentheses behind the address.
def producer_of(row: Row) -> str:
    return endpoint(row["source_ip_text"].partition("(")[0], row["source_port"])


# --- rules that packets break ---------------------------------------------------------------

RULES: Final = {
    "before_login": "a client sent a request before the broker had accepted its login",
    "second_login": "a login, or an answer to one, on a connection that was logged in",
    "after_goodbye": "a packet from a client after its GOODBYE",
    "reply_without_request": "a reply with an id that no request waited with",
    "request_id_reused": "a request with an id that another one still waited with",
    "unknown_consumer": "a message for a consumer that the connection never had, or no longer",
    "handed_over_twice": "a message for a consumer that still held it",
    "acknowledged_nothing": "an acknowledgement of a message that the consumer did not hold",
    "malformed_records": "a body that is no list of message ids, in a packet that needs one",
    "sent_while_paused": "a message after flag F or C, before the flow was resumed",
    "transaction_over": "a transaction was used or ended after its end",
    "sequence_back": "a new packet has a lower number than its sender had used",
    "sequence_reused": "a new packet has a number that another one of its sender has",
    "transaction_id_missing": "flag T, and no transaction id",
}
NEEDS_ALL: Final = {
    "reply_without_request", "request_id_reused", "unknown_consumer", "handed_over_twice",
    "acknowledged_nothing", "transaction_over",
}  # fmt: skip
NEEDS_BOTH: Final = {"before_login", "second_login", "after_goodbye", "sent_while_paused"}


def violation(rule: str, wording: str, row: Row, sender: str, **more: Any) -> Row:
    return {
        "protocol": "jms", "rule": rule, "text": wording, "client": sender or None,
        "captured_ns": row.get("captured_ns"), "frame": row.get("frame"), **place_of(row), **more,
    }  # fmt: skip


# --- one connection -------------------------------------------------------------------------

# J-4 A connection goes from HELLO to GOODBYE by this table. A dash is an event that changes nothing
# and breaks the rule of its state. PING is no event. An error reply answers a request that the
# client should not have sent; both sides may send GOODBYE when a login is refused; messages and
# replies may be in transit when a client sends GOODBYE; a client may be writing while the broker
# sends GOODBYE.
SESSION: Final = """
               hello    hello_ok hello_no challenge  login          login_ok login_no client_bye server_bye bye_reply client server
new            greeting greeting refused  challenged authenticating open     refused  closing    dismissed  closed    open   open
greeting       -        .        refused  challenged -              -        -        closing    dismissed  -         -      .
challenged     -        -        -        -          authenticating -        -        closing    dismissed  -         -      .
authenticating -        -        -        challenged -              open     refused  closing    dismissed  -         -      .
open           -        -        -        -          -              -        -        closing    dismissed  closed    .      .
refused        -        -        -        -          -              -        -        .          .          .         -      .
closing        -        -        -        -          -              -        -        -          closed     closed    -      .
dismissed      .        .        .        .          .              .        .        closed     .          .         .      .
closed         -        -        -        -          -              -        -        .          .          .         -      .
"""  # noqa: E501
BREAKS: Final = {
    "greeting": "before_login", "challenged": "before_login", "authenticating": "before_login",
    "open": "second_login", "refused": "before_login", "closing": "after_goodbye",
    "closed": "after_goodbye",
}  # fmt: skip


def _table(drawn: str) -> dict[str, dict[str, str]]:
    """Return the next state by state and event; a dot is the same state."""
    events, *lines = (line.split() for line in drawn.strip().splitlines())
    return {
        state: {
            event: state if cell == "." else cell for event, cell in zip(events, cells, strict=True)
        }
        for state, *cells in lines
    }


NEXT: Final = _table(SESSION)
LOGGING_IN: Final = ("greeting", "challenged", "authenticating")

# J-5 A message that is held is settled by the reply to its ACKNOWLEDGE: in the state on the left
# until then, and in the one on the right from then on.
WAITING: Final = {
    "acknowledge": "acknowledging", "acknowledge_in_transaction": "joining", "expire": "expiring",
    "bury": "dying", "decline": "declining",
}  # fmt: skip
CONFIRMED: Final = {
    "acknowledging": "acknowledged", "joining": "in_transaction", "expiring": "expired",
    "dying": "dead", "declining": "returned_seen",
}  # fmt: skip
UNSETTLED: Final = {"held", "undecided", *CONFIRMED}

Settle = Callable[[Row | None, bool, Row], None]
"""The effect of a request: a function of its reply (None if it wants none), whether it is accepted,
and the packet that shows this."""


class Connection:
    """One connection of a client and a broker, packet by packet."""

    def __init__(self, rows: list[Row], ended: Ends, facts: Facts) -> None:
        self.rows = rows
        self.ended = {(row["source"], row["stream"]) for row in rows} & ended.keys()
        names = "captured_ns", "frame"
        self.ends = [dict(zip(names, ended[key], strict=True)) for key in sorted(self.ended)]
        self.facts = facts
        self.known = False
        """Whether all packets from the first on were captured: unknown means nonexistent."""
        self.state = "new"
        self.packets: list[Row] = []
        self.hello: Row | None = None
        self.opened_by_hello = False
        self.login_status: int | None = None
        self.user: str | None = None
        self.goodbye_by: str | None = None
        self.may_be_refused = False
        """Whether nothing showed a login before the first GOODBYE."""
        self.client_id: str | None = None
        self.in_gap: set[str] = set()
        self.lacks_end: set[str] = set()
        """Sides whose last row is no packet."""
        self.has_gap = self.is_one_sided = False
        self.waiting: dict[tuple[bool, int], Row] = {}
        self.more: dict[tuple[bool, int], int] = {}
        """The replies that may come after the next one, to packets that were sent again."""
        self.asked: dict[Key, Row] = {}
        """Packets of the client by type and SysMessageID: what each requests."""
        self.consumers: dict[int, Row] = {}
        self.held: list[Row] = []
        self.begun: dict[int, bool] = {}
        """Transactions that it began: whether each is open for certain."""
        self.paused: dict[tuple[bool, int | None], tuple[str, Row]] = {}
        self.pauses = self.paused_ns = 0
        self.numbers: dict[str, Numbers] = {}

    def follow(self) -> None:
        shown = [row for row in self.rows if is_from_client(row) is not None]
        messages = [row for row in self.rows if is_message(row)]
        if not shown and not messages:
            return
        first = (shown or messages)[0]
        src, dst = ends_of(first)
        self.client, self.server = (dst, src) if is_from_client(first) is False else (src, dst)
        # J-36 A side of which nothing was captured is missing from the first packet to the last.
        # Then only rules about one stream are applied.
        silent = {self.client, self.server} - {ends_of(row)[0] for row in self.rows}
        self.in_gap |= silent
        self.is_one_sided = bool(silent)
        for row in self.rows:
            if row.get("status") == "gap":
                self.begin_gap(row)
            elif format_of(row) == "jmq" and not is_packet(row):
                self.lacks_end.add(ends_of(row)[0])
                self.miss()
            elif format_of(row) == "jmq":
                self.observe(row)
        self.finish()

    # J-6 The packets in a gap were sent between those around it in their stream. So from a gap
    # until the next packet of its side, each packet of the other side may have come after some of
    # them. A gap with a time is over at that time.
    def begin_gap(self, row: Row) -> None:
        sender = ends_of(row)[0]
        self.lacks_end.add(sender)
        self.in_gap.discard(sender)
        if row.get("captured_ns") is None:
            self.in_gap.add(sender)
        self.lose(sender)

    def observe(self, row: Row) -> None:
        sender = ends_of(row)[0]
        self.lacks_end.discard(sender)
        if sender in self.in_gap:
            self.in_gap.remove(sender)
            self.lose(sender)
        if self.in_gap:
            self.miss()
        self.packets.append(row)
        numbers = self.numbers.setdefault(row["stream"], Numbers(sender == self.client))
        rule = numbers.observe(row)
        if rule is not None:
            self.breaks(rule, row, row["sys_message_id"])
        # J-7 (3.0.1c, bit flags, T; errata 49) A packet with flag T has a transaction id. Version
        # 103 has no flag T.
        if has(row, "T") and row["version"] > 103 and not row.get("transaction_id"):
            self.breaks("transaction_id_missing", row, row["sys_message_id"])
        if not self.is_repeated(row):
            self.log_in(row, sender == self.client)
        if sender == self.client:
            self.observe_client(row)
        else:
            self.observe_server(row)

    # J-8 Where packets are damaged or missing, nothing unknown is a violation any more, a login
    # that was going on may be over, and pauses are unknown.
    def miss(self) -> None:
        self.known = False
        if self.state in LOGGING_IN:
            self.state = "new"
        self.paused.clear()

    # J-9 A gap may have had any packets. So a message that was held is undecided, one that was
    # acknowledged may have got its reply, and a transaction may be over.
    def lose(self, sender: str) -> None:
        self.miss()
        self.has_gap = True
        for delivery in self.held:
            delivery["missed"].add(sender)
            delivery["reply_may_be_lost"] = True
            if delivery["state"] == "held":
                delivery["state"] = "undecided"
        self.begun = dict.fromkeys(self.begun, False)

    # J-10 A violation is of the sender of the packet. Where packets may be missing, those rules are
    # not applied that missing packets may explain.
    def breaks(self, rule: str, row: Row, message: str | None = None, times: int = 1) -> None:
        if (rule in NEEDS_ALL and not self.known) or (rule in NEEDS_BOTH and self.is_one_sided):
            return
        name = row.get("packet_type_name") or f"packet type {row['packet_type']}"
        wording = f"{name}: {RULES[rule]}" + (f", {times} times" if times > 1 else "")
        of_client = {"client_id": self.client_id, "message_key": message}
        self.facts.violations.append(violation(rule, wording, row, ends_of(row)[0], **of_client))

    # --- the login, and the end -------------------------------------------------------------

    def log_in(self, row: Row, from_client: bool) -> None:
        event = session_event(row, from_client)
        if event is None:
            return
        following = NEXT[self.state][event]
        if following == "-":
            self.breaks(BREAKS[self.state], row)
            return
        if following == self.state:
            return
        before, self.state = self.state, following
        # J-11 A connection is known from its first packet on if that is the HELLO.
        if event == "hello":
            self.hello = row
            self.known = self.opened_by_hello = len(self.packets) == 1
        elif event == "login":
            self.user = user_of(row)
        elif event in ("login_ok", "login_no", "hello_no"):
            self.login_status = number(row, "JMQStatus")
        elif event in ("client_bye", "server_bye") and self.goodbye_by is None:
            self.goodbye_by, self.may_be_refused = event.removesuffix("_bye"), before == "new"

    # J-12 A connection was ended by the side that sent GOODBYE first. Without GOODBYE it was
    # dropped if the capture shows its end, and else it is open as far as that shows. If packets
    # behind the last one of a side are missing, it may have sent GOODBYE before the other; so may a
    # side of which nothing was captured. Where nothing shows a login, it may have been refused.
    def ended_by(self) -> str | None:
        if self.state == "refused":
            return "refused"
        if self.goodbye_by is None and not self.ends:
            return "open"
        if self.may_be_refused or self.state == "new":
            return None
        first = {"client": self.client, "server": self.server}.get(self.goodbye_by or "")
        return None if (self.in_gap | self.lacks_end) - {first} else self.goodbye_by or "dropped"

    # J-38 A connection ends with its last FIN or reset, or else with its last packet. Of a
    # connection with a missing side, the time is unknown.
    def ended_at(self) -> Row:
        last = self.packets[-1]
        reached = last.get("captured_ns") or 0
        later = [end for end in self.ends if (end["captured_ns"] or -1) >= reached]
        return max(later, key=lambda end: (end["captured_ns"], end["frame"] or 0), default=last)

    # J-40 A slice of a capture may lack the packets behind the last one of a stream, unless it has
    # the end of the stream. It lacks other connections of a client.
    def finish(self) -> None:
        is_slice = self.rows[0]["source"] in self.facts.sliced
        if is_slice:
            self.in_gap |= {
                ends_of(row)[0]
                for row in self.rows
                if (row["source"], row["stream"]) not in self.ended
            }
        for sender in self.in_gap:
            self.lose(sender)
        ended_by = self.ended_by()
        first, last = self.packets[0], self.packets[-1]
        end = last if ended_by == "open" else self.ended_at()
        in_flight = len(self.held)
        # J-13 What is held when the connection ends is left, unconfirmed or undecided.
        for delivery in self.held:
            if delivery["reply_may_be_lost"] and delivery["state"] in CONFIRMED:
                delivery["state"] = "undecided"
            if ended_by != "open":
                close(delivery)
        # J-14 With the connection the transactions end that it began, unless a gap may have ended
        # them.
        for transaction, is_open in self.begun.items():
            if is_open and ended_by != "open":
                self.use(transaction, "leave", last)
        for target in list(self.paused):
            self.end_pause(target, end)
        counts = {
            "in_flight_sent": len(
                {
                    id(request)  # which may wait with several ids
                    for (by_client, _), request in self.waiting.items()
                    if by_client and request["reply"] is None and is_message(request["row"])
                }
            ),
            "in_flight_received": in_flight,
            "pauses": self.pauses,
            "paused_ns": self.paused_ns,
        }
        session = {
            "protocol": "jms", "client": self.client or None, "server": self.server or None,
            "client_id": self.client_id, "user": self.user, "status": self.login_status,
            "ended_by": ended_by, "packets": len(self.packets),
            "bytes": sum(row["size"] for row in self.packets),
            "version": number(self.hello, "JMQProtocolLevel"),
            **time_of(first if self.opened_by_hello else None, "opened"),
            **time_of(None if ended_by == "open" or self.is_one_sided else end, "closed"),
            **{name: None if self.has_gap else count for name, count in counts.items()},
            **place_of(first),
        }  # fmt: skip
        self.facts.sessions.append(session)
        for record in (*self.facts.sent, *self.facts.delivered):
            record.setdefault("user", self.user)
            record.setdefault("is_whole", self.known)

    # --- packets of the client and of the broker --------------------------------------------

    # J-37 (3.0.1c, bit flags, I) A packet that is sent again has flag I, and its type and its
    # SysMessageID as before. It is the same request: its only effect is that the request waits with
    # its id too, and that one more reply may come. It breaks no rule, and no event of a connection
    # is one twice. On another connection it breaks no rule about requests either.
    def is_repeated(self, row: Row) -> bool:
        is_known = (row["packet_type"], message_of(row)) in self.asked
        return has(row, "I") and ends_of(row)[0] == self.client and is_known

    def observe_client(self, row: Row) -> None:
        name = PACKET_TYPES.get(row["packet_type"], "")
        identity = row["packet_type"], message_of(row)
        if self.is_repeated(row):
            if is_message(row):
                self.facts.sent.append(self.sending(row) | {"request": NO_REQUEST})
            self.wait_again(self.asked[identity], row)
            return
        self.asked[identity] = NO_REQUEST
        if is_message(row):
            self.send(row)
        elif self.is_reply(row, by_client=False):
            self.reply(row, by_client=False)
        elif name in ("ACKNOWLEDGE", "REDELIVER", "COMMIT_TRANSACTION"):
            getattr(self, name.lower())(row)
        elif name == "RESUME_FLOW":
            self.resume(False, number(row, "JMQConsumerID"), "resume", row)
        else:
            effect = EFFECTS.get(name)
            self.ask(row, effect and partial(effect, self, row))

    def observe_server(self, row: Row) -> None:
        name = PACKET_TYPES.get(row["packet_type"], "")
        if row["packet_type"] in MESSAGES:
            self.deliver(row)
        elif self.is_reply(row, by_client=True):
            self.reply(row, by_client=True)
        elif name == "RESUME_FLOW":
            event = "stop" if number(row, "JMQSize") == 0 else "resume"
            self.resume(True, number(row, "JMQProducerID"), event, row)
        else:
            self.ask(row, by_client=False)

    # J-15 (3.0.1c, bit flags, A) A packet with flag A expects a reply. Its id is in the field of
    # the consumer id, chosen by the requester; each side has its own ids. A request without flag A
    # takes effect at once. No id is used again while a request waits with it.
    def ask(self, row: Row, settle: Settle | None = None, *, by_client: bool = True) -> Row:
        request = NO_REQUEST | {"row": row, "settle": settle}
        if not has(row, "A"):
            if settle is not None:
                settle(None, True, row)
            return request
        self.wait(request, row, by_client)
        if by_client:
            self.asked[row["packet_type"], message_of(row)] = request
        request["exchange"] = exchange = {
            "kind": "control",
            "request": row.get("packet_type_name") or str(row["packet_type"]),
            "requester": (self.client if by_client else self.server) or None,
            "responder": (self.server if by_client else self.client) or None,
            "request_key": f"{row['stream']}@{row['offset']}",
            **time_of(row, "requested"),
            **place_of(row),
        }
        self.facts.conversations.append(exchange)
        if by_client:
            self.facts.exchanges.append((row, exchange))
        return request

    def wait(self, request: Row, row: Row, by_client: bool) -> None:
        key = by_client, row["consumer_id"]
        earlier = self.waiting.pop(key, NO_REQUEST)
        if earlier["row"] is not None and earlier["reply"] is None and not has(row, "I"):
            self.breaks("request_id_reused", row)
        self.waiting[key] = request
        self.more[key] = 0

    def wait_again(self, request: Row, row: Row) -> None:
        if request["row"] is None or not has(row, "A"):
            return
        if self.waiting.get((True, row["consumer_id"])) is request:
            self.more[True, row["consumer_id"]] += 1
        else:
            self.wait(request, row, True)

    # J-16 (3.0.1c, consumer id; errata 29, 30) A reply has the id of its request, whatever their
    # types: a broker does not read the type of a packet that is too large, and there may be types
    # that have no name here. A packet without a name, with such an id and without flag A is a
    # reply; one whose type is that of a reply breaks a rule if no request has the id. A request is
    # accepted if the status of the reply is 200, or 304: it was done before.
    def is_reply(self, row: Row, *, by_client: bool) -> bool:
        name = PACKET_TYPES.get(row["packet_type"])
        if name is not None:
            return name.endswith("_REPLY")
        return not has(row, "A") and (by_client, row["consumer_id"]) in self.waiting

    def reply(self, row: Row, *, by_client: bool) -> None:
        key = by_client, row["consumer_id"]
        if key not in self.waiting:
            self.breaks("reply_without_request", row)
            return
        request = self.waiting[key] if self.more[key] else self.waiting.pop(key)
        self.more[key] -= 1
        if request["reply"] is not None:
            return  # It was sent again, after the broker had read it.
        status = number(row, "JMQStatus")
        took = between(request["row"], row)
        request["exchange"].update(
            reply_key=f"{row['stream']}@{row['offset']}",
            status=status,
            latency_ms=None if took is None else took // MS,
            **time_of(row, "replied"),
        )
        request.update(reply=row, status=status)
        if request["settle"] is not None:
            request["settle"](row, status in ACCEPTED, row)

    def set_client_id(self, row: Row, reply: Row | None, accepted: bool, at: Row) -> None:
        if accepted:
            self.client_id = text(row, "JMQClientID")

    # --- messages of the client -------------------------------------------------------------

    # J-17 A message that a client sends is accepted by SEND_REPLY. If it is refused, it is not in
    # its transaction.
    def send(self, row: Row) -> None:
        sending = self.sending(row)
        transaction = sending["transaction"]
        self.facts.sent.append(sending)
        self.flow(True, row.get("producer_id"), row)
        if transaction is not None:
            self.use(transaction, "send", row, 1)

        def settle(reply: Row | None, accepted: bool, at: Row) -> None:
            if transaction is not None and not accepted:
                self.use(transaction, "deny_send", at, 1)

        sending["request"] = self.ask(row, settle)

    def sending(self, row: Row) -> Row:
        return self.message(row) | {
            "client_id": self.client_id, "producer": self.client,
            "transaction": row.get("transaction_id") or None,
        }  # fmt: skip

    def message(self, row: Row) -> Row:
        return {
            "row": row, "key": row["sys_message_id"], "server": self.server,
            **{name: item(row, name) for name in MESSAGE_ITEMS},
            "resent": has(row, "I") or has(row, "R"),
        }  # fmt: skip

    def use(self, transaction: int, event: str, at: Row, messages: int = 0) -> None:
        self.facts.uses.append(
            Use(at["source"], self.server, transaction, event, messages, self.client,
                self.client_id, self.known and not has(at, "I"), at)
        )  # fmt: skip

    # J-18 A client begins a transaction with START_TRANSACTION, or with a COMMIT whose reply names
    # the next one. An XA request may have its transaction id in the reply. COMMIT is asked first,
    # then accepted or denied; of other requests only those that are accepted count.
    def start(self, row: Row, reply: Row | None, accepted: bool, at: Row) -> None:
        if accepted:
            self.begin(number(reply, "JMQTransactionID"), at)

    def begin(self, transaction: int | None, at: Row) -> None:
        if transaction is not None:
            self.use(transaction, "start", at)
            self.begun.setdefault(transaction, True)

    def end(self, row: Row, reply: Row | None, accepted: bool, at: Row) -> None:
        event = ENDS[PACKET_TYPES[row["packet_type"]]]
        transaction = number(row, "JMQTransactionID")
        if transaction is None:
            transaction = number(reply, "JMQTransactionID")
        if transaction is not None and accepted:
            self.use(transaction, event, at)
            if event == "roll_back":
                self.begun.pop(transaction, None)

    def commit_transaction(self, row: Row) -> None:
        asked = number(row, "JMQTransactionID")
        if asked is not None:
            self.use(asked, "ask_commit", row)

        def settle(reply: Row | None, accepted: bool, at: Row) -> None:
            transaction = asked
            if transaction is None:
                transaction = number(reply, "JMQTransactionID")
                if transaction is None:
                    return
                self.use(transaction, "ask_commit", at)
            self.use(transaction, "commit" if accepted else "deny_commit", at)
            if accepted:
                self.begun.pop(transaction, None)
                self.begin(number(reply, "JMQNextTransactionID"), at)

        self.ask(row, settle)

    # --- consumers --------------------------------------------------------------------------

    # J-19 The reply to ADD_CONSUMER or BROWSE has the id of the consumer. A browser gets copies,
    # and a consumer with ack mode 32768 never acknowledges. One with the same id takes its place.
    def add_consumer(self, row: Row, reply: Row | None, accepted: bool, at: Row) -> None:
        consumer_id = number(reply, "JMQConsumerID")
        if not accepted or consumer_id is None:
            return
        is_browser = row["packet_type_name"] == "BROWSE"
        never = number(row, "JMQAckMode") == 32768
        named = text(row, "JMQDurableName") or text(row, "JMQSharedSubscriptionName")
        self.remove(consumer_id)
        self.consumers[consumer_id] = {
            "state": "browsed" if is_browser else "no_ack_wanted" if never else "held",
            "session": None if is_browser else number(row, "JMQSessionID"),
            "subscription": None if is_browser else named,
            "is_dead_queue": not is_browser and text(row, "JMQDestination") == "mq.sys.dmq",
            "deleted": False,
        }

    def held_by(self, consumer_id: int) -> list[Row]:
        return [delivery for delivery in self.held if delivery["consumer_id"] == consumer_id]

    def remove(self, consumer_id: int) -> None:
        if self.consumers.pop(consumer_id, None) is not None:
            for delivery in self.held_by(consumer_id):
                close(delivery)
                self.held.remove(delivery)

    # J-20 DELETE_CONSUMER has the id of the last message that the application saw. The messages
    # after it are returned unseen; those up to it stay with the session, and can be acknowledged.
    # If the last one is no longer held, all that are held came after it.
    def delete_consumer(self, row: Row, reply: Row | None, accepted: bool, at: Row) -> None:
        consumer_id = number(row, "JMQConsumerID")
        if not accepted or consumer_id is None:
            return
        consumer = self.consumers.get(consumer_id)
        if consumer is not None and not consumer["deleted"]:
            held = self.held_by(consumer_id)
            body = row.get("body") or b""
            last = struct.unpack(">q16sii", body) if len(body) == 32 else None
            seen = [place for place, each in enumerate(held) if each["message"] == last]
            for delivery in held[seen[0] + 1 :] if seen else held:
                if delivery["state"] == "held" or (seen and self.is_open(delivery)):
                    self.settle(delivery, "returned_unseen")
            if consumer_id in self.consumers:
                consumer["deleted"] = True
                self.forget_if_empty(consumer_id)
        self.end_pause((False, consumer_id), at)

    def destroy_session(self, row: Row, reply: Row | None, accepted: bool, at: Row) -> None:
        session = number(row, "JMQSessionID")
        if accepted and session is not None:
            for consumer_id, consumer in list(self.consumers.items()):
                if consumer["session"] == session:
                    self.remove(consumer_id)

    def forget_if_empty(self, consumer_id: int) -> None:
        if self.consumers[consumer_id]["deleted"] and not self.held_by(consumer_id):
            del self.consumers[consumer_id]

    # --- messages of the broker -------------------------------------------------------------

    # J-21 A message that a broker delivers is held by its consumer. One for a consumer whose
    # ADD_CONSUMER was not captured is undecided: it may be a browser. A message that is delivered
    # again is no longer held from before.
    def deliver(self, row: Row) -> None:
        consumer_id = row["consumer_id"]
        consumer = self.consumers.get(consumer_id)
        if consumer is None or consumer["deleted"]:
            self.breaks("unknown_consumer", row, row["sys_message_id"])
        if consumer is None:
            consumer = self.consumers[consumer_id] = {
                "state": "undecided", "session": None, "subscription": None,
                "is_dead_queue": False, "deleted": False,
            }  # fmt: skip
        is_dead = consumer["is_dead_queue"]
        delivery = self.message(row) | {
            "consumer_id": consumer_id, "consumer": self.client, "client_id": self.client_id,
            "message": message_of(row), "state": consumer["state"],
            "subscription": consumer["subscription"], "acknowledged": None, "transaction": None,
            "dead_reason": text(row, "JMS_SUN_DMQ_UNDELIVERED_REASON") if is_dead else None,
            "missed": set(), "reply_may_be_lost": False,
        }  # fmt: skip
        self.facts.delivered.append(delivery)
        if delivery["state"] in UNSETTLED:
            again = self.holding(consumer_id, delivery["message"])
            if again is not None:
                close(again)
                self.held.remove(again)
                self.breaks("handed_over_twice", row, row["sys_message_id"])
            self.held.append(delivery)
        self.flow(False, consumer_id, row)

    def holding(self, consumer_id: int, message: Key) -> Row | None:
        held = self.held_by(consumer_id)
        return next((each for each in held if each["message"] == message), None)

    # J-28 A message that was given back in packets of the client that are missing may have been
    # delivered again in packets of the broker that are missing. So where both sides lack packets
    # since a delivery, a later acknowledgement may be that of a later one.
    def is_open(self, delivery: Row) -> bool:
        is_known = len(delivery["missed"]) < 2
        return delivery["state"] == "held" or (delivery["state"] == "undecided" and is_known)

    def settle(self, delivery: Row, state: str) -> None:
        delivery["state"] = state
        if state not in UNSETTLED:
            self.held.remove(delivery)
            self.forget_if_empty(delivery["consumer_id"])

    # J-22 (3.0.1c, consumer id) ACKNOWLEDGE and REDELIVER have a list of consumer ids and
    # SysMessageIDs. A consumer id has 32 bits in version 103, else 64.
    def blocks(self, row: Row) -> list[tuple[int, Key]]:
        block = struct.Struct(">iq16sii" if row["version"] == 103 else ">qq16sii")
        body = row.get("body") or b""
        if len(body) % block.size:
            self.breaks("malformed_records", row)
            return []
        return [(fields[0], fields[1:]) for fields in block.iter_unpack(body)]

    # J-23 An ACKNOWLEDGE with JMSXDeliveryCountUpdateOnly acknowledges nothing. Any other is of a
    # type: undeliverable (1), dead (2, expired or not), or neither, with a transaction id or
    # without. It acknowledges messages that are held; the reply confirms or denies it.
    def acknowledge(self, row: Row) -> None:
        if number(row, "JMSXDeliveryCountUpdateOnly"):
            self.ask(row)
            return
        transaction = row.get("transaction_id") or None
        event = "acknowledge_in_transaction" if transaction else "acknowledge"
        dead = "expire" if number(row, "JMQDeadReason") == 1 else "bury"
        event = {1: "decline", 2: dead}.get(number(row, "JMQAckType") or 0, event)
        pending, not_held, blocks = [], [], self.blocks(row)
        for consumer_id, message in blocks:
            delivery = self.holding(consumer_id, message)
            if delivery is None or not self.is_open(delivery):
                not_held.append(message)
                continue
            pending.append((consumer_id, message))
            delivery.update(state=WAITING[event], acknowledged=row, transaction=transaction)
            delivery["reply_may_be_lost"] = False
            consumer = self.consumers[consumer_id]
            if consumer["state"] == "undecided":  # It is no browser, because it acknowledges.
                consumer["state"] = "held"
        if not_held and not has(row, "I"):
            key = message_id_text(*not_held[0])
            self.breaks("acknowledged_nothing", row, key, len(not_held))
        if transaction:
            self.use(transaction, "acknowledge", row, len(blocks))

        def settle(reply: Row | None, accepted: bool, at: Row) -> None:
            for consumer_id, message in pending:
                delivery = self.holding(consumer_id, message)
                if delivery is None or delivery["state"] not in CONFIRMED:
                    continue
                if accepted:
                    self.settle(delivery, CONFIRMED[delivery["state"]])
                else:
                    state = "undecided" if delivery["missed"] else "held"
                    delivery.update(state=state, acknowledged=None, transaction=None)
            if transaction and not accepted:
                self.use(transaction, "deny_acknowledge", at, len(blocks))

        self.ask(row, settle)

    # J-24 REDELIVER returns messages that are held, seen by the application or not. It says nothing
    # of an undecided one: it may be about a transaction that was rolled back.
    def redeliver(self, row: Row) -> None:
        seen = number(row, "JMQSetRedelivered")
        for consumer_id, message in self.blocks(row):
            delivery = self.holding(consumer_id, message)
            if delivery is not None and delivery["state"] == "held":
                self.settle(delivery, "returned_seen" if seen else "returned_unseen")

    # --- flow -------------------------------------------------------------------------------

    # J-25 (3.0.1c, bit flags, F and C) Flag F is on the last message that a connection has room
    # for, flag C on the last one of a consumer or producer. No message follows before RESUME_FLOW.
    # A broker stops a producer with size 0; then messages may still be in flight. Flow True is from
    # the producers, flow False to the consumers.
    def flow(self, from_client: bool, target: int | None, row: Row) -> None:
        targets: list[tuple[int | None, str]] = [(None, "F")]
        if target is not None:
            targets.append((target, "C"))
        for each, flag in targets:
            state = self.paused.get((from_client, each), ("flowing", row))[0]
            if state == "paused" and not (from_client and has(row, "I")):
                self.breaks("sent_while_paused", row, row["sys_message_id"])
            elif state == "flowing" and has(row, flag):
                self.pause((from_client, each), "paused", row)

    def resume(self, from_client: bool, target: int | None, event: str, row: Row) -> None:
        state = self.paused.get((from_client, target), ("flowing", row))[0]
        if event == "resume" or state == "paused":
            self.end_pause((from_client, target), row)
        if event == "stop" and state != "stopped":
            self.pause((from_client, target), "stopped", row)

    def pause(self, target: tuple[bool, int | None], state: str, row: Row) -> None:
        self.pauses += 1
        self.paused[target] = state, row

    def end_pause(self, target: tuple[bool, int | None], row: Row) -> None:
        _, since = self.paused.pop(target, (None, None))
        if since is not None:
            self.paused_ns += max(between(since, row) or 0, 0)

    def delete_producer(self, row: Row, reply: Row | None, accepted: bool, at: Row) -> None:
        producer_id = number(row, "JMQProducerID")
        if accepted and producer_id is not None:
            self.end_pause((True, producer_id), at)


NO_REQUEST: Final[Row] = {"row": None, "settle": None, "reply": None, "status": None}
MESSAGE_ITEMS: Final = "destination", "reply_to", "correlation_id", "message_id"
ENDS: Final = {
    "ROLLBACK_TRANSACTION": "roll_back",
    "PREPARE_TRANSACTION": "prepare",
    "END_TRANSACTION": "end",
}
EFFECTS: Final = {
    "ADD_CONSUMER": Connection.add_consumer, "BROWSE": Connection.add_consumer,
    "DELETE_CONSUMER": Connection.delete_consumer, "SET_CLIENTID": Connection.set_client_id,
    "DESTROY_SESSION": Connection.destroy_session, "START_TRANSACTION": Connection.start,
    "DELETE_PRODUCER": Connection.delete_producer, **dict.fromkeys(ENDS, Connection.end),
}  # fmt: skip
"""The effects of requests, when they are answered."""


def close(delivery: Row) -> None:
    """End a delivery with its session or connection, or because the message is delivered again."""
    if delivery["state"] == "held":
        delivery["state"] = "left"
    elif delivery["state"] in CONFIRMED:
        is_lost = delivery["reply_may_be_lost"]
        delivery["state"] = "undecided" if is_lost else "unconfirmed"


# J-26 (errata 35; openmq protocol) Some packet types are sent by clients only, such as HELLO and
# all requests with a reply but PING; others by brokers only, such as all replies but PING_REPLY.
# Both send messages: those with a delivery count or flag B are of a broker. Those without are of
# the client if no packet of the connection shows which side that is.
def is_from_client(row: Row) -> bool | None:
    """Return whether a client sent a packet, None if the packet does not show this."""
    if format_of(row) != "jmq" or not is_packet(row):
        return None
    packet_type = row["packet_type"]
    if packet_type in MESSAGES:
        is_of_broker = has(row, "B") or row.get("delivery_count") is not None
        return False if is_of_broker else None
    reply = PACKET_TYPES.get(packet_type + 1, "")
    if packet_type in CLIENT_TYPES or (reply.endswith("_REPLY") and reply != "PING_REPLY"):
        return True
    return False if packet_type in BROKER_TYPES else None


EVENTS: Final = {
    "HELLO": "hello", "AUTHENTICATE_REQUEST": "challenge", "AUTHENTICATE": "login",
    "GOODBYE_REPLY": "bye_reply", "PING": None, "PING_REPLY": None,
}  # fmt: skip
BY_STATUS: Final = {
    "HELLO_REPLY": ("hello_ok", "hello_no"), "AUTHENTICATE_REPLY": ("login_ok", "login_no"),
}  # fmt: skip


def session_event(row: Row, from_client: bool) -> str | None:
    """Return what a packet is in the table of a connection."""
    name = PACKET_TYPES.get(row["packet_type"], "")
    if name in BY_STATUS:
        return BY_STATUS[name][number(row, "JMQStatus") != OK]
    if name == "GOODBYE":
        return "client_bye" if from_client else "server_bye"
    return EVENTS.get(name, "client" if from_client else "server")


def user_of(row: Row) -> str | None:
    """Return the user of a login; None if its body was left out, or cannot be read."""
    try:
        login = body_value(row)
    except DecodeError:
        return None
    return login["user"][:MOST_TEXT] if login else None


# --- sequence numbers -----------------------------------------------------------------------


class Numbers:
    """The sequence numbers of one stream of JMQ packets."""

    def __init__(self, from_client: bool) -> None:
        self.from_client = from_client
        self.start = self.stop = 0
        """The latest consecutive numbers: the first, and the one after the last."""
        self.top: Row = {}
        self.own: Key | None = None

    # J-27 (3.0.1c, sequence number; errata 48) A sender numbers every packet it writes with a
    # higher number, in 32 bits. Of the packets of a broker, those messages are its own that have
    # the address of its other packets. A packet that is sent again has its old number and
    # timestamp, so a packet with a number up to the highest one is new only if its timestamp is
    # later; one with the very highest, if its timestamp or its type is another one. No number is
    # missing: a program numbers all its connections with one counter, a broker the packets of
    # services that are not captured too.
    def observe(self, row: Row) -> str | None:
        """Observe the next packet; return the rule that its number breaks."""
        address = row["source_ip"], row["source_port"]
        if not self.from_client:
            if row["packet_type"] not in MESSAGES:
                self.own = address
            elif address != self.own:
                return None
        sequence, top = row["sequence"], self.top
        if top:
            sequence = self.stop + (sequence - self.stop + (1 << 31)) % (1 << 32) - (1 << 31)
        if not top or sequence > self.stop:
            self.start = sequence
        elif sequence < self.stop:
            if address != (top["source_ip"], top["source_port"]):
                return None
            is_new = row["timestamp"] > top["timestamp"]
            if sequence == self.stop - 1:
                same = row["timestamp"] == top["timestamp"]
                is_new = not same or row["packet_type"] != top["packet_type"]
            if not is_new:
                return None
            return "sequence_reused" if sequence >= self.start else "sequence_back"
        self.stop, self.top = sequence + 1, row
        return None


# J-29 A broker numbers the GPackets of all its links with one counter of 64 bits: a number that is
# missing on one link is on another. Lower numbers, and the same one, are as in J-27.
def number_gpackets(rows: list[Row], facts: Facts) -> None:
    tops: dict[str, Row] = {}
    for row in rows:
        top = tops.get(row["stream"])
        if top is None or row["sequence"] > top["sequence"]:
            tops[row["stream"]] = row
            continue
        rule = None
        if row["sequence"] == top["sequence"]:
            same = all(row[name] == top[name] for name in ("timestamp", "packet_type"))
            rule = None if same else "sequence_reused"
        elif row["timestamp"] > top["timestamp"]:
            rule = "sequence_back"
        if rule is not None:
            wording = f"GPacket {row['sequence']}: {RULES[rule]}"
            facts.violations.append(violation(rule, wording, row, ends_of(row)[0]))


# --- brokers --------------------------------------------------------------------------------


# J-30 (GPacket 3.5) G_MESSAGE_DATA brings a message to consumers of another broker; G_MESSAGE_ACK
# brings back that it was consumed (T is 3), or is to be consumed with a transaction (9). A packet
# about several consumers counts for each.
def relays_of(row: Row) -> Iterator[Row]:
    """Yield the messages that a GPacket relays or acknowledges; none if it is damaged."""
    kind = {1: "relayed", 3: "relay_acknowledged"}.get(row["packet_type"])
    if kind is None or row["version"] == LINK_VERSION:
        return
    if kind == "relay_acknowledged" and number(row, "T") not in (3, 9):
        return
    try:
        payload = payload_value(row)
    except DecodeError:
        return
    if payload is None:
        return
    host, port = text(row, "host"), number(row, "port")
    sender, receiver = ends_of(row)
    relay = {
        "row": row, "kind": kind, "sender": sender, "receiver": receiver,
        "broker": None if host is None or port is None else endpoint(host, port),
    }  # fmt: skip
    if kind == "relay_acknowledged":
        for entry in payload:
            consumer = entry["consumer"]["consumer_id"]
            yield relay | {"key": entry["sys_message_id"], "consumer_id": consumer}
        return
    message, error = read_row(payload["packet"], 0)
    if error is None:
        for consumer in payload["consumers"]:
            key = message["sys_message_id"]
            yield relay | {"key": key, "consumer_id": consumer["consumer_id"]}


# --- transactions ---------------------------------------------------------------------------

# J-31 A transaction goes by this table, across all connections that take part in it. A dash is an
# event that breaks the rule `transaction_over`. A prepared transaction outlives its connection.
# Replies to earlier packets may come between COMMIT and its reply, and after a ROLLBACK that wants
# none.
TRANSACTION: Final = """
            start  send   deny   acknowledge deny_ack end   prepare  ask        commit    deny_commit roll_back   leave
unseen      active active active active      active   ended prepared committing committed active      rolled_back -
active      .      .      .      .           .        ended prepared committing -         -           rolled_back rolled_back
ended       active -      .      -           .        .     prepared committing -         -           rolled_back rolled_back
prepared    -      -      -      -           -        -     -        asked      -         -           rolled_back .
committing  -      -      .      -           .        -     -        -          committed active      -           .
asked       -      -      -      -           -        -     -        -          committed prepared    -           .
committed   -      -      -      -           -        -     -        -          -         -           -           .
rolled_back -      -      .      -           .        -     -        -          -         -           -           .
"""  # noqa: E501
TRANSACTIONS: Final = _table(TRANSACTION)
SHORT: Final = {"deny_send": "deny", "deny_acknowledge": "deny_ack", "ask_commit": "ask"}
OUTCOME: Final = {
    "prepared": "prepared", "asked": "prepared", "committed": "committed",
    "rolled_back": "rolled_back",
}  # fmt: skip
"""The outcome of a transaction by its last state; of all others it is open."""


def end_transactions(facts: Facts) -> None:
    """Add the rows of transactions; messages in them get their outcomes."""
    uses: dict[Key, list[Use]] = defaultdict(list)
    for use in facts.uses:
        uses[use.source, use.server, use.transaction].append(use)
    outcomes: dict[Key, str] = {}
    for key, of_transaction in uses.items():
        of_transaction.sort(key=lambda use: order_of(use.row))
        outcomes[key] = end_transaction(of_transaction, facts)
    for sending in facts.sent:
        key = sending["row"]["source"], sending["server"], sending["transaction"]
        sending["rolled_back"] = outcomes.get(key) == "rolled_back"
    for delivery in facts.delivered:
        key = delivery["row"]["source"], delivery["server"], delivery["transaction"]
        outcome = outcomes.get(key, "open")
        if delivery["state"] == "in_transaction" and outcome in ("committed", "rolled_back"):
            delivery["state"] = outcome


def end_transaction(uses: list[Use], facts: Facts) -> str:
    state, outcome = "unseen", "open"
    begun = ended = None
    sent = acknowledged = 0
    for use in uses:
        following = TRANSACTIONS[state][SHORT.get(use.event, use.event)]
        if following == "-":
            if not all(each.is_sure for each in uses):
                continue
            # The client causes all events but the start: there the broker chooses the id.
            sender = use.server if use.event == "start" else use.client
            wording = f"{use.event} of {use.transaction}: {RULES['transaction_over']}"
            found = violation("transaction_over", wording, use.row, sender, client_id=use.client_id)
            facts.violations.append(found)
            continue
        if use.event == "start" and begun is None:
            begun = use.row
        change = -use.messages if use.event.startswith("deny") else use.messages
        if use.event in ("send", "deny_send"):
            sent += change
        elif use.event in ("acknowledge", "deny_acknowledge"):
            acknowledged += change
        outcome = OUTCOME.get(following, "open")
        if following != state and outcome != "open":
            ended = use.row
        state = following
    first = uses[0]
    facts.transactions.append(
        {
            "transaction_id": first.transaction, "server": first.server, "client": first.client,
            "client_id": first.client_id, "outcome": outcome, "sent": sent,
            "acknowledged": acknowledged, **time_of(begun, "begun"), **time_of(ended, "ended"),
            **place_of(first.row),
        }
    )  # fmt: skip
    return outcome


# --- deliveries -----------------------------------------------------------------------------

NOT_ACKNOWLEDGED: Final = "unacknowledged"
OF_VERDICT: Final = {
    "acknowledged": "acknowledged", "committed": "committed", "rolled_back": "rolled_back",
    "expired": "expired", "dead": "dead", "no_ack_wanted": "no_ack_wanted",
    "browsed": "no_ack_wanted", "undecided": None,
}  # fmt: skip
"""The outcome of a delivery by its last state; all others are not acknowledged."""


def first_of(records: Iterable[Row]) -> Row | None:
    return min(records, key=lambda record: order_of(record["row"]), default=None)


def by_message(records: Iterable[Row]) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = defaultdict(list)
    for record in records:
        found[record["row"]["source"], record["key"]].append(record)
    return found


def accepted_by(sending: Row) -> Row | None:
    request: Row = sending["request"]
    reply: Row | None = request["reply"]
    return reply if request["status"] in ACCEPTED else None


# J-32 The sender of a delivery is the first sending of its message in the same capture. It came
# over the cluster if a GPacket relayed it for its consumer.
def join_deliveries(facts: Facts) -> None:
    sent, relayed = by_message(facts.sent), by_message(facts.relayed)
    for delivery in facts.delivered:
        row = delivery["row"]
        key = row["source"], delivery["key"]
        sending = first_of(sent.get(key, ()))
        relay = first_of(
            relay
            for relay in relayed.get(key, ())
            if relay["kind"] == "relayed" and relay["consumer_id"] == delivery["consumer_id"]
        )
        facts.deliveries.append(
            {
                "message_key": delivery["key"], "protocol": "jms",
                "producer": sending["producer"] if sending else producer_of(row),
                "producer_client_id": sending["client_id"] if sending else None,
                "destination": delivery["destination"], "consumer": delivery["consumer"],
                "server": delivery["server"], "consumer_id": delivery["consumer_id"],
                "consumer_client_id": delivery["client_id"],
                "subscription": delivery["subscription"],
                "redelivered": has(row, "R"), "delivery_count": row.get("delivery_count"),
                "outcome": OF_VERDICT.get(delivery["state"], NOT_ACKNOWLEDGED),
                "verdict": delivery["state"], "dead_reason": delivery["dead_reason"],
                "transaction_id": delivery["transaction"],
                "via_broker": relay["broker"] if relay else None,
                **time_of(sending["row"] if sending else None, "sent"),
                **time_of(row, "delivered"),
                **time_of(delivery["acknowledged"], "acknowledged"),
                "accepted_frame": (accepted_by(sending) or {}).get("frame") if sending else None,
                "relayed_frame": relay["row"].get("frame") if relay else None,
                **place_of(row),
            }
        )  # fmt: skip


# --- requests that are sent again ---------------------------------------------------------


# J-39 (3.0.1c, bit flags, I) A request that a client sends again on another connection is the one
# that no reply came to: one conversation, from the first packet to the reply of the last.
def join_resent(facts: Facts) -> None:
    same: dict[Key, list[tuple[Row, Row]]] = defaultdict(list)
    for row, exchange in facts.exchanges:
        if has(row, "I") or "reply_key" not in exchange:
            same[row["source"], row["packet_type"], row["sys_message_id"]].append((row, exchange))
    joined = set()
    for exchanges in same.values():
        exchanges.sort(key=lambda each: order_of(each[0]))
        row, first = exchanges[0]
        for other, exchange in exchanges[1:]:
            if has(other, "I"):
                joined.add(id(exchange))
                if "reply_key" in exchange and "reply_key" not in first:
                    names = "responder", "reply_key", "status", "replied_ns", "replied_frame"
                    first.update({name: exchange[name] for name in names})
                    begun, over = row.get("captured_ns"), exchange["replied_ns"]
                    is_timed = begun is not None and over is not None
                    first["latency_ms"] = (over - begun) // MS if is_timed else None
    facts.conversations = [each for each in facts.conversations if id(each) not in joined]


# --- JMS requests and replies ---------------------------------------------------------------

TEMPORARY: Final = "temporary_destination://"


# J-33 (JMS, JMSReplyTo and JMSCorrelationID) A message with a JMSReplyTo is a request. A reply is
# sent there, and its JMSCorrelationID is the JMSMessageID or the JMSCorrelationID of the request:
# of the latest one with this id. A message to a temporary destination without a JMSCorrelationID
# answers the oldest request there that has no reply yet, if all packets were captured of the
# connections that show these requests: else it may answer another one. A message counts once in a
# capture, when it was sent, or else delivered first; one that was refused or rolled back does not
# count.
def match_replies(facts: Facts) -> None:
    sent, delivered = by_message(facts.sent), by_message(facts.delivered)
    messages = []
    for key in {**sent, **delivered}:
        sending, delivery = first_of(sent.get(key, ())), first_of(delivered.get(key, ()))
        if sending is not None:
            if sending["rolled_back"] or sending["request"]["status"] not in (None, *ACCEPTED):
                continue
            messages.append(sending)
        elif delivery is not None:
            messages.append(delivery | {"producer": producer_of(delivery["row"])})
    messages.sort(key=lambda message: order_of(message["row"]))
    requests: list[tuple[Row, list[Row]]] = []
    for message in messages:
        candidates = [
            request
            for request in requests
            if request[0]["reply_to"] == message["destination"]
            and request[0]["row"]["source"] == message["row"]["source"]
        ]
        correlation = message["correlation_id"]
        if correlation is not None:
            candidates = [each for each in candidates if correlation in ids_of(each[0])][-1:]
        elif (message["destination"] or "").startswith(TEMPORARY):
            is_ordered = all(request["is_whole"] for request, _ in candidates)
            candidates = [each for each in candidates if is_ordered and not each[1]][:1]
        else:
            candidates = []
        for _, replies in candidates:
            replies.append(message)
        if message["reply_to"] is not None:
            requests.append((message, []))
    for request, replies in requests:
        for reply in replies or (None,):
            facts.conversations.append(conversation(request, reply))


def ids_of(request: Row) -> set[str]:
    chosen = request["key"] if request["message_id"] is None else request["message_id"]
    return {f"ID:{chosen}", request["correlation_id"]} - {None}


def conversation(request: Row, reply: Row | None) -> Row:
    row = request["row"]
    found = {
        "kind": "jms", "request_key": request["key"], "requester": request["producer"] or None,
        "request": request["destination"] or "", **time_of(row, "requested"), **place_of(row),
    }  # fmt: skip
    if reply is None:
        return found
    took = between(row, reply["row"])
    return found | {
        "reply_key": reply["key"], "responder": reply["producer"] or None,
        "latency_ms": None if took is None else took // MS,
        **time_of(reply["row"], "replied"),
    }  # fmt: skip


# --- hops -----------------------------------------------------------------------------------

# J-34 (erratum 37) A hop follows from the latest earlier hop of one of these kinds and the same
# consumer; `sent` and `accepted` are of no consumer.
FOLLOWS: Final = {
    "sent": ("sent",), "accepted": ("accepted", "sent"), "relayed": ("relayed", "sent"),
    "delivered": ("delivered", "relayed", "sent"), "acknowledged": ("acknowledged", "delivered"),
    "relay_acknowledged": ("relay_acknowledged", "acknowledged", "delivered", "relayed"),
}  # fmt: skip


class Sighting(NamedTuple):
    """A packet that shows a message."""

    kind: str
    consumer_id: int | None
    sender: str
    receiver: str
    row: Row


def sightings(facts: Facts) -> dict[str, list[Sighting]]:
    seen: dict[str, list[Sighting]] = defaultdict(list)

    def add(key: str, *fields: Any) -> None:
        seen[key].append(Sighting(*fields))

    for each in facts.sent:
        client, server, reply = each["producer"], each["server"], accepted_by(each)
        add(each["key"], "sent", None, client, server, each["row"])
        if reply is not None:
            add(each["key"], "accepted", None, server, client, reply)
    for each in facts.relayed:
        names = "key", "kind", "consumer_id", "sender", "receiver", "row"
        add(*(each[name] for name in names))
    for each in facts.delivered:
        client, server, consumer = each["consumer"], each["server"], each["consumer_id"]
        add(each["key"], "delivered", consumer, server, client, each["row"])
        if each["acknowledged"] is not None:
            add(each["key"], "acknowledged", consumer, client, server, each["acknowledged"])
    return seen


def order_hops(facts: Facts) -> None:
    for key, seen in sightings(facts).items():
        sources = {each.row["source"] for each in seen if each.row.get("captured_ns") is not None}
        if len(sources) > 1:
            facts.of_several.add(key)
        else:
            facts.hops += hops_of(key, seen)


def hops_of(key: str, seen: list[Sighting]) -> Iterator[Row]:
    """Yield the hops of a message in the order of time; those without a time come last."""
    kinds = list(FOLLOWS)
    seen.sort(
        key=lambda each: (
            each.row.get("captured_ns") is None, each.row.get("captured_ns") or 0,
            kinds.index(each.kind), each.row.get("frame") or 0, each.row["stream"],
            each.row["offset"], each.consumer_id or 0,
        )
    )  # fmt: skip
    for place, hop in enumerate(seen):
        ns = hop.row.get("captured_ns")
        before = None
        for at in range(place):
            earlier = seen[at]
            is_timed = earlier.row.get("captured_ns") is not None
            of = None if earlier.kind in ("sent", "accepted") else hop.consumer_id
            if (earlier.kind in FOLLOWS[hop.kind] and earlier.consumer_id == of
                    and is_timed == (ns is not None)):  # fmt: skip
                before = at
        took = None if ns is None or before is None else ns - seen[before].row["captured_ns"]
        no_before = "first" if before is None else None
        yield {
            "message_key": key, "hop": place + 1, "kind": hop.kind, "sender": hop.sender or None,
            "receiver": hop.receiver or None, "consumer_id": hop.consumer_id, "captured_ns": ns,
            "frame": hop.row.get("frame"), "follows": None if before is None else before + 1,
            "took_ns": took, "took_error_ns": None if took is None else 0,
            "unknown": "untimed" if ns is None else no_before,
            "clock_ahead_ns": None if ns is None else 0,
            "clock_error_ns": None if ns is None else 0, **place_of(hop.row),
        }  # fmt: skip


# --- messages -------------------------------------------------------------------------------


# J-35 (errata 22) A message has one row for all captures, of one packet: a sending before a
# delivery, and that before one between brokers; one without flag I or R before one with it; then
# the first.
def represent_messages(facts: Facts) -> None:
    """Add the packet and the sender of each message, and the producers of each capture."""
    kinds = "sent", "delivered", "relayed", "relay_acknowledged"
    records: dict[str, list[tuple[Key, Row]]] = defaultdict(list)
    spans: dict[Key, list[int]] = defaultdict(list)
    for kind, found in (("sent", facts.sent), ("delivered", facts.delivered), ("", facts.relayed)):
        for each in found:
            row, seen = each["row"], each.get("kind", kind)
            is_again = each.get("resent", False)
            order = kinds.index(seen), is_again, row["source"], *order_of(row)
            records[each["key"]].append((order, each | {"kind": seen}))
            key = re.fullmatch(r"-?\d+-(.*--?\d+)-(-?\d+)", each["key"])
            assert key is not None, each["key"]
            spans[row["source"], key[1]].append(int(key[2]))
    for message, candidates in records.items():
        _, each = min(candidates, key=lambda record: record[0])
        is_sent = each["kind"] == "sent"
        facts.messages.append(
            {
                "message_key": message, "first_seen": each["kind"],
                "client": each["producer"] if is_sent else None,
                "producer_client_id": each["client_id"] if is_sent else None,
                "user": each["user"] if is_sent else None, **place_of(each["row"]),
            }
        )  # fmt: skip
    for (source, producer), times in spans.items():
        facts.producers.append(
            {"source": source, "producer": producer, "first_ms": min(times), "last_ms": max(times)}
        )
