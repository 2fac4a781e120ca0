"""The directions of a connection: which of its two streams the client sends.

`decide_sides` alone decides that, from a few counts for each stream, its `Evidence`. They can be
counted from columns or in Spark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, compress, zip_longest
from typing import Final, NamedTuple

from wireyard.formats.base import Row
from wireyard.formats.mqtt.layout import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBREC,
)
from wireyard.layers.endpoints import stream_connection, stream_endpoints
from wireyard.layers.mqtt.records import properties_of

Stream = tuple[str, str]
"""Source and name."""

CLIENT_CODES: Final[Mapping[int, frozenset[int]]] = {
    DISCONNECT: frozenset({0, 4}),
    AUTH: frozenset({25}),
}
"""Reason codes of 5.0 that only clients send, by packet type; an absent code is 0."""
BROKER_CODES: Final[Mapping[int, frozenset[int]]] = {
    PUBACK: frozenset({16}),
    PUBREC: frozenset({16}),
    DISCONNECT: frozenset({135, 137, 139, 141, 142, 143, *range(154, 163)}),
    AUTH: frozenset({0}),
}
"""Reason codes of 5.0 that only brokers send."""
NAMING: Final = (CONNECT, CONNACK)
"""The packet types that can contain the client id."""
OK: Final = "ok"
"""The status of a packet that violates no rule."""
_WELL_KNOWN_PORTS: Final = frozenset({1883, 8883})
"""The ports that IANA has assigned to MQTT, and to MQTT over TLS."""
_FIRST_EPHEMERAL_PORT: Final = 32768
"""The first port that Linux assigns to clients; other systems begin at 49152."""


class Side(NamedTuple):
    """The role of a stream in its connection."""

    from_client: bool
    alone: bool
    """Whether nothing of the other stream was captured, so that its packets are unknown."""
    key: tuple[str, str, str]
    """The key of its state: source, server, and the client id or a substitute."""
    older: bool
    """Whether CONNECT packets of connections to its server were not captured, as of connections
    that are older than the capture."""
    followed: bool = False
    """Whether the next connection of its client may be one whose CONNECT was not captured."""


class Evidence(NamedTuple):
    """What a stream shows of who sent it: counts of its packets, and what the capture shows of it.

    Counts are kept in the footers of files of packets.
    """

    source: str
    stream: str
    src_addr: str | None = None
    """Null in raw streams, like the next three."""
    src_port: int | None = None
    dst_addr: str | None = None
    dst_port: int | None = None
    packets: int = 0
    connects: int = 0
    """CONNECT packets."""
    client_packets: int = 0
    """Packets that only clients send, by type or reason code; then those that only brokers send."""
    broker_packets: int = 0
    has_name: bool = False
    """Whether a packet that can contain the client id was counted."""
    client_id: str | None = None
    """The client id in the first one: in a CONNECT, or assigned by a CONNACK."""
    gaps: int = 0
    """Ranges of bytes that were not captured."""
    first_ns: int | None = None
    """Times of its first and of its last packet; None if no packet has a time."""
    last_ns: int | None = None
    opened: bool = False
    """Whether the capture shows that its sender opened the connection, by a SYN without ACK."""
    begun: bool = False
    """Whether the capture shows its first byte."""
    paired: bool = False
    """Whether the capture has packets of the other stream, be it without bytes."""
    sliced: bool = False
    """Whether the capture says that it is a slice, which lacks other connections."""


def client_id_of(row: Row) -> str | None:
    """Return the client id in a CONNECT, or assigned by a CONNACK."""
    if row["packet_type"] == CONNECT:
        return row.get("client_id")
    name: str | None = None
    if not row.get("return_code"):
        name = properties_of(row.get("properties")).get("assigned_client_identifier")
    return name


# --- the decision ---------------------------------------------------------------------------


class _EndpointCounts:
    """Counts of the endpoints and ports of one source, from all its streams."""

    def __init__(self, connections: Iterable[Sequence[Evidence]]) -> None:
        self._connections = connections
        self.endpoints: Counter[_Endpoint] = Counter()
        """Decided connections with the endpoint as server, minus those with it as client."""
        self.ports: Counter[int | None] = Counter()

    @cached_property
    def peers(self) -> dict[_Endpoint, int]:
        """The number of endpoints that each endpoint has connections with."""
        peers: dict[_Endpoint, set[_Endpoint]] = {}
        for one in chain.from_iterable(self._connections):
            peers.setdefault(_src(one), set()).add(_dst(one))
            peers.setdefault(_dst(one), set()).add(_src(one))
        return {end: len(others) for end, others in peers.items()}

    def add(self, client: Evidence) -> None:
        """Count a decided connection by the evidence of its client's stream."""
        self.endpoints[_dst(client)] += 1
        self.endpoints[_src(client)] -= 1
        self.ports[client.dst_port] += 1
        self.ports[client.src_port] -= 1


