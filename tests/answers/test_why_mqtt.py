"""``wireyard why`` of MQTT: codes of the broker, requests without an answer, one direction only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.answers.talks import Talk, ends_before, puback
from tests.answers.test_why import findings, why
from tests.captures.make import QUIET, go_on
from tests.cli.results import notes_of
from tests.degraded import Capture
from tests.formats.mqtt.make import connack, connect, packet, publish, text
from wireyard.answers import open_tables
from wireyard.cli import main

MQTT5 = 5
CASES = {
    "over-clean-3.1.1": ["never_acknowledged", "dropped"],
    "over-queued-5.0": ["discarded"],
    "over-shared": ["dropped"],
    "message-expired-waiting": ["expired"],
    "keepalive-longer": ["dropped"],
    "keepalive-shorter": ["keep_alive_missed"],
    "server-disconnect-reason": ["server_disconnect"],
    "unanswered-pingreq": ["request_unanswered", "dropped"],
    "pubrec-no-pubrel": ["unreleased"],
    "slow-but-away": [],
}
"""Field cases, and the symptoms of each."""


@pytest.mark.parametrize("name", CASES)
def test_field_cases(name: str, shared: Path) -> None:
    if not (shared / "cases").is_dir():
        pytest.skip("no field cases in ../shared")
    found = findings(shared / "cases" / f"{name}.pcap")
    assert [one["symptom"] for one in found] == CASES[name]


def _named(talk: Talk, folder: Path) -> dict[str, dict[str, Any]]:
    return {one["symptom"]: one for one in findings(talk.write(folder / "in.pcap"))}


def _two(version: int = 4, properties: bytes = b"") -> Talk:
    """Return two clients, one of which is there until second 30."""
    talk = Talk()
    talk.login(1, 5001, "one", version=version, properties=properties)
    talk.login(2, 5002, "two")
    talk.say(30_000, 5002, b"\xc0\0", up=True)
    talk.say(30_000.1, 5002, b"\xd0\0", up=False)
    return talk


# --- the end of a connection by the broker --------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0x80, "Unspecified error"), (0x81, "Malformed Packet"), (0x82, "Protocol Error"),
        (0x8B, "Server shutting down"), (0x8D, "Keep Alive timeout"),
        (0x8E, "Session taken over"), (0x97, "Quota exceeded"), (0x98, "Administrative action"),
        (0xA0, "Maximum connect time"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("reason", [b"", b"\x1f" + text("go away")])
def test_every_disconnect_of_the_broker(
    code: int, name: str, reason: bytes, tmp_path: Path
) -> None:
    talk = _two(MQTT5)
    talk.say(100, 5001, packet(0xE0, bytes([code, len(reason)]) + reason), up=False)
    talk.end(101, 5001, up=False)
    one = _named(talk, tmp_path)["server_disconnect"]
    said = ": go away" if reason else ""
    assert one["text"] == f"disconnected by the broker (1 time), with reason {code} ({name}){said}"
    assert (one["client"], one["severity"]) == ("one", "cut")


def test_a_disconnect_that_another_symptom_explains(tmp_path: Path) -> None:
    talk = Talk()
    talk.login(1, 5001, "one", version=MQTT5)
    talk.login(100, 5003, "one", version=MQTT5)
    talk.say(101, 5001, packet(0xE0, b"\x8e\0"), up=False)
    talk.end(102, 5001, up=False)
    assert set(_named(talk, tmp_path)) == {"taken_over"}


@pytest.mark.parametrize("ends", [True, False])
def test_a_connection_is_taken_over_if_it_ends_behind_the_new_one(
    ends: bool, tmp_path: Path
) -> None:
    """Otherwise its end may have been before, and was not captured."""
    talk = Talk()
    talk.login(1, 5001, "one")
    talk.login(100, 5003, "one")
    if ends:
        talk.end(102, 5001, up=False)
    assert set(_named(talk, tmp_path)) == {"taken_over" if ends else "dropped"}


@pytest.mark.parametrize(
    ("said_s", "closes_ms", "by_client", "is_missed"),
    [(None, 91_000, False, True), (None, 80_000, False, False), (10, 16_000, False, True),
     (120, 100_000, False, False), (120, 181_000, False, True), (0, 100_000, False, False),
     (10, 16_000, True, False)],
)  # fmt: skip
def test_the_keep_alive_of_the_broker_counts(
    said_s: int | None, closes_ms: int, by_client: bool, is_missed: bool, tmp_path: Path
) -> None:
    talk = Talk()
    said = b"" if said_s is None else b"\x13" + said_s.to_bytes(2, "big")
    talk.say(1, 5001, connect(MQTT5, client="one"), up=True)
    talk.say(1.1, 5001, connack(MQTT5, properties=said), up=False)
    talk.end(closes_ms, 5001, up=by_client)
    found = _named(talk, tmp_path)
    assert ("keep_alive_missed" in found) == is_missed
    assert ("dropped" in found) != is_missed
    if is_missed:
        keep_alive_s = 60 if said_s is None else said_s
        assert found["keep_alive_missed"]["text"].endswith(f"its keep-alive is {keep_alive_s} s")


@pytest.mark.parametrize(
    ("answers", "symptom"),
    [
        ("", "unacknowledged"),
        ("5", "unreleased_by_broker"),
        ("56", "unacknowledged"),
        ("567", None),
    ],
)
@pytest.mark.parametrize("ends", [False, True])
def test_the_side_that_owes_the_next_packet_of_a_delivery_is_named(
    answers: str, symptom: str | None, ends: bool, tmp_path: Path
) -> None:
    talk = _two()
    talk.subscribe(10, 5001, "t", qos=2)
    talk.say(20, 5002, publish(4, 0x34, "t", packet_id=1, payload=b"x"), up=True)
    for number, first in enumerate((0x50, 0x62, 0x70)):
        talk.say(20.1 + number / 10, 5002, packet(first, b"\0\1"), up=first == 0x62)
    talk.say(20.5, 5001, publish(4, 0x34, "t", packet_id=3, payload=b"x"), up=False)
    for number, kind in enumerate(answers):
        data = packet(int(kind) << 4 | 2 * (kind == "6"), b"\0\3")
        talk.say(21 + number, 5001, data, up=kind != "6")
    if ends:
        talk.end(2_000, 5001)
    found = {one for one in _named(talk, tmp_path) if one != "dropped"}
    if ends and symptom == "unacknowledged":
        symptom = "never_acknowledged"
    assert found == ({symptom} if symptom else set())


# --- requests without an answer -------------------------------------------------------------------

REQUESTS: dict[str, tuple[bytes, bytes]] = {
    "PINGREQ": (b"\xc0\0", b"\xd0\0"),
    "SUBSCRIBE": (packet(0x82, b"\0\x05\0\x01a\1"), packet(0x90, b"\0\x05\1")),
    "UNSUBSCRIBE": (packet(0xA2, b"\0\x05\0\x01a"), packet(0xB0, b"\0\x05")),
}
"""Requests of 3.1.1, and their answers."""


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("answers", [0, 1, 2])
def test_requests_that_the_broker_does_not_answer(name: str, answers: int, tmp_path: Path) -> None:
    talk, (request, answer) = _two(), REQUESTS[name]
    for number in range(2):
        talk.say(100 + number, 5001, request, up=True)
        if number < answers:
            talk.say(100.5 + number, 5001, answer, up=False)
    found = _named(talk, tmp_path)
    if answers == 2:
        assert not found
    else:
        times = "1 time" if answers else "2 times"
        assert found["request_unanswered"]["text"] == f"{name} not answered by the broker ({times})"
        assert found["request_unanswered"]["client"] == "one"


@pytest.mark.parametrize(
    ("answers", "unanswered"),
    [((), ["CONNECT"]), ((0x18,), ["AUTH"]), ((0x18, None), ["AUTH"]), ((0x18, None, 0), [])],
)
def test_an_exchange_that_the_broker_does_not_continue(
    answers: tuple[int | None, ...], unanswered: list[str], tmp_path: Path
) -> None:
    """CONNECT, AUTH and, once logged in, AUTH again; each is answered by AUTH or CONNACK."""
    method = b"\x15" + text("M")
    talk = Talk()
    talk.begin(1, 5001)
    asked = [connect(MQTT5, client="one", properties=method)]
    asked += [packet(0xF0, bytes([code, len(method)]) + method) for code in (0x18, 0x19)]
    for number, request in enumerate(asked[: len(answers) + 1]):
        talk.say(10 + number, 5001, request, up=True)
        for code in answers[number : number + 1]:
            answer = packet(0xF0, bytes([code or 0, len(method)]) + method)
            talk.say(10.5 + number, 5001, connack(MQTT5) if code is None else answer, up=False)
    talk.login(2, 5002, "two")
    talk.say(30_000, 5002, b"\xc0\0", up=True)
    talk.say(30_000.1, 5002, b"\xd0\0", up=False)
    found = _named(talk, tmp_path)
    texts = [one["text"].split()[0] for one in found.values() if "not answered" in one["text"]]
    assert texts == unanswered


def test_a_request_just_before_the_end_may_still_be_answered(tmp_path: Path) -> None:
    talk = _two()
    talk.say(100, 5001, b"\xc0\0", up=True)
    talk.say(200, 5001, b"\xe0\0", up=True)
    talk.end(201, 5001)
    assert not _named(talk, tmp_path)


def test_a_login_that_the_broker_does_not_answer(tmp_path: Path) -> None:
    talk = _two()
    talk.begin(50, 5003)
    talk.say(51, 5003, connect(4, client="three"), up=True)
    assert _named(talk, tmp_path)["request_unanswered"]["text"].startswith("CONNECT not answered")


def test_a_login_whose_answer_may_not_have_been_captured(tmp_path: Path) -> None:
    talk = _two()
    talk.say(51, 5003, connect(4, client="three"), up=True)
    assert not _named(talk, tmp_path)


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_answer_may_be_among_the_packets_that_were_lost(is_lost: bool, tmp_path: Path) -> None:
    """Of a reset connection nothing shows whether there was one."""
    talk = _two()
    talk.begin(50, 5003)
    talk.say(51, 5003, connect(4, client="three"), up=True)
    talk.end(2_000, 5003, reset=True)
    path = talk.write(tmp_path / "in.pcap")
    capture = Capture.read(path)
    if is_lost:
        del capture.frames[-2]
    path.write_bytes(capture.header + b"".join(capture.frames))
    assert ("request_unanswered" in {one["symptom"] for one in findings(path)}) != is_lost


def test_pubrec_is_acceptance(tmp_path: Path) -> None:
    talk = _two()
    talk.say(100, 5001, packet(0x34, b"\0\x01a\0\x01x"), up=True)
    talk.say(101, 5001, packet(0x50, b"\0\x01"), up=False)
    found = _named(talk, tmp_path)
    assert (
        set(found) == {"unreleased"}
        and "this client did not send PUBREL" in (found["unreleased"]["text"])
    )
    talk.say(102, 5001, packet(0x62, b"\0\x01"), up=True)
    assert _named(talk, tmp_path)["request_unanswered"]["text"] == (
        "PUBREL not answered by the broker (1 time)"
    )


# --- the last frame -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "frame"), [*((name, "arp") for name in (*REQUESTS, "CONNECT")),
                        *(("PINGREQ", frame) for frame in QUIET)],
)  # fmt: skip
def test_a_request_is_waited_for_until_the_last_frame(
    name: str, frame: str, tmp_path: Path
) -> None:
    talk = Talk()
    talk.login(1, 5001, "one")
    if name == "CONNECT":
        talk.begin(50, 5003)
        talk.say(51, 5003, connect(4, client="three"), up=True)
    else:
        talk.say(100, 5001, REQUESTS[name][0], up=True)
    assert not _named(talk, tmp_path)
    path = go_on(talk.write(tmp_path / "in.pcap"), 10, QUIET[frame])
    (one,) = findings(path)
    assert one["text"] == f"{name} not answered by the broker (1 time)"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("session", "queued", "discarded"), ("message", "queued", "expired"),
        ("delivery", "in_flight", "abandoned"), ("will", None, "undecided"),
    ],
)  # fmt: skip
def test_a_deadline_passes_until_the_last_frame(
    name: str, before: str | None, after: str, tmp_path: Path
) -> None:
    path = ends_before(name).write(tmp_path / "in.pcap")
    for seconds, verdict in ((0, before), (3, before), (10, after)):
        if seconds:
            go_on(path, seconds)
        with open_tables([str(path)]) as tables:
            rows = tables.sql("SELECT verdict FROM deliveries").to_pylist()
        assert [row["verdict"] for row in rows] == [verdict][: verdict is not None]


# --- refusals -------------------------------------------------------------------------------------


def test_refusals_have_the_name_of_their_code(tmp_path: Path) -> None:
    talk, reason = _two(MQTT5), b"\x1f" + text("not yours")
    talk.say(100, 5001, packet(0x82, b"\0\x05\0\0\x01a\1\0\x01b\1"), up=True)
    properties = bytes([len(reason)]) + reason
    talk.say(101, 5001, packet(0x90, b"\0\x05" + properties + b"\1\x87"), up=False)
    talk.say(200, 5001, packet(0x32, b"\0\x01c\0\x06\0x"), up=True)
    talk.say(201, 5001, puback(6, b"\x97" + properties), up=False)
    talk.say(300, 5003, connect(MQTT5, client="three"), up=True)
    talk.say(301, 5003, connack(MQTT5, code=0x86, properties=reason), up=False)
    talk.say(400, 5004, connect(4, client="four"), up=True)
    talk.say(401, 5004, connack(4, code=5), up=False)
    found = findings(talk.write(tmp_path / "in.pcap"))
    assert {one["symptom"]: one["text"] for one in found if one["client"] == "one"} == {
        "subscription_refused": "1 subscription refused by the broker, with reason 135 (Not"
        " authorized): not yours",
        "publish_refused": "1 message of this client refused by the broker, with reason 151 (Quota"
        " exceeded): not yours",
    }
    assert [one["text"] for one in found if one["symptom"] == "login_refused"] == [
        "1 login refused, with status 5 (not authorized)",
        "1 login refused, with status 134 (Bad User Name or Password): not yours",
    ]


# --- where messages went --------------------------------------------------------------------------


def _shared(share: str, acknowledges: bool) -> Talk:
    """Return a group of which one member dies with a message that the other then gets."""
    talk = _two()
    talk.login(3, 5003, "three")
    talk.login(4, 5004, "four")
    talk.subscribe(5, 5003, share)
    talk.subscribe(6, 5004, share)
    talk.publish(10, 5002, "a", b"x", 1)
    talk.deliver(11, 5003, "a", b"x", 1, acknowledged_ms=None)
    talk.end(5000, 5003, reset=True)
    talk.deliver(5001, 5004, "a", b"x", 1, acknowledged_ms=0.2 if acknowledges else None)
    return talk


def test_a_message_is_not_stuck_with_a_dead_member_of_a_group(tmp_path: Path) -> None:
    found = _named(_shared("a", acknowledges=True), tmp_path)
    assert {"never_acknowledged", "dropped"} == set(found)


def test_the_member_that_gets_what_a_dead_one_held_is_not_slow(tmp_path: Path) -> None:
    talk = _two()
    for port, name in ((5003, "three"), (5004, "four")):
        talk.login(port - 5000, port, name)
        talk.subscribe(port - 4990, port, "$share/g/a")
    for number in range(1, 7):
        talk.publish(100 * number, 5002, "a", b"%d" % number, number)
        talk.deliver(100 * number + 1, 5003, "a", b"%d" % number, number, acknowledged_ms=None)
    talk.end(5600, 5003, reset=True)
    for number in range(1, 7):
        talk.deliver(5700 + number, 5004, "a", b"%d" % number, number)
    assert set(_named(talk, tmp_path)) == {"dropped"}


def test_a_granted_subscription_that_is_never_served(tmp_path: Path) -> None:
    talk = _two()
    talk.login(3, 5003, "three")
    talk.subscribe(4, 5001, "a")
    talk.subscribe(5, 5003, "a")
    for number in range(1, 4):
        talk.publish(10 * number, 5002, "a", b"%d" % number, number)
        talk.deliver(10 * number + 1, 5003, "a", b"%d" % number, number)
    one = _named(talk, tmp_path)["never_served"]
    assert (one["client"], one["count"]) == ("one", 3)


def test_messages_that_were_not_kept_for_a_client_that_was_away(tmp_path: Path) -> None:
    talk = _two()
    talk.say(3, 5003, connect(4, 0, client="night"), up=True)
    talk.say(3.1, 5003, connack(4), up=False)
    talk.subscribe(4, 5003, "a")
    talk.say(5, 5003, b"\xe0\0", up=True)
    talk.end(6, 5003)
    talk.publish(10, 5002, "a", b"x", 1)
    talk.say(1000, 5004, connect(4, 0, client="night"), up=True)
    talk.say(1000.1, 5004, connack(4, 1), up=False)
    talk.say(1001, 5004, b"\xc0\0", up=True)
    talk.say(1001.1, 5004, b"\xd0\0", up=False)
    assert {name: one["client"] for name, one in _named(talk, tmp_path).items()} == {
        "not_kept": "night"
    }


def test_time_away_is_not_charged_to_a_consumer(tmp_path: Path) -> None:
    talk = Talk()
    talk.login(1, 5001, "fast")
    talk.login(2, 5002, "sends")
    talk.say(3, 5003, connect(4, 0, client="night"), up=True)
    talk.say(3.1, 5003, connack(4), up=False)
    talk.subscribe(4, 5001, "a")
    talk.subscribe(5, 5003, "a")
    talk.say(6, 5003, b"\xe0\0", up=True)
    talk.end(7, 5003)
    for number in range(1, 8):
        talk.publish(10 * number, 5002, "a", b"%d" % number, number)
        talk.deliver(10 * number + 1, 5001, "a", b"%d" % number, number)
    talk.say(5000, 5004, connect(4, 0, client="night"), up=True)
    talk.say(5000.1, 5004, connack(4, 1), up=False)
    for number in range(1, 8):
        talk.deliver(5000 + number, 5004, "a", b"%d" % number, number)
    assert not _named(talk, tmp_path)
    for number in range(8, 15):  # now it is there, and slow
        talk.publish(6000 + 10 * number, 5002, "a", b"%d" % number, number)
        talk.deliver(6001 + 10 * number, 5001, "a", b"%d" % number, number)
        talk.deliver(6900 + 10 * number, 5004, "a", b"%d" % number, number)
    assert _named(talk, tmp_path)["slow_consumer"]["client"] == "night"


# --- one direction --------------------------------------------------------------------------------


def _one_direction(path: Path, up: bool) -> Path:
    """Write the frames of a capture that go to the broker, or those that come from it."""
    data = path.read_bytes()
    kept, at = data[:24], 24
    order: Any = "little" if data[0] in (0x4D, 0xD4) else "big"
    while at < len(data):
        end = at + 16 + int.from_bytes(data[at + 8 : at + 12], order)
        port = int.from_bytes(data[at + 16 + 36 : at + 16 + 38], "big")
        if (port == 1883) == up:
            kept += data[at:end]
        at = end
    written = path.with_name(f"{path.stem}-{'up' if up else 'down'}.pcap")
    written.write_bytes(kept)
    return written


def _healthy() -> Talk:
    talk = _two()
    talk.subscribe(3, 5001, "a")
    for number in range(1, 6):
        talk.publish(10 * number, 5002, "a", b"%d" % number, number)
        talk.deliver(10 * number + 1, 5001, "a", b"%d" % number, number)
    talk.say(400, 5001, b"\xe0\0", up=True)
    talk.end(401, 5001)
    talk.say(500, 5003, connect(4, client="stranger"), up=True)
    talk.say(500.1, 5003, connack(4, code=5), up=False)
    talk.end(501, 5003)
    return talk


@pytest.fixture(params=[True, False], ids=["to the broker", "from the broker"])
def one_way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a healthy capture that has one direction only."""
    yield _one_direction(_healthy().write(tmp_path / "in.pcap"), request.param)


