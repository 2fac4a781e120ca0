"""MQTT as rules in order: all tables of a capture, from its packets, by brute force.

Every rule has the number that docs/layers/mqtt.md gives it, with its sentence and its sections; the
code below the number is the rule. Sections without a version are those of 5.0.

The model is independent of ``wireyard.layers``. It takes rows of packets as readers yield them, in
the order of time. It is slow, and it limits nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["derive"]

Row = dict[str, Any]
Stream = tuple[str, str]
"""Source and name."""

(
    CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE,
    UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH,
) = range(1, 16)  # fmt: skip
_BOTH: Final = (PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP)
_CLIENT: Final = (CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ)
_SERVER: Final = (CONNACK, SUBACK, UNSUBACK, PINGRESP)
"""Packet types (2.1.2): those of both sides, and those that one side alone sends."""
_NS_PER_S: Final = 1_000_000_000
_SOON_NS: Final = 10_000_000
_EARLY_NS: Final = 5_000_000
"""Most by which packets of several connections are out of order (C-29)."""
_APART_NS: Final = 2_000_000_000
_RESUMED = {
    "pubrecs": "pubrec",
    "held again": "held",
    "pubcomps": "pubcomp",
    "done again": "free",
}
"""What a receiver owes on a new connection that resumes the session, where it is not the same."""
_ERROR: Final = 128
"""The lowest reason code that is an error (2.4)."""
_NO_LIMIT: Final = 65_535
"""Receive Maximum where there is none (3.1.2.11.3)."""
_FOREVER_S: Final = 0xFFFF_FFFF
"""Session Expiry Interval of a session that does not expire (3.1.2.11.2)."""


class At(NamedTuple):
    """Where a packet is in a capture.

    C-1
    """

    reached_ns: int
    reached_frame: int
    stream: str
    offset: int
    ns: int | None
    frame: int | None
    source: str

    @property
    def time(self) -> int:
        return self.offset if self.ns is None else self.ns

    @property
    def key(self) -> str:
        return f"{self.stream}@{self.offset}"

    def after(self, seconds: int) -> At | None:
        """Return when some seconds have passed, before all packets then."""
        if self.ns is None:
            return None
        due_ns = self.ns + seconds * _NS_PER_S
        return At(due_ns, 0, self.stream, -1, due_ns, None, self.source)


_OF_LEVEL: Final = ("MQTT-3.1.2-2", "protocol_level")
"""The rule on the protocol level, by version."""
_LAST_OFFSET: Final = (1 << 63) - 1
_ALWAYS: Final = At((1 << 63) - 1, 0, "", 0, None, None, "")


_NUMBERS: Final = frozenset(
    {"message_expiry_interval", "session_expiry_interval", "receive_maximum", "topic_alias"}
    | {"topic_alias_maximum", "maximum_packet_size", "will_delay_interval", "server_keep_alive"}
)


def properties_of(found: Any) -> dict[str, Any]:
    """Return the properties of a packet by name; a subscription identifier may come again."""
    properties: dict[str, Any] = {}
    for one in found or ():
        name, value = one["name"], one["value"]
        if name == "subscription_identifier":
            properties.setdefault(name, []).append(int(value))
        elif name == "correlation_data" and isinstance(value, str):
            properties[name] = bytes.fromhex(value)
        else:
            properties[name] = int(value) if name in _NUMBERS else value
    return properties


# --- rules that a packet can break ----------------------------------------------------------------


def _rules() -> dict[str, tuple[str, dict[int, str]]]:
    """Return the rules of docs/layers/mqtt.md: text, and by version number, or name without one."""
    page = Path(__file__).resolve().parents[2] / "docs" / "layers" / "mqtt.md"
    lines = page.read_text().partition("\n## Rules\n")[2].partition("\n## ")[0].splitlines()
    found = {}
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0] not in ("rule", "---"):
            cited = {v: cell for v, cell in zip((2, 3, 4, 5), cells[2:], strict=True) if cell}
            numbers = {v: c if c.startswith("MQTT-") else cells[0] for v, c in cited.items()}
            found[cells[0]] = f"against the rule that {cells[1]}", numbers
    return found


_RULES: Final = _rules()
_OF_ONE_PACKET: Final = frozenset(
    {
        "connect_first", "connect_twice", "connack_twice", "after_disconnect", "after_refusal",
        "wrong_side", "session_present_clean", "packet_size_client", "packet_size_broker",
        "subscription_identifier", "alias_maximum_client", "alias_maximum_broker",
    }
)  # fmt: skip
"""C-2, for all other rules"""
_OF_EARLIER_SESSIONS: Final = frozenset({"dup_first", "pubrel_unasked"})
"""C-3"""


# --- which side is the client ---------------------------------------------------------------------


class Side(NamedTuple):
    from_client: bool
    alone: bool  # no packet of the other stream was captured
    key: tuple[str, str, str]  # source, server, client id: state belongs to these (4.1)
    older: bool  # the CONNECT of a connection to the server was not captured
    followed: bool  # the next connection of the client may be one without its CONNECT


@dataclass(eq=False)
class Evidence:
    """What a stream shows of its sender."""

    name: Stream
    src: tuple[Any, Any]
    dst: tuple[Any, Any]
    opened: bool = False  # its sender opened the connection
    begun: bool = False  # its first byte was captured
    paired: bool = False  # packets of the other stream were captured, be it without bytes
    connects: int = 0
    packets: int = 0  # those that only clients send, minus those that only servers send
    names: list[str | None] = field(default_factory=list)
    gaps: int = 0
    times_ns: list[int] = field(default_factory=list)

    @property
    def client_id(self) -> str | None:
        return self.names[0] if self.names else None


_CODES: Final[dict[tuple[bool, int], set[int]]] = {
    (True, DISCONNECT): {0, 4}, (True, AUTH): {25},
    (False, PUBACK): {16}, (False, PUBREC): {16}, (False, AUTH): {0},
    (False, DISCONNECT): {135, 137, 139, 141, 142, 143, *range(154, 163)},
}  # fmt: skip
"""Reason codes that one side alone sends (3.14.2.1, 3.15.2.1, 3.4.2.1, 3.5.2.1); absent is 0."""


def _sent_by_client(row: Row) -> bool | None:
    """Return whether only clients send such a packet, None if both sides do."""
    kind, code = row.get("packet_type"), row.get("return_code") or 0
    if kind in (*_CLIENT, *_SERVER):
        return kind in _CLIENT
    if kind is None or row.get("status") != "ok":
        return None
    return next((side for side in (True, False) if code in _CODES.get((side, kind), ())), None)


def _endpoint(end: tuple[Any, Any]) -> str:
    return f"[{end[0]}]:{end[1]}" if ":" in end[0] else f"{end[0]}:{end[1]}"


def _ends(one: Evidence) -> tuple[str, str]:
    """Return source and destination as text; a raw stream has its name and nothing."""
    if None in (*one.src, *one.dst):
        return one.name[1], ""
    return _endpoint(one.src), _endpoint(one.dst)


def _connection(one: Evidence) -> tuple[str, ...]:
    """Return what both streams of a connection have in common: endpoints, and which of several."""
    if None in (*one.src, *one.dst):
        return one.name
    return one.name[0], *sorted(_ends(one)), one.name[1].partition("#")[2]


def _stream(row: Row) -> Evidence:
    src, dst = ((row.get(f"{end}_addr"), row.get(f"{end}_port")) for end in ("src", "dst"))
    return Evidence((row["source"], row["stream"]), src, dst)


def _evidence(rows: list[Row], shown: dict[Stream, Row]) -> Iterable[Evidence]:
    found: dict[Stream, Evidence] = {}
    for row in rows:
        one = found.setdefault((row["source"], row["stream"]), _stream(row))
        seen = shown.get(one.name, {})
        one.opened, one.begun = bool(seen.get("opened")), bool(seen.get("begun"))
        one.paired = bool(seen.get("paired"))
        one.gaps += row.get("status") == "gap"
        if row.get("captured_ns") is not None:
            one.times_ns.append(row["captured_ns"])
        kind, by_client = row.get("packet_type"), _sent_by_client(row)
        if by_client is not None:
            one.packets += 1 if by_client else -1
        one.connects += kind == CONNECT
        # C-4
        if kind == CONNECT:
            one.names.append(row.get("client_id"))
        elif kind == CONNACK:
            name = properties_of(row.get("properties")).get("assigned_client_identifier")
            one.names.append(None if row.get("return_code") else name)
    return found.values()


class Decided(NamedTuple):
    """A connection, the evidence of its client and of its server, one of which may be empty."""

    connection: tuple[str, ...]
    client: Evidence
    server: Evidence
    alone: bool
    number: int

    # Without a client id, a connection is one client.
    @property
    def key(self) -> tuple[str, str, str]:
        name = self.server.client_id or self.client.client_id or "#".join(self.connection[1:])
        by = self.client if self.client.name[1] else self.server
        return self.connection[0], _ends(by)[by is self.client], name

    @property
    def is_named(self) -> bool:
        return bool(self.server.client_id or self.client.client_id)

    @property
    def span(self) -> tuple[int, int, int] | None:
        times_ns = self.client.times_ns + self.server.times_ns
        return (min(times_ns), max(times_ns), self.number) if times_ns else None

    # C-5
    @property
    def lacks_connect(self) -> bool:
        one, other = self.client, self.server
        if self.alone and not one.name[1]:
            return True
        is_whole = not (one.gaps or other.gaps) and (one.begun or other.begun)
        return not (one.connects or other.connects or is_whole)

    # C-6
    def is_followed(self, others: list[Decided]) -> bool:
        span = self.span
        if not self.is_named or span is None:
            return False
        timed = [(one, one.span) for one in others]
        next_ones = [at for one, at in timed if one.is_named and one.key == self.key and at]
        next_ones = sorted(at for at in next_ones if at > span)
        unknown = [at for one, at in timed if at and self._may_be_of(one)]
        first = min((at[0] for at in unknown if at[0] >= span[1]), default=None)
        return first is not None and (not next_ones or first <= next_ones[0][0])

    # C-27
    def _may_be_of(self, other: Decided) -> bool:
        if other.key[1] != self.key[1]:
            return other.is_named and other.key[2] == self.key[2]
        return other.lacks_connect and not other.is_named


def sides_of(rows: list[Row], shown: dict[Stream, Row]) -> dict[Stream, Side]:
    connections: dict[tuple[str, ...], list[Evidence]] = {}
    for one in _evidence(rows, shown):
        connections.setdefault(_connection(one), []).append(one)
    sides = {}
    for source in dict.fromkeys(key[0] for key in connections):
        own = {key: pair for key, pair in connections.items() if key[0] == source}
        decided = _decide(own)
        older = {each.key[1] for each in decided if each.lacks_connect}
        for each in decided:
            context = each.alone, each.key, each.key[1] in older, each.is_followed(decided)
            for stream in own[each.connection]:
                sides[stream.name] = Side(stream is each.client, *context)
    return sides


# C-7
def _decide(connections: dict[tuple[str, ...], list[Evidence]]) -> list[Decided]:
    peers: defaultdict[Any, set[Any]] = defaultdict(set)
    for one in (one for pair in connections.values() for one in pair):
        peers[one.src].add(one.dst)
        peers[one.dst].add(one.src)
    servers: Counter[Any] = Counter()
    """By endpoint and by port: decided connections where it is the server's."""
    rounds: tuple[tuple[Callable[[Evidence], int], ...], ...] = (
        (lambda one: one.connects > 0, lambda one: one.opened),
        (lambda one: -servers[one.src], lambda one: one.packets),
        (
            lambda one: -servers[one.src],
            lambda one: -servers[one.src[1]],
            lambda one: -len(peers[one.src]),
            lambda one: one.src[1] not in (1883, 8883),
            lambda one: (one.src[1] or 0) >= 32768,
        ),
    )
    decided: list[Decided] = []
    for rules in rounds:
        new: list[Decided] = []
        for key, pair in connections.items():
            if any(each.connection == key for each in decided):
                continue
            one = pair[0]
            other = pair[1] if len(pair) > 1 else Evidence((key[0], ""), one.dst, one.src)
            value = next((found for rule in rules if (found := rule(one) - rule(other))), 0)
            if value:
                ends = (one, other) if value > 0 else (other, one)
                alone = len(pair) == 1 and not one.paired
                new.append(Decided(key, *ends, alone, len(decided) + len(new)))
        decided += new
        for each in new:
            servers.update((each.client.dst, each.client.dst[1]))
            servers.subtract((each.client.src, each.client.src[1]))
    return decided


# --- what is followed -----------------------------------------------------------------------------


class Client(NamedTuple):
    source: str
    server: str
    name: str  # the client id, or a substitute where it is unknown
    endpoint: str
    client_id: str | None


@dataclass(eq=False)
class Message:
    """A message that a client sent, or its will."""

    origin: str
    sent: At
    client: Client
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: dict[str, Any]
    length: int = 0
    malformed: bool = False
    accepted: At | None = None  # the packet that shows that the broker accepted it
    released: At | None = None  # PUBREL; of a will the last packet of its connection
    refused: int | None = None
    again: list[At] = field(default_factory=list)
    copies: int = 1  # how many messages the broker may have taken its copies for
    is_repeated: bool = False
    received: bool = False  # whether the broker answered with PUBREC
    untraced: bool = False  # whether it may be answered in a connection of an unknown client
    deletes: bool = False

    @property
    def start(self) -> At:
        """From when on it may be delivered."""
        return self.released if self.origin == "will" and self.released else self.sent

    @property
    def at(self) -> At:
        return self.sent

    @property
    def may_be_taken(self) -> bool:
        return self.refused is None and not self.malformed

    # M-1
    @property
    def taken(self) -> At | None:
        if not self.may_be_taken:
            return None
        if self.origin == "will":
            return self.accepted
        return self.released if self.qos == 2 else self.sent