_Endpoint = tuple[str | None, int | None]
_Key = tuple[str, str, str]
"""Source, server, and the client id or a substitute."""
_Rule = Callable[[Evidence, Evidence, _EndpointCounts], int]
"""A rule: the evidence of both streams, and the counts of all connections -> above 0 if the first
stream is the client's, below 0 if the second is."""


def _src(one: Evidence) -> _Endpoint:
    return one.src_addr, one.src_port


def _dst(one: Evidence) -> _Endpoint:
    return one.dst_addr, one.dst_port


def _endpoints_of(one: Evidence) -> tuple[str, str]:
    return stream_endpoints(one.stream, *_src(one), *_dst(one))


def _by_connect(one: Evidence, other: Evidence, _: _EndpointCounts) -> int:
    return (one.connects > 0) - (other.connects > 0)


def _by_packets(one: Evidence, other: Evidence, _: _EndpointCounts) -> int:
    return one.client_packets + other.broker_packets - one.broker_packets - other.client_packets


def _by_syn(one: Evidence, other: Evidence, _: _EndpointCounts) -> int:
    return one.opened - other.opened


def _by_endpoint(one: Evidence, other: Evidence, counts: _EndpointCounts) -> int:
    return counts.endpoints[_src(other)] - counts.endpoints[_src(one)]


def _by_port(one: Evidence, other: Evidence, counts: _EndpointCounts) -> int:
    return counts.ports[other.src_port] - counts.ports[one.src_port]


def _by_peers(one: Evidence, other: Evidence, counts: _EndpointCounts) -> int:
    return counts.peers[_src(other)] - counts.peers[_src(one)]


def _by_well_known_port(one: Evidence, other: Evidence, _: _EndpointCounts) -> int:
    return (other.src_port in _WELL_KNOWN_PORTS) - (one.src_port in _WELL_KNOWN_PORTS)


def _by_ephemeral_port(one: Evidence, other: Evidence, _: _EndpointCounts) -> int:
    return _is_ephemeral(one) - _is_ephemeral(other)


def _is_ephemeral(one: Evidence) -> bool:
    return one.src_port is not None and one.src_port >= _FIRST_EPHEMERAL_PORT


_ROUNDS: Final[tuple[Mapping[str, _Rule], ...]] = (
    {
        "a CONNECT: a client sends it": _by_connect,
        "the SYN that opened the connection, or the answer to it: a client sends the SYN": _by_syn,
    },
    {
        "an endpoint that other connections of the source, decided so far, show as a broker's":
            _by_endpoint,
        "the more packets that one side alone sends, on either stream: SUBSCRIBE, UNSUBSCRIBE and"
        " PINGREQ are a client's, CONNACK, SUBACK, UNSUBACK and PINGRESP a broker's, and so are"
        " some reason codes of DISCONNECT, AUTH, PUBACK and PUBREC": _by_packets,
    },
    {
        "an endpoint that connections decided by such packets show as a broker's": _by_endpoint,
        "its port alone, at another address": _by_port,
        "the endpoint with more peers than the other: a broker's": _by_peers,
        "a port assigned to MQTT, 1883 or 8883: a broker's": _by_well_known_port,
        "a port from 32768 on where the other is below: a client's": _by_ephemeral_port,
    },
)  # fmt: skip
"""Rounds of rules; a round uses the decisions of the rounds before about other connections."""
EVIDENCE: Final = tuple(text for rules in _ROUNDS for text in rules)
"""The kinds of evidence in their order; the first that is present decides."""


def decide_sides(evidence: Iterable[Evidence]) -> dict[Stream, Side]:
    """Decide the side of each stream of a connection, by source and name; see `EVIDENCE`.

    Streams without any evidence are left out. The client id of a connection is that of the first
    CONNECT, unless the broker assigns one; without both, the connection has a key of its own.
    """
    sources: dict[str, dict[tuple[str, ...], list[Evidence]]] = {}
    for one in evidence:
        connections = sources.setdefault(one.source, {})
        connection = stream_connection(one.source, one.stream, *_endpoints_of(one))
        connections.setdefault(connection, []).append(one)
    return {
        (one.source, one.stream): side
        for connections in sources.values()
        for one, side in _decide_source(connections)
    }


