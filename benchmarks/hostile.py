"""Benchmark: memory and time of inputs that are made to cost much: bombs, huge lengths, crowds.

``python -m benchmarks.hostile [NAME...]`` makes each input, reads it by one command in a process of
its own, and prints the table of docs/benchmarks.md: size of the input, elapsed and processor time,
most memory of the process, exit status, and the last line it printed.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.spark_source import FOLDER
from tests.captures import make as net
from tests.formats.gpacket.make import gpacket
from tests.formats.mqtt import make as mqtt
from tests.formats.rmp import make as rmp
from tests.make import item, items, packet, section

ROOT: Final = FOLDER / "hostile"
_MB: Final = 1 << 20


class Case(NamedTuple):
    """A hostile input: its content, a piece at a time, and the command that reads it."""

    content: Callable[[], Iterable[bytes]]
    suffix: str
    command: tuple[str, ...]
    """Its words; ``IN`` stands for the input, ``OUT`` for a file or folder to write."""


DECODE: Final = ("decode", "IN", "-w", "OUT.parquet")
WHY: Final = ("why", "IN")
RUN: Final = ("run", "IN", "--lake", "OUT", "--engine", "process", "-q")
HELLO: Final = mqtt.connect(4, client="c")


def _whole(*parts: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: parts


def _stream(format: str, *parts: bytes, command: tuple[str, ...] = DECODE) -> Case:
    return Case(_whole(*parts), format.partition("/")[0], (*command, "--format", format))


def _of_frames(frames: Callable[[], Iterable[bytes]]) -> Callable[[], Iterable[bytes]]:
    """Return the pieces of a capture of these frames, a microsecond apart."""

    def content() -> Iterator[bytes]:
        yield net.pcap([])
        for number, data in enumerate(frames()):
            seconds, micros = divmod(number, 1_000_000)
            size = len(data)
            yield struct.pack("<IIII", 1_700_000_000 + seconds, micros, size, size) + data

    return content


def _capture(
    frames: Callable[[], Iterable[bytes]], command: tuple[str, ...] = WHY, *more: str
) -> Case:
    return Case(_of_frames(frames), "pcap", (*command, *more))


def _client(data: bytes, port: int = 1883, step: int = 60_000) -> Iterator[bytes]:
    """Yield the frames of a client's stream."""
    yield net.ethernet(net.ipv4(net.tcp(40000, port, 999, b"", net.SYN)))
    for at in range(0, len(data), step):
        segment = net.tcp(40000, port, 1000 + at, data[at : at + step])
        yield net.ethernet(net.ipv4(segment))


def _connections(count: int) -> Iterator[bytes]:
    """Yield the frames of connections of one byte each."""
    for number in range(count):
        source = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        segment = net.tcp(40000 + number % 7, 1883, 1000, b"\x10")
        yield net.ethernet(net.ipv4(segment, src=source, dst="11.0.0.1"))


def _audience(subscribers: int, messages: int) -> Iterator[bytes]:
    """Yield the frames of subscribers that are all to have all messages of one client."""
    hello = b"\x20\x02\0\0"
    for number in range(subscribers + 1):
        ports = 1024 + number, 1883
        client = mqtt.connect(4, client=f"c{number}")
        if number < subscribers:
            client += mqtt.subscribe(4, ("#", 0))
            yield from net.both_ways(client, hello + mqtt.packet(0x90, b"\0\7\0"), ports)
        else:
            yield from net.both_ways(client + mqtt.publish(4) * messages, hello, ports)


def _overlaps(count: int) -> Iterator[bytes]:
    """Yield a stream whose bytes are sent again and again, with other values."""
    yield from net.one_way_frames([(0, HELLO)])
    for number in range(count):
        data = bytes([number & 255]) * 1000
        yield net.ethernet(net.ipv4(net.tcp(40000, 1883, 1000 + number % 900, data)))


def _holes(count: int) -> Iterator[bytes]:
    """Yield a stream of which every other byte is missing."""
    return iter(net.one_way_frames([(2 * number, b"\x30") for number in range(count)]))


def _fragments(count: int) -> Iterator[bytes]:
    """Yield the first fragments of datagrams that never get complete."""
    for number in range(count):
        source = f"10.1.{number >> 8 & 255}.{number & 255}"
        yield net.ethernet(
            net.ipv4(bytes(1000), 17, source, identification=number & 0xFFFF, more=True)
        )


