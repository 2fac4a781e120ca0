"""The broker on sockets: what one client may take from the others, and from the machine."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import wireyard
from tests.broker import hostile
from wireyard import mqtt
from wireyard.broker.access import Access, hash_password, read_access, read_users
from wireyard.broker.settings import Settings
from wireyard.broker.thread import BrokerThread
from wireyard.cli import main
from wireyard.endpoints import Limits
from wireyard.errors import SourceError, UsageError
from wireyard.formats.mqtt.writing import encode

SECONDS = 10.0


class Dial:
    """Connections to a broker, which are closed at the end of a test."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def __call__(self, broker: BrokerThread) -> socket.socket:
        self.sockets.append(socket.create_connection(("127.0.0.1", broker.port), SECONDS))
        return self.sockets[-1]

    def in_(self, broker: BrokerThread, client_id: str = "a", **fields: Any) -> socket.socket:
        """Return a connection with an accepted CONNECT."""
        client = self(broker)
        client.sendall(encode(mqtt.Connect(client_id=client_id, **fields)))
        assert client.recv(4) == b"\x20\x02\0\0"
        return client


@pytest.fixture
def dial() -> Iterator[Dial]:
    dial = Dial()
    yield dial
    for opened in dial.sockets:
        opened.close()


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


def is_closed(client: socket.socket) -> bool:
    """Return whether the broker closes a connection."""
    client.settimeout(SECONDS)
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    settings = Settings(
        max_connections=8,
        max_unidentified=3,
        connect_timeout_s=0.2,
        max_unsent_bytes=64 << 10,
        max_queued=5,
        endpoint=Limits(max_packet_bytes=1 << 20),
    )
    with wireyard.broker(settings) as broker:
        yield broker


def test_a_flood_of_half_open_connections_ends(broker: BrokerThread, dial: Dial) -> None:
    known = dial.in_(broker)
    silent = [dial(broker) for _ in range(6)]
    silent[0].sendall(b"\x10")
    assert all(is_closed(client) for client in silent)
    assert sum("3 connections have sent no CONNECT yet" in line for line in broker.lines) == 1
    assert sum("sent no valid CONNECT within 0.2 s" in line for line in broker.lines) == 3
    known.sendall(b"\xc0\0")
    assert known.recv(2) == b"\xd0\0"


def test_a_broker_that_was_idle_gives_a_new_connection_its_time(
    broker: BrokerThread, dial: Dial
) -> None:
    time.sleep(0.3)  # longer than the time for a CONNECT
    client = dial(broker)
    time.sleep(0.05)
    client.sendall(encode(mqtt.Connect(client_id="late")))
    assert client.recv(4) == b"\x20\x02\0\0"


def test_there_is_a_most_of_connections(broker: BrokerThread, dial: Dial) -> None:
    clients = [dial.in_(broker, f"c{number}") for number in range(8)]
    extra = dial(broker)
    assert is_closed(extra)
    assert any("refused, there are 8 connections" in line for line in broker.lines)
    clients[0].close()
    until(lambda: any("c0" in line and "lost" in line for line in broker.lines))
    dial.in_(broker, "late")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\x10\xff\xff\x7f", "over 65536"),
        (b"POST / HTTP/1.1\r\n\r\n", "[MQTT-3.1.0-1]"),
        (b"GET / HTTP/1.1\r\n\r\n", "its request is none of a WebSocket [130]"),
        (b"GET /" + bytes(9000), "its request has no end [130]"),
        (b"\x10\x02\0\x04", "needs 4 bytes"),
        (b"\0\0", "the first packet of a client is CONNECT"),
    ],
)
def test_what_is_no_mqtt_is_closed_with_a_line(
    broker: BrokerThread, dial: Dial, data: bytes, line: str
) -> None:
    client = dial(broker)
    client.sendall(data)
    assert is_closed(client)
    until(lambda: any(line in said for said in broker.lines))


