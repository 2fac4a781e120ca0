"""Control packets from plain Python: a class for each type, and what each of them refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import wireyard
from tests.formats.garbage import GARBAGE, TEXT, field_names, long
from wireyard.errors import DecodeError, EncodeError
from wireyard.formats import get_format
from wireyard.formats.mqtt.control import (
    CONTROL_PACKETS,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from wireyard.formats.mqtt.filters import Filter
from wireyard.formats.mqtt.layout import MSB_FIRST, PACKET_TYPES, PROPERTIES, PROPERTIES_BY_NAME
from wireyard.formats.mqtt.properties import Property
from wireyard.formats.mqtt.rules import RULES

MQTT = get_format("mqtt")


def again(packet: Packet) -> Packet:
    """Return what is read of a packet where its stream has its version."""
    context = (packet.version_in_force or 0) | packet.msb_first * MSB_FIRST
    found: Packet = MQTT.decode(wireyard.encode(packet), context)
    return found


def test_every_type_has_a_class() -> None:
    assert {code: one.__name__.upper() for code, one in CONTROL_PACKETS.items()} == PACKET_TYPES


def test_a_field_that_a_packet_does_not_have_cannot_be_written_down() -> None:
    """The comments show that mypy rejects each line too: it would find them unused."""
    with pytest.raises(TypeError, match="keep_alive"):
        Publish(topic="a", keep_alive=60)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="topic"):
        Connect(topic="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="flags"):
        Publish(topic="a", flags=0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="payload"):
        PingReq(payload=b"")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="topic"):
        Publish()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Publish(topic="a").keep_alive  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("packet", "hexadecimal"),
    [
        (Connect(client_id="c"), "10 0d 0004 4d515454 04 02 0000 0001 63"),
        (Connect(client_id="c", version_in_force=3, keep_alive=60, clean_start=False),
         "10 0f 0006 4d5149736470 03 00 003c 0001 63"),
        (Connect(client_id="c", will_topic="w", will_payload="x", will_qos=1, will_retain=True,
                 username="u", password="p", version_in_force=5,
                 properties={"session_expiry_interval": 1},
                 will_properties={"will_delay_interval": 2}),
         "10 25 0004 4d515454 05 ee 0000 05 11 00000001 0001 63 05 18 00000002 0001 77 0001 78"
         "0001 75 0001 70"),
        (ConnAck(session_present=True), "20 02 01 00"),
        (Publish(topic="a", payload="é"), "30 05 0001 61 c3a9"),
        (Publish(topic="a", qos=2, dup=True, retain=True, packet_id=7), "3d 05 0001 61 0007"),
        (PubAck(packet_id=7), "40 02 0007"),
        (PubRec(packet_id=7, version_in_force=5, return_code=16), "50 03 0007 10"),
        (PubRel(packet_id=7, version_in_force=3, dup=True), "6a 02 0007"),
        (PubComp(packet_id=7, version_in_force=5, properties={"reason_string": "r"}),
         "70 08 0007 00 04 1f 0001 72"),
        (Subscribe(packet_id=7, filters=["a", ("b", 1), Filter("c", 2)]),
         "82 0e 0007 0001 61 00 0001 62 01 0001 63 02"),
        (Subscribe(packet_id=7, version_in_force=5, filters=[Filter.of(
            "a", 1, no_local=True, retain_as_published=True, retain_handling=2)]),
         "82 07 0007 00 0001 61 2d"),
        (SubAck(packet_id=7, return_codes=[0, 128]), "90 04 0007 00 80"),
        (Unsubscribe(packet_id=7, filters=["a"]), "a2 05 0007 0001 61"),
        (UnsubAck(packet_id=7), "b0 02 0007"),
        (PingReq(), "c0 00"),
        (PingResp(), "d0 00"),
        (Disconnect(), "e0 00"),
        (Disconnect(version_in_force=5, return_code=4), "e0 01 04"),
        (Auth(), "f0 00"),
        (Auth(return_code=24, properties={"authentication_method": "m"}), "f0 06 18 04 15 0001 6d"),
        (Publish(topic="a", qos=1, packet_id=0x0102, version_in_force=2), "32 05 0001 61 0201"),
        (Publish(topic="a", qos=1, packet_id=0x0102, version_in_force=2, msb_first=True),
         "32 05 0001 61 0102"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Packet) else "",
)  # fmt: skip
def test_packets_by_hand(packet: Packet, hexadecimal: str) -> None:
    data = bytes.fromhex(hexadecimal)
    assert wireyard.encode(packet) == data
    found = again(packet)
    assert found == packet and hash(found) == hash(packet) and type(found) is type(packet)
    assert packet.packet_type_name == PACKET_TYPES[data[0] >> 4]
    shown = replace(packet, **HIDDEN.get(type(packet), {}))
    assert eval(repr(shown), globals()) == shown


HIDDEN: dict[type[Packet], dict[str, Any]] = {Connect: {"password": None}}
"""What repr does not spell out."""


def test_properties_are_a_dict_or_pairs_in_wire_order() -> None:
    pairs = (
        Property("user_property", ("k", "v")),
        Property("topic_alias", 5),
        Property("user_property", ("k", "w")),
        Property("subscription_identifier", 1),
        Property("subscription_identifier", 2),
    )
    packet = Publish(topic="a", version_in_force=5, properties=pairs)
    assert again(packet) == packet
    assert replace(packet, properties=[("user_property", ["k", "v"]), *pairs[1:]]) == packet
    by_name = replace(
        packet,
        properties={
            "user_property": [("k", "v"), ("k", "w")],
            "topic_alias": 5,
            "subscription_identifier": [1, 2],
        },
    )
    assert sorted(by_name.properties, key=str) == sorted(pairs, key=str)
    (one,) = replace(packet, properties={"user_property": {"k": "v"}}).properties
    assert one == Property("user_property", ("k", "v"))


def test_passwords_are_not_shown() -> None:
    packet = Connect(
        client_id="c", username="u", password="secret", version_in_force=5,
        properties={"authentication_method": "m", "authentication_data": b"secret"},
    )  # fmt: skip
    assert "secret" not in repr(packet) and "password=<6 bytes>" in repr(packet)


# --- any values -----------------------------------------------------------------------------

VERSION = st.sampled_from([2, 3, 4, 5])
NUMBER = long(16, signed=False)
PAYLOADS = TEXT | st.binary(max_size=20)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.integers(0, 1), "two": st.integers(1, 65535), "four": st.integers(1, 2**32 - 1),
    "variable": st.integers(1, 268_435_455), "text": TEXT.map(lambda text: f"x{text}"),
    "binary": st.binary(max_size=9), "pair": st.tuples(TEXT, TEXT),
}  # fmt: skip


def properties(kind: int) -> st.SearchStrategy[Any]:
    """Properties that a packet type may have."""
    optional = {one.name: VALUES[one.kind] for one in PROPERTIES.values() if kind in one.packets}
    return st.fixed_dictionaries({}, optional=optional)


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "client_id": TEXT, "clean_start": st.booleans(), "keep_alive": NUMBER, "username": TEXT,
    "password": PAYLOADS, "topic": TEXT, "payload": PAYLOADS, "qos": st.integers(0, 2),
    "retain": st.booleans(), "dup": st.booleans(), "packet_id": NUMBER,
    "session_present": st.booleans(), "return_code": long(8, signed=False),
    "return_codes": st.lists(long(8, signed=False), max_size=3),
}  # fmt: skip


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    version = draw(VERSION)
    kind, packet_class = draw(st.sampled_from(sorted(CONTROL_PACKETS.items())))
    names = field_names(packet_class)
    said = draw(
        st.fixed_dictionaries(
            {name: FIELDS[name] for name in ("topic", "packet_id") if name in names},
            optional={
                name: FIELDS[name]
                for name in names
                if name in FIELDS and name not in ("topic", "packet_id")
            },
        )
    )
    if "properties" in names and version == 5:
        said["properties"] = draw(properties(kind))
    if kind == 1 and draw(st.booleans()):
        said |= {"will_topic": draw(TEXT), "will_payload": draw(PAYLOADS)}
        said["will_qos"] = draw(st.integers(0, 2))
        if version == 5:
            said["will_properties"] = draw(properties(16))
    if kind == 8:
        said["filters"] = draw(st.lists(st.tuples(TEXT, st.integers(0, 2)), max_size=3))
    if kind == 10:
        said["filters"] = draw(st.lists(TEXT, max_size=3))
    return packet_class(version_in_force=version, **said)


def verdicts(version: int | None) -> set[str]:
    return {rule.verdict(version or 0) for rule in RULES.values() if rule.holds(version or 0)}


@given(packets())
def test_a_packet_comes_back_equal_or_breaks_a_rule(packet: Packet) -> None:
    try:
        found = again(packet)
    except EncodeError as error:
        # Its version does not have it.
        assert error.field in (*field_names(type(packet)), "properties"), error
    except DecodeError as error:
        assert error.code in verdicts(packet.version_in_force)
    else:
        assert found == packet and hash(found) == hash(packet)


NAMED = (*PROPERTIES_BY_NAME, "property", "property length")
FULL: list[Packet] = [
    Connect(client_id="c", will_topic="w", username="u", password="p", version_in_force=5),
    Connect(client_id="c", version_in_force=3),
    ConnAck(version_in_force=5),
    Publish(topic="a", qos=1, packet_id=1, version_in_force=5),
    Publish(topic="a"),
    PubRel(packet_id=1, version_in_force=5, return_code=0, properties={}),
    PubRel(packet_id=1, version_in_force=3),
    Subscribe(packet_id=1, filters=["a"], version_in_force=5),
    SubAck(packet_id=1, return_codes=[0]),
    Unsubscribe(packet_id=1, filters=["a"]),
    UnsubAck(packet_id=1, return_codes=[0], version_in_force=5),
    PingReq(),
    Disconnect(version_in_force=5, return_code=0, properties={}),
    Auth(return_code=24, properties={"authentication_method": "m"}),
]


@given(st.sampled_from(FULL), st.data(), GARBAGE)
def test_garbage_in_any_field_is_an_encode_error_with_its_name(
    packet: Packet, data: st.DataObject, value: Any
) -> None:
    name = data.draw(st.sampled_from(field_names(type(packet))))
    try:
        made = replace(packet, **{name: value})
        encoded = wireyard.encode(made)
    except EncodeError as error:
        assert "\n" not in str(error)
        assume(name not in DECIDING)
        assert error.field == name or (name.endswith("properties") and error.field in NAMED)
    else:
        assert repr(made) and encoded
        try:
            assert again(made) == made
        except DecodeError as error:
            assert error.code in verdicts(made.version_in_force)


DECIDING = ("version_in_force", "will_topic", "qos")
"""Fields that decide what else a packet has: a good value can leave another without a place."""