def _tunnels(depth: int) -> Iterator[bytes]:
    """Yield a frame of IP in IP in IP."""
    inner = net.ipv4(net.tcp(40000, 1883, 1000, HELLO))
    for _ in range(depth):
        inner = net.ipv4(inner, 4)
    yield net.ethernet(inner)


def _websocket(frames: bytes) -> Iterator[bytes]:
    """Yield the frames of a WebSocket connection with these frames of the client."""
    extension = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"
    names = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: mqtt\r\n"
    request = b"GET /mqtt HTTP/1.1\r\nHost: h\r\n" + names + extension + b"\r\n"
    response = b"HTTP/1.1 101 Switching Protocols\r\n" + names + extension + b"\r\n"
    return iter(net.both_ways(request + frames, response, (40000, 1883)))


def _masked(length: bytes, data: bytes, first: int = 0xC2) -> bytes:
    return bytes([first]) + length + bytes(4) + data


def _deflated(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(bytes(size)) + packer.flush(zlib.Z_SYNC_FLUSH)
    return packed[:-4]


def _zeros(size: int) -> Iterator[bytes]:
    """Yield a gzip file of a capture's header and zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    yield packer.compress(net.pcap([]))
    for _ in range(size // _MB):
        yield packer.compress(bytes(_MB))
    yield packer.flush()


def _tls(size: int) -> bytes:
    """Return a handshake message that is as long as it can be, in records."""
    message = b"\x01" + size.to_bytes(3, "big") + bytes(size)
    cut = range(0, len(message), 1 << 14)
    records = (message[at : at + (1 << 14)] for at in cut)
    return b"".join(b"\x16\x03\x01" + struct.pack(">H", len(each)) + each for each in records)


def _payload(text: bytes) -> tuple[bytes, ...]:
    return HELLO, mqtt.publish(4, topic="t", payload=text)


def _json(text: bytes, decoder: str = "json") -> Case:
    command = (*DECODE, "--payload", f"#={decoder}")
    return _stream("mqtt", *_payload(text), command=command)


def _nested(depth: int) -> bytes:
    inner = packet(packet_type=12)
    for _ in range(depth):
        inner = gpacket(packet_type=1, properties=section(("C", 4, 0)), payload=inner)
    return inner


def _lake(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return what makes a lake of one capture, and changes it."""

    def make(path: Path) -> None:
        source = path.with_suffix(".mqtt")
        source.write_bytes(HELLO + mqtt.publish(4))
        _wireyard("run", str(source), "--lake", str(path), "--engine", "process", "-q")
        change(path)

    return make


def _record(path: Path) -> Path:
    return max((path / "_wireyard" / "commits").glob("*.json"))


def _deep_record(path: Path) -> None:
    _record(path).write_bytes(b'{"record":6,"tables":' + b"[" * (32 * _MB))


def _long_record(path: Path) -> None:
    members = json.loads(_record(path).read_bytes())
    del members["crc32"]
    members["tables"] = {f"t{number}": [] for number in range(1_000_000)}
    text = json.dumps(members, separators=(",", ":")).encode()[:-1]
    _record(path).write_bytes(b'%b,"crc32":%d}' % (text, zlib.crc32(text)))


def _links(path: Path) -> None:
    folder = path / "_wireyard" / "data"
    shutil.rmtree(folder)
    folder.symlink_to("/")


LAKES: Final[Mapping[str, Callable[[Path], None]]] = {
    "lake, a folder of which is a link to /": _lake(_links),
    "lake, a record of 32 million brackets": _lake(_deep_record),
    "lake, a record of a million tables": _lake(_long_record),
}

CASES: Final[Mapping[str, Callable[[], Case]]] = {
    "mqtt, one PUBLISH of 256 MB, decode": lambda: Case(
        lambda: (HELLO, mqtt.publish(4, payload=bytes(range(256)) * (_MB - 1))), "mqtt",
        (*DECODE, "--format", "mqtt"),
    ),
    "mqtt, one PUBLISH of 256 MB, run": lambda: Case(
        lambda: (HELLO, mqtt.publish(4, payload=bytes(range(256)) * (_MB - 1))), "mqtt",
        (*RUN, "--format", "mqtt"),
    ),
    "mqtt, one PUBLISH of 256 MB in a capture, why": lambda: _capture(
        lambda: _client(HELLO + mqtt.publish(4, payload=bytes(range(256)) * (_MB - 1)))
    ),
    "mqtt, a Remaining Length of 256 MB": lambda: _stream(
        "mqtt", HELLO, b"\x30\xfc\xff\xff\x7f\0\3a/b"
    ),
    "mqtt, 8 million PINGREQ": lambda: _stream("mqtt", HELLO, b"\xc0\0" * (8 << 20)),
    "mqtt, a SUBSCRIBE of 2 million filters": lambda: _stream(
        "mqtt", HELLO, mqtt.subscribe(4, *((b"#", 0),) * (2 << 20))
    ),
    "mqtt, a PUBLISH of 2 million user properties": lambda: _stream(
        "mqtt", mqtt.connect(5), mqtt.publish(5, properties=mqtt.user("", "") * (2 << 20))
    ),
    "mqtt, 3 MB of zeros": lambda: _stream("mqtt", bytes(3 * _MB)),
    "mqtt, 3 MB of zeros, why": lambda: _stream("mqtt", bytes(3 * _MB), command=WHY),
    "mqtt, 64 MB of no packet": lambda: _stream("mqtt", HELLO, b"\xff" * (64 * _MB)),
    "mqtt, topics of 30,000 levels": lambda: _stream(
        "mqtt", HELLO, mqtt.subscribe(4, ("+/" * 30_000 + "#", 0)),
        mqtt.publish(4, topic="a/" * 30_000) * 200, command=WHY,
    ),
    "mqtt, 2,000 subscribers, 2,000 messages": lambda: _capture(lambda: _audience(2_000, 2_000)),
    "jmq, a size of 2 GB": lambda: _stream("jmq", packet(packet_type=10), packet(size=2**31 - 1)),
    "jmq, 2^31 properties": lambda: _stream(
        "jmq", packet(properties=section(("a", 8, "b"), count=2**31 - 1))
    ),
    "jmq, items that end outside": lambda: _stream(
        "jmq", packet(items=items(item(1, "x", 65535))) * 10_000
    ),
    "jmq, a million packets of the least size": lambda: _stream("jmq", packet() * _MB),
    "jmq, a body of 1 GB in 1 MB": lambda: _stream(
        "jmq", packet(body=zlib.compress(bytes(1024 * _MB)), bit_flags=0x0800),
        command=("decode", "IN", "--out", "jsonl", "--payload", "value"),
    ),
    "gpacket, 1,000 packets in packets": lambda: _stream(
        "gpacket", _nested(1_000), command=("decode", "IN", "--nested", "--out", "jsonl")
    ),
    "gpacket, properties of 1 GB": lambda: _stream("gpacket", gpacket(property_size=2**30) * 1_000),
    "rmp, 32,000 messages in a packet": lambda: _stream(
        "rmp/framed", rmp.framed(rmp.message(rmp.MORE, b"") * 16_000 + rmp.message(0)) * 100
    ),
    "rmp, messages of which one segment is there": lambda: _capture(
        lambda: (
            net.ethernet(net.ipv4(net.udp(5000, 6000, rmp.message(
                rmp.SEGMENT, bytes(1000), segment=(number & 0xFFFF, 1, 65535)
            )), 17))
            for number in range(200_000)
        ),
        WHY, "--format", "rmp",
    ),
    "pcap.gz, 4 GB of zeros": lambda: Case(lambda: _zeros(4096 * _MB), "pcap.gz", ("flows", "IN")),
    "mqtt.gz, 64 MB of zeros": lambda: Case(
        lambda: [gzip.compress(HELLO + bytes(64 * _MB))], "mqtt.gz", (*DECODE, "--format", "mqtt")
    ),
    "pcap, a record of 4 GB": lambda: Case(
        _whole(net.pcap([]), struct.pack("<IIII", 1, 1, 2**32 - 1, 2**32 - 1)), "pcap",
        ("flows", "IN"),
    ),
    "pcapng, a block of 4 GB": lambda: Case(
        _whole(net.section(), struct.pack("<II", 6, 2**32 - 4)), "pcapng", ("flows", "IN")
    ),
    "pcapng, 2 million interfaces": lambda: Case(
        _whole(net.section(), net.interface() * (2 << 20), net.enhanced(b"x", number=9)), "pcapng",
        ("flows", "IN"),
    ),
    "pcap, a million connections of one byte, flows": lambda: _capture(
        lambda: _connections(1_000_000), ("flows", "IN")
    ),
    "pcap, a million connections of one byte, why": lambda: _capture(
        lambda: _connections(1_000_000)
    ),
    "pcap, 500,000 fragments": lambda: _capture(lambda: _fragments(500_000), ("flows", "IN")),
    "pcap, a stream of 500,000 holes": lambda: _capture(lambda: _holes(500_000)),
    "pcap, bytes sent 200,000 times": lambda: _capture(lambda: _overlaps(200_000)),
    "pcap, 3,000 tunnels in tunnels": lambda: _capture(lambda: _tunnels(3_000), ("flows", "IN")),
    "pcap, a WebSocket frame of 2^63 bytes": lambda: _capture(
        lambda: _websocket(_masked(b"\xff" + b"\x7f" + b"\xff" * 7, HELLO, 0x82))
    ),
    "pcap, a WebSocket frame of 256 MB in 256 kB": lambda: _capture(
        lambda: _client(b"".join(_requested(_deflated(256 * _MB))))
    ),
    "pcap, a TLS handshake of 16 MB": lambda: _capture(
        lambda: _client(_tls((1 << 24) - 1), 8883), ("flows", "IN")
    ),
    "JSON, 10 million brackets": lambda: _json(b"[" * 10_000_000),
    "JSON, a number of 10 million digits": lambda: _json(b"1" * 10_000_000),
    "JSON, a million keys": lambda: _json(json.dumps(dict.fromkeys(map(str, range(_MB)))).encode()),
    "CBOR, an array of 2^63": lambda: _json(b"\x9b\x7f" + b"\xff" * 7, "cbor"),
    "MessagePack, arrays in arrays": lambda: _json(b"\x91" * 10_000_000, "msgpack"),
}  # fmt: skip


def _requested(packed: bytes) -> Iterator[bytes]:
    names = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: mqtt\r\n"
    extension = b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    yield b"GET /mqtt HTTP/1.1\r\nHost: h\r\n" + names + extension
    yield _masked(b"\xff" + len(packed).to_bytes(8, "big"), packed)


class Cost(NamedTuple):
    """The costs of a process."""

    seconds: float
    processor_s: float
    peak_bytes: int
    status: int | str
    said: str


def _wireyard(*words: str) -> Cost:
    command = [sys.executable, "-m", "wireyard", *words]
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line.strip() or last
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    processor_s = used.ru_utime + used.ru_stime
    return Cost(seconds, processor_s, used.ru_maxrss << 10, process.returncode, last)


def _write(name: str, words: Connection) -> None:
    """Write an input, and send the words of the command that reads it."""
    case = CASES[name]()
    path = ROOT / f"input.{case.suffix}"
    with path.open("wb") as file:
        file.writelines(case.content())
    names = {"IN": str(path), "OUT": str(ROOT / "out"), "OUT.parquet": str(ROOT / "out.parquet")}
    words.send([names.get(word, word) for word in case.command])


def measure(name: str) -> tuple[int, Cost]:
    """Make an input and read it; return its size in bytes, and the cost of reading."""
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    if name in LAKES:
        path = ROOT / "lake"
        LAKES[name](path)
        size = sum(each.lstat().st_size for each in path.rglob("*") if not each.is_symlink())
        return size, _wireyard("sql", str(path), "SELECT count(*) FROM packets_mqtt")
    # In a process of its own, as the peak memory of a process counts for its children too.
    ours, theirs = Pipe()
    maker = Process(target=_write, args=(name, theirs))
    maker.start()
    words = ours.recv()
    maker.join()
    return sum(each.stat().st_size for each in ROOT.glob("input.*")), _wireyard(*words)


def main(chosen: Iterable[str] = ()) -> None:
    """Print the table, of the inputs whose names contain one of the words, or of all."""
    print(f"| input | size, MB | s | processor, s | peak, MB | status | last line |\n{'|---' * 7}|")
    words = list(chosen)
    for name in (*CASES, *LAKES):
        if words and not any(word in name for word in words):
            continue
        size, cost = measure(name)
        said = cost.said.replace(str(ROOT) + "/", "").replace("|", "\\|")[:100]
        print(
            f"| {name} | {size / 1e6:.1f} | {cost.seconds:.1f} "
            f"| {cost.processor_s:.1f} | {cost.peak_bytes / 1e6:.0f} | {cost.status} | {said} |",
            flush=True,
        )
    shutil.rmtree(ROOT, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
