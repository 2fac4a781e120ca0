"""Captures of others, one client each, against what somebody who reads them would write down."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.layers.mqtt.recorded import rows_of
from tests.reference import mqtt

Row = dict[str, Any]

VOICE: Final = "myvoiceismypassport"
MESSAGE: Final = ("topicX", "no_subscriber")


class Story(NamedTuple):
    """What a capture tells: the client, its version, its end, packets, messages, broken rules."""

    client_id: str | None
    version: int | None
    ended_by: str
    packets: int
    sent: tuple[tuple[str, str], ...] = ()
    """Topic and verdict of each."""
    rules: tuple[str, ...] = ()


def pub(client_id: str, version: int, packets: int, **values: Any) -> Story:
    return Story(client_id, version, "client", packets, (MESSAGE,), **values)


STORIES: Final = {
    "mqtt-connect-rules__mqtt5_pub_jpeg": pub("auto-1B43E800-08E3-3BA1-2E97-E9A0B4064BF5", 5, 4),
    # PUBLISH with QoS 3 has no message that could be followed.
    "mqtt-events-invalid-qos__input": Story(VOICE, 4, "client", 4, rules=("MQTT-3.3.1-4",)),
    # CONNECT and CONNACK, and nothing else that is whole.
    "mqtt-frames-truncated__input": Story(
        "auto-17236393-B532-03F2-6526-F71115B8A4BE", 5, "open", 2
    ),
    # The capture begins with CONNACK, which has the client id. Others may have subscribed before.
    "mqtt-midstream-split__mqtt-midstream-split": Story(
        "auto-1B43E800-08E3-3BA1-2E97-E9A0B4064BF5", None, "client", 3, (("topicX", "undecided"),)
    ),
    "mqtt-ping__input": Story(None, None, "open", 2),
    "mqtt31-pub-qos1__input": pub(VOICE, 3, 5),
    "mqtt31-pub-qos2__input": pub(VOICE, 3, 7),
    "mqtt31-pub-userpass-auto-clientid__input": pub("mosq-dRkAMvJQvimi16jz72", 3, 4),
    "mqtt31-unsub-qos2__input": Story(VOICE, 3, "client", 9),
    "mqtt311-pub-qos1__input": pub(VOICE, 4, 5),
    "mqtt311-pub-qos2__input": pub(VOICE, 4, 7),
    "mqtt311-pub-userpass-auto-clientid__input": pub("mosq-aGMiV6nelbCb00tvAY", 4, 4),
    "mqtt311-pub-userpass__input": pub(VOICE, 4, 4),
    "mqtt311-unsub-qos1__input": Story(VOICE, 4, "client", 9),
    "mqtt311-unsub-qos2__input": Story(VOICE, 4, "client", 9),
    "mqtt311-unsub-userpass__input": Story(VOICE, 4, "client", 9),
    "mqtt5-excessiveproplen__input": Story(
        None, 5, "client", 4, (MESSAGE,), rules=("property_length",)
    ),
    # Its payload format indicators are neither 0 nor 1, in the will and in the message.
    "mqtt5-pub-mosquittoprops__input": pub(VOICE, 5, 5, rules=("property_value",) * 2),
    "mqtt5-pub-qos1__input": pub(VOICE, 5, 5),
    "mqtt5-pub-qos2__input": pub(VOICE, 5, 7),
    "mqtt5-pub-userpass-auto-clientid__input": pub(
        "auto-6F78CADB-9176-19F4-B5F5-101745377C35", 5, 4
    ),
    "mqtt5-pub-userpass__input": pub(VOICE, 5, 4),
    "mqtt5-sub-mosquittoprops__input": Story(VOICE, 5, "client", 5, rules=("property_value",)),
    "mqtt5-sub-userpass__input": Story(VOICE, 5, "client", 5),
    "mqtt5-unsub-qos1__input": Story(VOICE, 5, "client", 9),
    "mqtt5-unsub-qos2__input": Story(VOICE, 5, "client", 9),
}


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    found = shared / "captures" / "mqtt"
    if not found.is_dir():
        pytest.skip("no captures in the shared folder")
    return found


@pytest.mark.parametrize("name", STORIES)
def test_story(folder: Path, name: str) -> None:
    story = STORIES[name]
    rows = rows_of(folder / "suricata-verify" / f"{name}.pcap")
    tables = mqtt.derive(rows)
    (session,) = tables["sessions"]
    assert (
        session["client_id"], session["version"], session["ended_by"], session["packets"],
    ) == story[:4]  # fmt: skip
    # Without the CONNECT, and behind a gap, nobody knows what was in flight.
    has_gap = any(row["status"] == "gap" for row in rows)
    in_flight = 0 if session["opened_ns"] and not has_gap else None
    assert (session["in_flight_sent"], session["in_flight_received"]) == (in_flight,) * 2
    found = [(row["destination"], row["verdict"]) for row in tables["deliveries"]]
    assert found == list(story.sent)
    for row in tables["deliveries"]:
        assert row["accepted_frame"] > row["sent_frame"]
    assert tuple(row["rule"] for row in tables["violations"]) == story.rules
    assert not tables["retained"]


def test_all_of_them(folder: Path) -> None:
    assert {path.stem for path in (folder / "suricata-verify").iterdir()} == set(STORIES)


def test_a_publisher_and_a_subscriber(folder: Path) -> None:
    tables = mqtt.derive(rows_of(folder / "verimqtt" / "mqtt.pcapng"))
    (row,) = tables["deliveries"]
    assert (row["verdict"], row["destination"], row["subscription"]) == (
        "delivered", "test/topic", "test/topic",
    )  # fmt: skip
    assert (row["producer_client_id"], row["consumer_client_id"]) == (
        "mosq-eCw9D14tQ5HCbVaRzn", "mosq-jAwkpCVk9MqvATBMXb",
    )  # fmt: skip
    assert (row["sent_frame"], row["accepted_frame"], row["delivered_frame"]) == (39, 41, 45)
    assert [one["ended_by"] for one in tables["sessions"]] == ["open", "client"]
