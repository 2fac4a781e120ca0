"""The broker's side of a JMQ connection: reading, states, secrets, flow."""

from __future__ import annotations

import random
from base64 import b64encode
from typing import Any

import pytest

import wireyard
from wireyard import jmq
from wireyard.endpoints import Limits
from wireyard.endpoints.jmq import (
    ClientEndpoint,
    Ended,
    Event,
    Flow,
    Message,
    Refused,
    Request,
    ServerEndpoint,
)
from wireyard.endpoints.jmq.packets import BLOCK, read_login
from wireyard.errors import DecodeError
from wireyard.formats.jmq.packet import encode
from wireyard.formats.jmq.router import RouterView, addressed_head, message_head
from wireyard.formats.properties import Property
from wireyard.layers.jmq.rules import RULES
from wireyard.layers.jmq.states import FLOW, SESSION

ADDRESS = bytes(16)
TYPES = {
    "hello": "HELLO", "login": "AUTHENTICATE", "client_goodbye": "GOODBYE",
    "client_packet": "CREATE_SESSION",
}  # fmt: skip
"""A packet of the client for each event of its own."""


def endpoint_of(taps: list[tuple[bool, bytes]] | None = None, **limits: Any) -> ServerEndpoint:
    def tap(arrived: bool, data: bytes) -> None:
        assert taps is not None
        taps.append((arrived, data))

    return ServerEndpoint(
        lambda: (5, ADDRESS, 7676, 1), Limits(**limits), None if taps is None else tap
    )


def packet(kind: str, properties: Any = None, **fields: Any) -> bytes:
    return encode(jmq.Packet(packet_type=kind, properties=properties, **fields))


def opened() -> ServerEndpoint:
    endpoint = endpoint_of()
    endpoint.state = "open"
    return endpoint


def described(events: list[Event]) -> list[tuple[Any, ...]]:
    return [
        ("message", one.packet, one.items) if isinstance(one, Message) else tuple(one)
        for one in events
    ]


STREAM = (
    packet("CREATE_SESSION", {"JMQAckMode": 2}, bit_flags="A", consumer_id=3)
    + packet("TEXT_MESSAGE", {"p": 1}, destination="q", producer_id=5, body="text", bit_flags="Q")
    + packet("ACKNOWLEDGE", body=bytes(80), transaction_id=9)
    + packet("MESSAGE")
    + packet("PING")
)


@pytest.mark.parametrize("seed", range(20))
def test_any_chunking_gives_the_same_events(seed: int) -> None:
    expected = described(opened().receive(STREAM))
    assert len(expected) == 4
    rng, endpoint, found = random.Random(seed), opened(), []
    at = 0
    while at < len(STREAM):
        size = 1 if seed == 0 else rng.randrange(1, 200)
        found += endpoint.receive(STREAM[at : at + size])
        at += size
    assert described(found) == expected
    assert endpoint.held_bytes == 0


def test_every_shorter_prefix_waits() -> None:
    first = packet("CREATE_SESSION", {"JMQAckMode": 2})
    for stop in range(1, len(first)):
        endpoint = opened()
        assert endpoint.receive(first[:stop]) == []
        assert len(endpoint.receive(first[stop:])) == 1


@pytest.mark.parametrize("state", [state for state in SESSION.states if state != "new"])
@pytest.mark.parametrize("event", list(TYPES))
def test_the_state_is_that_of_the_table(state: str, event: str) -> None:
    endpoint = endpoint_of()
    endpoint.state = state
    events = endpoint.receive(packet(TYPES[event], bit_flags="A", consumer_id=4))
    cell = SESSION.lookup(state, event)
    if cell.rule is None:
        assert endpoint.state == cell.state
        assert [type(one) for one in events] == [Request]
        return
    (refused,) = events
    assert isinstance(refused, Refused if cell.rule == "before_login" else Ended)
    assert refused.text is not None and refused.text.endswith(RULES[cell.rule])
    data = endpoint.take()
    reply = wireyard.decode(data[: int.from_bytes(data[8:12], "big")], "jmq")
    assert (reply.consumer_id, reply.properties["JMQStatus"].value) == (4, 500)


def test_replies_advance_the_state() -> None:
    for status, logged_in in ((200, "open"), (413, "refused")):
        endpoint = endpoint_of()
        endpoint.receive(packet("HELLO", bit_flags="A", consumer_id=1))
        endpoint.reply(10, 1, 200)
        endpoint.challenge(1, "digest", b"nonce")
        assert endpoint.state == "challenged"
        endpoint.receive(packet("AUTHENTICATE", bit_flags="A", consumer_id=2))
        assert endpoint.receive(packet("CREATE_SESSION")) == []  # nothing is read on
        endpoint.reply(12, 2, status)
        assert endpoint.state == logged_in
        events = endpoint.read_on()
        assert [type(one) for one in events] == [Request if status == 200 else Refused]


def test_no_secret_is_recorded() -> None:
    secret = b64encode(b"correct horse").decode()
    body = b"\0\3ann" + len(secret).to_bytes(2, "big") + secret.encode()
    taps: list[tuple[bool, bytes]] = []
    endpoint = endpoint_of(taps)
    endpoint.receive(packet("HELLO"))
    endpoint.reply(10, 1, 200)
    endpoint.challenge(1, "digest", b"the nonce")
    sent = endpoint.take()
    login = packet("AUTHENTICATE", {"JMQAuthType": "basic"}, body=body)
    endpoint.receive(login)
    (_, hello), (is_arrived, shown), (_, shown_login) = taps
    assert b"the nonce" in sent and b"the nonce" not in shown and not is_arrived
    assert len(shown) == len(sent) and len(hello) == len(packet("HELLO"))
    assert len(shown_login) == len(login) and secret.encode() not in shown_login
    assert wireyard.decode(shown_login, "jmq").body == b"*" * len(body)