@dataclass(eq=False)
class Attempt:
    """A message that a broker sent to a client."""

    at: At
    client: Client
    topic: str
    payload: bytes
    qos: int
    retain: bool
    identifiers: list[int]
    redelivered: bool
    may_be_live: bool  # whether a subscription that was not captured may have Retain As Published
    expires_s: int | None = None
    count: int = 1
    again: list[At] = field(default_factory=list)
    acknowledged: At | None = None
    refused: int | None = None
    lost_ack: bool = False
    abandoned: bool = False  # whether its session ended before it was acknowledged
    untraced: bool = False
    """Whether its acknowledgement may have been where the capture does not show it."""
    setter: Message | None = None  # the message that set the retained value that was delivered
    is_live: bool = True
    """Whether it was forwarded when it was published, and not for a new subscription."""
    is_extra: bool = False
    """Whether a retained value came once more than new subscriptions account for."""
    is_sparse: bool = False
    """Whether subscriptions of its session may not have been captured."""


@dataclass(eq=False)
class Subscription:
    client: Client
    filter: str
    group: str | None
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None
    version: int
    asked: At
    granted: At
    since: At  # the first SUBSCRIBE for it, if it was renewed
    known: bool  # whether all other subscriptions of its session were captured
    handling: int
    gets_values: bool
    maximum_packet_size: int | None
    leaving: At | None = None  # the packet that may end it
    gone: At | None = None  # when it has certainly ended
    is_left: bool = False  # whether the answer to a request ended it, and not the session
    confirmed: At | None = None  # when the broker has certainly sent the retained values

    @property
    def served_as(self) -> str:
        return self.filter if self.group else self.client.name


@dataclass(eq=False)
class Will:
    message: Message
    delay_s: int
    state: str = "armed"
    due: At | None = None


@dataclass(eq=False)
class Connection:
    client: Client
    opened: At
    state: str
    begun_shown: bool
    shows_end: bool
    alone: bool
    followed: bool
    session: Session
    unanswered: bool  # whether its CONNACK was not captured
    begun: bool = False  # whether its CONNECT was captured
    connect: Row | None = None
    version: int = 0
    user: str | None = None
    status: int | None = None
    resumed: bool | None = None
    keep_alive: int | None = None
    is_bridge: bool = False
    clean_start: bool = True
    persistent: bool = True
    expires_s: int | None = None
    packets: int = 0
    bytes: int = 0
    last: At | None = None
    closed: At | None = None
    until: At | None = None  # the last packet at which it was certainly open
    ended_by: str | None = "open"
    end_code: int | None = None  # of the DISCONNECT of the server
    end_reason: str | None = None
    accepted: At | None = None
    damaged: bool = False  # whether bytes of it were not captured, or belong to no packet
    lost: dict[bool, At | None] = field(default_factory=lambda: {True: None, False: None})
    """By `from_client`: the first packet behind the last gap, `_ALWAYS` if there is none yet."""
    in_flight: tuple[int, int] = (0, 0)
    most_in_flight: int = 0  # to the client
    filled: At | None = None  # when that many were in flight first
    shows_in_flight: bool = True
    answered: At | None = None
    """Its last request that was answered: the broker had read all before it."""
    answered_open: At | None = None
    """The last one since which its window was never full."""
    is_full: bool = False
    broken: Counter[bool] = field(default_factory=Counter)
    """By `from_client`: bytes behind its last packet that are no packets, gaps included."""
    lost_since_ns: int | None = None
    early: list[tuple[Row, At]] = field(default_factory=list)
    aliases: dict[bool, dict[int, str]] = field(default_factory=lambda: {True: {}, False: {}})
    alias_maximum: dict[bool, int | None] = field(default_factory=lambda: {True: None, False: None})
    most_bytes: dict[bool, int | None] = field(default_factory=lambda: {True: None, False: None})
    requests: dict[tuple[int, int], tuple[Row, At]] = field(default_factory=dict)
    """SUBSCRIBE and UNSUBSCRIBE that wait for their answers, by type and packet identifier."""
    pings: list[At] = field(default_factory=list)
    unread: list[Message] = field(default_factory=list)
    """Messages without an acknowledgement of their own that the broker may not have read."""
    unconfirmed: list[Subscription] = field(default_factory=list)
    has_client_packets: bool = False
    kept: Session | None = None  # the session of its client id at the end

    @property
    def maximum_packet_size(self) -> int | None:
        return self.most_bytes[False]

    @property
    def unsure_before(self) -> At | None:
        return max((at for at in self.lost.values() if at is not None), default=None)

    @property
    def has_gap(self) -> bool:
        return self.unsure_before is not None

    # M-65
    @property
    def session_over_ns(self) -> int | None:
        """Return when its session ends if no other connection follows; None if it does not."""
        if self.closed is None or self.closed.ns is None or self.ended_by == "refused":
            return None
        if not self.persistent:
            return self.closed.ns
        due = None if self.expires_s is None else self.closed.after(self.expires_s)
        return due and due.ns


@dataclass(eq=False)
class Session:
    name: str
    known: bool  # whether it was captured from its beginning
    to_broker: Flows
    to_client: Flows
    connection: Connection | None = None
    is_whole: bool = True
    filters: dict[str, Subscription] = field(default_factory=dict)
    served_as: set[str] = field(default_factory=set)
    will: Will | None = None
    expires: At | None = None

    @property
    def may_have_changed(self) -> bool:
        last = self.connection
        return last is not None and last.followed and last.persistent


# --- flows of packet identifiers (4.3, 4.4) -------------------------------------------------------


@dataclass(eq=False)
class Flow:
    """One packet identifier in one direction.

    `phase` is what the sender did or got last; `owes` is what the receiver has to answer, or
    ``held`` from PUBREC to PUBREL.
    """

    phase: str
    owes: str
    qos: int = 0
    away: bool = False
    """Whether a new connection has resumed the session since the last packet."""
    record: Message | Attempt | None = None

    @property
    def in_flight(self) -> bool:
        return self.phase in ("published", "received", "released")


class Flows:
    """All packet identifiers of one direction of a session."""

    def __init__(self, known: bool) -> None:
        self.first = "free" if known else "unknown"
        self.flows: dict[int, Flow] = {}
        self.maximum = self.quota = _NO_LIMIT
        self.freed: At | None = None
        """The last acknowledgement that came while the window may have been full."""

    # M-85
    @property
    def is_full(self) -> bool:
        return sum(one.in_flight for one in self.flows.values()) >= min(10, self.maximum)

    def __getitem__(self, packet_id: int) -> Flow:
        return self.flows.setdefault(packet_id, Flow(self.first, self.first))

    # M-2
    def connect(self, kept: bool, maximum: int) -> None:
        for flow in self.flows.values():
            phase, is_read = flow.phase, flow.phase == "acknowledged" and flow.away
            if kept and (phase in ("refused", "answering", "over") or is_read):
                flow.phase = "free"
            elif not kept:
                is_over = phase in ("published", "received", "released", "acknowledged", "refused")
                flow.phase, flow.owes = "over" if is_over else "free", "free"
            if flow.owes in ("puback", "pubacks", "again"):
                flow.owes = "nothing"  # 4.3.2: a receiver keeps no state of QoS 1
            flow.owes = _RESUMED.get(flow.owes, flow.owes)
            flow.away = True
        if not kept:
            self.first = "free"
        for flow in self.flows.values():
            if flow.phase == self.first:
                flow.record = None
        # M-3
        self.freed = None
        self.maximum = self.quota = maximum

    def publish(self, packet_id: int, qos: int, dup: bool) -> tuple[str, str | None, str]:
        """Send a message; return what it is to the sender, the rule broken, and to the receiver."""
        flow = self[packet_id]
        self.quota -= 1
        effect, rule = self._send(flow, qos, dup)
        # M-4, M-71
        owes = flow.owes
        if qos == 2:
            is_known = owes in ("pubrec", "pubrecs", "held", "held again")
            flow.owes = "pubrecs" if owes in ("pubrec", "pubrecs") else "pubrec"
        else:
            is_known = dup and owes in ("puback", "pubacks", "again", "nothing")
            flow.owes = "pubacks" if is_known and owes != "nothing" else "puback"
        arrives = "duplicate" if is_known else "delivered"
        flow.phase, flow.qos, flow.away = "published", qos, False
        return effect, rule, arrives

    @staticmethod
    def _send(flow: Flow, qos: int, dup: bool) -> tuple[str, str | None]:
        # M-5
        if flow.phase in ("free", "answering"):
            return "sent", "dup_first" if dup else None
        # C-8
        if flow.phase == "unknown":
            return ("repeated" if dup else "sent"), None
        # M-6
        if flow.phase == "over":
            return ("repeated", "session_over") if dup else ("sent", None)
        if flow.in_flight:
            # M-7
            if flow.qos != qos:
                return "sent", "id_in_use"
            # M-8
            is_due = flow.away and flow.phase != "released"
            if not (is_due or dup):
                return "sent", "id_in_use"
            effect = "lost_ack" if flow.away and flow.phase == "received" else "repeated"
            # M-72
            if flow.phase == "released":
                return effect, "resend_released"
            if not is_due:
                return effect, "resend_unasked"
            # M-9
            return effect, None if dup else "dup_missing"
        if not dup:
            return "sent", None
        if flow.qos != qos:
            return "sent", "dup_first"
        # M-10
        if qos == 1 and flow.away and flow.phase == "acknowledged":
            return "lost_ack", None
        is_released = qos == 2 and flow.phase == "acknowledged"
        return "repeated", "resend_released" if is_released else "resend_unasked"

    def pubrel(self, packet_id: int) -> tuple[str | None, str | None]:
        """Send PUBREL; return its effect and the rule broken."""
        flow = self[packet_id]
        phase, away, owes = flow.phase, flow.away, flow.owes
        effect, rule = self._release(flow)
        of_two = ("held", "held again", "pubrec", "pubrecs", "unknown")
        if owes in ("pubcomp", "pubcomps"):
            flow.owes = "pubcomps"
        if owes in ("free", "nothing", "again", "done again", *of_two):
            flow.owes = "pubcomp"
            if owes in of_two:
                effect = effect or "released"
        if phase in ("published", "acknowledged") and flow.qos == 1:
            flow.phase, flow.away = phase, away
        else:
            flow.phase, flow.qos, flow.away = "released", 2, False
        return effect, rule

    @staticmethod
    def _release(flow: Flow) -> tuple[str | None, str | None]:
        # M-11
        if flow.phase in ("unknown", "answering", "refused"):
            return None, None
        if flow.phase == "over":
            return "repeated", "session_over"
        if flow.qos == 1 and flow.phase in ("published", "acknowledged"):
            return None, "pubrel_unasked"
        if flow.phase == "published":
            return "released", "pubrel_unasked"
        if flow.phase == "received":
            return "released", None
        # M-12
        if flow.phase == "released":
            return "repeated", None if flow.away else "resend_unasked"
        if flow.phase == "acknowledged" and flow.away:
            return "lost_ack", None
        return None, "pubrel_unasked"

    def answer(self, packet_id: int, kind: int, code: int) -> tuple[str | None, str | None]:
        """Send PUBACK, PUBREC or PUBCOMP; return its effect and the rule broken."""
        flow, is_error = self[packet_id], code >= _ERROR and kind != PUBCOMP
        name = {PUBACK: "puback", PUBREC: "pubrec", PUBCOMP: "pubcomp"}[kind]
        effect: str | None = {PUBREC: "received"}.get(kind, "acknowledged")
        effect = "refused" if is_error else effect
        read = self._read(flow, kind, is_error)
        if read and (kind != PUBREC or is_error):
            self.quota = min(self.quota + 1, self.maximum)  # M-3
        # M-13
        again = {PUBACK: "again", PUBREC: "held again", PUBCOMP: "done again"}[kind]
        if flow.owes == again and not (is_error and kind == PUBREC):
            return (effect if read == "effect" else None), None  # M-71
        was_again = flow.owes in ("pubacks", "pubrecs", "pubcomps")
        if flow.owes not in (name, f"{name}s", "unknown"):
            return (effect if read == "effect" else None), f"{name}_unasked"
        flow.owes = "free"
        if kind == PUBACK:
            flow.owes = "again" if was_again else "nothing"
        elif kind == PUBREC and not is_error:
            flow.owes = "held again" if was_again else "held"
        elif kind == PUBCOMP and was_again:
            flow.owes = "done again"
        return effect, None

    @staticmethod
    def _read(flow: Flow, kind: int, is_error: bool) -> str | None:
        """Return whether an acknowledgement moves the sender on, as one that it waits for does."""
        here = not flow.away
        if flow.phase == "unknown":
            flow.qos = 1 if kind == PUBACK else 2
        elif kind == PUBACK:
            if not (flow.phase == "published" and flow.qos == 1 and here):
                return None
        elif kind == PUBCOMP:
            if not (flow.phase == "released" and here):
                return None
        elif flow.phase == "free" and not is_error:
            flow.phase, flow.away = "answering", False
            return "moved"
        elif flow.phase in ("received", "released") and here and not is_error:
            return "moved"
        elif not (flow.phase in ("published", "received") and flow.qos == 2 and here):
            return None
        done = {PUBACK: "acknowledged", PUBCOMP: "acknowledged", PUBREC: "received"}[kind]
        flow.phase = "refused" if is_error and kind == PUBREC else done
        flow.away = False
        return "effect"


# --- the connection (3.1, 3.2, 3.14) --------------------------------------------------------------


def next_state(state: str, kind: int, from_client: bool, code: int) -> tuple[str, str | None]:
    """Return the state of a connection after a packet, and the rule broken.

    ``new``, ``asked`` by CONNECT, ``open`` or ``refused`` by CONNACK, ``left`` by the client,
    ``closed`` by the server, or ``unknown``: its beginning was not captured.
    """
    if from_client:
        # M-14
        if state == "left":
            return state, "after_disconnect"
        if kind == CONNECT:
            # M-15
            return ("asked", None) if state == "new" else (
                "asked" if state == "unknown" else state, "connect_twice"
            )  # fmt: skip
        # M-16
        rule = "connect_first" if state == "new" else None
        if kind == DISCONNECT and state in ("new", "unknown", "asked", "open"):
            return "left", rule
        return ("unknown" if state == "new" else state), rule
    # M-17
    if state == "refused":
        return state, "after_refusal"
    if state == "closed":
        return state, "after_disconnect"  # M-14
    # M-18
    if state == "new" or (state == "asked" and kind not in (CONNACK, AUTH)):
        return state, "connack_first"
    if kind == CONNACK:
        # M-19
        if state == "open":
            return state, "connack_twice"
        if code:
            return "refused", None
        return ("left" if state == "left" else "open"), None
    if kind == DISCONNECT and state != "left":
        return "closed", None
    return state, None


