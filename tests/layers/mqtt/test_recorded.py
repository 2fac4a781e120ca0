"""Real traffic: what is derived from a capture alone, against what its clients logged.

The model is judged here; the columns have its rows, in the same recordings (`tests.reference`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import astuple
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pytest

from tests.layers.mqtt.make import table_of
from tests.layers.mqtt.recorded import capture_of, log_of, rows_of, streams_of
from tests.reference import mqtt
from tests.reference.mqtt import At, Client, Connection, Message
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.columns import known_of, track
from wireyard.layers.mqtt.evidence import StreamEvidence
from wireyard.layers.mqtt.packets import KnownStream, Part, new_secret, stream_numbers

Row = dict[str, Any]

SCENARIOS: Final = (
    "bulk-v4", "bulk-v5", "keepalive-v4", "keepalive-v5", "properties-v5", "qos-v3", "qos-v4",
    "qos-v5", "refusals-v4", "refusals-v5", "retained-v4", "retained-v5", "sessions-v4",
    "sessions-v5", "splits-v4", "splits-v5", "wildcards-v4", "wildcards-v5", "wills-v4", "wills-v5",
)  # fmt: skip
NOT_HANDED_OVER: Final = {"sessions-v4": "deaf-q2", "sessions-v5": "deaf-q2"}
"""Who was cut with a PUBLISH at QoS 2 arrived that the library had not given out yet."""


class Scenario(NamedTuple):
    name: str
    who: dict[Client, str]
    """Whose connections each has, by the local address that was logged."""
    rows: list[Row]
    streams: list[Row]
    tables: dict[str, list[Row]]
    packets: dict[tuple[str, int], Row]
    log: list[Row]
    facts: mqtt.Facts
    cuts: list[tuple[Connection, set[int]]]
    """Connections that ended, with the messages from the client in flight then."""
    acknowledged: Counter[str]
    """Acknowledgements of deliveries, by client."""


class Watching(mqtt.Following):
    """The model, which notes what is in flight and what is acknowledged."""

    cuts: ClassVar[list[tuple[Connection, set[int]]]] = []
    acknowledged: ClassVar[Counter[str]] = Counter()

    def _count_in_flight(self, session: mqtt.Session, connection: Connection) -> None:
        super()._count_in_flight(session, connection)
        flows = session.to_broker.flows.items()
        self.cuts.append((connection, {number for number, flow in flows if flow.in_flight}))

    def _acknowledge(self, connection: Connection, row: Row, at: At, up: bool) -> None:
        flows = connection.session.to_client
        owed = flows[row["packet_id"]].owes
        super()._acknowledge(connection, row, at, up)
        if (
            up
            and owed in ("puback", "pubcomp", "pubcomps", "unknown")
            and row["packet_type"] in (4, 7)
        ):
            self.acknowledged[connection.client.name] += 1


@pytest.fixture(scope="module", params=SCENARIOS)
def scenario(request: pytest.FixtureRequest, folder: Path) -> Scenario:
    name: str = request.param
    path = capture_of(folder, name)
    rows, streams = rows_of(path), streams_of(path)
    Watching.cuts.clear()
    Watching.acknowledged.clear()
    facts = mqtt.facts_of(rows, streams, Watching)
    packets = {(row["stream"], row["offset"]): row for row in rows}
    tables = mqtt.derive(rows, streams)
    log = log_of(folder, name)
    opened: dict[str, list[str]] = defaultdict(list)
    for event in log:
        if event["event"] == "socket_open":
            opened[event["local"]].append(event["who"])
    who: dict[Client, str] = {}
    for connection in sorted(facts.connections, key=attrgetter("opened")):
        logged = opened[connection.client.endpoint].pop(0)
        assert who.setdefault(connection.client, logged) == logged
    unseen = {one for some in opened.values() for one in some}
    assert unseen == {event["who"] for event in log if event["who"] == OF_HTTP}
    return Scenario(
        name, who, rows, streams, tables, packets, log, facts, [*Watching.cuts],
        Counter(Watching.acknowledged),
    )  # fmt: skip


OF_HTTP = "raw-http-request"
"""The client that sends a request of HTTP to the broker's port: no stream of MQTT."""


def sent(scenario: Scenario) -> Iterator[tuple[str, Message, Row]]:
    """Yield the messages of clients, with the packets that they were sent in."""
    for one in scenario.facts.messages:
        if one.origin == "publish":
            yield scenario.who[one.client], one, scenario.packets[one.sent.stream, one.sent.offset]


