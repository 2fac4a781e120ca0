"""Answers of port mappers: by hand, and those of real brokers in captures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from wireyard.captures.connections.stream import Stream
from wireyard.captures.read import read_capture
from wireyard.errors import DecodeError, LimitExceeded, Malformed, Truncated, UnsupportedVersion
from wireyard.formats import get_format
from wireyard.formats.port_mapper import (
    MAX_ANSWER_BYTES,
    PortMapper,
    Service,
    decode_answer,
    is_answer,
)

ANSWER: Final = (
    b"101 imqbroker 301\n"
    b"portmapper tcp PORTMAPPER 7676 [sessionid=12]\n"
    b"cluster_discovery tcp CLUSTER_DISCOVERY 0\n"
    b"jmxrmi rmi JMX 0 [url=service:jmx:rmi://127.0.0.1/stub/rO0=]\n"
    b"jms tcp NORMAL 40001 [hostname=10.0.0.1,hostaddr=10.0.0.1]\n"
    b"ssljms ssl NORMAL 40002\n"
    b"cluster tcp CLUSTER 40003\n"
    b".\n"
)


def test_services_have_their_names_ports_and_properties() -> None:
    found = decode_answer(ANSWER)
    assert (found.version, found.broker, found.packet_version) == ("101", "imqbroker", "301")
    assert found.services == (
        Service("portmapper", "tcp", "PORTMAPPER", 7676, {"sessionid": "12"}),
        Service("cluster_discovery", "tcp", "CLUSTER_DISCOVERY", 0),
        Service("jmxrmi", "rmi", "JMX", 0, {"url": "service:jmx:rmi://127.0.0.1/stub/rO0="}),
        Service("jms", "tcp", "NORMAL", 40001, {"hostname": "10.0.0.1", "hostaddr": "10.0.0.1"}),
        Service("ssljms", "ssl", "NORMAL", 40002),
        Service("cluster", "tcp", "CLUSTER", 40003),
    )


def test_a_service_names_the_format_of_its_connections() -> None:
    formats = {service.name: service.format for service in decode_answer(ANSWER).services}
    assert formats == {
        "portmapper": None,
        "cluster_discovery": None,
        "jmxrmi": None,
        "jms": "jmq",
        "ssljms": None,
        "cluster": "gpacket",
    }
    assert {name for name in formats.values() if name} == {
        get_format(name).name for name in ("jmq", "gpacket")
    }


def test_a_broker_without_services_and_lines_of_other_systems() -> None:
    empty = PortMapper("101", "b", "301", ())
    assert decode_answer(b"101 b 301\n.\n") == empty
    assert decode_answer(memoryview(b"101 b 301\r\n.\r\n")) == empty


def test_every_shorter_answer_is_truncated() -> None:
    for size in range(len(ANSWER)):
        with pytest.raises(Truncated) as raised:
            decode_answer(ANSWER[:size])
        start = ANSWER.rfind(b"\n", 0, size) + 1
        assert (raised.value.offset, raised.value.available) == (start, size - start)


@pytest.mark.parametrize(
    ("answer", "error", "field", "offset"),
    [
        (b"102 b 301\n.\n", UnsupportedVersion, "version", 0),
        (b"\n", UnsupportedVersion, "version", 0),
        (b"101 b\n.\n", Malformed, "first line", 0),
        (b"101 b 301 x\n.\n", Malformed, "first line", 0),
        (b"101 b 301\njms tcp NORMAL\n.\n", Malformed, "service", 10),
        (b"101 b 301\n\n.\n", Malformed, "service", 10),
        (b"101 b 301\njms tcp NORMAL 65536\n.\n", Malformed, "port", 10),
        (b"101 b 301\njms tcp NORMAL 000001\n.\n", Malformed, "port", 10),
        (b"101 b 301\njms tcp NORMAL -1\n.\n", Malformed, "port", 10),
        (b"101 b 301\njms tcp NORMAL 1 [a=b\n.\n", Malformed, "properties", 10),
        (b"101 b 301\njms tcp NORMAL 1 [a=b] c\n.\n", Malformed, "properties", 10),
        (b"101 b 301\njms tcp NORMAL 1 [a]\n.\n", Malformed, "properties", 10),
        (b"101 b 301\nj\xffs tcp NORMAL 1\n.\n", Malformed, "line", 11),
        (b"101 b 301\n.\n.", Malformed, "end", 12),
        (b"1" * (MAX_ANSWER_BYTES + 1), LimitExceeded, "answer", 0),
    ],
)
def test_what_is_no_answer(
    answer: bytes, error: type[DecodeError], field: str, offset: int
) -> None:
    with pytest.raises(error) as raised:
        decode_answer(answer)
    assert (raised.value.format, raised.value.field) == ("portmapper", field)
    assert raised.value.offset == offset


def test_an_answer_is_known_by_its_first_bytes() -> None:
    assert all(is_answer(ANSWER[:size]) for size in range(5, len(ANSWER)))
    assert is_answer(b"101 b 301\r\n") and is_answer(b"101 b 3.0.1\n")
    for other in (b"", b"101\n", b"101 \n", b"101 b\n", b"101 a b\n", b"102 b 301\n", b"\x1b\xff"):
        assert not is_answer(other)


def captured(stream: Stream) -> bytes:
    return b"".join(stream.read(start, stop).tobytes() for start, stop in stream.pieces.tolist())


def test_real_brokers_name_the_ports_of_every_other_connection(shared: Path) -> None:
    """Each connection of a recording is to a port mapper, or to a port that one named."""
    folder = shared / "captures" / "openmq"
    if not folder.is_dir():
        pytest.skip("no captures of Open MQ in the shared folder")
    answers = said = 0
    for path in sorted(folder.glob("*.pcap")):
        rows = json.loads(path.with_name(f"{path.stem}.streams.json").read_text())
        said += sum(row["src"].endswith(":7676") and row["bytes"] > 0 for row in rows)
        streams = read_capture(path).streams
        content = {stream.name: captured(stream) for stream in streams}
        named: dict[str, str] = {}
        for stream in streams:
            if is_answer(content[stream.name][:64]):
                answer = decode_answer(content[stream.name])
                assert answer.broker.startswith("wy") and answer.packet_version == "301"
                assert stream.src.port == answer.services[0].port
                answers += 1
                named |= {
                    f"{stream.src.address}:{service.port}": service.format
                    for service in answer.services
                    if service.format
                }
        for stream in streams:
            format = named.get(str(stream.src)) or named.get(str(stream.dst))
            mapper = 7676 in (stream.src.port, stream.dst.port)
            assert (format is None) == mapper, stream.name
            if format:
                assert get_format(format).evidence.begins(content[stream.name][:64]), stream.name
    assert answers == said > 30