class Facts:
    """What follows from the packets of all clients."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.messages: list[Message] = []
        self.attempts: list[Attempt] = []
        self.subscriptions: list[Subscription] = []
        self.delayed: list[Message] = []
        """Wills whose delay ends after the last packet of their client."""
        self.violations: list[tuple[str, str, Any, bool, At, str | None]] = []
        """Rule, text, a connection or a client, whether by the client, packet, message."""
        self.last: dict[tuple[str, str], At] = {}
        """By source and server."""
        self.older: set[tuple[str, str]] = set()
        """Servers that may have subscriptions and messages that were not captured."""
        self.lost: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        """Spans of time in which packets of clients were sent that were not captured."""
        self.lost_messages: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        """Those of them in which a message may have been sent."""
        self.unseen: defaultdict[Stream, list[tuple[int, int]]] = defaultdict(list)
        """The same of each stream to a client, that before its first packet included."""
        self.ends_ns: dict[str, int] = {}
        """C-24, by source"""


def _unseen(rows: list[Row], ats: list[At]) -> Iterator[tuple[int, int]]:
    """Return the spans in which messages may have been in a stream that were not captured."""
    yield 0, min((at.ns for at in ats if at.ns is not None), default=0)
    size, since_ns = 0, 0
    for row, at in zip(rows, ats, strict=True):
        if row.get("packet_type") is None:
            since_ns = since_ns if size else at.reached_ns
            size += row["length"]
            continue
        if size >= 5:
            yield since_ns, at.reached_ns
        size = 0
    if size >= 5:
        yield since_ns, _ALWAYS.reached_ns


class Following:
    """The packets of one client id of a server, one after the other."""

    def __init__(
        self, facts: Facts, sides: dict[Stream, Side], shown: dict[Stream, Row] | None
    ) -> None:
        self.facts, self.sides, self.shown = facts, sides, shown
        self.has_older = False
        """Whether packets of the client may be missing, so that its session may be older."""
        self.lost: list[tuple[int, int]] = []
        self.lost_messages: list[tuple[int, int]] = []
        self.sessions: dict[str, Session] = {}
        self.unnamed: list[Session] = []
        """Those of connections before their client id was known."""
        self.subscriptions: list[Subscription] = []
        self.connections: dict[tuple[str, ...], Connection] = {}
        self.streams: dict[Stream, tuple[Connection, At]] = {}
        self.reached: dict[Stream, tuple[int, int]] = {}
        self.last: At | None = None
        self.ends: list[At] = []

    def _seen(self, name: Stream) -> Row:
        return (self.shown or {}).get(name, {})

    # C-1
    def _end(self, name: Stream) -> At:
        row = self._seen(name)
        ns, frame = max((row["ended_ns"], row["ended_frame"]), self.reached.get(name, (0, 0)))
        return At(ns, frame, name[1], _LAST_OFFSET, ns, frame, name[0])

    def run(self, rows: list[Row]) -> None:
        ats = [self._at(row) for row in rows]
        for name, side in self.sides.items():
            if not side.from_client:
                self.facts.unseen[name] += _unseen(
                    [row for row in rows if (row["source"], row["stream"]) == name],
                    [at for at in ats if (at.source, at.stream) == name],
                )
        self.ends = sorted(self._end(name) for name in self.sides if self._seen(name).get("ended"))
        for row, at in zip(rows, ats, strict=True):
            # The first row of a stream opens it before ends of others are due.
            connection = self._connection(row, at)
            self.last = at
            while self.ends and self.ends[0] < at:
                self._stream_ends(self.ends.pop(0))
            self._packet(connection, row, at)
        self._finish()

    def _at(self, row: Row) -> At:
        name = row["source"], row["stream"]
        ns, frame = row.get("captured_ns"), row.get("frame")
        reached = self.reached.get(name, (0, 0))
        if ns is not None:
            reached = max(reached, (ns, frame or 0))
        self.reached[name] = reached
        return At(*reached, name[1], row["offset"], ns, frame, name[0])

    def _connection(self, row: Row, at: At) -> Connection:
        name = row["source"], row["stream"]
        if name in self.streams:
            return self.streams[name][0]
        stream = _stream(row)
        key, side = _connection(stream), self.sides[name]
        begun = None if self.shown is None else bool(self._seen(name).get("begun"))
        new = begun or row.get("packet_type") == CONNECT
        if key not in self.connections:
            by, server = _ends(stream)[:: 1 if side.from_client else -1]
            client = Client(name[0], server, at.key, by, None)
            session = Session(client.name, False, Flows(False), Flows(False))
            # C-9
            connection = self.connections[key] = Connection(
                client, at, "new" if new else "unknown", bool(begun), begun is not None,
                side.alone, side.followed, session, False,
            )  # fmt: skip
            session.connection = connection
            self.has_older |= side.older
        connection = self.connections[key]
        if side.from_client and new and not connection.packets:
            connection.state = "new"  # the first bytes of the broker may be missing
        self.streams[name] = connection, at
        connection.has_client_packets |= side.from_client
        # C-25
        if side.alone:
            self._lost(connection, at, not side.from_client, _LAST_OFFSET)
        is_answer = side.from_client or row.get("packet_type") in (CONNACK, AUTH)
        if begun is False and not is_answer:
            self._connack_missing(connection, at)
        return connection

    # --- violations -------------------------------------------------------------------------------

    def _breaks(
        self, connection: Connection, rule: str, from_client: bool, at: At, key: str | None = None
    ) -> None:
        whole = (connection.begun or connection.begun_shown) and connection.session.is_whole
        whole = whole and not (connection.damaged or connection.alone)
        if not whole and rule not in _OF_ONE_PACKET:
            return  # C-2
        if self.has_older and rule in _OF_EARLIER_SESSIONS:
            return  # C-3
        may_be_resumed = not connection.clean_start and connection.resumed is not False
        if rule == "dup_first" and may_be_resumed:
            return  # C-32
        text, cited = _RULES[rule]
        # M-20
        number = cited.get(connection.version or 4)
        if number is not None:
            self.facts.violations.append((number, text, connection, from_client, at, key))

    def _malformed(self, connection: Connection, rule: str, row: Row, up: bool, at: At) -> None:
        text = (row.get("error") or {}).get("message") or "the packet violates a rule"
        self.facts.violations.append((rule, text, connection, up, at, None))

    # --- packets ----------------------------------------------------------------------------------

    def _packet(self, connection: Connection, row: Row, at: At) -> None:
        up, kind = self.sides[at.source, at.stream].from_client, row.get("packet_type")
        if kind is None:
            self._other_bytes(connection, row, at, up)
            return
        self._behind_gap(connection, at, up)
        connection.packets += 1
        connection.bytes += row["length"]
        connection.last = at
        version = row.get("version_in_force") or 0
        connection.version = connection.version or version
        # M-21
        most = connection.most_bytes[up]
        if most is not None and row["length"] > most:
            self._breaks(connection, f"packet_size_{'client' if up else 'broker'}", up, at)
        # M-69
        is_bridge = kind == CONNECT and row.get("protocol_version") in (0x83, 0x84)
        connection.is_bridge |= is_bridge
        if row.get("verdict") and not (is_bridge and row["verdict"] in _OF_LEVEL):
            self._malformed(connection, row["verdict"], row, up, at)
            if kind == DISCONNECT:
                return  # 4.13: its receiver closes the connection
        # C-9
        is_first = self.streams[at.source, at.stream][1] == at and connection.packets == 1
        is_new = is_first and connection.state == "unknown" and connection.lost[False] is _ALWAYS
        if kind == CONNECT and is_new:
            connection.state, connection.unanswered = "new", True
        # C-30
        if kind == CONNECT and connection.begun and connection.state == "unknown":
            self._breaks(connection, "connect_twice", up, at)
            return
        if kind == CONNECT:
            connection.version = version
        # M-22
        of_side = (*_BOTH, AUTH, *(_CLIENT if up else _SERVER))
        may_leave = up or (connection.version or 5) >= 5
        if kind not in of_side and not (kind == DISCONNECT and may_leave):
            if CONNECT <= kind <= AUTH:
                self._breaks(connection, "wrong_side", up, at)
            return
        before = connection.state
        connection.state, rule = next_state(before, kind, up, row.get("return_code") or 0)
        if rule is not None:
            self._breaks(connection, rule, up, at)
        if kind == CONNECT:
            if before in ("new", "unknown"):
                self._connect(connection, row, at)
        # M-23
        elif before == "asked" and up:
            connection.early.append((row, at))
        # M-24
        elif before not in ("refused", "closed") and (before != "left" or not up):
            self._counts(connection, row, at, up)

    def _counts(self, connection: Connection, row: Row, at: At, up: bool) -> None:
        """Let a packet take effect."""
        if connection.session.connection is not connection:
            # A newer connection of the client has taken the session over.
            session = Session(connection.client.name, False, Flows(False), Flows(False))
            connection.session, session.connection = session, connection
        kind, packet_id = row["packet_type"], row.get("packet_id") or 0
        if kind == CONNACK:
            self._connack(connection, row, at)
        elif kind == PUBLISH:
            self._publish(connection, row, at, up)
        elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            self._acknowledge(connection, row, at, up)
        elif kind in (SUBSCRIBE, UNSUBSCRIBE):
            connection.requests[kind, packet_id] = row, at
        elif kind == SUBACK:
            self._suback(connection, row, at)
        elif kind == UNSUBACK:
            self._unsuback(connection, row, at)
        elif kind == PINGREQ:
            connection.pings.append(at)
        elif kind == PINGRESP:
            if connection.pings:
                self._read(connection, connection.pings.pop(0), at)
            else:
                # M-25
                self._breaks(connection, "pingresp_unasked", False, at)
        elif kind == DISCONNECT:
            self._disconnect(connection, row, at, up)

    # C-10
    def _other_bytes(self, connection: Connection, row: Row, at: At, up: bool) -> None:
        code = (row.get("error") or {}).get("code")
        # M-26
        is_start = not connection.damaged and connection.state != "unknown"
        if code == "remaining_length" and is_start:
            self._malformed(connection, code, row, up, at)
        connection.damaged |= row.get("status") != "tail"
        connection.broken[up] += row["length"]
        if row.get("status") == "gap" or connection.lost[up] is _ALWAYS:
            self._lost(connection, at, up, connection.broken[up])

    def _lost(self, connection: Connection, at: At, up: bool, size: int) -> None:
        connection.lost[up] = _ALWAYS
        self.has_older |= size >= 5
        if not up:
            self._connack_missing(connection, at)
            return
        if connection.lost_since_ns is None and size >= 4:
            connection.lost_since_ns = at.reached_ns
        if connection.state == "new":
            connection.state = "unknown"

    def _behind_gap(self, connection: Connection, at: At, up: bool) -> None:
        if connection.lost_since_ns is not None:
            connection.lost_since_ns = connection.lost_since_ns or at.reached_ns
            if up:
                self._lost_until(connection, at.reached_ns)
        connection.broken[up] = 0
        if connection.lost[up] is _ALWAYS:
            connection.lost[up] = at

    def _lost_until(self, connection: Connection, stop_ns: int) -> None:
        since_ns, connection.lost_since_ns = connection.lost_since_ns, None
        if since_ns is not None and since_ns <= stop_ns:
            self.lost.append((since_ns, stop_ns))
            size = connection.broken[True] or _LAST_OFFSET  # none if it was not captured
            self.lost_messages += self.lost[-1:] * (size >= 5)

    # C-11
    def _connack_missing(self, connection: Connection, at: At) -> None:
        if connection.state == "new" or not connection.packets:
            connection.unanswered = True
        elif connection.state == "asked":
            self._open_unanswered(connection, at)
            self._early(connection)

    def _open_unanswered(self, connection: Connection, at: At) -> None:
        connection.state = "unknown"
        self._open(connection, {}, at)
        connection.aliases[True], connection.alias_maximum[True] = {}, None

    def _early(self, connection: Connection) -> None:
        early, connection.early = connection.early, []
        for row, at in early:
            self._counts(connection, row, at, True)

    # --- CONNECT and CONNACK ----------------------------------------------------------------------

    def _connect(self, connection: Connection, row: Row, at: At) -> None:
        properties, client_id = properties_of(row.get("properties")), row.get("client_id")
        connection.opened, connection.begun, connection.connect = at, True, row
        name = client_id or connection.client.name
        connection.client = connection.client._replace(name=name, client_id=client_id)
        connection.user, connection.keep_alive = row.get("username"), row.get("keep_alive")
        connection.clean_start = bool(row.get("clean_start"))
        connection.most_bytes[False] = properties.get("maximum_packet_size")
        self._expiry(connection, properties.get("session_expiry_interval", 0))
        # M-27
        connection.alias_maximum[False] = properties.get("topic_alias_maximum", 0)
        connection.aliases[False] = {}
        if connection.unanswered:
            self._open_unanswered(connection, at)

    # M-28
    @staticmethod
    def _expiry(connection: Connection, expires_s: int) -> None:
        if connection.version == 5:
            connection.persistent = expires_s > 0
            connection.expires_s = None if expires_s == _FOREVER_S else expires_s
        else:
            connection.persistent = not connection.clean_start

    def _connack(self, connection: Connection, row: Row, at: At) -> None:
        connection.status = row.get("return_code") or 0
        if connection.status:
            connection.ended_by, connection.closed, connection.until = "refused", at, at
            connection.early.clear()
        elif connection.accepted is None:
            # 3.2.2.1.1: Session Present came with 3.1.1.
            present = row.get("session_present") if connection.version >= 4 else None
            connection.resumed = present
            # M-29
            if present and connection.clean_start and connection.connect:
                self._breaks(connection, "session_present_clean", False, at)
            self._open(connection, properties_of(row.get("properties")), at)
        self._early(connection)

    def _open(self, connection: Connection, answer: dict[str, Any], at: At) -> None:
        connect = connection.connect
        asked = properties_of(connect.get("properties")) if connect else {}
        connection.accepted = at
        if assigned := answer.get("assigned_client_identifier"):  # 3.2.2.3.7
            connection.client = connection.client._replace(name=assigned, client_id=assigned)
        if "session_expiry_interval" in answer:  # 3.2.2.3.2: the server decides
            self._expiry(connection, answer["session_expiry_interval"])
        # M-66, C-11
        if connection.version == 5 and connection.state == "unknown":
            connection.keep_alive = None
        connection.keep_alive = answer.get("server_keep_alive", connection.keep_alive)
        connection.aliases[True] = {}
        connection.alias_maximum[True] = answer.get("topic_alias_maximum", 0)  # M-27
        connection.most_bytes[True] = answer.get("maximum_packet_size")
        # M-30
        kept = not connection.clean_start if connection.resumed is None else connection.resumed
        if not connection.begun:
            kept = True
        name, session = connection.client.name, self.sessions.get(connection.client.name)
        # M-91, C-6
        last = session and session.connection
        if last and connection.begun and connection.resumed is None:
            kept = kept and (last.persistent or last.followed)
        if session is None:
            session = Session(name, not kept, Flows(not kept), Flows(not kept))
            self.sessions[name] = session
        else:
            self._take_over(session, connection, kept)
        session.connection, session.expires = connection, None
        session.known |= not kept
        if not kept:
            session.is_whole = True
            self._abandon(session)
        session.to_broker.connect(kept, answer.get("receive_maximum", _NO_LIMIT))
        session.to_client.connect(kept, asked.get("receive_maximum", _NO_LIMIT))
        session.will = self._will(connection)
        self.unnamed.append(connection.session)
        connection.session = session
        self.has_older |= not (session.known or connection.alone)

    # M-31
    def _take_over(self, session: Session, connection: Connection, kept: bool) -> None:
        assert connection.accepted is not None
        will, expires = session.will, session.expires
        if will and will.due and will.due < connection.accepted and will.state == "delayed":
            self._publish_will(will, will.due)
        if expires is not None and expires < connection.accepted:
            self._end_all(session, expires, expires)
        last = session.connection and session.connection.last
        self._close(session, connection.opened, "dropped", "dropped", last or connection.opened)
        # M-32
        if session.will:
            if not kept and session.will.state in ("armed", "delayed"):
                self._publish_will(session.will, connection.opened)
            elif session.will.state == "delayed":
                session.will.state = "none"
        if not kept:
            self._end_all(session, connection.opened, connection.opened)
        if session.may_have_changed:  # C-6
            session.to_broker, session.to_client, session.known = Flows(False), Flows(False), False

    # --- the end of a connection ------------------------------------------------------------------

    def _disconnect(self, connection: Connection, row: Row, at: At, up: bool) -> None:
        properties, session = properties_of(row.get("properties")), connection.session
        if up and "session_expiry_interval" in properties:  # 3.14.2.2.2
            self._expiry(connection, properties["session_expiry_interval"])
        # M-33
        keeps_will = not up or row.get("return_code") == 4
        if session.connection is not connection:
            return
        if not up and connection.ended_by == "open":
            connection.end_code = row.get("return_code") or 0
            connection.end_reason = properties.get("reason_string")
        end = "dropped" if keeps_will else "disconnected"
        self._close(session, at, "client" if up else "server", end)
        if up:
            self._accept_before(connection, at, at)

    def _close(
        self, session: Session, at: At, ended_by: str | None, end: str, until: At | None = None
    ) -> None:
        connection = session.connection
        if connection is None or connection.ended_by != "open":
            return
        if ended_by == "dropped" and connection.unsure_before is _ALWAYS:
            ended_by = None  # C-13
        if ended_by == "dropped" and connection.state == "left":
            ended_by = "client"  # M-23: its DISCONNECT waits for a CONNACK that did not come
        connection.ended_by, connection.closed, connection.until = ended_by, at, until or at
        self._count_in_flight(session, connection)
        if not connection.begun or session.may_have_changed:
            # C-6
            self._untrace_all(session)
        self._close_will(session, connection, at, end)
        if not connection.persistent:
            self._abandon(session)
            self._end_all(session, connection.until, at)
        elif session.may_have_changed:
            session.will = None
            for subscription in session.filters.values():
                subscription.leaving = subscription.leaving or connection.until
        elif connection.expires_s is not None:
            session.expires = at.after(connection.expires_s)

    def _close_will(self, session: Session, connection: Connection, at: At, end: str) -> None:
        will = session.will
        if will is None or will.state != "armed":
            return
        if end == "disconnected":
            will.state = "none"
            return
        will.state = "delayed"
        will.message.released = connection.last or at
        if not will.delay_s or not connection.persistent:
            self._publish_will(will, at)
        else:
            delays = [will.delay_s]
            if connection.expires_s is not None:
                delays.append(connection.expires_s)
            will.due = at.after(min(delays))

    def _publish_will(self, will: Will, at: At) -> None:
        will.state, will.message.accepted = "none", at
        self.facts.messages.append(will.message)

    def _count_in_flight(self, session: Session, connection: Connection) -> None:
        session.is_whole &= not connection.has_gap
        connection.shows_in_flight = session.is_whole
        if connection.unsure_before is not None:
            self._untrace(session, connection.unsure_before)
        sent, received = (
            sum(flow.in_flight for flow in flows.flows.values())
            for flows in (session.to_broker, session.to_client)
        )
        connection.in_flight = sent, received
        connection.is_full = session.to_client.is_full

    # C-12
    @staticmethod
    def _untrace(session: Session, before: At) -> None:
        for flow in session.to_client.flows.values():
            if isinstance(one := flow.record, Attempt):
                one.untraced |= one.acknowledged is None and one.at < before

    def _untrace_all(self, session: Session) -> None:
        self._untrace(session, _ALWAYS)
        for flow in session.to_broker.flows.values():
            if isinstance(one := flow.record, Message):
                one.untraced |= one.accepted is None

    # M-67
    @staticmethod
    def _abandon(session: Session) -> None:
        for flow in session.to_client.flows.values():
            if isinstance(flow.record, Attempt):
                flow.record.abandoned = True

    def _end_all(self, session: Session, leaving: At, gone: At) -> None:
        for subscription in session.filters.values():
            subscription.leaving, subscription.gone = subscription.leaving or leaving, gone
        session.filters.clear()

    def _stream_ends(self, at: At) -> None:
        if (at.source, at.stream) not in self.streams:
            return
        connection, first = self.streams[at.source, at.stream]
        if at < first:
            return
        if connection.session.connection is connection:
            # C-13
            shown = connection.begun or connection.has_client_packets
            if shown and connection.unsure_before is not _ALWAYS:
                self._close(connection.session, at, "dropped", "dropped")
            else:
                self._close(connection.session, at, None, "disconnected")

    def _finish(self) -> None:
        for end in self.ends:
            self._stream_ends(end)
        for connection in self.connections.values():
            session, last = connection.session, connection.last or connection.opened
            if connection.ended_by == "open" and session.connection is connection:
                connection.until = None if connection.shows_end else last
                self._count_in_flight(session, connection)
                if session.may_have_changed:
                    self._untrace_all(session)  # C-6: its end may not have been captured
            self._lost_until(connection, (connection.closed or _ALWAYS).reached_ns)
            connection.kept = self.sessions.get(connection.client.name)
            self.facts.connections.append(connection)
        for session in self.sessions.values():
            if session.expires is not None:
                if session.expires.time <= self.facts.ends_ns[session.expires.source]:
                    self._abandon(session)
                self._end_all(session, session.expires, session.expires)
            will = session.will
            if will and will.due and will.state == "delayed":
                will.message.accepted = will.due
                self.facts.delayed.append(will.message)
        # C-14
        sessions = [*self.sessions.values(), *self.unnamed]
        sessions += (one.session for one in self.connections.values())
        lasting = [one for of in sessions for one in of.filters.values()]
        self.facts.subscriptions += [
            one for one in self.subscriptions if one.gone is not None or one in lasting
        ]
        if self.last is not None and self.connections:
            client = next(iter(self.connections.values())).client
            server = client.source, client.server
            self.facts.last[server] = max(self.facts.last.get(server, self.last), self.last)
            self.facts.lost[server] += self.lost
            self.facts.lost_messages[server] += self.lost_messages
            if self.has_older:
                self.facts.older.add(server)

    def _will(self, connection: Connection) -> Will | None:
        row = connection.connect
        if row is None or row.get("will_topic") is None:
            return None
        properties = properties_of(row.get("will_properties"))
        message = Message(
            "will", connection.opened, connection.client, row["will_topic"],
            row.get("will_payload") or b"", row.get("will_qos") or 0, bool(row.get("will_retain")),
            properties,
        )  # fmt: skip
        message.deletes = not message.payload and connection.version != 2
        return Will(message, properties.get("will_delay_interval", 0))

    # --- PUBLISH and its acknowledgements ---------------------------------------------------------

    def _publish(self, connection: Connection, row: Row, at: At, up: bool) -> None:
        topic, qos, packet_id = row.get("topic"), row.get("qos"), row.get("packet_id")
        properties = properties_of(row.get("properties"))
        if topic is None or qos not in (0, 1, 2):
            return
        if properties:
            topic = self._topic(connection, topic, properties, at, up)
            if topic is None:
                return
        payload, retain, dup = row.get("payload") or b"", bool(row.get("retain")), bool(row["dup"])
        record: Message | Attempt
        if up:
            record = Message(
                "publish", at, connection.client, topic, payload, qos, retain, properties,
                row.get("length") or 0, row.get("verdict") is not None,
            )  # fmt: skip
            # M-76
            record.deletes = not payload and connection.version != 2
        else:
            session = connection.session
            known = session.known and session.is_whole and not connection.has_gap
            is_sparse = not known
            may_be_live = retain and is_sparse and connection.version == 5
            identifiers = properties.get("subscription_identifier", [])
            record = Attempt(
                at, connection.client, topic, payload, qos, retain, identifiers, dup, may_be_live,
                properties.get("message_expiry_interval"),
            )  # fmt: skip
            record.is_sparse = is_sparse
        if not (qos and packet_id):
            self._keep(record)
            if isinstance(record, Message):
                connection.unread.append(record)
            return
        flows = connection.session.to_broker if up else connection.session.to_client
        before = flows[packet_id].record
        effect, rule, arrives = flows.publish(packet_id, qos, dup)
        if not up:
            self._fill(connection, flows, at)
        same = before is not None and (before.topic, before.payload) == (topic, payload)
        if before is not None and effect != "sent" and not same:
            rule = "id_in_use"  # M-7: another message
        if isinstance(record, Message) and before is None and dup:
            # C-8
            record.is_repeated = effect == "repeated" or self.has_older
        if effect != "sent" and same:
            assert before is not None
            record = before
            self._again(record, at, effect, arrives, qos)
        else:
            if isinstance(before, Attempt) and connection.has_gap:
                before.untraced |= before.acknowledged is None  # C-12
            flows[packet_id].record = record
            self._keep(record)
        key = record.sent.key if isinstance(record, Message) else None
        if rule is not None:
            rule = "id_in_use_broker" if rule == "id_in_use" and not up else rule
            self._breaks(connection, rule, up, at, key)
        # M-34
        if flows.quota < 0:
            side = "client" if up else "broker"
            self._breaks(connection, f"receive_maximum_{side}", up, at, key)

    @staticmethod
    def _fill(connection: Connection, flows: Flows, at: At) -> None:
        in_flight = sum(flow.in_flight for flow in flows.flows.values())
        if in_flight > connection.most_in_flight:
            connection.most_in_flight, connection.filled = in_flight, at

    def _keep(self, record: Message | Attempt) -> None:
        if isinstance(record, Message):
            self.facts.messages.append(record)
        else:
            self.facts.attempts.append(record)

    # M-35
    @staticmethod
    def _again(record: Message | Attempt, at: At, effect: str, arrives: str, qos: int) -> None:
        record.again.append(at)
        if isinstance(record, Message):
            record.copies += arrives == "delivered" or record.qos == 1
        else:
            record.count += 1
            record.redelivered = True
            record.lost_ack |= effect == "lost_ack"

    # M-36
    def _topic(
        self, connection: Connection, sent: str, properties: dict[str, Any], at: At, up: bool
    ) -> str | None:
        topic: str | None = sent
        if (alias := properties.get("topic_alias")) is not None:
            known, most = connection.aliases[up], connection.alias_maximum[up]
            if sent:
                known[alias] = sent
            topic = known.get(alias)
            if most is not None and alias > most:
                side = "client" if up else "broker"
                self._breaks(connection, f"alias_maximum_{side}", up, at)
            elif topic is None:
                self._breaks(connection, "alias_unknown", up, at)
        # M-37
        if up and "subscription_identifier" in properties:
            self._breaks(connection, "subscription_identifier", up, at)
        return topic

    def _acknowledge(self, connection: Connection, row: Row, at: At, up: bool) -> None:
        packet_id, kind, code = row.get("packet_id"), row["packet_type"], row.get("return_code")
        if not packet_id:
            return
        to_broker = up == (kind == PUBREL)
        session = connection.session
        flows = session.to_broker if to_broker else session.to_client
        if not to_broker and flows.is_full:
            flows.freed = at
        if kind == PUBREL:
            effect, rule = flows.pubrel(packet_id)
        else:
            effect, rule = flows.answer(packet_id, kind, code or 0)
        record = flows[packet_id].record
        if rule is not None:
            key = record.sent.key if isinstance(record, Message) else None
            self._breaks(connection, rule, up, at, key)
        is_of_another = record is not None and self._may_be_of_another(connection, record)
        if isinstance(record, Message) and not up:
            self._read(connection, record.again[-1] if record.again else record.sent, at)
        if is_of_another or rule == "session_over":
            flows[packet_id].record = None
            if is_of_another and record is not None:
                accepted = record.acknowledged if isinstance(record, Attempt) else record.accepted
                record.untraced |= accepted is None
        elif isinstance(record, Attempt):
            if effect == "acknowledged":
                record.acknowledged = record.acknowledged or at
            elif effect == "refused":
                record.refused = code
        elif record is not None:
            if effect == "refused":
                record.refused = code
            elif effect == "received":
                record.received = True
            elif effect == "released":
                record.released = record.released or at
            elif effect == "acknowledged" and record.refused is None:
                record.accepted = record.accepted or at

    # C-12
    @staticmethod
    def _may_be_of_another(connection: Connection, record: Message | Attempt) -> bool:
        last = record.again[-1] if record.again else record.at
        if last < connection.opened and not connection.session.is_whole:
            return True
        return all(at is not None and last < at for at in connection.lost.values())

    # M-38
    def _read(self, connection: Connection, request: At, answer: At) -> None:
        connection.answered = max(connection.answered or request, request)
        # M-86
        flows = connection.session.to_client
        if not flows.is_full and (flows.freed is None or flows.freed < request):
            connection.answered_open = max(connection.answered_open or request, request)
            self._confirm(connection, request, answer)
        self._accept_before(connection, request, answer)

    @staticmethod
    def _accept_before(connection: Connection, request: At, answer: At) -> None:
        for message in connection.unread:
            if message.sent < request:
                message.accepted = answer
        connection.unread = [one for one in connection.unread if not one.sent < request]

    # M-39, M-86
    @staticmethod
    def _confirm(connection: Connection, request: At, answer: At) -> None:
        waiting = connection.unconfirmed
        if not waiting or waiting[0].granted > request or connection.damaged:
            return
        while waiting and waiting[0].granted < request:
            subscription = waiting.pop(0)
            if subscription.gone is None:
                subscription.confirmed = answer

    # --- SUBSCRIBE and UNSUBSCRIBE ----------------------------------------------------------------

    def _suback(self, connection: Connection, row: Row, at: At) -> None:
        request = connection.requests.pop((SUBSCRIBE, row.get("packet_id") or 0), None)
        codes = row.get("return_codes") or []
        # M-40
        if request is None or len(codes) != len(request[0].get("filters") or []):
            self._breaks(connection, "suback_unasked", False, at)
            return
        asked, asked_at = request
        self._read(connection, asked_at, at)
        identifiers = properties_of(asked.get("properties")).get("subscription_identifier")
        session = connection.session
        for place, (one, code) in enumerate(zip(asked.get("filters") or [], codes, strict=True)):
            if code >= _ERROR or not one["filter"]:
                continue
            name, handling = one["filter"], one.get("retain_handling") or 0
            # M-41
            group = _group(name)
            # M-42
            is_new = session.known and name not in session.filters
            gets_values = group is None and (handling == 0 or (handling == 1 and is_new))
            subscription = Subscription(
                connection.client, name, group, code,
                bool(one.get("no_local")) or connection.is_bridge,
                bool(one.get("retain_as_published")) or connection.is_bridge,
                identifiers[0] if identifiers else None,
                connection.version, asked_at, at, asked_at._replace(offset=asked_at.offset + place),
                session.known, handling, gets_values, connection.maximum_packet_size,
            )  # fmt: skip
            # M-43
            if (older := session.filters.get(name)) is not None:
                newer = subscription
                if subscription.asked < older.asked:  # they were answered in another order
                    newer, older = older, subscription
                newer.since = min(newer.since, older.since)
                older.leaving, older.gone = older.leaving or newer.asked, newer.granted
                older.is_left = True
                session.filters[name] = newer
            else:
                session.filters[name] = subscription
            session.served_as.add(subscription.served_as)
            self.subscriptions.append(subscription)
            if gets_values:
                connection.unconfirmed.append(subscription)

    def _unsuback(self, connection: Connection, row: Row, at: At) -> None:
        request = connection.requests.pop((UNSUBSCRIBE, row.get("packet_id") or 0), None)
        # M-44
        if request is None:
            self._breaks(connection, "unsuback_unasked", False, at)
            return
        self._read(connection, request[1], at)
        for one in request[0].get("filters") or []:
            # M-45
            if (subscription := connection.session.filters.pop(one["filter"], None)) is not None:
                subscription.leaving = subscription.leaving or request[1]
                subscription.gone, subscription.is_left = at, True


# --- topics (4.7, 4.8) ----------------------------------------------------------------------------


_OWN_PREFIXES: Final = ("$queue", "$exclusive")


def _group(name: str) -> str | None:
    """Return the group of a filter, None if it is that of one client."""
    prefix, _, rest = name.partition("/")
    if prefix in _OWN_PREFIXES and rest:
        return prefix
    return rest.split("/")[0] if prefix == "$share" and rest else None


def _levels(name: str) -> list[str]:
    """Return the levels of a filter, without those of a group."""
    group = _group(name)
    if group is None:
        return name.split("/")
    return name.split("/")[1 if group in _OWN_PREFIXES else 2 :] or [""]


def _is_of_broker(name: str) -> bool:
    first = _levels(name)[0]
    return first.startswith("$") and first != "$SYS"


# M-46, M-47
def _matches(name: str, topic: str) -> bool:
    asked, levels = _levels(name), topic.split("/")
    if topic.startswith("$") and asked[0] in ("+", "#"):
        return False
    if asked[-1] == "#":
        asked.pop()
        levels = levels[: len(asked)]
    return len(asked) == len(levels) and all(
        one in ("+", level) for one, level in zip(asked, levels, strict=True)
    )


def _rank(name: str) -> tuple[int, ...]:
    """Return a sort key of filters that match one topic: # first, then the exact ones, then +."""
    return *({"#": 0, "+": 2}.get(level, 1) for level in _levels(name)), 1


