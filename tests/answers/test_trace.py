"""``wireyard trace``: the picture of messages, from captures and from what is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.answers.talks import Talk
from tests.cli.results import notes_of
from tests.formats.mqtt.make import packet
from wireyard.answers.trace import GOOD, WORST_FIRST
from wireyard.cli import main
from wireyard.cli.asking.answers import WIDTH, wrapped
from wireyard.layers.facts import registered

TOPIC = "plant/7/state"


def trace(*words: object) -> Result:
    return CliRunner().invoke(
        main, ["trace", *map(str, words)], catch_exceptions=False, prog_name="wireyard"
    )


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a capture of a publisher, three who hear it, one at QoS 0, and one who does not."""
    talk = Talk()
    for number, name in enumerate(("hears", "also", "quiet", "deaf"), 5001):
        talk.login(number - 5000, number, name)
        filter = "plant/+/state" if name == "hears" else "plant/#"
        talk.subscribe(number - 5000 + 0.5, number, filter, qos=name != "quiet")
    talk.login(5, 5005, "sends", will=("plant/7/gone", b"\xff\0oops"))
    for packet_id, payload in enumerate((b"open", b"shut and " + b"locked " * 10), 9):
        now = packet_id * 10.0
        talk.publish(now, 5005, TOPIC, payload, packet_id)
        talk.deliver(now + 0.3, 5001, TOPIC, payload, packet_id - 8)
        talk.deliver(now + 4.6, 5002, TOPIC, payload, packet_id - 8, acknowledged_ms=1.5)
        talk.deliver(now + 0.4, 5003, TOPIC, payload, packet_id - 8, qos=0)
    talk.end(200, 5005)
    talk.deliver(200.5, 5001, "plant/7/gone", b"\xff\0oops", 0, qos=0)
    for port in (5002, 5003, 5004):
        talk.deliver(200.5, port, "plant/7/gone", b"\xff\0oops", 0, qos=0)
    talk.say(250, 5004, packet(0xC0), up=True)
    talk.say(250.1, 5004, packet(0xD0), up=False)  # so the broker has read all that came before
    return talk.write(tmp_path_factory.mktemp("trace") / "in.pcap")


BLOCK = """\
message      10.0.0.1:5005>10.0.0.2:1883@41
  topic      plant/7/state
  sent       2023-11-14T22:13:20.213456000Z by sends (10.0.0.1:5005)
  in         frame 29 of in.pcap
  content    QoS 1, bytes
  payload    open (4 bytes)
  accepted   by the broker in frame 30
  verdict           consumer            in queue    acknowledged frames
  not_forwarded     deaf                -           -            -
                    the broker accepted it and did not deliver it to a connected
                    subscriber; subscribed to plant/# in frame 24
"""
GOOD_ONES = "  3 delivered, 0.3 to 4.6 ms\n"
ALL_GOOD_ONES = """\
  delivered         hears               0.3 ms      +0.2 ms      31 33
  delivered         quiet               0.4 ms      QoS 0: none  32
  delivered         also                4.6 ms      +1.5 ms      34 35
"""
SUMMARY = """\
2 messages for plant/7/state
  sent       2023-11-14T22:13:20.213456000Z to 2023-11-14T22:13:20.223456000Z
  deliveries 2 not_forwarded, 6 delivered
  in queue   p50 0.4 ms, p99 4.6 ms of 6 deliveries
  worst             in queue   consumer        destination     frame
  not_forwarded     -          deaf            plant/7/state   29 in.pcap
  not_forwarded     -          deaf            plant/7/state   36 in.pcap
  delivered         4.6 ms     also            plant/7/state   34 in.pcap
  delivered         4.6 ms     also            plant/7/state   41 in.pcap
  delivered         0.4 ms     quiet           plant/7/state   32 in.pcap
  delivered         0.4 ms     quiet           plant/7/state   39 in.pcap
  delivered         0.3 ms     hears           plant/7/state   31 in.pcap
  delivered         0.3 ms     hears           plant/7/state   38 in.pcap
"""
KEY = BLOCK.splitlines()[0].split()[1]