@pytest.mark.parametrize("body", [b"\0\3ann", b"\0\xffann\0\6secret", b"secret", b""])
def test_of_a_login_that_cannot_be_read_nothing_is_recorded(body: bytes) -> None:
    taps: list[tuple[bool, bytes]] = []
    endpoint = endpoint_of(taps)
    endpoint.state = "challenged"
    data = packet("AUTHENTICATE", {"JMQAuthType": "basic"}, body=body or None)
    (request,) = endpoint.receive(data)
    assert isinstance(request, Request)
    with pytest.raises(DecodeError):
        read_login(request)
    assert taps == [(True, data[: len(data) - len(body)] + b"*" * len(body))]


def test_a_login_whose_password_is_long_has_line_breaks() -> None:
    secret = b64encode(b"x" * 60).decode()
    folded = (secret[:76] + "\r\n" + secret[76:]).encode()
    body = b"\0\1a" + len(folded).to_bytes(2, "big") + folded
    login = read_login(Request(12, 1, True, None, {"JMQAuthType": "basic"}, body))
    assert login == ("a", b"x" * 60)


def test_what_cannot_be_read_ends_the_connection() -> None:
    broken = bytearray(packet("CREATE_SESSION", {"JMQAckMode": 2}))
    broken[75] = 9  # a version of properties that there is not
    for data in (bytes(broken), b"garbage", packet("PING", version=103)):
        endpoint = opened()
        (ended,) = endpoint.receive(data)
        assert isinstance(ended, Ended) and ended.text and "\n" not in ended.text
        assert b"JMQGoodbyeReason" in endpoint.take()
        assert endpoint.receive(STREAM) == []


def test_what_a_message_says_of_itself() -> None:
    data = packet(
        "TEXT_MESSAGE", {"a": 1, "b": "x"}, destination="q", correlation_id="c", message_type="t",
        priority=7, bit_flags="QPC", expiration=5, delivery_time=6, delivery_count=3, sequence=8,
    )  # fmt: skip
    (message,) = opened().receive(data)
    assert isinstance(message, Message)
    assert (message.is_queue, message.priority, message.expiration) == (True, 7, 5)
    assert (message.delivery_time, message.destination) == (6, "q")
    assert message.values() == {
        "a": 1, "b": "x", "JMSDeliveryMode": "PERSISTENT", "JMSPriority": 7,
        "JMSMessageID": "ID:8-0.0.0.0-0-0", "JMSTimestamp": 0, "JMSCorrelationID": "c",
        "JMSType": "t",
    }  # fmt: skip
    # A client's own count is replaced, and flags that mean something else there are cleared.
    head = RouterView(b"".join(message.parts_for(4, 0, 1)))
    assert (head.item("delivery_count"), head.header()["bit_flags"]) == (1, 0x5)


def test_the_head_of_a_message_is_that_of_its_router_view() -> None:
    data = packet("TEXT_MESSAGE", {"a": 1}, destination="q", body="x")
    general = RouterView(data).replace(delivery_count=0)
    assert message_head(data) == (general.head, general.count_at)
    delivered = general.replace(
        consumer_id=2**40, delivery_count=7, redelivered=True, consumer_paused=True
    )
    flags = delivered.header()["bit_flags"]
    assert addressed_head(general.head, general.count_at, 2**40, flags, 7) == delivered.head


def test_flow_follows_the_table() -> None:
    flow = Flow(2)
    assert [flow.send(), flow.send()] == [False, True]
    assert flow.state == FLOW["flowing", "send_last"].state
    assert not flow.is_open
    flow.resume(1)
    assert flow.is_open and flow.send()
    flow.resume(0)
    assert not any(flow.send() for _ in range(9)) and flow.is_open


def test_a_message_may_come_back_before_the_reply_to_its_rollback() -> None:
    client = ClientEndpoint(lambda: (5, ADDRESS, 0, 1))
    client.state = "open"
    message = packet("TEXT_MESSAGE", destination="q", consumer_id=8, body="x", sequence=4)
    for kind, made in (
        ("ADD_CONSUMER", "JMQConsumerID"),
        ("START_TRANSACTION", "JMQTransactionID"),
    ):
        reply = {"JMQStatus": 200, made: Property("long", 8)}
        client.receive(packet(f"{kind}_REPLY", reply, consumer_id=client.ask(kind)))
    (came,) = client.receive(message)
    assert isinstance(came, Message)
    taken = client.ask("ACKNOWLEDGE", body=BLOCK.pack(8, came.key), transaction_id=8)
    client.receive(packet("ACKNOWLEDGE_REPLY", {"JMQStatus": 200}, consumer_id=taken))
    undone = client.ask("ROLLBACK_TRANSACTION", {"JMQTransactionID": 8, "JMQRedeliver": True})
    (again,) = client.receive(message)
    assert isinstance(again, Message)
    client.receive(packet("ROLLBACK_REPLY", {"JMQStatus": 200}, consumer_id=undone))
    assert client.ended is None and list(client.held) == [(8, came.key)]
    (broken,) = client.receive(message)
    assert isinstance(broken, Ended)