# --- retained values (3.3.1.3) --------------------------------------------------------------------


@dataclass(eq=False)
class Value:
    message: Message
    since: int
    until: int | None = None
    ended_by: str | None = None


def _lost(spans: list[tuple[int, int]], first: int, last: int) -> bool:
    return any(start <= last and first <= stop for start, stop in spans)


_LOOK_BACK: Final = 16
"""E M28: A value may still be on its way while the next ones are set, but not while many are."""


class Retained:
    """The retained values of one topic, and what new subscriptions get of them."""

    def __init__(self, facts: Facts, lost: list[tuple[int, int]]) -> None:
        self.facts, self.lost = facts, lost
        self.values: list[Value] = []
        self.settled: At | None = None
        """From when on the value of the last change is certain."""
        self.is_unsettled = False
        """Whether a message that the broker has not confirmed may still change the value."""
        self.subscriptions: list[Subscription] = []
        self.expected: list[tuple[Subscription, At, Message]] = []
        """Subscriptions that should get a value, with the answer until which it has to come."""
        self.firm = 0
        """How many of these no later change makes uncertain."""
        self.live: Counter[tuple[str, Message]] = Counter()
        """How often each client got a message live."""
        self.changes: list[Message] = []
        """In the order in which the broker took them over."""
        self.is_ambiguous = False
        self.got: Counter[tuple[str, bytes]] = Counter()
        """How often each client got a value."""

    def run(
        self, messages: list[Message], subscriptions: list[Subscription], attempts: list[Attempt]
    ) -> None:
        events: list[tuple[Any, ...]] = []
        for message in messages:
            at, sent = message.taken, message.sent
            if at is not None:
                events.append((at.time, 0, at[:4], message, self._set))
                if sent < at:
                    events.append((sent.time, 1, sent[:4], message, self._change))
            # M-87
            elif (message.origin, message.qos) == ("publish", 2) and message.may_be_taken:
                events.append((sent.time, 1, sent[:4], message, self._change))
        for one in subscriptions:
            events.append((one.asked.time, 2, one.asked[:4], one, self._subscribe))
        for attempt in attempts:
            events.append((attempt.at.time, 3, attempt.at[:4], attempt, self._deliver))
        for *_, record, observe in sorted(events, key=lambda event: event[:3]):
            observe(record)
        for subscription, confirmed, message in self.expected:
            self._breaks("retained_missing", subscription, confirmed, message)

    # M-48
    def _set(self, message: Message) -> None:
        at = message.taken
        assert at is not None
        if self.values and not _is_over(self.values[-1], at.time):
            self.values[-1].until = at.time
            self.values[-1].ended_by = "deleted" if message.deletes else "replaced"
        if not message.deletes:
            value = Value(message, at.time)
            expires_s = message.properties.get("message_expiry_interval")
            if expires_s is not None and at.ns is not None:
                value.until, value.ended_by = at.ns + expires_s * _NS_PER_S, "expired"
            self.values.append(value)
        self.is_ambiguous = any(message.sent < one.sent for one in self.changes)
        self.changes.append(message)
        self._change(message)

    # C-15
    def _change(self, message: Message) -> None:
        self.expected = [
            one
            for place, one in enumerate(self.expected)
            if place < self.firm or not message.sent < one[1]
        ]
        self.firm = len(self.expected)
        if message.accepted is None or message.taken is None:
            self.is_unsettled = True
        else:
            self.settled = max(self.settled or message.accepted, message.accepted)

    # M-49
    def _subscribe(self, one: Subscription) -> None:
        self.subscriptions.append(one)
        if not self.values or _is_over(self.values[-1], one.asked.time):
            return
        value, message = self.values[-1], self.values[-1].message
        confirmed = one.confirmed
        is_lost = _lost(self.lost, value.since, (confirmed or one.granted).time)
        if confirmed is None or confirmed.ns is None or is_lost or not one.known:
            return
        if self.is_unsettled or self.settled is None or one.asked < self.settled:
            return
        if self.is_ambiguous:
            return
        own = one.no_local and message.client.name == one.client.name
        too_large = _may_exceed(one.maximum_packet_size, message)
        lasts = value.until is None or confirmed.time < value.until
        is_sent = message.qos and message.payload and one.gets_values
        if is_sent and lasts and not (own or too_large):
            self.expected.append((one, confirmed, message))

    def _deliver(self, attempt: Attempt) -> None:
        recent = [value.message for value in self.values[-_LOOK_BACK:]]
        same = [one for one in reversed(recent) if one.payload == attempt.payload]
        own = [one for one in self.subscriptions if one.client.name == attempt.client.name]
        live = next((one for one in same if self._is_live(attempt, one, own)), None)
        attempt.setter, attempt.is_live = live or (same[0] if same else None), live is not None
        attempt.may_be_live = attempt.may_be_live and not attempt.is_live
        kept = [
            (place, one)
            for place, one in enumerate(self.expected)
            if one[0].client.name != attempt.client.name
            or (same and one[2].payload != attempt.payload)
        ]
        self.firm = sum(place < self.firm for place, _ in kept)
        self.expected = [one for _, one in kept]
        if not own or attempt.at.ns is None or not all(one.known for one in own):
            return
        # M-50
        allowed = {
            message.qos if one.version == 2 else min(message.qos, one.qos)
            for message in same
            for one in own
        }
        if allowed and attempt.qos not in allowed:
            self._breaks("retained_qos", own[-1], attempt.at, same[0])
        sparse = attempt.is_sparse or _lost(self.lost, 0, attempt.at.time)
        if not attempt.is_live and not sparse:
            self._judge_value(attempt, own)

    # M-77, M-78, M-79, M-80
    def _judge_value(self, attempt: Attempt, own: list[Subscription]) -> None:
        setter, at = attempt.setter, attempt.at
        self.got[attempt.client.name, attempt.payload] += 1
        most = max(1, sum(one.gets_values for one in own))
        attempt.is_extra = self.got[attempt.client.name, attempt.payload] > most
        # A subscription from before the message may have been granted after it.
        newer = [one for one in own if setter is None or setter.sent < one.granted]
        may_be_live = setter is None and any(one.retain_as_published for one in newer)
        if not newer or may_be_live or any(one.group for one in newer):
            return
        wanted = [one for one in newer if one.gets_values]
        if not wanted:
            rule = "retained_unwanted" if newer[-1].handling == 2 else "retained_existing"
            self._breaks(rule, newer[-1], at, setter)
        elif all(at < one.granted for one in wanted):
            self._breaks("retained_early", wanted[-1], at, setter)
        if setter is None:
            return
        later = self.changes[self.changes.index(setter) + 1 :]
        later = [one for one in later if setter.sent < one.sent]  # M-87
        if newer[-1].version < 4:  # before 3.1.1 a broker may keep a value that is deleted
            later = [one for one in later if not one.deletes]
        first = min(one.asked for one in newer)
        if any(one.accepted is not None and one.accepted < first for one in later):
            self._breaks("retained_stale", newer[-1], at, setter)
            # M-49
            name = attempt.client.name
            self.expected = [one for one in self.expected if one[0].client.name != name]
            self.firm = min(self.firm, len(self.expected))
        # M-74
        expires_s, taken = setter.properties.get("message_expiry_interval"), setter.taken
        if expires_s is None or taken is None or taken.ns is None or first.ns is None:
            return
        if first.ns - taken.ns > (expires_s + 1) * _NS_PER_S:
            self._breaks("delivered_expired", newer[-1], at, setter)
        elif attempt.expires_s is not None and not attempt.redelivered:
            lasts_ns = (expires_s - attempt.expires_s + 1) * _NS_PER_S
            if at.ns is not None and at.ns - taken.ns > lasts_ns:
                self._breaks("expiry_kept", newer[-1], at, setter)

    # M-51
    def _is_live(self, attempt: Attempt, message: Message, own: list[Subscription]) -> bool:
        until = message.accepted or attempt.at
        copies = sum(
            one.retain_as_published
            and one.asked < until
            and (one.gone is None or message.sent < one.gone)
            for one in own
        )
        self.live[attempt.client.name, message] += 1
        return self.live[attempt.client.name, message] <= copies

    def _breaks(self, rule: str, one: Subscription, at: At, message: Message | None) -> None:
        _broker_breaks(self.facts, rule, one, at, message)

    def rows(self) -> Iterator[Row]:
        for value in self.values:
            message, timed = value.message, value.message.sent.ns is not None
            # C-16
            is_sure = value.until is not None and not _lost(self.lost, value.since, value.until)
            yield {
                "topic": message.topic,
                "from_ns": value.since if timed else None,
                "to_ns": value.until if timed and is_sure else None,
                "payload": message.payload,
                "qos": message.qos,
                "message_key": message.sent.key,
                "producer_client_id": message.client.client_id,
                "ended_by": value.ended_by if is_sure else None,
                "from_frame": message.sent.frame,
                **_lead(message.sent),
            }