@pytest.fixture(autouse=True)
def _beside_the_capture(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(capture.parent)


def test_a_message_by_its_key() -> None:
    assert trace("in.pcap", KEY).stdout == BLOCK + GOOD_ONES
    assert trace("in.pcap", KEY, "--all").stdout == BLOCK + ALL_GOOD_ONES


def test_of_several_a_summary_comes_first() -> None:
    found = trace("in.pcap", TOPIC, "--limit", 1)
    assert found.stdout == f"{SUMMARY}\n{BLOCK}{GOOD_ONES}"
    assert notes_of(found.stderr) == "wireyard: 1 of 2 messages; --limit N shows more\n"
    both = trace("in.pcap", TOPIC)
    assert both.stdout.count("\nmessage ") == 2 and notes_of(both.stderr) == ""
    assert "payload    shut and locked locked" in both.stdout
    assert " lock...[31 bytes cut]\n" in both.stdout


@pytest.mark.parametrize("asked", ["plant/+/state", "sends"])
def test_a_filter_and_a_sender(asked: str) -> None:
    found = trace("in.pcap", asked, "--verdict", "not_forwarded").stdout
    assert found.startswith(f"2 messages for {asked}\n")
    assert found.partition("\n")[2] == trace("in.pcap", TOPIC).stdout.partition("\n")[2]


@pytest.mark.parametrize("asked", ["deaf", "10.0.0.1:5004"])
def test_of_messages_to_a_client_the_deliveries_to_it_count(asked: str) -> None:
    summary, *stories = trace("in.pcap", asked, "--verdict", "not_forwarded").stdout.split("\n\n")
    head, sent, *_ = SUMMARY.splitlines()
    assert summary.splitlines() == [
        head.replace(TOPIC, asked),
        sent,
        "  deliveries 2 not_forwarded",
        *(line for line in SUMMARY.splitlines() if " worst " in line or " deaf " in line),
    ]
    whole = trace("in.pcap", TOPIC).stdout.split("\n\n")
    assert stories == whole[1:]
    delivered = trace("in.pcap", asked, "--verdict", "delivered").stdout
    assert "plant/7/gone" in delivered and TOPIC not in delivered


def test_a_will_claims_neither_a_time_in_queue_nor_an_acknowledgement() -> None:
    found = trace("in.pcap", "plant/7/gone", "--all").stdout
    assert "by sends (10.0.0.1:5005), as the\n             will of a connection" in found
    assert "  payload    0xff006f6f7073 (6 bytes)\n" in found
    assert found.count(" will        QoS 0: none  4") == 4


def test_no_line_is_longer_than_a_terminal() -> None:
    lines = trace("in.pcap", "#", "--all").stdout.splitlines()
    assert len(lines) > 40 and max(map(len, lines)) <= WIDTH


def test_text_from_the_wire_moves_no_cursor(tmp_path: Path) -> None:
    talk = Talk()
    talk.login(1, 5001, "evil\x1b[2J")
    talk.publish(2, 5001, "a\x1b]0;b\x07", b"one\x1b[1mtwo", 1)
    found = trace(talk.write(tmp_path / "evil.pcap"), "a\x1b]0;b\x07").stdout
    assert "\x1b" not in found and "\x07" not in found
    assert "payload    0x6f6e651b5b316d74776f (10 bytes)" in found  # no plain text


def test_as_json_lines() -> None:
    first, _ = map(json.loads, trace("in.pcap", TOPIC, "--out", "jsonl").stdout.splitlines())
    assert first["message"]["producer_client_id"] == "sends"
    assert [one["consumer_client_id"] for one in first["deliveries"]] == [
        "deaf", "hears", "quiet", "also",
    ]  # fmt: skip
    assert [one["queue_ns"] for one in first["deliveries"]] == [None, 300_000, 400_000, 4_600_000]
    assert set(first) == {"message", "deliveries", "hops", "replies", "requests", "retained"}


@pytest.mark.parametrize("asked", ["plant/8", "no/such/+", "#x", "nobody"])
def test_what_is_not_there_is_one_line(asked: str) -> None:
    found = trace("in.pcap", asked)
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.count("\n") == 1 and f"no message has the key '{asked}'" in found.stderr


def test_verdicts_that_there_are_not(tmp_path: Path) -> None:
    unknown = trace("in.pcap", TOPIC, "--verdict", "lost")
    assert unknown.exit_code == 2 and "'lost' is none of abandoned, " in unknown.stderr
    none = trace("in.pcap", TOPIC, "--verdict", "queued")
    assert none.exit_code == 2 and "no message with the verdict 'queued'" in none.stderr
    assert trace(tmp_path / "gone", TOPIC).exit_code == 3


def test_every_verdict_has_its_rank() -> None:
    verdicts = [verdict for facts in registered() for verdict in facts.verdicts]
    assert set(WORST_FIRST) == set(verdicts) and len(WORST_FIRST) == len(set(verdicts))
    assert set(WORST_FIRST[-len(GOOD) :]) == GOOD


def test_long_paths_go_on_behind_a_slash() -> None:
    path = "/srv/captures/of-the-plant/in-november-2026/behind-the-switch/ring-00017.pcap"
    assert list(wrapped(f"frame 893 of {path}", 13)) == [
        f"{'':13}frame 893 of /srv/captures/of-the-plant/in-november-2026/",
        f"{'':13}behind-the-switch/ring-00017.pcap",
    ]
    assert list(wrapped("two  words, " + "x" * 70, 20)) == [
        f"{'':20}two  words,",
        f"{'':20}{'x' * 60}",
        f"{'':20}{'x' * 10}",
    ]


def test_a_message_that_was_forwarded_and_not_delivered_shows_where_it_went() -> None:
    path = Path(__file__).parents[2] / "examples" / "symptoms" / "cluster-relay_unanswered.pcap"
    shown = CliRunner().invoke(main, ["trace", str(path), "symptoms"], prog_name="wireyard").stdout
    blocks = shown.split("\nmessage ")[1:]
    assert len(blocks) == 6
    for number, block in enumerate(blocks):
        assert ("none was seen that it went to" in block) == (number >= 3)
        assert ("relayed    10.78.0.1:" in block and " to 10.78.0.2:" in block) == (number >= 3)