def test_one_direction_shows_no_loss_and_no_fault(one_way: Path) -> None:
    assert {one["symptom"] for one in findings(one_way)} <= {"login_refused"}
    with open_tables([str(one_way)]) as tables:
        rows = tables.sql("FROM deliveries").to_pylist()
        verdicts = {row["verdict"] for row in rows}
        assert verdicts == {"undecided"}
        assert not any(row["acknowledged_ns"] for row in rows)
        ends = {row["ended_by"] for row in tables.sql("FROM sessions").to_pylist()}
        assert ends <= {None, "client", "open", "refused"}
        assert not tables.sql("FROM violations").num_rows


@pytest.mark.parametrize("command", ["why", "slow", "trace"])
def test_a_line_says_how_far_the_capture_sees(command: str, one_way: Path) -> None:
    words = [command, one_way, *(["a"] if command == "trace" else [])]
    side = "to" if one_way.stem.endswith("up") else "from"
    done = CliRunner().invoke(main, list(map(str, words)), prog_name="wireyard")
    if command == "trace" and side == "from":
        assert done.exit_code == 2  # no message was seen sent
        return
    head = " ".join(done.stdout.split("\n\n")[0].split())
    assert head == (
        f"of 3 of 3 connections only the packets {side} the broker were captured: what needs the"
        " others is undecided"
    )
    if command == "trace":
        assert "the answers to 10.0.0.1:5002 were not captured" in " ".join(done.stdout.split())


def test_a_whole_capture_has_no_such_line(tmp_path: Path) -> None:
    done = why(_healthy().write(tmp_path / "in.pcap"))
    assert "were captured" not in done.stdout and notes_of(done.stderr) == ""