def _broker_breaks(
    facts: Facts, rule: str, one: Subscription, at: At, message: Message | None
) -> None:
    text, cited = _RULES[rule]
    if (number := cited.get(one.version or 4)) is not None:
        key = message.sent.key if message else None
        facts.violations.append((number, text, one.client, False, at, key))


def _is_over(value: Value, time: int) -> bool:
    return value.until is not None and value.until <= time


# E M29: A broker adds at most 16 bytes to a message: packet, subscription and alias identifiers.
def _may_exceed(most: int | None, message: Message) -> bool:
    return most is not None and len(message.topic) + message.length + 16 > most


# --- deliveries -----------------------------------------------------------------------------------


@dataclass(eq=False)
class Expected:
    """A message that a client, or any member of a group, should get."""

    message: Message
    served_as: str
    matching: list[Subscription]
    attempts: list[Attempt] = field(default_factory=list)
    is_unsure: bool = False
    """Whether it may have been delivered: a delivery may belong to it or to another one."""
    may_follow: bool = False
    """Whether it may have been captured a little behind its delivery."""

    # M-52
    @property
    def copies(self) -> int:
        return 1 if self.matching[0].group else len(self.matching)

    @property
    def capacity(self) -> int:
        return self.copies * self.message.copies

    @property
    def retain(self) -> bool:
        return self.message.retain and any(one.retain_as_published for one in self.matching)

    # M-53
    def allows(self, qos: int) -> bool:
        return any(qos == min(self.message.qos, one.qos) for one in self.matching)

    def precedes(self, attempt: Attempt) -> bool:
        start, at = self.message.start, attempt.at
        return start < at or (self.may_follow and _is_early(start, at))

    def takes(self, attempt: Attempt) -> bool:
        return self.precedes(attempt) and len(self.attempts) < self.capacity