@pytest.mark.parametrize(
    ("bind", "host", "origin", "is_allowed"),
    [
        ("127.0.0.1", "evil.example", "http://localhost:3000", True),
        ("127.0.0.1", "evil.example", "https://app.example", True),
        ("127.0.0.1", "evil.example", "https://evil.example", False),
        ("127.0.0.1", "evil.example", "null", False),
        ("127.0.0.1", "evil.example", "http://[", False),
        ("127.0.0.1", "192.0.2.1", "http://192.0.2.1", False),
        ("0.0.0.0", "192.0.2.1:1883", "http://192.0.2.1:3000", True),
        ("0.0.0.0", "192.0.2.1:1883", "http://192.0.2.2", False),
        ("0.0.0.0", "evil.example", "https://evil.example", False),
        ("0.0.0.0", "", "null", False),
    ],
)
def test_pages_that_may_connect(
    dial: Dial, bind: str, host: str, origin: str, is_allowed: bool
) -> None:
    """A page of any name may lead its browser here by that name; an address cannot be changed."""
    fields = (
        "GET /mqtt HTTP/1.1", f"Host: {host}", "Upgrade: websocket", f"Origin: {origin}",
        "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: mqtt",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", "",
    )  # fmt: skip
    settings = Settings(origins=frozenset({"https://app.example"}))
    with wireyard.broker(settings, bind=bind) as broker:
        client = dial(broker)
        client.sendall("\r\n".join(fields).encode())
        answer = client.recv(1000)
        assert answer.startswith(b"HTTP/1.1 101 " if is_allowed else b"HTTP/1.1 403 ")
        assert is_allowed or is_closed(client)


def test_large_packets_are_refused_before_they_are_read(broker: BrokerThread, dial: Dial) -> None:
    client = dial.in_(broker)
    client.sendall(b"\x30\xff\xff\xff\x7f")
    assert is_closed(client)
    assert "over 1048576" in broker.lines[-1]


def test_a_slow_reader_costs_a_bounded_amount_and_is_named(
    broker: BrokerThread, dial: Dial
) -> None:
    slow = dial.in_(broker, "slow")
    slow.sendall(encode(mqtt.Subscribe(packet_id=1, filters=[("t", 1)])))
    assert slow.recv(5) == b"\x90\x03\0\x01\x01"
    sender = dial.in_(broker, "sender")
    news = encode(mqtt.Publish(topic="t", payload=bytes(100_000)))
    while not any("slow: reads too slowly" in line for line in broker.lines):
        sender.sendall(news)
    kept = encode(mqtt.Publish(topic="t", payload=b"kept", qos=1, packet_id=1))
    for _ in range(7):
        sender.sendall(kept)
        assert sender.recv(4) == b"\x40\x02\0\x01"
    slow.settimeout(SECONDS)
    read = b""
    while read.count(b"kept") < 5:
        read += slow.recv(1 << 20)
    slow.close()
    until(lambda: any("messages were dropped" in line for line in broker.lines))


def test_logins(tmp_path: Path, dial: Dial) -> None:
    users = tmp_path / "users"
    users.write_text(f"# people\n{hash_password('ann', b'sesame')}\n")
    assert "sesame" not in users.read_text()
    with wireyard.broker(Settings(access=Access(read_users(str(users))))) as broker:
        dial.in_(broker, username="ann", password="sesame")
        for name, password in (("ann", "wrong"), ("bob", "sesame"), (None, None), ("ann", None)):
            client = dial(broker)
            login = mqtt.Connect(client_id="b", username=name, password=password)
            # What follows is not read before the login is right.
            client.sendall(encode(login) + b"\x30\x03\0\x01t")
            assert client.recv(4) == b"\x20\x02\0\x04"
            assert is_closed(client)
        assert not any("sesame" in line or "wrong" in line for line in broker.lines)


@pytest.mark.parametrize(
    "text", ["ann", "ann:md5:1:1:1:YQ==:YQ==", "ann:scrypt:99999999:8:1:YQ==:YQ==", "a:b:c:d:e:f:g"]
)
def test_lines_that_are_no_users(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users"
    path.write_text(f"{text}\n")
    with pytest.raises(UsageError, match="line 1 is no user"):
        read_users(str(path))
    path.write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match="is not UTF-8"):
        read_users(str(path))


