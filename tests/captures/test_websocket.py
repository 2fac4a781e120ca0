"""WebSocket in captures: examples of RFC 6455 and RFC 7692, recordings, frames that break it."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections import defaultdict
from typing import Final

import pyarrow.compute as pc
import pytest

import wireyard
from tests.captures.assigned import assign_formats
from tests.captures.make import CLIENT, SERVER, both_ways, ethernet, ipv4, packets, pcap, tcp
from tests.captures.test_tls import (
    EXAMPLES,
    OF_CAPTURE,
    content,
    opened,
    problem,
    read_damaged,
    read_with_losses,
)
from wireyard.captures.carriers import opening, websocket
from wireyard.captures.carriers.tls_keys import read_key_logs
from wireyard.captures.inputs import open_captures
from wireyard.captures.read import read_capture
from wireyard.formats import get_format

RECORDED, KEYS = EXAMPLES / "websocket.pcap", EXAMPLES / "websocket.keys"
DEFLATE: Final = "permessage-deflate"
CASES: Final = int(os.environ.get("WIREYARD_DAMAGED", "100"))
"""Damaged connections that one run of the tests reads."""

REQUEST: Final = (
    "GET /chat HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Protocol: chat, superchat\r\nSec-WebSocket-Version: 13\r\n{}\r\n"
)
RESPONSE: Final = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
    "Sec-WebSocket-Protocol: chat\r\n{}\r\n"
)
"""The handshake of RFC 6455, 1.2."""
OK: Final = b"HTTP/1.1 200 OK\r\n\r\n"


def heads(extension: str = "") -> tuple[bytes, bytes]:
    line = f"Sec-WebSocket-Extensions: {extension}\r\n" if extension else ""
    return REQUEST.format(line).encode(), RESPONSE.format(line).encode()


def frame(opcode: int, payload: bytes, *, final: bool = True, reserved: int = 0) -> bytes:
    """Return a frame without a mask, its length written as shortly as can be."""
    first = bytes([final << 7 | reserved << 4 | opcode])
    size = len(payload)
    if size < 126:
        return first + bytes([size]) + payload
    if size < 1 << 16:
        return first + b"\x7e" + size.to_bytes(2, "big") + payload
    return first + b"\x7f" + size.to_bytes(8, "big") + payload


def from_server(frames: bytes, extension: str = "") -> tuple[bytes, str | None]:
    """Return what is inside the frames of a server, and why no more of it is."""
    request, response = heads(extension)
    found = opened(request, response + frames)
    return content(found[1]), found[0].carriers[0].problem


# --- the examples of the standards ----------------------------------------------------------


def test_the_handshake_names_the_server_and_the_protocol() -> None:
    request, response = heads()
    found = opened(request, response)
    carrier = found[0].carriers[0]
    assert (carrier.name, carrier.server_name) == ("websocket", "server.example.com")
    assert (carrier.protocol, carrier.target) == ("chat", "GET /chat")
    assert carrier.problem is None
    assert opened(request, b"")[0].carriers[0].protocol == "chat,superchat"


@pytest.mark.parametrize(
    ("data", "inside"),
    [
        ("8205 48656c6c6f", b"Hello"),
        ("8285 37fa213d 7f9f4d5158", b"Hello"),
        ("0203 48656c 8002 6c6f", b"Hello"),
        ("8905 48656c6c6f 8205 48656c6c6f", b"Hello"),
        ("8a85 37fa213d 7f9f4d5158", b""),
        ("827e0100" + "2a" * 256, b"*" * 256),
        ("827f0000000000000100" + "2a" * 256, b"*" * 256),
    ],
)
def test_the_frames_of_rfc_6455(data: str, inside: bytes) -> None:
    """Section 5.7, in binary frames; also those of a client, which it masks."""
    assert from_server(bytes.fromhex(data)) == (inside, None)


@pytest.mark.parametrize(
    "data",
    [
        "c207 f248cdc9c90700",
        "4203 f248cd 8004 c9c90700",
        "c20b 000500faff48656c6c6f00",
        "c208 f348cdc9c9070000",
        "c20d f248050000 00ffffcac9c90700",
    ],
)
def test_the_messages_of_rfc_7692(data: str) -> None:
    """Section 7.2.3: compressed, in fragments, stored, with the last block, in two blocks."""
    assert from_server(bytes.fromhex(data), DEFLATE) == (b"Hello", None)


def test_messages_share_a_window_or_do_not_as_was_agreed() -> None:
    first, shared = bytes.fromhex("c207f248cdc9c90700"), bytes.fromhex("c205f200110000")
    assert from_server(first + shared, DEFLATE) == (b"HelloHello", None)
    alone = f"{DEFLATE}; server_no_context_takeover"
    assert from_server(first + first, alone) == (b"HelloHello", None)
    inside, reason = from_server(first + shared, alone)
    assert inside == b"Hello"
    assert reason is not None and "does not inflate" in reason
    # What the client agreed to forget is another direction.
    other = f"{DEFLATE}; client_no_context_takeover; client_max_window_bits=10"
    assert from_server(first + shared, other) == (b"HelloHello", None)


def test_a_block_marked_as_the_last_keeps_the_window() -> None:
    squeezed = zlib.compressobj(wbits=-15)
    first = squeezed.compress(b"meter/1 " * 40) + squeezed.flush(zlib.Z_FINISH)
    second = zlib.compressobj(wbits=-15, zdict=b"meter/1 " * 40)
    rest = second.compress(b"meter/1 meter/1") + second.flush(zlib.Z_SYNC_FLUSH)[:-4]
    frames = frame(2, first + b"\0", reserved=4) + frame(2, rest, reserved=4)
    assert from_server(frames, DEFLATE) == (b"meter/1 " * 40 + b"meter/1 meter/1", None)


# --- frames that break a rule ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(1, b"text"), "holds text"),
        (frame(2, b"ab", final=False) + frame(2, b"c"), "is out of order"),
        (frame(0, b"c"), "is out of order"),
        (frame(3, b"c"), "has the reserved opcode 3"),
        (frame(2, b"c", reserved=4), "has reserved bits that were not negotiated"),
        (frame(9, b"p" * 126), "is an invalid control frame"),
        (frame(9, b"p", final=False), "is an invalid control frame"),
        (frame(2, b"whole") + frame(2, b"half")[:-1], "is not complete"),
        (b"\x82", "is not complete"),
        (b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xffrest", "is not complete"),
    ],
)
def test_a_frame_that_cannot_be_read_ends_its_direction(data: bytes, reason: str) -> None:
    inside, found = from_server(frame(2, b"before") + data)
    assert inside.startswith(b"before")
    assert found is not None and reason in found
    assert "WebSocket frame at byte" in found


def test_nothing_follows_a_close() -> None:
    close = frame(8, (1000).to_bytes(2, "big"))
    assert from_server(frame(2, b"last") + close) == (b"last", None)
    inside, reason = from_server(frame(2, b"last") + close + frame(2, b"later"))
    assert inside == b"last"
    assert reason is not None and reason.endswith("is behind the one that closes the connection")


def test_every_prefix_gives_a_prefix() -> None:
    request, response = heads(DEFLATE)
    deflated = bytes.fromhex("c207f248cdc9c90700 c205f200110000")
    data = response + frame(2, b"Hello") + frame(9, b"") + deflated + frame(2, b"*" * 300)
    whole = b"HelloHelloHello" + b"*" * 300
    for size in range(len(response), len(data) + 1):
        found = opened(request, data[:size])
        assert whole.startswith(content(found[1]))
        if size < len(data) and found[0].carriers[0].problem is None:
            assert len(content(found[1])) in (0, 5, 10, 15)
    assert content(found[1]) == whole


def test_what_inflates_to_too_much_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    squeezed = zlib.compressobj(9, wbits=-15)
    bomb = squeezed.compress(bytes(1 << 22)) + squeezed.flush(zlib.Z_SYNC_FLUSH)[:-4]
    assert len(bomb) < 5000
    data = frame(2, bomb, reserved=4)
    assert from_server(data, DEFLATE) == (bytes(1 << 22), None)
    monkeypatch.setattr(websocket, "_MAX_MESSAGE_BYTES", 1 << 20)
    inside, reason = from_server(data, DEFLATE)
    assert inside == b""
    assert reason is not None and f"inflates to over {1 << 20} bytes" in reason
    # The streams of a capture share what all of them may have.
    monkeypatch.setattr(websocket, "_MAX_MESSAGE_BYTES", 1 << 23)
    monkeypatch.setattr(opening, "_MOST_INFLATED_BYTES", 6 << 20)
    request, response = heads(DEFLATE)
    frames = [*both_ways(request, response + data), *both_ways(request, response + data, (7, 8))]
    found = assign_formats(read_capture(pcap(packets(frames))).streams)
    assert [one.stream.size for one in found[:2]] == [0, 1 << 22]
    assert content(found[3]) == b""


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_gap_is_a_gap_of_the_stream_inside(cut: int) -> None:
    """Whole frames are lost, or all but their first bytes, with and without their sizes."""
    request, response = heads()
    before, lost, after = (frame(2, word) for word in (b"Hello", b"big", b"World"))
    frames = both_ways(request, response + before + lost[:cut])
    at = 500 + len(response + before + lost)
    frames.append(ethernet(ipv4(tcp(1999, 40000, at, after), src=SERVER, dst=CLIENT)))
    found = assign_formats(read_capture(pcap(packets(frames))).streams)
    assert content(found[1]) == b"HelloWorld"
    assert found[1].stream.gaps.tolist() == [[5, 5 + len(lost)]]
    assert found[0].carriers[0].problem is None


def test_what_is_compressed_with_lost_bytes_is_not_read() -> None:
    request, response = heads(DEFLATE)
    squeezed = zlib.compressobj(wbits=-15)
    words = [
        frame(2, (squeezed.compress(word) + squeezed.flush(zlib.Z_SYNC_FLUSH))[:-4], reserved=4)
        for word in (b"Hello Hello", b"World Hello", b"Hello World")
    ]
    frames = both_ways(request, response + words[0])
    at = 500 + len(response + words[0] + words[1])
    frames.append(ethernet(ipv4(tcp(1999, 40000, at, words[2]), src=SERVER, dst=CLIENT)))
    found = assign_formats(read_capture(pcap(packets(frames))).streams)
    assert content(found[1]) == b"Hello Hello"
    assert "is compressed with bytes that were not captured" in problem(found)
    assert found[1].stream.gaps.tolist() == [[11, 11 + len(words[1] + words[2])]]


def test_a_frame_that_is_lost_takes_no_more_than_its_frames() -> None:
    assert read_with_losses(RECORDED, KEYS, 2, 17_620) > 3  # a frame of 17,616 bytes is the largest


# --- HTTP -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_bytes", "response", "name", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", OK, "http", "HTTP 1.1 to a, GET /"),
        (b"POST /x HTTP/1.0\r\n\r\n", b"", "http", "HTTP 1.0, POST /x"),
        (b"GET /cut HTTP/1.1\r\nHost", b"", "http", "HTTP"),
        (heads()[0], b"HTTP/1.1 403 Forbidden\r\n\r\n", "http", None),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\x04\0\0\0\0\0", "http", "HTTP 2"),
        (
            b"POST /imq/tunnel?Type=connect&ServerName=h:broker HTTP/1.1\r\nHost: web\r\n\r\n",
            OK,
            "openmq-http",
            None,
        ),
        (b"GET /imq/tunnel?Type=pull&ConnId=7 HTTP/1.1\r\n\r\n", b"", "openmq-http", None),
    ],
)  # fmt: skip
def test_http_that_is_something_else_is_named(
    request_bytes: bytes, response: bytes, name: str, text: str | None
) -> None:
    for port in (1883, 7676, 80):
        frames = both_ways(request_bytes, response, (40000, port))
        streams = read_capture(pcap(packets(frames))).streams
        for one in assign_formats(streams, named=get_format("mqtt")):
            assert one.format is None
            assert one.carriers[0].name == name
            assert text is None or str(one.carriers[0]) == text
    found = open_captures([pcap(packets(frames))])
    assert found.unread is None
    (note,) = found.closed
    assert "HTTP" in note and "tcp.port" not in note and "keylog" not in note


def test_an_inner_stream_of_no_format_may_be_named_by_its_port() -> None:
    request, response = heads()
    ping, answer = (frame(2, bytes.fromhex(one)) for one in ("c000", "d000"))
    data = pcap(packets(both_ways(request + ping, response + answer)))
    unread = open_captures([data]).unread
    assert unread is not None and "tcp.port==1999" in unread
    rows = wireyard.read(data, "mqtt", ["packet_type_name"], decode_as=["tcp.port==1999,mqtt"])
    assert rows["packet_type_name"].to_pylist() == ["PINGREQ", "PINGRESP"]


def test_a_websocket_of_text_is_named_with_the_reason() -> None:
    request, response = heads()
    found = open_captures([pcap(packets(both_ways(request, response + frame(1, b"text"))))])
    assert found.streams == []
    (note,) = found.closed
    assert "2 streams, " in note and "are WebSocket to server.example.com" in note
    assert "holds text" in note


# --- recordings -----------------------------------------------------------------------------


def test_aedes_over_websocket_gives_the_rows_of_the_plain_connection() -> None:
    """Masked, in fragments with control frames between, deflated in three ways, over TLS too."""
    rows = wireyard.read(RECORDED, "mqtt", keylog=KEYS)
    ports = (":1883", ":9001", ":9443")
    clients = [name for name in rows["stream"].unique().to_pylist() if name.endswith(ports)]
    sent = [
        rows.filter(pc.equal(rows["stream"], name)).drop_columns(list(OF_CAPTURE))
        for name in clients
    ]
    assert [name.rpartition(":")[2] for name in clients] == ["1883", *["9001"] * 5, "9443"]
    assert sent[0].num_rows == 7
    assert sent[1:] == [sent[0]] * 6
    frames = rows["frame"].to_pylist()
    assert None not in frames and len(set(frames)) > len(frames) // 2


def test_streams_are_those_that_tshark_unmasks_and_inflates() -> None:
    if shutil.which("tshark") is None:
        pytest.skip("no tshark")
    fields = ("-T", "fields", "-e", "tcp.srcport", "-e", "tcp.dstport", "-e", "data.data")
    lines = subprocess.run(
        [
            *("tshark", "-r", str(RECORDED), "-o", f"tls.keylog_file:{KEYS}", *fields),
            *("-d", "tcp.port==9001,http", "-d", "tls.port==9443,http"),
            *("-Y", "websocket && data"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    wanted: defaultdict[tuple[int, int], bytes] = defaultdict(bytes)
    for line in lines:
        src, dst, data = line.split("\t")
        wanted[int(src), int(dst)] += bytes.fromhex(data.replace(",", ""))
    found = assign_formats(read_capture(RECORDED).streams, keys=read_key_logs([KEYS]))
    compared = 0
    for one in found:
        if one.carriers and not one.closed:
            compared += content(one) == wanted[one.stream.src.port, one.stream.dst.port]
    # It does not inflate messages in fragments; those were sent by two of the clients.
    assert compared == 10


def test_damaged_connections_give_rows_or_reasons() -> None:
    count, intact = read_damaged(RECORDED, KEYS, CASES, 2)
    assert count > intact > 0


# --- not the first request, and no request at all ---------------------------------------------

CONNECT: Final = bytes.fromhex("100d 0004 4d515454 0402003c 0001 78".replace(" ", ""))
CONNACK: Final = bytes.fromhex("20020000")


def masked(payload: bytes) -> bytes:
    head = frame(2, payload)[: -len(payload)]
    mask = bytes.fromhex("11223344")
    data = bytes(byte ^ mask[at & 3] for at, byte in enumerate(payload))
    return head[:1] + bytes([head[1] | 0x80]) + head[2:] + mask + data


def answer(status: str, body: bytes = b"", field: str = "Content-Length: {}") -> bytes:
    return f"HTTP/1.1 {status}\r\n{field.format(len(body))}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (b"GET / HTTP/1.1\r\nHost: b\r\n\r\n", answer("200 OK", b"ok")),
        (b"GET / HTTP/1.1\r\n\r\n", answer("200 OK", b"HTTP/1.1 101 no\r\n\r\n")),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nGET /",
            answer("200 OK", b"2\r\nok\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
        ),
        (b"GET / HTTP/1.1\r\n\r\n" * 3, answer("304 No", b"", "X: y") * 2 + answer("404 No", b"-")),
        (b"HEAD / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
        (b"PUT / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", answer("100 Go on") + answer("200 OK")),
        (heads()[0], answer("401 Unauthorized", b"who?")),
    ],
)
def test_websocket_may_be_what_a_later_request_asks_for(asked: bytes, answered: bytes) -> None:
    request, response = heads()
    client = asked + request + masked(CONNECT)
    found = opened(client, answered + response + frame(2, CONNACK))
    assert [content(each) for each in found] == [CONNECT, CONNACK]
    assert found[0].format is get_format("mqtt")
    carrier = found[0].carriers[0]
    assert (carrier.name, carrier.target, carrier.problem) == ("websocket", "GET /chat", None)


def test_what_was_refused_is_no_websocket() -> None:
    found = opened(heads()[0], answer("401 Unauthorized", b"who?"))
    assert found[0].carriers[0].name == "http" and found[0].closed


@pytest.mark.parametrize("sent", [[b"\xc0\0"] * 2, [b"\x30\3\0\1t"] * 5, [b"0\3\0\1t" * 40] * 3])
@pytest.mark.parametrize("answers", [[], [b"\xd0\0"], [b"\xd0\0"] * 7])
def test_frames_without_a_handshake_are_recognised(sent: list[bytes], answers: list[bytes]) -> None:
    client, server = (b"".join(map(each, data)) for each, data in (
        (masked, sent), (lambda payload: frame(2, payload), answers)
    ))  # fmt: skip
    found = opened(client, server)
    assert found[0].carriers[0].name == "websocket"
    assert [content(each) for each in found] == [b"".join(sent), b"".join(answers)][: len(found)]


@pytest.mark.parametrize(
    "client",
    [
        b"\xc0\0" * 9,
        bytes.fromhex("820a 0001 0005 612f62 2f63 00 01".replace(" ", "")) * 3,
        frame(2, b"ab") * 3,
        masked(b"a") + b"\x82",
        masked(b"a"),
    ],
)
def test_other_bytes_are_no_frames(client: bytes) -> None:
    assert not opened(client, b"\x40\2\0\1")[0].carriers