def _is_early(start: At, at: At, most_ns: int = _EARLY_NS) -> bool:
    return at < start and None not in (start.ns, at.ns) and start.time - at.time <= most_ns


def _are_early(attempts: list[Attempt], expected: list[Expected]) -> bool:
    return any(_is_early(one.message.start, each.at) for one in expected for each in attempts)


class Deliveries:
    """The deliveries of the messages with one topic and payload."""

    def __init__(
        self, messages: list[Message], attempts: list[Attempt], of: Server, topic: str
    ) -> None:
        # A will is published after the last packet of its connection.
        self.messages = sorted(messages, key=lambda one: (one.start, one.origin == "will"))
        self.attempts = sorted(attempts, key=lambda one: one.at)
        self.of, self.topic = of, topic
        self.has_older = of.is_older or of.is_served_elsewhere(topic)
        self.expected = [one for message in self.messages for one in self._expected(message)]
        self.missed: list[tuple[Expected, list[Subscription], At]] = []
        self.unsure: list[Attempt] = []
        """Deliveries that may belong to several messages."""
        self.open: list[Message] = []
        """Messages that such a delivery may belong to."""
        self.older: dict[At, Message] = {}
        """The messages of deliveries to subscriptions from before the capture."""

    # M-54
    def _expected(self, message: Message) -> list[Expected]:
        probes = [message.start]
        if message.accepted is not None and message.accepted > message.start:
            probes.append(message.accepted)
        found: dict[str, Expected] = {}
        seen = set()
        for at in probes:
            for one in self.of.active(self.topic, at):
                own = one.no_local and one.client.name == message.client.name
                if own or (one.client.name, one.filter) in seen:
                    continue
                seen.add((one.client.name, one.filter))
                expected = Expected(message, one.served_as, [])
                found.setdefault(one.served_as, expected).matching.append(one)
        return list(found.values())

    # C-17
    def assign(self) -> list[Attempt]:
        """Assign deliveries to those that are expected; return the others."""
        rest: list[Attempt] = []
        runs: list[tuple[list[Expected], list[Attempt]]] = []
        kinds: dict[tuple[str, bool | None], list[Attempt]] = {}
        for attempt in self.attempts:
            retain = attempt.retain if attempt.is_live else None
            kinds.setdefault((attempt.client.name, retain), []).append(attempt)
        for (name, retain), of_kind in kinds.items():
            own = [one for one in self.expected if not one.matching[0].group]
            own = [one for one in own if (one.served_as, one.retain) == (name, retain)]
            rest += self._pair(own, of_kind)
            runs.append((own, of_kind))
        # M-55
        groups = [one for one in self.expected if one.matching[0].group]
        for group in dict.fromkeys(one.served_as for one in groups):
            own = [one for one in groups if one.served_as == group]
            members = {sub.client.name for one in own for sub in one.matching}
            theirs = [one for one in rest if one.client.name in members]
            theirs.sort(key=lambda one: one.at)
            rest = [one for one in rest if one.client.name not in members]
            rest += self._pair_left(own, theirs, self._pair(own, theirs))
        for of_run in runs:
            rest = self._pair_left(*of_run, rest)
        rest = self._pair_other_flags(sorted(rest, key=_time))
        rest = [one for one in rest if not self._is_live_with_retain(one)]
        return [one for one in self.attempts if one in rest or one in self.unsure]

    # C-28
    def _pair(self, expected: list[Expected], attempts: list[Attempt]) -> list[Attempt]:
        """Assign deliveries; return those that no message may account for."""
        rest = _assign(expected, attempts)
        if not self.has_older:
            return rest
        sent = [(one.message.start, one.capacity) for one in expected]
        own = [one.message for one in expected]
        others = [one.start for one in self.messages if one not in own]
        is_sparse = any(one.is_sparse for one in attempts)
        other = min(others, default=None) if is_sparse else None
        # The pairing that prefers the granted QoS is one of them.
        taken = {each.at: place for place, one in enumerate(expected) for each in one.attempts}
        partners = [
            {*found, taken.get(attempt.at)}
            for attempt, found in zip(
                attempts, self._partners(sent, attempts, other, True), strict=True
            )
        ]
        unsure = [one for one, found in zip(attempts, partners, strict=True) if len(found) > 1]
        self.unsure += unsure
        for place, one in enumerate(expected):
            one.attempts = [each for each in one.attempts if each not in unsure]
            is_open = any(len(found) > 1 and place in found for found in partners)
            one.is_unsure = is_open and not one.attempts
            if one.is_unsure:
                self.open.append(one.message)
        return [one for one in rest if one not in unsure]

    def _partners(
        self,
        sent: list[tuple[At, int]],
        attempts: list[Attempt],
        other: At | None,
        is_expected: bool,
    ) -> list[set[int | None]]:
        """Return the partners of attempts; `other` is the first message that may be one too."""
        lost = self.of.facts.lost_messages[self.of.key]
        if sent and attempts and self._is_sure(sent[0][0], attempts, is_expected):
            lost = []
        sure = [
            each
            for each in attempts
            if (other is None or each.at < other)
            and (each.at.ns is None or all(each.at.ns <= start for start, _ in lost))
        ]
        before = [
            {place for place, (at, _) in enumerate(sent) if at < each.at}
            for each in attempts[len(sure) :]
        ]
        return [*_partners(sent, sure), *({None, *places} for places in before)]

    def _is_sure(self, sent: At, attempts: list[Attempt], is_expected: bool) -> bool:
        """Return whether no other message may be the one that was delivered."""
        if len(self.messages) > 1 or len(attempts) > 1:
            return False
        facts, at = self.of.facts, attempts[0].at
        return at.ns is None or not (
            any(
                first < at.time and sent.time - _SOON_NS <= last
                for first, last in facts.lost_messages[self.of.key]
            )
            and (
                not (is_expected or at.time - sent.time < _SOON_NS)
                or any(
                    first < at.time + _SOON_NS and sent.time <= last
                    for first, last in facts.unseen[at.source, at.stream]
                )
            )
        )

    # C-29
    def _pair_left(
        self, expected: list[Expected], attempts: list[Attempt], rest: list[Attempt]
    ) -> list[Attempt]:
        """Assign deliveries that are a little before their messages; return those that are left."""
        taken = [each for one in expected for each in one.attempts]
        own = [one for one in attempts if one in rest or one in taken]
        left = [one for one in own if one in rest]
        if self.has_older:
            return rest
        others = [one for one in rest if one not in own]
        if _are_early(left, expected):
            left = self._pair_early(expected, own)
        if len(expected) == len(own) == 1 and not expected[0].attempts:
            first, start = expected[0], expected[0].message.start
            first.is_unsure = any(_is_early(start, one.at, _APART_NS) for one in left)
            self.open += [first.message] * first.is_unsure
        return [*others, *left]

    @staticmethod
    def _pair_early(expected: list[Expected], attempts: list[Attempt]) -> list[Attempt]:
        for one in expected:
            one.attempts, one.may_follow = [], True
        rest = _assign(expected, attempts)
        for one in expected:
            one.may_follow = False
        return rest

    # M-88
    def _pair_other_flags(self, attempts: list[Attempt]) -> list[Attempt]:
        rest = []
        for attempt in attempts:
            fits = [
                one
                for one in self.expected
                if attempt.is_live
                and attempt not in self.unsure
                and one.message.retain
                and not (one.matching[0].group or one.is_unsure)
                and one.served_as == attempt.client.name
                and one.message.start < attempt.at
                and len(one.attempts) < one.capacity
            ]
            fresh = [one for one in fits if not one.attempts]
            if self.has_older and len(fits) > 1:  # C-28
                self.unsure.append(attempt)
                for one in fresh:
                    one.is_unsure = True
                    self.open.append(one.message)
            elif fits:
                (fresh or fits)[-1].attempts.append(attempt)
                (fresh or fits)[-1].attempts.sort(key=_time)
            else:
                rest.append(attempt)
        return rest

    # M-89
    def _is_served(self, one: Expected) -> bool:
        members = {sub.client.name for sub in one.matching if sub.group}
        return any(
            attempt.client.name in members
            for other in self.expected
            if other.message is one.message
            for attempt in other.attempts
        )

    # M-70
    def _is_live_with_retain(self, attempt: Attempt) -> bool:
        setter = attempt.setter
        if attempt.is_live or attempt.may_be_live or attempt in self.unsure:
            return False
        missing = [
            one
            for one in self.expected
            if one.served_as == attempt.client.name
            and not (one.attempts or one.is_unsure or one.matching[0].group)
            and one.message.start < attempt.at
            and setter in (None, one.message)
        ]
        if not missing:
            return False
        one, message = missing[-1], missing[-1].message
        own = [sub for sub in one.matching if sub.granted < message.start]
        later = [sub for sub in self.of.matching(self.topic) if message.start < sub.asked]
        is_new = any(sub.client.name == one.served_as and sub.asked < attempt.at for sub in later)
        if is_new or not own:
            return False
        if setter is None and self.has_older:
            one.is_unsure = attempt.may_be_live = True
            self.unsure.append(attempt)
            self.open.append(message)
            return False
        one.attempts.append(attempt)
        attempt.is_live = True
        if not one.retain:  # M-51: a message that deletes the value has its flag too
            self.of.breaks("retained_live", own[0], attempt.at, message)
        return True

    # M-56
    def confirmed(self, message: Message) -> At | None:
        if message.refused is not None or message.malformed:
            return None
        found = [] if message.accepted is None else [message.accepted]
        if message.accepted is None or message is self.messages[0]:
            found += [
                one.attempts[0].at
                for one in self.expected
                if one.message is message and one.attempts
            ]
        is_expected = any(one.message is message for one in self.expected)
        return min(found) if found and is_expected else None

    def rows(self) -> Iterator[Row]:
        rest = self.assign()
        if self.has_older:
            self._pair_older(rest)
        for one in self.expected:
            if one.attempts or not self._is_served(one):
                yield from self._of(one)
        with_row = {id(one.message) for one in self.expected}
        for attempt in rest:
            message, verdict = self._unexpected(attempt)
            self._judge_own(attempt, message)
            if not self.has_older:
                self._judge_unsubscribed(attempt, message)
            with_row.add(id(message))
            yield _delivery(message, attempt, None, verdict)
        for message in self.messages:
            if id(message) not in with_row:
                yield _delivery(message, None, None, self._unmatched(message))

    # M-73, M-74
    def _judge(self, one: Expected) -> None:
        message, sub = one.message, one.matching[0]
        if self.has_older or len(self.messages) > 1 or message.again:
            return
        if sub.group:
            if self._is_only(one):
                self._judge_expiry(one)
            return
        highest = max(min(message.qos, each.qos) for each in one.matching)
        is_certain = all(each.granted < message.start for each in one.matching) and all(
            each.leaving is None for each in one.matching
        )
        got = max((attempt.qos for attempt in one.attempts), default=highest)
        if is_certain and len(one.attempts) < one.capacity:
            last = max((attempt.at for attempt in one.attempts), default=None)
            is_certain = (
                last is not None
                and last.ns is not None
                and (self.of.facts.ends_ns[last.source] - last.ns > _NS_PER_S)
            )
        if is_certain and len(one.matching) > 1 and got < highest:
            self.of.breaks("overlapping_qos", sub, one.attempts[0].at, message)
        keeps = one.retain and all(each.retain_as_published for each in one.matching)
        for attempt in one.attempts:
            if keeps and not attempt.retain:  # M-88
                self.of.breaks("retained_unpublished", sub, attempt.at, message)
        self._judge_expiry(one)

    def _is_only(self, one: Expected) -> bool:
        """Return whether a group certainly got its message once, and not before."""
        members = {sub.client.name for sub in one.matching}
        got = [each for each in self.attempts if each.client.name in members]
        return len(got) == 1 and all(map(self.of.shows_all, one.matching))

    def _judge_expiry(self, one: Expected) -> None:
        message, sub = one.message, one.matching[0]
        expires_s, taken = message.properties.get("message_expiry_interval"), message.taken
        for attempt in one.attempts:
            if expires_s is None or taken is None or None in (taken.ns, attempt.at.ns):
                continue
            waited_ns = attempt.at.time - taken.time - _NS_PER_S
            if waited_ns > expires_s * _NS_PER_S and attempt.count == 1 and not attempt.redelivered:
                self.of.breaks("delivered_expired", sub, attempt.at, message)
            elif attempt.expires_s is not None and not attempt.redelivered:
                left_ns = (expires_s - attempt.expires_s) * _NS_PER_S
                if waited_ns > left_ns:
                    self.of.breaks("expiry_kept", sub, attempt.at, message)

    def _of(self, one: Expected) -> Iterator[Row]:
        self._judge(one)
        message = one.message
        # C-18
        is_short = message.copies > 1 and len(one.attempts) < one.capacity
        is_short = is_short and self.has_older and not all(map(self.of.shows_all, one.matching))
        for place, attempt in enumerate(one.attempts):
            verdict = _verdict(attempt, message) if place < one.copies else "duplicate"
            if is_short and verdict == "delivered":
                verdict = "undecided"
            yield _delivery(message, attempt, self._subscription(one, attempt), verdict)
        if one.attempts:
            return
        confirmed = self.confirmed(message)
        if message.refused is not None:
            verdict = "refused"
        elif one.is_unsure or message.is_repeated:  # C-8
            verdict = "undecided"
        elif confirmed is None:
            verdict = self._unconfirmed(message)
        elif self.has_older and one.matching[0].group:
            verdict = "undecided"  # C-19
        elif one.matching[0].group in _OWN_PREFIXES:
            verdict = "undecided"  # to other brokers it is a filter that matches nothing
        else:
            active = [
                sub
                for sub in one.matching
                if sub.granted < message.start and (sub.leaving is None or confirmed < sub.leaving)
            ]
            if active:
                self.missed.append((one, active, confirmed))
                return
            verdict = "undecided"  # it was subscribed before or after, and not certainly then
        row = _delivery(message, None, one.matching[0], verdict)
        yield row | ({"consumer": None, "consumer_client_id": None} if one.is_unsure else {})

    # M-90, C-31
    def _subscription(self, one: Expected, attempt: Attempt) -> Subscription | None:
        own = [sub for sub in one.matching if sub.client.name == attempt.client.name]
        for sub in one.matching:
            if (sub in own or sub.group is None) and sub.identifier in attempt.identifiers:
                return sub
        fits = [sub for sub in own if attempt.qos == min(one.message.qos, sub.qos)]
        sub = (fits or own or one.matching)[0]
        return sub if fits or self.of.shows_all(sub) else None

    # M-75
    def _judge_own(self, attempt: Attempt, message: Message | None) -> None:
        if message is None or self.has_older or not attempt.is_live:
            return
        if len(self.messages) > 1 or message.again:
            return
        own = [
            one for one in self.of.matching(self.topic) if one.client.name == attempt.client.name
        ]
        is_own = message.client.name == attempt.client.name
        if is_own and own and all(one.no_local and one.granted < message.start for one in own):
            self.of.breaks("own_message", own[0], attempt.at, message)

    # M-82, M-83
    def _judge_unsubscribed(self, attempt: Attempt, message: Message | None) -> None:
        at, name = attempt.at, attempt.client.name
        if any(_is_of_broker(one.filter) for one in self.of.subscriptions_of(name)):
            return
        own = [one for one in self.of.matching(self.topic) if one.client.name == name]
        own = [one for one in own if one.asked < at]
        is_live = message is not None and not attempt.retain
        if not own or (is_live and all(map(self._is_left, own))):
            if self.of.has_answered(attempt):
                key = message.sent.key if message else None
                found = "unsubscribed", _RULES["unsubscribed"][0], attempt.client, False, at, key
                self.of.facts.violations.append(found)
        elif message is not None and message.retain and not (attempt.retain or message.deletes):
            accepted = message.accepted
            is_old = accepted is not None and all(accepted < one.asked for one in own)
            if is_old and any(one.gets_values for one in own):
                attempt.is_live = False
                missing = _RULES["retained_missing"][0], message.sent.key
                self.of.facts.violations = [
                    found
                    for found in self.of.facts.violations
                    if (found[1], found[5]) != missing or found[2].name != name  # M-49
                ]
                self.of.breaks("retained_unmarked", own[-1], at, message)

    def _is_left(self, one: Subscription) -> bool:
        """Return whether a client had certainly left it before all messages that are equal."""
        start, gone = self.messages[0].start, one.gone
        if gone is None or not one.is_left or None in (gone.ns, start.ns):
            return False
        return start.time - gone.time > _EARLY_NS

    def _unexpected(self, attempt: Attempt) -> tuple[Message | None, str]:
        """Return the message and the verdict of a delivery that no subscription accounts for."""
        message: Message | None = None
        if attempt in self.unsure:
            return None, _verdict(attempt, None)
        if attempt.setter is not None:
            message = attempt.setter
        elif attempt.is_live and self.has_older:
            message = self.older.get(attempt.at)
        elif attempt.is_live:
            before = [one for one in self.messages if one.start < attempt.at]
            message = before[-1] if before else None
        verdict = _verdict(attempt, message)
        if attempt.is_extra and verdict == "delivered":
            return message, "duplicate"
        if message is not None:
            if self.has_older and verdict == "delivered" and message.copies > 1:
                return message, "undecided"
            names = {one.served_as for one in self.expected}
            if attempt.is_live and attempt.client.name in names:
                return message, "undecided" if self.has_older else "duplicate"
        return message, verdict

    # C-20
    def _pair_older(self, rest: list[Attempt]) -> None:
        names = {one.served_as for one in self.expected}
        sent = [(one.start, one.copies) for one in self.messages]
        live = [one for one in rest if one.is_live and one.setter is None]
        for name in dict.fromkeys(one.client.name for one in live if one.client.name not in names):
            own = [one for one in live if one.client.name == name and one not in self.unsure]
            for attempt, found in zip(own, self._partners(sent, own, None, False), strict=True):
                messages = [self.messages[place] for place in found if place is not None]
                if len(found) > 1:
                    self.open += messages
                elif messages:
                    self.older[attempt.at] = messages[0]

    def _unmatched(self, message: Message) -> str:
        if message.refused is not None:
            return "refused"
        if message.qos and message.accepted is None:
            return self._unconfirmed(message)
        return "undecided" if self.has_older else "no_subscriber"

    # M-68, C-26
    def _unconfirmed(self, message: Message) -> str:
        if self.of.is_unseen(message) or message in self.open:
            return "undecided"
        if not message.received:
            return "unaccepted"
        return "undecided" if message.released else "unreleased"