@pytest.mark.parametrize("name", ["", "a:b", "#a", " a", "a ", "a\nb", "\udcff"])
def test_names_that_are_no_users(name: str) -> None:
    with pytest.raises(UsageError, match="is no user name"):
        hash_password(name, b"x")


def test_lines_of_access(tmp_path: Path) -> None:
    path = tmp_path / "access"
    path.write_text("topic read a/#\nuser ann\ntopic b c\ntopic write d\npattern readwrite %u/#\n")
    reads, writes = read_access(str(path))
    assert reads == {None: ["a/#", "%u/#"], "ann": ["b c"]}
    assert writes == {"ann": ["b c", "d"], None: ["%u/#"]}
    access = Access(reads=reads, writes=writes)
    assert access.may_write("ann", "x", "ann/1") and not access.may_write("bob", "x", "ann/1")
    assert not access.may_write("+", "x", "ann/1") and not access.may_write(None, "x", "/1")
    path.write_text("user ann\ndeny x\n")
    with pytest.raises(UsageError, match="line 2"):
        read_access(str(path))


def test_delays_begin_when_the_connection_is_lost(dial: Dial) -> None:
    with wireyard.broker() as broker:
        client = dial(broker)
        packet = mqtt.Connect(
            client_id="a", properties={"session_expiry_interval": 100}, will_topic="t",
            will_properties={"will_delay_interval": 10}, version_in_force=5,
        )  # fmt: skip
        client.sendall(encode(packet))
        assert client.recv(1) == b"\x20"
        session = broker.server.core.router.sessions["a"]
        time.sleep(0.1)
        lost_at = broker.server.now()
        client.close()
        until(lambda: session.link is None and session.will is not None)
        assert session.will is not None and session.will.due is not None
        assert session.will.due >= lost_at + 10


def test_tls(tmp_path: Path, dial: Dial) -> None:
    pytest.importorskip("cryptography", reason="makes the certificate")
    from tests.broker.certificate import write_certificate

    write_certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    client = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with wireyard.broker(tls=server, record=tmp_path) as broker:
        assert broker.url.startswith("mqtts://")
        plain = dial(broker)
        with client.wrap_socket(plain, server_hostname="localhost") as secured:
            secured.sendall(encode(mqtt.Connect(client_id="a")))
            assert secured.recv(4) == b"\x20\x02\0\0"
    (capture,) = tmp_path.glob("*.pcapng")
    names = wireyard.read(str(capture))["packet_type_name"].to_pylist()
    assert names == ["CONNECT", "CONNACK"]


def test_a_port_that_is_taken_is_one_line() -> None:
    with (
        wireyard.broker() as broker,
        pytest.raises(SourceError, match="ddress already in use"),
    ):
        wireyard.broker(port=broker.port).__enter__()


@pytest.mark.parametrize("bind", ["\udcff", "a..b", "999.1.1.1"])
def test_an_address_that_is_none_is_one_line(bind: str) -> None:
    done = CliRunner().invoke(main, ["broker", "--port", "0", "--bind", bind])
    assert done.exit_code == 3 and len(done.stderr.splitlines()) == 1


def test_a_recording_that_cannot_be_written_ends_and_the_broker_lives_on(
    tmp_path: Path, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wireyard.broker(record=tmp_path) as broker:
        dial.in_(broker)

        class Full(BytesIO):
            def write(self, data: Any) -> int:
                raise OSError(28, "No space left on device")

        assert broker.server.recording is not None
        broker.server.recording.close()
        monkeypatch.setattr(broker.server.recording, "_file", Full())
        dial.in_(broker, "b")
        dial.in_(broker, "c")
        assert sum("the recording has ended: No space left" in line for line in broker.lines) == 1


def test_hostile_connections_cost_little_and_others_are_served() -> None:
    found = hostile.run(3, seed=1)
    assert found.connections > 20 and found.echoes > 10
    assert found.last_mb < found.first_mb + 50
