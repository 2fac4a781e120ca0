"""``wireyard why``: each symptom in its recording, nothing in healthy ones."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.answers.talks import Talk, puback
from tests.cli.results import notes_of
from tests.formats.mqtt.make import connack, connect, packet
from wireyard.answers import open_tables
from wireyard.answers.symptoms import symptoms
from wireyard.answers.tables import Row
from wireyard.answers.why import Finding, find_symptoms
from wireyard.cli import main
from wireyard.layers.symptoms import SEVERITIES, Symptom

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "examples" / "symptoms"
NAMED = {
    "cluster-healthy": [],
    "cluster-lock_unanswered": ["broker_silent", "request_unanswered"],
    "cluster-not_routed": ["not_routed"],
    "cluster-relay_unanswered": ["relay_unanswered"],
    "jms-consumer_paused": ["consumer_paused"],
    "jms-dead": ["dead_messages"],
    "jms-expired": ["expired_unseen"],
    "jms-given_back": ["given_back"],
    "jms-healthy": [],
    "jms-no_consumer": ["no_consumer"],
    "jms-over_limit": ["over_limit"],
    "jms-producer_paused": ["producer_paused"],
    "jms-refused": ["login_refused"],
    "jms-selector": ["selector_matches_nothing"],
    "jms-slow_consumer": ["slow_consumer"],
    "jms-unacknowledged": ["never_acknowledged", "dropped"],
    "mqtt-expired": ["expired", "dropped"],
    "mqtt-healthy": [],
    "mqtt-keep_alive_missed": ["keep_alive_missed"],
    "mqtt-login_refused": ["login_refused"],
    "mqtt-not_forwarded": ["not_forwarded"],
    "mqtt-publish_refused": ["publish_refused"],
    "mqtt-queued_away": ["queued_away"],
    "mqtt-retained_unread": ["retained_unread"],
    "mqtt-session_expired": ["discarded", "session_expired", "dropped"],
    "mqtt-taken_over": ["taken_over"],
    "mqtt-too_large": ["too_large"],
    "mqtt-unacknowledged": ["unacknowledged"],
    "mqtt-window_full": ["window_full", "rule_broken"],
}
"""The symptoms of each recording. The broker of the last one had more messages in flight than its
client allowed; clients that were to be away, or to vanish, dropped their connection."""
ONE, TWO = "10.78.0.1", "10.78.0.2"
HEALTHY = (
    "mosquitto/bulk-v4.pcap.gz", "mosquitto/bulk-v5.pcap.gz", "mosquitto/qos-v3.pcap.gz",
    "mosquitto/qos-v4.pcap.gz", "mosquitto/qos-v5.pcap.gz", "mosquitto/splits-v4.pcap",
    "mosquitto/splits-v5.pcap", "openmq/bodies.pcap", "openmq/pubsub.pcap", "openmq/requests.pcap",
    "openmq/bulk.pcap",
)  # fmt: skip


def why(*words: object) -> Result:
    return CliRunner().invoke(
        main, ["why", *map(str, words)], catch_exceptions=False, prog_name="wireyard"
    )


def findings(*words: object) -> list[dict[str, Any]]:
    done = why(*words, "--out", "jsonl")
    assert done.exit_code == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


@cache
def recorded(name: str) -> list[dict[str, Any]]:
    """Return what is found in a recording, which is looked for once."""
    return findings(RECORDED / f"{name}.pcap")


def test_every_recording_is_looked_at() -> None:
    assert {path.stem for path in RECORDED.glob("*.pcap")} == set(NAMED)
    codes = [symptom.code for symptom in symptoms()]
    assert len(set(codes)) == len(codes)
    assert {symptom.severity for symptom in symptoms()} == set(SEVERITIES)
    assert {code for named in NAMED.values() for code in named} <= set(codes)


@pytest.mark.parametrize("name", NAMED)
def test_a_recording_shows_its_symptom_and_no_other(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(RECORDED / f"{name}.pcap")
    found = recorded(name)
    assert [one["symptom"] for one in found] == NAMED[name]
    with monkeypatch.context() as patch:  # the same in words, without asking again
        again = [Finding(**one) for one in found]
        patch.setattr("wireyard.answers.why.find_symptoms", lambda *given, **how: again)
        said = why(path)
    assert notes_of(said.stderr) == ""
    nothing = "nothing is stuck, lost or broken, as far as this shows\n"
    assert (said.stdout == nothing) == (not found)
    for one in found:
        assert one["source"] == path and one["frame"] > 0
        program, *words = shlex.split(one["next"])
        done = CliRunner().invoke(main, words, prog_name="wireyard")
        assert (program, done.exit_code) == ("wireyard", 0), (one["next"], done.stderr)
        assert len(done.stdout) > 100


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_named_in_healthy_recordings(name: str, shared: Path) -> None:
    assert findings(shared / "captures" / name) == []


def test_the_proof_is_the_packet_itself() -> None:
    (one,) = recorded("mqtt-not_forwarded")
    with open_tables([one["source"]]) as tables:
        (row,) = tables.sql(
            "SELECT * FROM packets_mqtt"
            ' WHERE frame = $frame AND stream = $stream AND "offset" = $at',
            {"frame": one["frame"], "stream": one["stream"], "at": one["offset"]},
        ).to_pylist()
    assert (row["packet_type_name"], row["topic"]) == ("PUBLISH", "plant/state")


def test_a_destination_or_a_client_narrows_it_down() -> None:
    path = RECORDED / "mqtt-session_expired.pcap"
    every = recorded("mqtt-session_expired")
    assert findings(path, "gets") == every
    assert [one["symptom"] for one in findings(path, "plant/state")] == ["discarded"]
    shown = CliRunner().invoke(main, ["why", str(path), "nobody"], prog_name="wireyard")
    assert shown.exit_code == 2
    assert "there is no destination, client or file 'nobody'" in shown.output
    both = [str(path), str(RECORDED / "mqtt-keep_alive_missed.pcap")]
    shown = CliRunner().invoke(main, ["why", *both, "silent"], prog_name="wireyard")
    assert "next: wireyard sql " + " ".join(both) in shown.output


@pytest.mark.parametrize(("answered", "is_gone"), [(True, False), (False, False), (None, True)])
def test_a_session_that_the_client_has_ended_itself_is_not_gone(
    answered: bool | None, is_gone: bool, tmp_path: Path
) -> None:
    """A clean session came between, of which the CONNACK may be lost; None if none came."""
    talk = Talk()
    for at_ms, clean in ((0, False), (1000, True), (2000, False)):
        port = 5000 + at_ms
        if not clean or answered is not None:
            talk.begin(at_ms, port)
            talk.say(at_ms, port, connect(4, 2 if clean else 0, client="c"), up=True)
            if not clean or answered:
                talk.say(at_ms + 0.1, port, connack(4), up=False)
            talk.end(at_ms + 500, port)
    found = [one["symptom"] for one in findings(talk.write(tmp_path / "in.pcap"))]
    assert ("session_expired" in found) == is_gone


def many_topics(folder: Path) -> Path:
    """Write a capture in which messages on many topics are not acknowledged: two on the last."""
    talk = both()
    talk.subscribe(5, 5001, "plant/#")
    for number in range(1, 42):
        topic = f"plant/{min(number, 40):02d}"
        talk.publish(10 * number, 5002, topic, b"x", number)
        talk.deliver(10 * number + 1, 5001, topic, b"x", number, acknowledged_ms=None)
    talk.publish(9000, 5002, "end", b"", 50)
    return talk.write(folder / "in.pcap")


def test_one_cause_is_one_finding(tmp_path: Path) -> None:
    path = many_topics(tmp_path)
    (one,) = findings(path)
    assert (one["symptom"], one["client"], one["destination"]) == ("unacknowledged", "gets", None)
    assert (one["count"], one["destinations"], one["subject"]) == (41, 40, "gets")
    assert one["text"].startswith("41 messages on 40 topics delivered more than a second")
    assert [(row["destination"], row["count"]) for row in one["worst"]] == [
        ("plant/40", 2), ("plant/01", 1), ("plant/02", 1),
    ]  # fmt: skip
    assert (one["frame"], one["producers"], one["consumers"]) == (
        one["worst"][0]["frame"], ["sends"], ["gets"],
    )  # fmt: skip
    assert one["next"] == f"wireyard trace {path} gets --verdict in_flight"
    narrowed = findings(path, "plant/40")
    assert [(each["count"], each["destination"]) for each in narrowed] == [(2, "plant/40")]


def test_the_number_of_a_finding_shows_all_of_it(tmp_path: Path) -> None:
    path = many_topics(tmp_path)
    some = why(path).stdout
    assert "from sends to gets" in some
    assert f"and 37 others: wireyard why {path} 1" in " ".join(some.split())
    every = why(path, 1).stdout
    assert all(f"1 on plant/{number:02d}, frame" in every for number in range(1, 40))
    assert "others" not in every
    none = CliRunner().invoke(main, ["why", str(path), "2"], prog_name="wireyard")
    assert (none.exit_code, none.stderr) == (2, "wireyard: there is no finding 2; there are 1\n")


def test_a_client_whose_name_is_a_number(tmp_path: Path) -> None:
    talk = Talk()
    talk.login(1, 5001, "1")
    talk.login(2, 5002, "sends")
    talk.end(3000, 5001, reset=True)
    talk.end(3000, 5002, reset=True)
    path = talk.write(tmp_path / "in.pcap")
    assert [one["client"] for one in findings(path, "1")] == ["1"]
    assert [one["client"] for one in findings(path, "2")] == ["sends"]


def test_a_line_for_each_finding_and_details_on_request() -> None:
    path = ROOT / "examples" / "traffic.pcap"
    head, empty, *lines = why(path).stdout.splitlines()
    assert head == "11 findings, worst first: 2 lost, 1 stuck, 2 refused, 2 cut, 1 slow, 3 odd"
    assert empty == ""
    assert lines[0].startswith("   1 lost     127.0.0.1:53164, shop.quotes: 3 messages of this")
    assert "with status 413 (invalid login)" in lines[3]
    assert [line[:4].strip() for line in lines[:11]] == [f"{n}" for n in range(1, 12)]
    assert lines[11:] == ["", f"details: wireyard why {path} NUMBER, or -v for all"]
    details = why(path, "-v").stdout
    assert details.count("proof: frame ") == details.count("next: wireyard ") == 11
    assert "expired: till, shop/till/3/display" in details
    query = "FROM sessions WHERE 'shelf' IN (client_id, client) ORDER BY opened_ns"
    assert f'next: wireyard sql {path} "{query}"' in details
    assert "\033" not in details


@pytest.mark.parametrize(("quiet", "term"), [("", "xterm"), ("1", "xterm"), ("", "dumb")])
def test_severities_have_colours_on_a_terminal_only(
    quiet: str, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wireyard.cli.asking.why.to_terminal", lambda _: True)
    monkeypatch.setenv("NO_COLOR", quiet)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "70")
    shown = why(ROOT / "examples" / "traffic.pcap").stdout
    assert ("\033[31m" in shown) == (not quiet and term == "xterm")
    plain = re.sub(r"\033\[[0-9;]*m", "", shown)
    assert max(map(len, plain.splitlines()[:-1])) == 70


def test_a_store_shows_who_holds_what() -> None:
    found = findings(ROOT / "examples" / "store" / "fs370")
    assert {one["symptom"] for one in found} == {"stored", "stored_unacknowledged"}
    assert all(one["frame"] is None and Path(one["source"]).exists() for one in found)
    assert "proof: offset " in why(ROOT / "examples" / "store" / "fs370", "-v").stdout


def test_of_bare_streams_nothing_is_said() -> None:
    path = ROOT / "examples" / "traffic" / "shop-b2c.jmq"
    done = why(path, "--out", "jsonl")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no packet has a time, so nothing can be concluded" in done.stderr


def test_what_the_example_shows() -> None:
    found = findings(ROOT / "examples" / "traffic.pcap")
    assert [(one["severity"], one["symptom"], one["subject"], one["count"]) for one in found] == [
        ("lost", "expired_unseen", "shop.quotes", 3),
        ("lost", "expired", "shop/till/3/display", 1),
        ("stuck", "never_acknowledged", "shop.payments", 2),
        ("refused", "login_refused", "127.0.0.1:53162", 1),
        ("refused", "login_refused", "stranger", 1),
        ("cut", "dropped", "shelf", 1),
        ("cut", "dropped", "till", 1),
        ("slow", "slow_consumer", "shop.alerts", 5),
        ("odd", "given_back", "shop.orders", 3),
        ("odd", "duplicate", "shop/sales/0", 1),
        ("odd", "duplicate", "shop/sales/0", 1),
    ]


# --- brokers of a cluster that disagree -----------------------------------------------------


def only(name: str, keep: Callable[[int, str, str], bool], to: Path) -> Path:
    """Write the segments of a recording that are to be kept, by frame, source and destination."""
    data = (RECORDED / f"{name}.pcap").read_bytes()
    kept, at, frame = data[:24], 24, 0
    while at < len(data):
        end = at + 16 + int.from_bytes(data[at + 8 : at + 12], "little")
        frame += 1
        source, target = (".".join(map(str, data[at + n : at + n + 4])) for n in (42, 46))
        if keep(frame, source, target):
            kept += data[at:end]
        at = end
    to.write_bytes(kept)
    return to


def silenced(name: str, packet_type: int, to: Path) -> Path:
    """Write a recording in which broker two says nothing to the other from a packet on."""
    with open_tables([str(RECORDED / f"{name}.pcap")]) as tables:
        (row,) = tables.sql(
            "SELECT min(frame) AS first FROM packets_gpacket"
            f" WHERE src_addr = '{TWO}' AND packet_type = {packet_type}"
        ).to_pylist()
    return only(name, lambda frame, *ends: frame < row["first"] or ends != (TWO, ONE), to)


def test_the_broker_that_disagrees_is_named() -> None:
    (one,) = recorded("cluster-relay_unanswered")
    assert (one["destination"], one["count"]) == ("symptoms", 3)
    with open_tables([one["source"]]) as tables:
        (row,) = tables.sql(
            "SELECT src_addr, packet_type_name, (SELECT max(frame) FROM packets_gpacket"
            " WHERE src_addr = '10.78.0.2') AS last FROM packets_gpacket WHERE frame = $frame",
            {"frame": one["frame"]},
        ).to_pylist()
    assert (row["src_addr"], row["packet_type_name"]) == ("10.78.0.1", "G_MESSAGE_DATA")
    assert one["text"] == (
        "3 messages from broker one (10.78.0.1): broker two (10.78.0.2) neither delivered nor"
        f" acknowledged them; frame {row['last']} is the last of its link"
    )
    (one,) = recorded("cluster-not_routed")
    assert (one["destination"], one["count"]) == ("symptoms", 3)
    assert one["text"] == (
        "3 messages kept by broker one (10.78.0.1); broker two (10.78.0.2) has a consumer,"
        " and announced it"
    )
    one, _ = recorded("cluster-lock_unanswered")
    assert one["client"] == "10.78.0.1" and "G_LOCK queue:symptoms" in one["text"]


def test_a_broker_that_keeps_acknowledgements_to_itself(tmp_path: Path) -> None:
    path = silenced("cluster-healthy", 3, tmp_path / "in.pcap")
    found = {one["symptom"]: one for one in findings(path)}
    assert "had them acknowledged by the consumer" in found["relay_unanswered"]["text"]
    assert found["relay_unanswered"]["client"].startswith("10.78.0.3:")


def test_a_broker_that_announces_no_consumer(tmp_path: Path) -> None:
    path = silenced("cluster-not_routed", 5, tmp_path / "in.pcap")
    found = {one["symptom"]: one for one in findings(path)}
    assert found["not_routed"]["count"] == 3
    assert found["not_routed"]["text"].endswith("has a consumer, and never announced it")


def test_a_link_is_enough_to_name_a_broker(tmp_path: Path) -> None:
    """Captured where no client is seen, the link shows what is forwarded and not acknowledged."""
    path = tmp_path / "in.pcap"
    only("cluster-relay_unanswered", lambda _, *ends: {*ends} <= {ONE, TWO}, path)
    (one,) = findings(path)
    assert (one["symptom"], one["count"], one["client"]) == ("relay_unanswered", 3, None)


@pytest.mark.parametrize("name", ["healthy", "not_routed", "relay_unanswered"])
@pytest.mark.parametrize("with_links", [False, True])
def test_one_side_of_a_cluster_does_not_lack_consumers(
    name: str, with_links: bool, tmp_path: Path
) -> None:
    """Its messages may have a consumer at the other broker, announced on a link or not seen."""
    path = tmp_path / "in.pcap"
    ends_of_link = {ONE, TWO}
    only(
        f"cluster-{name}",
        lambda _, *ends: ONE in ends and (with_links or {*ends} != ends_of_link),
        path,
    )
    known = {"relay_unanswered"} if name == "relay_unanswered" and with_links else set()
    assert {one["symptom"] for one in findings(path)} == known


# --- symptoms without a recording of their own ----------------------------------------------


def both() -> Talk:
    talk = Talk()
    talk.login(1, 5001, "gets")
    talk.login(2, 5002, "sends")
    return talk


def test_a_publisher_whom_nobody_answers(tmp_path: Path) -> None:
    talk = both()
    for number in range(1, 4):
        talk.say(10 * number, 5002, _publish(number), up=True)
    talk.end(3000, 5002, reset=True)
    found = {one["symptom"]: one for one in findings(talk.write(tmp_path / "in.pcap"))}
    assert found["unaccepted"]["client"] == "sends" and found["unaccepted"]["count"] == 3


def test_a_refused_subscription(tmp_path: Path) -> None:
    talk = both()
    talk.say(10, 5001, packet(0x82, b"\0\x05\0\x01a\1"), up=True)
    talk.say(11, 5001, packet(0x90, b"\0\x05\x80"), up=False)
    (one,) = findings(talk.write(tmp_path / "in.pcap"))
    assert (one["symptom"], one["client"]) == ("subscription_refused", "gets")
    assert one["text"] == (
        "1 subscription refused by the broker, with reason 128 (Unspecified error)"
    )


def test_a_copy_too_many(tmp_path: Path) -> None:
    talk = both()
    talk.subscribe(5, 5001, "plant/state")
    talk.publish(10, 5002, "plant/state", b"once", 1)
    talk.deliver(11, 5001, "plant/state", b"once", 1)
    talk.deliver(12, 5001, "plant/state", b"once", 2)
    (one,) = findings(talk.write(tmp_path / "in.pcap"))
    assert (one["symptom"], one["client"]) == ("duplicate", "gets")


def test_what_is_no_packet(tmp_path: Path) -> None:
    talk = both()
    talk.say(10, 5002, b"\xff\xff\xff\xff\xff no packet", up=True)
    codes = {one["symptom"] for one in findings(talk.write(tmp_path / "in.pcap"))}
    assert "malformed" in codes


def _publish(number: int) -> bytes:
    return packet(0x32, b"\0\x01a" + number.to_bytes(2, "big") + b"x")


def test_an_acknowledgement_with_an_error(tmp_path: Path) -> None:
    talk = Talk()
    talk.login(1, 5001, "gets", version=5)
    talk.login(2, 5002, "sends")
    talk.subscribe(5, 5001, "a", version=5)
    talk.say(10, 5002, _publish(1), up=True)
    talk.say(10.1, 5002, puback(1), up=False)
    talk.say(11, 5001, packet(0x32, b"\0\x01a\0\x01\0x"), up=False)
    talk.say(12, 5001, puback(1, b"\x83"), up=True)
    (one,) = findings(talk.write(tmp_path / "in.pcap"))
    assert (one["symptom"], one["client"]) == ("refused_by_client", "gets")


@pytest.mark.parametrize(
    ("name", "looked_for", "not_there"),
    [
        ("mqtt", {"expired", "dropped"}, {"not_forwarded", "never_acknowledged", "malformed"}),
        ("jms", {"expired_unseen", "no_consumer"}, {"dead", "not_routed", "stored", "rule_broken"}),
    ],
)
def test_what_no_row_can_have_is_not_looked_for(
    name: str, looked_for: set[str], not_there: set[str]
) -> None:
    """Neither a verdict that no delivery has, nor what is in a table without rows."""
    asked = []

    with open_tables([str(RECORDED / f"{name}-expired.pcap")]) as tables:

        def ask(symptom: Symptom, query: str, given: Any) -> list[Row]:
            asked.append(symptom.code)
            return tables.rows(query, given)

        find_symptoms(tables, None, shown_as="x", ask=ask)
    assert looked_for <= {*asked}
    assert not_there.isdisjoint(asked)