def _partners(sent: list[tuple[At, int]], attempts: list[Attempt]) -> list[set[int | None]]:
    """Return the message of each delivery, or None, in every pairing with the most pairs.

    Messages have the position they were sent at, and the most deliveries.
    """
    copies = [(at, place) for place, (at, count) in enumerate(sent) for _ in range(count)]
    rows, columns = len(copies), len(attempts)
    before, behind = ([[0] * (columns + 1) for _ in range(rows + 1)] for _ in range(2))
    for row, column in product(range(rows), range(columns)):
        pair = before[row][column] + (copies[row][0] < attempts[column].at)
        before[row + 1][column + 1] = max(pair, before[row][column + 1], before[row + 1][column])
    for row, column in product(reversed(range(rows)), reversed(range(columns))):
        pair = behind[row + 1][column + 1] + (copies[row][0] < attempts[column].at)
        behind[row][column] = max(pair, behind[row + 1][column], behind[row][column + 1])
    most, found = before[rows][columns], []
    for column, attempt in enumerate(attempts):
        partners: set[int | None] = {
            place
            for row, (at, place) in enumerate(copies)
            if at < attempt.at and before[row][column] + 1 + behind[row + 1][column + 1] == most
        }
        if any(before[row][column] + behind[row][column + 1] == most for row in range(rows + 1)):
            partners.add(None)
        found.append(partners)
    return found


def _assign(expected: list[Expected], attempts: list[Attempt]) -> list[Attempt]:
    """Assign deliveries, the last one first; return those that are too many, in order."""
    rest = attempts
    for any_qos in (False, True):
        left: list[Attempt] = []
        for attempt in reversed(rest):
            fits = (one for one in reversed(expected) if any_qos or one.allows(attempt.qos))
            one = next((one for one in fits if one.takes(attempt)), None)
            (one.attempts if one else left).append(attempt)
        rest = left[::-1]
    # M-81
    taken = {attempt.at: one for one in expected for attempt in one.attempts}
    for attempt in attempts:
        one = taken.get(attempt.at)
        if one is None or not one.allows(attempt.qos):
            continue
        free = (each for each in rest if each.qos == attempt.qos and one.precedes(each))
        first = next(free, attempt)
        if first.at < attempt.at:
            one.attempts[one.attempts.index(attempt)] = first
            rest = sorted((attempt, *(each for each in rest if each is not first)), key=_time)
    # A message without a delivery gets the first one of a later message that has several.
    for one in expected:
        one.attempts.sort(key=lambda attempt: attempt.at)
    for place in reversed(range(len(expected))):
        later = [one for one in expected[place + 1 :] if len(one.attempts) > 1]
        if not expected[place].attempts and later:
            expected[place].attempts.append(later[0].attempts.pop(0))
    return rest


def _time(attempt: Attempt) -> At:
    return attempt.at


def _verdict(attempt: Attempt, message: Message | None) -> str:
    """Return the verdict of a delivery."""
    if attempt.refused is not None:
        return "refused_by_client"
    # M-57
    if attempt.qos and attempt.acknowledged is None:
        if attempt.untraced:
            return "undecided"
        return "abandoned" if attempt.abandoned else "in_flight"
    if message is not None and message.is_repeated and message.qos == 1:
        return "undecided"  # C-8
    return "lost_ack" if attempt.lost_ack else "delivered"