def offenders(scenario: Scenario) -> set[str]:
    """Return the clients that exist to break a rule: their PUBLISH is no ``sent`` in the log."""
    return {event["who"] for event in scenario.log if event["event"] == "outcome"}


def test_sent_and_resent(scenario: Scenario) -> None:
    """Every message is sent once; what comes again with DUP belongs to the one before."""
    logged, resent = Counter[Any](), Counter[Any]()
    library = {event["who"] for event in scenario.log if event["event"] == "library"}
    for event in scenario.log:
        who = event["who"]
        if event["event"] == "sent" and not event["dup"]:
            content = event["topic"], event["payload_hex"], event["qos"], event["retain"]
            logged[who, *content] += 1
        elif event["event"] == "sent" or (
            event["event"] == "library" and event["text"].startswith("Sending PUBLISH (d1")
        ):
            resent[who] += event["event"] == "library" or who not in library
    found, again = Counter[Any](), Counter[str]()
    for who, one, packet in sent(scenario):
        if who not in offenders(scenario):
            # The log has no topic where an alias stands for it.
            found[who, packet["topic"], packet["payload"].hex(), one.qos, one.retain] += 1
            again[who] += len(one.again)
            assert one.payload == packet["payload"]
    assert logged == found
    assert +resent == +again


def test_completed(scenario: Scenario) -> None:
    """A message is complete exactly where its client logged that."""
    completed = {event["who"] for event in scenario.log if event["event"] == "publish_complete"}
    complete, at_qos_0 = Counter[str](), Counter[str]()
    for event in scenario.log:
        complete[event["who"]] += event["event"] == "publish_complete"
        at_qos_0[event["who"]] += event["event"] == "sent" and not event["qos"]
    # The log of a raw client has its acknowledgements instead.
    ours = Counter(
        who
        for who, one, _ in sent(scenario)
        if one.qos and (one.accepted or one.refused) and who in completed
    )
    assert ours == Counter({who: complete[who] - at_qos_0[who] for who in completed})


def received(scenario: Scenario) -> Iterator[tuple[Row, bytes]]:
    """Yield the deliveries that happened, with their payloads."""
    for row in scenario.tables["deliveries"]:
        if "delivered_frame" in row:
            packet = scenario.packets[row["stream"], row["offset"]]
            yield row, packet["payload"]


def test_received(scenario: Scenario) -> None:
    logged, again = Counter[Any](), Counter[Any]()
    for event in scenario.log:
        if event["event"] == "received":
            content = event["topic"], event["payload_hex"], event["qos"], event["retain"]
            logged[event["who"], *content] += 1
            again[event["who"]] += event["dup"]
    ours, ours_again = Counter[Any](), Counter[Any]()
    for row, payload in received(scenario):
        retain = scenario.packets[row["stream"], row["offset"]]["retain"]
        assert retain or not row["retained"]
        content = row["destination"], payload.hex(), row["qos"], retain
        ours[row["consumer_client_id"], *content] += row["delivery_count"]
        ours_again[row["consumer_client_id"]] += row["delivery_count"] - 1
    difference = ours - logged
    assert not logged - ours
    expected = NOT_HANDED_OVER.get(scenario.name)
    assert [key[0] for key in difference.elements()] == ([expected] if expected else [])
    assert +again == +ours_again


def test_no_verdict_is_false(scenario: Scenario) -> None:
    """What brokers really did has an innocent verdict, but where the access list forbids."""
    verdicts = Counter(
        row["verdict"] for row in scenario.tables["deliveries"] if row["destination"] != "closed/x"
    )
    assert not {"not_forwarded", "in_flight", "abandoned"} & verdicts.keys()
    resent = {one.sent.key for one in scenario.facts.messages if one.again}
    copied = {
        row["message_key"] for row in scenario.tables["deliveries"] if row["verdict"] == "duplicate"
    }
    assert copied <= resent
    assert bool(copied) == scenario.name.startswith("sessions")
    if scenario.name.startswith("bulk"):
        assert verdicts.keys() == {"delivered"}