def _decide_source(
    connections: Mapping[tuple[str, ...], list[Evidence]],
) -> Iterator[tuple[Evidence, Side]]:
    """Yield the sides of the streams of one source."""
    counts = _EndpointCounts(connections.values())
    left = connections
    decided: list[tuple[tuple[str, ...], list[Evidence], bool]] = []
    for rules in _ROUNDS:
        clients, undecided = [], {}
        for connection, pair in left.items():
            one, other = pair if len(pair) > 1 else (pair[0], _uncaptured(pair[0]))
            if from_client := _apply_rules(rules, one, other, counts):
                clients.append(one if from_client > 0 else other)
                decided.append((connection, pair, from_client > 0))
            else:
                undecided[connection] = pair
        if not undecided:  # as in most captures; the counts are not needed then
            break
        left = undecided
        for client in clients:
            counts.add(client)
    servers = [_endpoints_of(pair[0])[from_client] for _, pair, from_client in decided]
    keys = []
    for server, (connection, pair, from_client) in zip(servers, decided, strict=True):
        # A client id that the broker assigns takes precedence over the client's own.
        named = pair[::-1] if from_client else pair
        name = next((one.client_id for one in named if one.client_id), "#".join(connection[1:]))
        keys.append((connection[0], server, name))
    pairs = [pair for _, pair, _ in decided]
    lacking = [_lacks_connect(pair, from_client) for _, pair, from_client in decided]
    # Connections that a slice leaves out are as if they were older than the capture.
    sliced = any(one.sliced for pair in pairs for one in pair)
    older = {*(servers if sliced else compress(servers, lacking))}
    followed = _followed(keys, pairs, lacking) if older or len({*servers}) > 1 else set()
    for number, (key, (_, pair, from_client)) in enumerate(zip(keys, decided, strict=True)):
        context = _is_alone(pair), key, key[1] in older, number in followed
        for place, one in enumerate(pair):
            yield one, Side(from_client == (place == 0), *context)


def _is_alone(pair: Sequence[Evidence]) -> bool:
    """Return whether only one direction of a connection was captured."""
    return len(pair) == 1 and not pair[0].paired


def _lacks_connect(pair: Sequence[Evidence], from_client: bool) -> bool:
    """Return whether the CONNECT of a connection was not captured.

    With `from_client`, the first stream is the client's.
    """
    if any(one.connects for one in pair):
        return False
    if _is_alone(pair) and not from_client:
        return True
    return any(one.gaps for one in pair) or not any(one.begun for one in pair)


def _followed(
    keys: Sequence[_Key], pairs: Sequence[Sequence[Evidence]], lacking: Sequence[bool]
) -> set[int]:
    """Return the connections whose client may have had another one, in the same session, next.

    That is one that began between the last packet of a connection and the first packet of the next
    one of the same client, because a client id has one connection at a time. Its client id is not
    known, or is the same and it went to another endpoint, which may be another listener. `keys`,
    `pairs` and `lacking` have the key of each connection, the evidence of its streams, and whether
    its CONNECT was not captured.
    """
    unknown: dict[str, list[int]] = {}
    named: dict[str, list[tuple[int, str]]] = {}
    known: dict[_Key, list[tuple[int, int, int]]] = {}
    for number, (key, pair) in enumerate(zip(keys, pairs, strict=True)):
        first_ns = min((one.first_ns for one in pair if one.first_ns is not None), default=None)
        last_ns = max((one.last_ns for one in pair if one.last_ns is not None), default=None)
        if first_ns is None or last_ns is None:
            continue
        if any(one.client_id for one in pair):
            known.setdefault(key, []).append((first_ns, last_ns, number))
            named.setdefault(key[2], []).append((first_ns, key[1]))
        elif lacking[number]:
            unknown.setdefault(key[1], []).append(first_ns)
    for firsts_ns in unknown.values():
        firsts_ns.sort()
    followed = set()
    for key, connections in known.items():
        firsts_ns = unknown.get(key[1], [])
        if len(connections) < len(named[key[2]]):
            elsewhere = (ns for ns, server in named[key[2]] if server != key[1])
            firsts_ns = sorted([*firsts_ns, *elsewhere])
        connections.sort()
        for (_, last_ns, number), next_one in zip_longest(connections, connections[1:]):
            place = bisect_left(firsts_ns, last_ns)
            if place < len(firsts_ns) and (next_one is None or firsts_ns[place] <= next_one[0]):
                followed.add(number)
    return followed


def _uncaptured(one: Evidence) -> Evidence:
    """Return empty evidence for the other stream, which was not captured."""
    src, dst = _src(one), _dst(one)
    return Evidence(one.source, "", *dst, *src)


def _apply_rules(
    rules: Mapping[str, _Rule], one: Evidence, other: Evidence, counts: _EndpointCounts
) -> int:
    for rule in rules.values():
        if found := rule(one, other, counts):
            return found
    return 0
