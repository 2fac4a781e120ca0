"""WebSocket below MQTT: frames in any pieces, and what may not be."""

from __future__ import annotations

import random

import pytest

from wireyard.endpoints import WebSocket

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
REQUEST = {
    "Host": "127.0.0.1:1883", "Upgrade": "websocket", "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13", "Sec-WebSocket-Protocol": "mqtt", "Sec-WebSocket-Key": KEY,
}  # fmt: skip


def request(first: str = "GET /mqtt HTTP/1.1", **fields: str | None) -> bytes:
    """Return a request with some fields changed, or without them."""
    given = {**REQUEST, **{name.replace("_", "-"): value for name, value in fields.items()}}
    lines = [first, *(f"{name}: {value}" for name, value in given.items() if value is not None)]
    return "\r\n".join((*lines, "", "")).encode()


def opened() -> WebSocket:
    socket = WebSocket()
    socket.receive(request())
    socket.out.clear()
    return socket


def test_the_handshake_of_the_standard() -> None:
    """The example of RFC 6455, 1.3."""
    socket = WebSocket()
    assert socket.receive(request()) == b"" and socket.is_open
    answer = socket.out.decode()
    assert answer.startswith("HTTP/1.1 101 ")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert "Sec-WebSocket-Protocol: mqtt\r\n" in answer


@pytest.mark.parametrize("size", [1, 3, 60, 100_000])
def test_both_sides_in_any_pieces(size: int) -> None:
    choose = random.Random(size)
    client, server = WebSocket(("127.0.0.1", "/mqtt")), WebSocket()
    wire = bytes(client.out)
    for at in range(0, len(wire), size):
        server.receive(wire[at : at + size])
    assert client.receive(bytes(server.out)) == b"" and client.is_open
    sent = [choose.randbytes(choose.choice((0, 1, 125, 126, 300, 70_000))) for _ in range(12)]
    for one, other in ((client, server), (server, client)):
        wire = b"".join(map(one.frame, sent))
        got = b"".join(other.receive(wire[at : at + size]) for at in range(0, len(wire), size))
        assert got == b"".join(sent)
        assert len(other._buffer) == 0
    server.receive(client.close())
    assert server.ended == "closes the WebSocket" and not server.has_failed


def test_ping_is_answered_within_a_message_of_several_frames() -> None:
    """RFC 6455, 5.5: control frames may come between the frames of a message."""
    socket, mask = opened(), bytes(4)
    frames = (b"\x02\x82" + mask + b"ab", b"\x89\x81" + mask + b"p", b"\x80\x81" + mask + b"c")
    assert [socket.receive(frame) for frame in frames] == [b"ab", b"", b"c"]
    assert bytes(socket.out) == b"\x8a\x01p" and socket.ended is None


@pytest.mark.parametrize(
    ("frame", "code", "text"),
    [
        ("81 81 00000000 61", 1003, "[MQTT-6.0.0-1]"),
        ("80 81 00000000 61", 1003, "[MQTT-6.0.0-1]"),
        ("82 01 61", 1002, "frame that may not be"),
        ("c2 81 00000000 61", 1002, "frame that may not be"),
        ("89 fe 007e 00000000", 1002, "control frame that may not be"),
        ("09 80 00000000", 1002, "control frame that may not be"),
        ("8b 80 00000000", 1002, "frame that may not be"),
    ],
)
def test_frames_that_may_not_be(frame: str, code: int, text: str) -> None:
    socket = opened()
    assert socket.receive(bytes.fromhex(frame)) == b""
    assert socket.ended is not None and text in socket.ended and socket.has_failed
    assert bytes(socket.out) == b"\x88\x02" + code.to_bytes(2, "big")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request("POST /mqtt HTTP/1.1"), "400"),
        (request("GET / HTTP/1.0"), "400"),
        (request(Upgrade=None), "400"),
        (request(Sec_WebSocket_Key="x"), "400"),
        (request(Sec_WebSocket_Version="8"), "426"),
        (request(Sec_WebSocket_Protocol="amqp"), "400"),
        (request(Origin="https://evil.example"), "403"),
        (b"GET /" + b"x" * 9000, "431"),
    ],
)
def test_requests_that_are_refused(data: bytes, status: str) -> None:
    socket = WebSocket(allows=lambda origin, host: (origin, host) == ("http://a", REQUEST["Host"]))
    assert socket.receive(data) == b""
    assert socket.ended is not None and socket.has_failed
    assert socket.out.decode().startswith(f"HTTP/1.1 {status} ")


def test_what_a_client_takes_for_no_broker() -> None:
    for answer in (
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 101 x\r\nSec-WebSocket-Accept: x\r\n\r\n",
    ):
        client = WebSocket(("h", "/"))
        client.receive(answer)
        assert client.ended is not None and "answers the WebSocket with" in client.ended