class Server:
    """All clients of one server: what has become of the messages between them."""

    def __init__(self, facts: Facts, key: tuple[str, str]) -> None:
        self.facts, self.key = facts, key
        last, self.is_older = facts.last[key], key in facts.older
        end_ns = facts.ends_ns[key[0]]  # C-24
        self.last = last._replace(reached_ns=max(last.reached_ns, end_ns))
        self.subscriptions = [one for one in facts.subscriptions if one.client[:2] == key]
        self.attempts = [one for one in facts.attempts if one.client[:2] == key]
        # M-58
        delayed = [one for one in facts.delayed if one.client[:2] == key]
        self.messages = [
            *(one for one in facts.messages if one.client[:2] == key),
            *(one for one in delayed if one.accepted is not None and one.accepted < self.last),
        ]
        self.connections = [
            one for one in facts.connections if one.client[:2] == key and one.accepted is not None
        ]
        self.connections.sort(key=lambda one: one.opened)
        self.expected: list[Expected] = []

    def breaks(self, rule: str, one: Subscription, at: At, message: Message) -> None:
        _broker_breaks(self.facts, rule, one, at, message)

    def is_unseen(self, message: Message) -> bool:
        """Return whether the answer to a message may have been where nothing was captured."""
        return message.accepted is None and (
            message.untraced
            or any(
                one.unsure_before is not None
                and one.client[:3] == message.client[:3]
                and message.sent < one.unsure_before
                for one in self.facts.connections
            )
        )

    def subscriptions_of(self, name: str) -> list[Subscription]:
        return [one for one in self.subscriptions if one.client.name == name]

    def has_answered(self, attempt: Attempt) -> bool:
        """Return whether a client had no SUBSCRIBE that waited for its answer at a delivery."""
        return any(
            one.client.name == attempt.client.name
            and one.kept is not None
            and bool(one.kept.served_as)
            and _accepted(one) < attempt.at
            and (one.closed is None or attempt.at < one.closed)
            and (
                all(kind != SUBSCRIBE for kind, _ in one.requests)
                or (one.answered is not None and attempt.at < one.answered)
            )
            for one in self.connections
        )

    def shows_all(self, one: Subscription) -> bool:
        """Return whether all packets to the client of a subscription were captured."""
        own = [each for each in self.connections if each.client.name == one.client.name]
        return one.known and all(each.begun and not each.damaged for each in own)

    def matching(self, topic: str) -> list[Subscription]:
        """Return the subscriptions that ever matched a topic."""
        found = [one for one in self.subscriptions if _matches(one.filter, topic)]
        return sorted(found, key=lambda one: (_rank(one.filter), one.since))

    # C-27
    def is_served_elsewhere(self, topic: str) -> bool:
        """Return whether clients at other endpoints, or later ones, may get messages of a topic."""
        others = [
            one for one in self.facts.subscriptions
            if one.client.source == self.key[0] and one.client.server != self.key[1]
        ]  # fmt: skip
        own = self.matching(topic)
        groups = {one.served_as for one in others if one.group}
        is_shared = any(one.group and one.served_as in groups for one in own)
        is_delayed = topic.startswith("$delayed/")  # M-41
        return (
            is_delayed or is_shared
            or (not own and any(_matches(one.filter, topic) for one in others))
        )  # fmt: skip

    def active(self, topic: str, at: At) -> list[Subscription]:
        """Return the subscriptions that match a topic, and that the broker had at a time."""
        return [one for one in self.matching(topic) if self._is_active(one, at)]

    # C-21, M-43
    def _is_active(self, one: Subscription, at: At) -> bool:
        if at < one.asked or (one.gone is not None and one.gone < at):
            return False
        place = self.subscriptions.index(one)
        return not any(
            (other.asked, number) > (one.asked, place) and other.asked <= at
            for number, other in enumerate(self.subscriptions)
            if (other.client.name, other.filter) == (one.client.name, one.filter)
        )

    def tables(self) -> Iterator[tuple[str, Row]]:
        for row in self._values():
            yield "retained", row
        for row in self._deliveries():
            yield "deliveries", row
        for row in self._conversations():
            yield "conversations", row

    def _values(self) -> Iterator[Row]:
        records: list[Message | Attempt] = [*self.messages, *self.attempts]
        topics = dict.fromkeys(one.topic for one in records if one.retain)
        lost = self.facts.lost[self.key]
        for topic in topics:
            retained = Retained(self.facts, lost)
            setting = [one for one in self.messages if one.retain and one.topic == topic]
            attempts = [one for one in self.attempts if one.retain and one.topic == topic]
            retained.run(setting, self.matching(topic), attempts)
            yield from retained.rows()

    def _deliveries(self) -> Iterator[Row]:
        kinds: dict[tuple[str, bytes], tuple[list[Message], list[Attempt]]] = {}
        for message in self.messages:
            kinds.setdefault((message.topic, message.payload), ([], []))[0].append(message)
        for attempt in self.attempts:
            kinds.setdefault((attempt.topic, attempt.payload), ([], []))[1].append(attempt)
        found = []
        for (topic, _), records in kinds.items():
            deliveries = Deliveries(*records, self, topic)
            found.append(deliveries)
            yield from deliveries.rows()
        self.expected = [one for deliveries in found for one in deliveries.expected]
        for deliveries in found:
            for one, active, confirmed in deliveries.missed:
                connection, verdict = self._missed(one, active, confirmed)
                yield _delivery(one.message, None, one.matching[0], verdict, connection)

    # --- deliveries that did not happen -----------------------------------------------------------

    def _missed(
        self, one: Expected, active: list[Subscription], confirmed: At
    ) -> tuple[Connection | None, str]:
        """Return the connection on which a delivery is missing, and the verdict."""
        result: tuple[Connection | None, str] = (None, "undecided")
        for name in dict.fromkeys(sub.client.name for sub in active):
            own = [sub for sub in active if sub.client.name == name]
            qos = min(max(sub.qos for sub in own), one.message.qos)
            ends = [sub.leaving for sub in own if sub.leaving is not None]
            left = max(ends) if len(ends) == len(own) else _ALWAYS
            result = self._missed_by(name, qos, one, confirmed, left)
            # M-59
            if result[1] not in ("not_forwarded", "not_kept"):
                break
        return result

    def _missed_by(
        self, name: str, qos: int, one: Expected, confirmed: At, left: At
    ) -> tuple[Connection | None, str]:
        message = one.message
        own = [each for each in self.connections if each.client.name == name]
        own = [each for each in own if each.kept and one.served_as in each.kept.served_as]
        if not own or not all(each.begun for each in own):
            return None, "undecided"  # C-22
        before = [each for each in own if _accepted(each) <= confirmed]
        connection = before[-1] if before else None
        if connection and connection.closed is not None and connection.closed < message.start:
            connection = None
        was_away = connection is None
        if connection is None:
            # M-60
            if qos == 0:
                return None, "offline"
            after = [each for each in own if _accepted(each) > confirmed]
            verdict = self._waited(message, before[-1] if before else None, after[:1])
            if not after:
                return None, verdict or "queued"
            connection = after[0]
            if verdict is not None:
                return connection, verdict
        elif not (
            _accepted(connection) < message.start
            and (connection.until is None or confirmed <= connection.until)
        ):
            return connection, "undecided"  # C-23
        if connection.damaged:
            return connection, "undecided"  # C-10
        # M-62, M-92
        overtaken, passed = (
            self._has_later(connection, lowest, confirmed, left, one.served_as, topic)
            for lowest, topic in ((qos, message.topic), (min(qos, 1), None))
        )
        # M-84
        filled = connection.filled
        was_open = not was_away and passed and filled is not None and confirmed < filled
        if not overtaken and qos and connection.is_full and not was_open:
            after = [each for each in own if each.opened > connection.opened]
            waits = self._waited(message, connection, after[:1]) or "queued"
            may_be_back = left == connection.until and waits != "discarded"  # C-6
            is_unseen = any(each.damaged for each in after)  # C-10
            was_fuller = connection.in_flight[1] < connection.most_in_flight
            may_be_lost = passed or is_unseen or was_fuller
            is_open = may_be_back or (waits == "queued" and may_be_lost)
            return connection, "undecided" if is_open else waits
        # M-63
        answered = connection.answered_open if qos else connection.answered
        is_answered = answered is not None and max(confirmed, connection.opened) < answered < left
        if not (overtaken or is_answered or passed):
            return connection, "undecided"
        too_large = _may_exceed(connection.maximum_packet_size, message)
        if too_large:
            return connection, "too_large"
        return connection, "not_kept" if was_away else "not_forwarded"

    # M-61
    def _waited(
        self, message: Message, last: Connection | None, after: list[Connection]
    ) -> str | None:
        """Return what ended the wait of a message, None if nothing did."""
        until_ns = after[0].opened.ns if after else self.facts.ends_ns[message.sent.source]
        resumed = after[0].resumed if after else None
        is_kept = bool(after) and (not after[0].clean_start if resumed is None else resumed)
        over_ns = None if last is None or is_kept else last.session_over_ns
        expires_s = message.properties.get("message_expiry_interval")
        expires_ns = None
        if expires_s is not None and message.taken is not None:
            due = message.taken.after(expires_s)
            expires_ns = None if due is None else due.ns
        limits = [ns for ns in (until_ns, over_ns) if ns is not None]
        if expires_ns is not None and until_ns is not None and expires_ns <= min(limits):
            return "expired"
        if after:
            return None if is_kept else "discarded"
        is_over = over_ns is not None and until_ns is not None and over_ns <= until_ns
        return "discarded" if is_over else None

    def _has_later(
        self, connection: Connection, qos: int, confirmed: At, left: At, name: str,
        topic: str | None,
    ) -> bool:  # fmt: skip
        """Return whether a message that was sent after another was accepted was delivered."""
        return any(
            one.served_as == name
            and topic in (None, one.message.topic)
            and confirmed < one.message.start
            and attempt.client.endpoint == connection.client.endpoint
            and attempt.at.stream.partition("#")[2] == connection.opened.stream.partition("#")[2]
            and attempt.qos >= qos
            and connection.opened < attempt.at
            and attempt.at < min(connection.closed or _ALWAYS, left)
            for one in self.expected
            for attempt in one.attempts
        )

    # --- requests and replies (4.10) --------------------------------------------------------------

    # M-64
    def _conversations(self) -> Iterator[Row]:
        published = sorted(
            (one for one in self.messages if one.origin == "publish"), key=lambda one: one.sent
        )
        waiting: defaultdict[Any, list[Message]] = defaultdict(list)
        answered: dict[Any, Message] = {}
        for message in published:
            properties = message.properties
            key = message.topic, properties.get("correlation_data")
            if waiting[key]:
                answered[key] = waiting[key].pop(0)
            if key in answered:
                yield _conversation(answered[key], message)
            topic = properties.get("response_topic")
            if topic is not None:
                waiting[topic, properties.get("correlation_data")].append(message)
        for requests in waiting.values():
            for request in requests:
                yield _conversation(request, None)


def _accepted(connection: Connection) -> At:
    assert connection.accepted is not None
    return connection.accepted


# --- rows -----------------------------------------------------------------------------------------


def _lead(at: At) -> Row:
    return {"source": at.source, "stream": at.stream, "offset": at.offset}


def _session(one: Connection) -> Row:
    shows, opened, client = one.begun and one.shows_in_flight, one.opened, one.client
    sent, received = one.in_flight if shows else (None, None)
    return {
        "protocol": "mqtt", "client": client.endpoint, "server": client.server,
        "client_id": client.client_id, "user": one.user, "status": one.status,
        "opened_ns": opened.ns if one.begun else None,
        "opened_frame": opened.frame if one.begun else None,
        "closed_ns": one.closed and one.closed.ns, "closed_frame": one.closed and one.closed.frame,
        "ended_by": one.ended_by, "packets": one.packets, "bytes": one.bytes,
        "version": (one.version or None) if one.begun else None, "resumed": one.resumed,
        "keep_alive": one.keep_alive, "in_flight_sent": sent, "in_flight_received": received,
        "end_code": one.end_code, "end_reason": one.end_reason,
        **_lead(opened),
    }  # fmt: skip


def _delivery(
    message: Message | None,
    attempt: Attempt | None,
    subscription: Subscription | None,
    verdict: str,
    connection: Connection | None = None,
) -> Row:
    receiver, sub = attempt or connection or subscription, subscription
    row: Row = {
        "protocol": "mqtt", "origin": message.origin if message else "broker", "verdict": verdict,
        "consumer": receiver.client.endpoint if receiver else None,
        "consumer_client_id": receiver.client.client_id if receiver else None,
        "consumer_id": sub and sub.identifier, "subscription": sub and sub.filter,
        "subscribed_frame": sub and sub.granted.frame, "message_key": message and message.sent.key,
    }  # fmt: skip
    if message is not None:
        sent, by = message.sent, message.client
        row |= {
            "destination": message.topic, "producer": by.endpoint,
            "producer_client_id": by.client_id, **_lead(sent),
            "accepted_frame": message.accepted and message.accepted.frame,
        }  # fmt: skip
        if not message.is_repeated:  # C-8
            row |= {"sent_ns": sent.ns, "sent_frame": sent.frame}
    if attempt is not None:
        done, at = attempt.acknowledged, attempt.at
        # C-29
        before_ns = row.get("sent_ns")
        delivered_ns = None if at.ns is None else max(at.ns, before_ns or 0)
        done_ns = None if done is None or done.ns is None else max(done.ns, delivered_ns or 0)
        outcome = "acknowledged" if done else None if attempt.untraced else "unacknowledged"
        row |= {
            "destination": attempt.topic, "qos": attempt.qos, "delivered_ns": delivered_ns,
            "retained": None if attempt.may_be_live else not attempt.is_live,
            "delivered_frame": at.frame, "delivery_count": attempt.count,
            "acknowledged_ns": done_ns, "acknowledged_frame": done and done.frame,
            "redelivered": attempt.redelivered or (None if attempt.untraced else False),
            "outcome": outcome if attempt.qos else "no_ack_wanted", **_lead(at),
        }  # fmt: skip
    elif verdict == "expired":
        row["outcome"] = "expired"
    return row


def _conversation(request: Message, reply: Message | None) -> Row:
    sent = request.sent
    row: Row = {
        "kind": "mqtt5", "request_key": sent.key, "requester": request.client.endpoint,
        "requested_ns": sent.ns, "request": request.topic, "requested_frame": sent.frame,
        **_lead(sent),
    }  # fmt: skip
    if reply is not None:
        at = reply.sent
        timed = at.ns is not None and sent.ns is not None
        row |= {
            "reply_key": at.key, "responder": reply.client.endpoint, "replied_ns": at.ns,
            "replied_frame": at.frame,
            "latency_ms": (at.time - sent.time) // 1_000_000 if timed else None,
        }  # fmt: skip
    return row


def _violation(found: tuple[str, str, Any, bool, At, str | None]) -> Row:
    rule, text, whose, from_client, at, key = found
    # The client id may have been assigned after the packet.
    client = whose if isinstance(whose, Client) else whose.client
    return {
        "protocol": "mqtt", "rule": rule, "text": text, "client_id": client.client_id,
        "client": (client.endpoint if from_client else client.server) or None, "message_key": key,
        "captured_ns": at.ns, "frame": at.frame, **_lead(at),
    }  # fmt: skip


def facts_of(
    rows: list[Row], streams: Iterable[Row] | None = None, following: type[Following] = Following
) -> Facts:
    """Return what follows from the packets of each client; see `derive`."""
    shown = None if streams is None else {(one["source"], one["stream"]): one for one in streams}
    # An unfinished packet is bytes, whatever is known of its header.
    rows = [row | {"packet_type": None} if row.get("status") == "tail" else row for row in rows]
    sides, facts = sides_of(rows, shown or {}), Facts()
    for row in (*rows, *(shown or {}).values()):
        times_ns = (row.get(f"{name}_ns") for name in ("captured", "ended", "last"))
        latest_ns = max((ns for ns in times_ns if ns is not None), default=0)
        facts.ends_ns[row["source"]] = max(facts.ends_ns.get(row["source"], 0), latest_ns)
    for key in dict.fromkeys(side.key for side in sides.values()):
        own = {name: side for name, side in sides.items() if side.key == key}
        packets = [row for row in rows if (row["source"], row["stream"]) in own]
        following(facts, own, shown).run(packets)
    return facts


def derive(rows: Iterable[Row], streams: Iterable[Row] | None = None) -> dict[str, list[Row]]:
    """Return the tables that follow from MQTT packets.

    Parameters
    ----------
    rows
        Packets as readers yield them, of both directions of every connection, in order of time.
    streams
        The beginnings and ends of streams, as captured; None if the capture shows none.
    """
    rows = list(rows)
    facts = facts_of(rows, streams)
    names = ("conversations", "deliveries", "retained", "sessions", "violations")
    tables: dict[str, list[Row]] = {name: [] for name in names}
    for server in facts.last:
        for name, row in Server(facts, server).tables():
            tables[name].append(row)
    tables["sessions"] = [_session(one) for one in facts.connections]
    tables["violations"] = [_violation(one) for one in facts.violations]
    order = {(row["source"], row["stream"], row["offset"]): n for n, row in enumerate(rows)}
    for found in tables.values():
        found.sort(key=lambda row: order[row["source"], row["stream"], row["offset"]])
    return tables