def test_sessions(scenario: Scenario) -> None:
    """Every connection is there once, with its login's answer and the way it ended."""
    logged: dict[str, list[Row]] = defaultdict(list)
    current: dict[str, Row] = {}
    for event in scenario.log:
        kind, who = event["event"], event["who"]
        if kind == "socket_open":
            current[who] = {"who": who, "ended_by": "open"}
            if who == OF_HTTP:
                continue
            logged[event["local"]].append(current[who])
        elif kind == "connected" and who in current:
            current[who]["present"] = event["session_present"]
            current[who]["refused"] = event["reason_code"] != 0
        elif kind == "disconnect":
            current[who]["ended_by"] = "client"
        elif kind in ("socket_closed_without_disconnect", "closed_by_broker"):
            current[who].setdefault("closed", kind)
    sessions: dict[str, list[Row]] = defaultdict(list)
    for row in scenario.tables["sessions"]:
        sessions[row["client"]].append(row)
    assert {key: len(rows) for key, rows in sessions.items()} == {
        key: len(rows) for key, rows in logged.items()
    }
    compared = 0
    for local, rows in sessions.items():
        for row, said in zip(rows, logged[local], strict=True):
            if said["who"] in offenders(scenario):
                continue
            login = scenario.packets[row["stream"], row["offset"]]
            assert login["client_id"] in (said["who"], "")
            assert row["client_id"] or row["ended_by"] == "refused"
            assert (row["ended_by"] == "client") == (said["ended_by"] == "client"), row
            assert (row["ended_by"] == "refused") == said.get("refused", False), row
            if row["resumed"] is not None:
                assert row["resumed"] == said["present"]
            compared += 1
    assert compared
    assert {row["ended_by"] for row in scenario.tables["sessions"]} <= {
        "client", "server", "dropped", "refused", "open",
    }  # fmt: skip


def test_wills(scenario: Scenario) -> None:
    """The wills that subscribers got are those that the model says were published."""
    wills = {
        (event["will"]["topic"], event["will"]["payload_hex"])
        for event in scenario.log
        if event["event"] == "connect" and event["will"]
    }
    got = {
        (event["topic"], event["payload_hex"])
        for event in scenario.log
        if event["event"] == "received" and (event["topic"], event["payload_hex"]) in wills
    }
    notes, last = scenario.facts, max(scenario.facts.last.values())
    due = [one for one in notes.delayed if one.accepted and one.accepted < last]
    published = {
        (one.topic, scenario.packets[one.sent.stream, one.sent.offset]["will_payload"].hex())
        for one in (*notes.messages, *due)
        if one.origin == "will" and scenario.who[one.client] not in offenders(scenario)
    }
    assert got <= published <= wills
    if scenario.name.startswith("wills"):
        assert got == published != wills
    derived = {
        (row["destination"], payload.hex())
        for row, payload in received(scenario)
        if row["origin"] == "will"
    }
    assert derived == got


def test_retained_values_as_of_any_time(scenario: Scenario) -> None:
    """What is delivered with RETAIN is what the topic had then; nothing deleted ever is."""
    values = scenario.tables["retained"]
    compared = 0
    for each in scenario.facts.attempts:
        if each.retain and not each.topic.startswith("$SYS") and each.at.ns is not None:
            time_ns = each.at.ns
            payloads = [
                row["payload"]
                for row in values
                if row["topic"] == each.topic and row["from_ns"] <= time_ns
                and (row["to_ns"] is None or time_ns < row["to_ns"])
            ]  # fmt: skip
            packet = scenario.packets[each.at.stream, each.at.offset]
            assert payloads == [packet["payload"]], each
            compared += 1
    if scenario.name.startswith("retained"):
        assert compared > 10
        assert any(row["ended_by"] == "deleted" for row in scenario.tables["retained"])
        for row in scenario.tables["retained"]:
            assert row["to_ns"] is None or row["from_ns"] <= row["to_ns"]


def test_conversations(scenario: Scenario) -> None:
    """Every message with a response topic is a request, answered where the log has an answer."""
    asked: dict[tuple[str, str], list[str]] = {}
    for event in scenario.log:
        if event["event"] == "sent":
            properties = event.get("properties", {})  # raw clients send none
            data = properties.get("CorrelationData", "")
            if (event["topic"], data) in asked:
                asked[event["topic"], data].append(event["who"])
            if response_topic := properties.get("ResponseTopic"):
                asked[response_topic, data] = [event["who"]]
    names = {row["client"]: row["client_id"] for row in scenario.tables["sessions"]}
    found = Counter(
        (names[row["requester"]], *([names[row["responder"]]] if "responder" in row else []))
        for row in scenario.tables["conversations"]
    )
    assert found == Counter(map(tuple, asked.values()))


