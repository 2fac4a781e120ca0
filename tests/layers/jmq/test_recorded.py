"""Real conversations: what the packets say, against what the client programs logged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.layers.jmq.judge import derive, packet_tables
from tests.layers.jmq.recorded import SCENARIOS, client_log, ended, packets, tables_of
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.layers.jmq.columns import follow_connections
from wireyard.layers.jmq.packet_row import NEEDED

Log = list[dict[str, Any]]
Seen = tuple[str, bool, int | None]
"""A message, whether it was flagged R, and its delivery count: what an application sees of both."""

TAKEN = {"acknowledged", "committed", "rolled_back", "returned_seen", "no_ack_wanted"}
"""Verdicts of what an application saw for certain; of what is `left` nothing tells."""


@pytest.fixture(scope="module")
def openmq(shared: Path) -> Path:
    folder = shared / "captures" / "openmq"
    if not folder.is_dir():
        pytest.skip("no captures of Open MQ in the shared folder")
    return folder


def key_of(entry: dict[str, Any]) -> str:
    return str(entry["jms_message_id"]).removeprefix("ID:")


def events(log: Log, *names: str) -> Log:
    return [entry for entry in log if entry["event"] in names]


def seen_by_program(entry: dict[str, Any]) -> Seen:
    count = entry["properties"].get("JMSXDeliveryCount")
    return key_of(entry), entry["jms_redelivered"], int(count["value"]) if count else None


def seen_on_wire(row: Row) -> Seen:
    return row["message_key"], row["redelivered"], row["delivery_count"]


def by(rows: Iterable[Any], name: str) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for row in rows:
        found[row[name]].append(row)
    return dict(found)


def sendings_of(path: Path) -> list[Row]:
    """Return the messages that clients sent."""
    rows: list[Row] = follow_connections(packet_tables(packets(path))).sendings.to_pylist()
    return rows


def taken(path: Path) -> list[Row]:
    """Return what applications saw, as far as packets tell, in the order of time."""
    found = [row for row in tables_of(path)["deliveries"] if row["verdict"] in TAKEN | {"left"}]
    return sorted(found, key=lambda row: (row["delivered_ns"], row["delivered_frame"]))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_message_was_sent_by_whom_the_program_says(openmq: Path, scenario: str) -> None:
    path = openmq / f"{scenario}.pcap"
    log = client_log(path)
    sendings = sendings_of(path)
    sent = {one["message_key"]: one for one in sendings}
    assert len(sent) == len(sendings)
    if scenario == "admin":
        assert not events(log, "sent")
        return
    said = {key_of(entry) for entry in events(log, "sent", "async_done")}
    assert sent.keys() == said
    assert {one["status"] for one in sent.values()} <= {None, 200}
    for who, entries in by(events(log, "sent"), "who").items():
        producers = {sent[key_of(entry)]["producer"] for entry in entries}
        assert len(producers) == 1, who
        for entry in entries:
            kind, _, name = entry["jms_destination"].partition(":")
            assert sent[key_of(entry)]["destination"] == name and kind


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "drops"])
def test_every_message_was_received_as_often_as_the_program_says(
    openmq: Path, scenario: str
) -> None:
    path = openmq / f"{scenario}.pcap"
    said = events(client_log(path), "received")
    if scenario == "admin":  # imqcmd logs what it did, not what it received.
        assert not said and {row["verdict"] for row in taken(path)} == {"acknowledged"}
        return
    wire = taken(path)
    assert Counter(map(seen_on_wire, wire)) == Counter(map(seen_by_program, said))
    browsed = [row for row in tables_of(path)["deliveries"] if row["verdict"] == "browsed"]
    copies = events(client_log(path), "browsed")
    assert Counter(row["message_key"] for row in browsed) == Counter(map(key_of, copies))


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "admin"])
def test_every_receiver_is_some_consumers(openmq: Path, scenario: str) -> None:
    """Consumers can be assigned to the receivers of the log so that each has what it received."""
    path = openmq / f"{scenario}.pcap"
    wanted = {
        who: Counter(map(seen_by_program, entries))
        for who, entries in by(events(client_log(path), "received"), "who").items()
    }
    delivered = [
        Counter(map(seen_on_wire, rows)) for rows in by(taken(path), "consumer_id").values()
    ]
    if scenario == "drops":  # The program ended with half of it unread.
        (whole,) = delivered
        (read,) = wanted.values()
        assert read < whole and (read.total(), whole.total()) == (10, 20)
        return
    assert can_assign(delivered, list(wanted.values()))


def can_assign(delivered: list[Counter[Seen]], wanted: list[Counter[Seen]]) -> bool:
    if not delivered:
        return not any(wanted)
    first, *rest = delivered
    return any(
        can_assign(rest, [*wanted[:at], one - first, *wanted[at + 1 :]])
        for at, one in enumerate(wanted)
        if first <= one
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nobody_broke_a_rule(openmq: Path, scenario: str) -> None:
    assert tables_of(openmq / f"{scenario}.pcap")["violations"] == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_message_from_a_broker_is_a_delivery(openmq: Path, scenario: str) -> None:
    path = openmq / f"{scenario}.pcap"
    found = tables_of(path)
    servers = {row["server"] for row in found["sessions"]}
    delivered = {
        (row["stream"], row["offset"])
        for row in packets(path)
        if row["format"] == "jmq"
        and row["packet_type"] in MESSAGE_TYPES
        and row["stream"].partition(">")[0] in servers
    }
    assert [(row["stream"], row["offset"]) for row in found["deliveries"]].sort() is None
    assert {(row["stream"], row["offset"]) for row in found["deliveries"]} == delivered
    assert len(found["deliveries"]) == len(delivered)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_request_has_its_reply(openmq: Path, scenario: str) -> None:
    found = tables_of(openmq / f"{scenario}.pcap")["conversations"]
    control = [row for row in found if row["kind"] == "control"]
    wanted = [row for row in packets(openmq / f"{scenario}.pcap") if wants_reply(row)]
    assert len(control) == len(wanted) > 10
    assert all(row["reply_key"] and row["latency_ms"] >= 0 for row in control)
    refused = {row["request"] for row in control if row["status"] != 200}
    assert refused == (
        {"AUTHENTICATE", "ADD_CONSUMER", "CREATE_DESTINATION"} if scenario == "auth" else set()
    )


def wants_reply(row: Row) -> bool:
    """Return whether a packet is a request; a producer's flag stays set on deliveries."""
    if row["format"] != "jmq" or "A" not in row["flags"]:
        return False
    # The port of a message is that of its producer.
    return row["packet_type"] not in MESSAGE_TYPES or row["src_port"] == row["source_port"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sessions_end_as_they_did(openmq: Path, scenario: str) -> None:
    found = tables_of(openmq / f"{scenario}.pcap")["sessions"]
    ends = [row["ended_by"] for row in found]
    if scenario == "auth":
        assert ends.count("refused") == 2 and ends.count("client") == 3
    elif scenario in ("admin", "drops", "jms20"):  # The last program of each was stopped.
        assert ends[-1] == "dropped" and set(ends[:-1]) <= {"client"}
    else:
        assert set(ends) == {"client"}
    assert {row["version"] for row in found} == {500}
    assert sum(row["packets"] for row in found) == sum(
        row["format"] == "jmq" for row in packets(openmq / f"{scenario}.pcap")
    )


def test_logins_are_those_of_the_program(openmq: Path) -> None:
    path = openmq / "auth.pcap"
    said = [
        (entry["user"], entry["event"] == "refused")
        for entry in client_log(path)
        if "user" in entry
    ]
    found = sorted(tables_of(path)["sessions"], key=lambda row: row["opened_ns"])
    ours = [(row["user"], row["status"] != 200) for row in found]
    assert ours[: len(said)] == said and len(said) == 4
    statuses = {
        row["request"]: row["status"]
        for row in tables_of(path)["conversations"]
        if row["status"] != 200
    }
    assert statuses == {"AUTHENTICATE": 413, "ADD_CONSUMER": 400, "CREATE_DESTINATION": 500}


def test_what_was_sent_in_a_transaction_that_was_rolled_back_went_nowhere(openmq: Path) -> None:
    path = openmq / "transactions.pcap"
    log = client_log(path)
    sent = {one["message_key"]: one["transaction_id"] for one in sendings_of(path)}
    outcomes = {row["transaction_id"]: row for row in tables_of(path)["transactions"]}
    delivered = {row["message_key"] for row in tables_of(path)["deliveries"]}
    for who, entries in by(events(log, "sent"), "who").items():
        keys = {key_of(entry) for entry in entries}
        (transaction,) = {sent[key] for key in keys}
        row = outcomes[transaction]
        (end,) = {entry["event"] for entry in log if entry.get("who") == who} - {"sent"}
        rolled_back = end.endswith("rollback")
        assert row["outcome"] == ("rolled_back" if rolled_back else "committed"), who
        assert row["sent"] == len(keys)
        if rolled_back:
            assert not keys & delivered
        elif who.startswith("tx"):
            assert keys <= delivered


@pytest.mark.parametrize(("scenario", "who"), [("transactions", "txc"), ("cluster", "b2_tx")])
def test_what_was_received_in_a_transaction_ends_with_it(
    openmq: Path, scenario: str, who: str
) -> None:
    path = openmq / f"{scenario}.pcap"
    said = []
    received: list[Seen] = []
    for entry in client_log(path):
        if entry.get("who") != who:
            continue
        if entry["event"] == "received":
            received.append(seen_by_program(entry))
        else:
            said.append(({"commit": "committed"}.get(entry["event"], "rolled_back"), received))
            received = []
    assert not received
    in_transactions = by(taken(path), "transaction_id")
    ours = [
        (row["outcome"], [seen_on_wire(one) for one in in_transactions[row["transaction_id"]]])
        for row in sorted(tables_of(path)["transactions"], key=lambda row: row["ended_ns"])
        if row["transaction_id"] in in_transactions
    ]
    assert ours == [one for one in said if one[1]] and len(ours) > 1
    for row in tables_of(path)["transactions"]:
        assert row["acknowledged"] == len(in_transactions.get(row["transaction_id"], []))


def test_acknowledge_and_recover_are_about_what_was_received_before(openmq: Path) -> None:
    path = openmq / "acks.pcap"
    expected: list[tuple[Seen, str]] = []
    pending: list[Seen] = []
    for entry in client_log(path):
        match entry["event"]:
            case "received" if entry["who"] == "client_ack":
                pending.append(seen_by_program(entry))
            case "acknowledge" | "recover":
                verdict = "acknowledged" if entry["event"] == "acknowledge" else "returned_seen"
                expected += [(one, verdict) for one in pending]
                pending = []
    expected += [(one, "left") for one in pending]
    consumer, *_ = by(taken(path), "consumer_id")
    ours = [
        (seen_on_wire(row), row["verdict"]) for row in taken(path) if row["consumer_id"] == consumer
    ]
    assert Counter(ours) == Counter(expected)
    assert Counter(verdict for _, verdict in ours) == {
        "acknowledged": 14, "returned_seen": 4, "left": 2,
    }  # fmt: skip


def test_what_was_read_before_the_program_ended_is_unacknowledged(openmq: Path) -> None:
    """Ten were read. Ten more were on their way, and no packet tells those from the others."""
    path = openmq / "drops.pcap"
    found = {row["message_key"]: row for row in tables_of(path)["deliveries"]}
    read = {key_of(entry) for entry in events(client_log(path), "received")}
    assert len(read) == 10 and read < found.keys() and len(found) == 20
    assert {row["outcome"] for row in found.values()} == {"unacknowledged"}
    assert {row["verdict"] for row in found.values()} == {"left"}
    dropped = tables_of(path)["sessions"][-1]
    assert (dropped["ended_by"], dropped["in_flight_received"]) == ("dropped", 20)
    assert {row["consumer"] for row in found.values()} == {dropped["client"]}


def test_requests_have_the_replies_that_the_program_got(openmq: Path) -> None:
    path = openmq / "requests.pcap"
    log = client_log(path)
    found = [row for row in tables_of(path)["conversations"] if row["kind"] == "jms"]
    got = {
        entry["jms_correlation_id"].removeprefix("ID:"): key_of(entry)
        for entry in events(log, "received")
        if entry["who"] == "client"
    }
    asked = {key_of(entry) for entry in events(log, "sent") if entry["who"] == "client"}
    unanswered = {key_of(entry) for entry in events(log, "timeout")}
    assert unanswered == {key_of(entry) for entry in events(log, "ignored")}
    assert {row["request_key"]: row["reply_key"] for row in found} == {
        key: got.get(key) for key in asked
    }
    assert {row["request_key"] for row in found if row["reply_key"] is None} == unanswered
    assert len(unanswered) == 3 and len(found) == 30
    assert all(row["responder"] != row["requester"] for row in found)


def test_administration_is_requests_and_replies(openmq: Path) -> None:
    path = openmq / "admin.pcap"
    found = tables_of(path)
    assert len(found["sessions"]) == len(events(client_log(path), "imqcmd")) == 11
    assert {row["user"] for row in found["sessions"]} == {"admin"}
    jms = [row for row in found["conversations"] if row["kind"] == "jms"]
    assert len(jms) == len(found["deliveries"]) == 27
    assert all(row["reply_key"] and row["latency_ms"] >= 0 for row in jms)
    assert {row["request"] for row in jms} == {"__JMQAdmin"}


def test_dead_messages_come_from_their_queue(openmq: Path) -> None:
    path = openmq / "deadletters.pcap"
    said = by(events(client_log(path), "received"), "who")
    dead = {key_of(entry) for entry in said.pop("dmq")}
    rows = by(tables_of(path)["deliveries"], "dead_reason")
    assert {row["message_key"] for row in rows["EXPIRED"]} == dead and len(dead) == 5
    (rest,) = said.values()
    assert {row["message_key"] for row in rows[None]} == {key_of(entry) for entry in rest}


def test_messages_come_through_the_broker_that_took_them(openmq: Path) -> None:
    path = openmq / "cluster.pcap"
    found = tables_of(path)
    home = {row["client"]: row["server"] for row in found["sessions"]}
    assert len(home) == 2
    for row in found["deliveries"]:
        took = home[row["producer"]]
        assert took != row["server"], "each message of the scenario crosses the cluster"
        assert row["via_broker"] == took.partition(":")[0] + ":7676"
        assert row["sent_frame"] < row["relayed_frame"] < row["delivered_frame"]
    senders = {entry["who"] for entry in events(client_log(path), "sent")}
    assert senders == {"b1", "b2"} and len({row["via_broker"] for row in found["deliveries"]}) == 2


@pytest.mark.parametrize("scenario", ["acks", "flow", "transactions", "cluster"])
def test_the_needed_columns_are_enough(openmq: Path, scenario: str) -> None:
    path = openmq / f"{scenario}.pcap"
    rows = [{name: row[name] for name in NEEDED if name in row} for row in packets(path)]
    assert derive(rows, ended(path)) == tables_of(path)
