"""The JMQ half of a broker on sockets."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import closing
from pathlib import Path

import pytest

import wireyard
from tests.broker.certificate import write_certificate
from wireyard import jmq
from wireyard.answers import open_tables
from wireyard.broker.settings import Settings
from wireyard.broker.thread import BrokerThread
from wireyard.errors import SourceError
from wireyard.formats.jmq.packet import encode

HELLO = encode(
    jmq.Packet(
        packet_type="HELLO", bit_flags="A", consumer_id=1, properties={"JMQVersion": "6.5.0"}
    )
)


def services_of(broker: BrokerThread) -> list[str]:
    """Ask the port mapper."""
    with socket.create_connection(("127.0.0.1", broker.jmq_port)) as mapper:
        mapper.sendall(b"101\n")
        with mapper.makefile() as lines:
            return lines.read().splitlines()


def first_packets(connection: socket.socket) -> list[str | None]:
    connection.sendall(HELLO)
    data = b""
    while b"JMQAuthType" not in data:
        data += connection.recv(4096)
    size = int.from_bytes(data[8:12], "big")
    parts = (data[:size], data[size:])
    return [wireyard.decode(part, "jmq").packet_type_name for part in parts]


GREETED = ["HELLO_REPLY", "AUTHENTICATE_REQUEST"]


def test_one_port_has_the_port_mapper_and_the_service(tmp_path: Path) -> None:
    with wireyard.broker(jmq=0, record=tmp_path) as broker:
        services = ["101 wireyard 301", f"jms tcp NORMAL {broker.jmq_port}", "."]
        assert services_of(broker) == services
        assert broker.jmq_url == f"mq://127.0.0.1:{broker.jmq_port}"
        with socket.create_connection(("127.0.0.1", broker.jmq_port)) as connection:
            assert first_packets(connection) == GREETED
    with open_tables([str(path) for path in tmp_path.glob("*.pcapng")]) as tables:
        found = tables.sql("SELECT packet_type_name FROM packets_jmq ORDER BY captured_ns, frame")
        names = found["packet_type_name"].to_pylist()
    assert names == ["HELLO", *GREETED, "GOODBYE"][: len(names)] and names[:3] == [
        "HELLO",
        *GREETED,
    ]


def test_with_tls_the_port_mapper_names_a_port_for_it(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    client = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with wireyard.broker(jmq=0, tls=server) as broker:
        _, service, _ = services_of(broker)
        name, protocol, kind, port = service.split()
        assert (name, protocol, kind) == ("ssljms", "tls", "NORMAL")
        plain = socket.create_connection(("127.0.0.1", int(port)))
        with closing(client.wrap_socket(plain, server_hostname="localhost")) as connection:
            assert first_packets(connection) == GREETED
        with socket.create_connection(("127.0.0.1", broker.jmq_port)) as connection:
            connection.sendall(HELLO)
            assert b"JMQExit" in connection.recv(4096)  # GOODBYE
        assert any("without TLS" in line for line in broker.lines)


def test_a_port_that_is_taken_is_one_line() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(SourceError, match="in use"),
        wireyard.broker(jmq=taken.getsockname()[1]),
    ):
        pass


def test_the_time_to_log_in_begins_with_the_connection() -> None:
    """Also where the broker had nothing to do for longer than that."""
    with wireyard.broker(Settings(connect_timeout_s=1), jmq=0) as broker:
        time.sleep(1.2)
        with socket.create_connection(("127.0.0.1", broker.jmq_port)) as mapper:
            time.sleep(0.05)
            mapper.sendall(b"101\n")
            assert mapper.recv(4096).startswith(b"101 ")
        assert list(broker.lines) == []