def test_in_flight_at_every_cut(scenario: Scenario) -> None:
    """A client that was cut had in flight what it had not logged as complete.

    The wire may know more: an acknowledgement that arrived and was not read. Those come again.
    """
    logged: dict[str, list[set[int]]] = defaultdict(list)
    unfinished: dict[str, set[int]] = defaultdict(set)
    resent: dict[str, set[int]] = defaultdict(set)
    library = {event["who"] for event in scenario.log if event["event"] == "publish_complete"}
    for event in scenario.log:
        kind, who = event["event"], event["who"]
        if who not in library:
            continue
        if kind == "publish_complete":
            unfinished[who].discard(event["mid"])
        elif kind == "socket_closed_without_disconnect":
            logged[who].append(set(unfinished[who]))
        elif kind == "library":
            if found := re.match(r"Sending PUBLISH \(d0, q[12], r\d, m(\d+)\)", event["text"]):
                unfinished[who].add(int(found[1]))
            elif found := re.match(
                r"Sending PUB(?:LISH \(d1, q\d, r\d, m|REL \(Mid: )(\d+)", event["text"]
            ):
                resent[who].add(int(found[1]))
    ours: dict[str, list[tuple[At, set[int]]]] = defaultdict(list)
    for connection, in_flight in scenario.cuts:
        name = connection.client.name
        if name in library and connection.ended_by == "dropped" and connection.closed:
            ours[name].append((connection.closed, in_flight))
    for who, cuts in logged.items():
        found_cuts = [in_flight for _, in_flight in sorted(ours[who], key=itemgetter(0))]
        assert len(found_cuts) >= len(cuts), who
        for said, derived in zip(cuts, found_cuts, strict=False):
            assert derived <= said, who
            assert said - derived <= resent[who], who


def test_acknowledged_to_the_end(scenario: Scenario) -> None:
    """Deliveries are complete where the library sent PUBACK or PUBCOMP.

    It logs some more when its socket is shut already; those never leave.
    """
    logged = Counter[str]()
    cut = set[str]()
    for event in scenario.log:
        kind, who = event["event"], event["who"]
        if kind == "socket_closed_without_disconnect":
            cut.add(who)
        elif kind == "socket_open":
            cut.discard(who)
        elif kind == "library" and who not in cut:
            logged[who] += bool(re.match("Sending PUB(ACK|COMP)", event["text"]))
    ours = Counter({who: scenario.acknowledged[who] for who in logged})
    assert +ours == +logged


def test_every_publish_is_a_message_or_comes_again(scenario: Scenario) -> None:
    """But those that the broker refused with the connection, or that cannot be read."""
    publishes = sum(
        row.get("packet_type") == layout.PUBLISH and row["status"] != "tail"
        for row in scenario.rows
    )
    messages, attempts = [one for _, one, _ in sent(scenario)], scenario.facts.attempts
    again = sum(len(one.again) for one in messages) + sum(one.count - 1 for one in attempts)
    without_effect = publishes - len(messages) - len(attempts) - again
    assert without_effect == {"refusals-v4": 4, "refusals-v5": 5}.get(scenario.name, 0)


def test_tracking_needs_the_packets_of_one_client_id_only(scenario: Scenario) -> None:
    """So they can be partitioned by broker and client id: each client has the same rows."""
    table = table_of(scenario.rows)
    evidence, secret = StreamEvidence(), new_secret()
    evidence.add(table)
    known = known_of(evidence, scenario.streams)
    numbers = {(one.source, one.name): number for number, one in enumerate(known)}
    part = Part.of(table, stream_numbers(table, numbers), secret)
    keys = {key: number for number, key in enumerate({one.key for one in known})}
    key_of = np.array([keys[one.key] for one in known])
    partition = key_of[part.packets["stream"].to_numpy()]
    found = Counter[Any]()
    for of_key in part.split(partition, len(keys)):
        found.update(tracked([of_key], known, secret))
    assert found == Counter(tracked([part], known, secret))


def tracked(parts: list[Part], known: list[KnownStream], secret: tuple[int, int]) -> Iterator[Any]:
    """Yield what was tracked, without numbers that depend on other clients."""
    found, messages = track(parts, known, secret)
    for table in found.tables.values():
        yield from map(str, table.to_pylist())
    yield from map(str, (*found.wills, *found.waiting))
    yield from (astuple(one)[:-1] for one in found.subscriptions)
    yield from map(astuple, found.connections)
    for tables in messages:
        for table in tables:
            # Without a packet only its time is defined.
            late = ("accepted_", "released_", "acknowledged_")
            names = [
                name
                for name in table.column_names
                if name != "client" and (name.endswith("_ns") or not name.startswith(late))
            ]
            rows = table.select(names).to_pylist()
            clients = [found.clients[number] for number in table["client"].to_pylist()]
            yield from map(str, zip(rows, clients, strict=True))
