"""Record a known delay: mosquitto, its own clients, and a proxy that delays one of them.

usage: python -m examples.recording.record_delay [--out examples/delay]

It needs mosquitto, mosquitto_sub, mosquitto_pub, and dumpcap with the right to capture. All clients
connect to the proxy, and dumpcap records the traffic between clients and proxy. The proxy forwards
packets from the broker to the client `late` after `DELAY_MS`, everything else at once. There are
two recordings, without the delay and with it.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import subprocess
import tempfile
from pathlib import Path

from examples.recording.record_symptoms import MOSQUITTO, SETTLED_S, capturing
from examples.recording.tap import LOOPBACK, free_ports, running

DELAY_MS = 50
LATE = "late"
SUBSCRIBERS = (LATE, "left", "middle", "right")
TOPIC = "plant/state"
MESSAGES = 100
EVERY_S = 0.02
READY_S = 1.0
"""Time in which started clients connect and subscribe."""
_CHUNK_BYTES = 1 << 16
_TIMER_S = 0.002
"""Timers of an event loop wait for whole milliseconds; the rest is a busy wait."""


async def start_proxy(broker_port: int, delay_ms: float) -> tuple[asyncio.Server, int]:
    """Start a proxy in front of a broker; return the server and its port."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection(LOOPBACK, broker_port)
        login = await reader.read(_CHUNK_BYTES)
        broker_writer.write(login)
        waits_s = delay_ms / 1000 if LATE.encode() in login else 0.0
        await asyncio.gather(
            pass_on(reader, broker_writer, 0.0), pass_on(broker_reader, writer, waits_s)
        )

    server = await asyncio.start_server(connected, LOOPBACK, 0)
    return server, server.sockets[0].getsockname()[1]


async def pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    """Forward bytes in order after a delay, and then close."""
    held = asyncio.Queue[tuple[float, bytes]]()
    clock = asyncio.get_running_loop().time

    async def write() -> None:
        while (one := await held.get())[1]:
            due, chunk = one
            await asyncio.sleep(max(due - clock() - _TIMER_S, 0))
            while clock() < due:
                await asyncio.sleep(0)
            writer.write(chunk)
        writer.close()

    writing = asyncio.create_task(write())
    while chunk := await reader.read(_CHUNK_BYTES):
        held.put_nowait((clock() + delay_s, chunk))
    held.put_nowait((0.0, b""))
    await writing


async def record(delay_ms: float, out: Path, work: Path) -> None:
    """Record one capture."""
    [broker_port] = free_ports(1)
    settings = work / "mosquitto.conf"
    settings.write_text(
        f"listener {broker_port} {LOOPBACK}\nuser {getpass.getuser()}\nlog_dest stderr\n"
        "allow_anonymous true\nset_tcp_nodelay true\n"
    )
    async with running(MOSQUITTO, "-c", settings, ready=b"running"):
        server, port = await start_proxy(broker_port, delay_ms)
        to = ("-h", LOOPBACK, "-p", str(port), "-q", "1", "-t", TOPIC)
        async with capturing(port, out):
            readers = [
                await asyncio.create_subprocess_exec(
                    *("mosquitto_sub", *to, "-i", name, "-C", str(MESSAGES)),
                    stdout=asyncio.subprocess.DEVNULL,
                )
                for name in SUBSCRIBERS
            ]
            await asyncio.sleep(READY_S)
            writer = await asyncio.create_subprocess_exec(
                *("mosquitto_pub", *to, "-i", "writes", "-l"), stdin=asyncio.subprocess.PIPE
            )
            assert writer.stdin is not None
            await asyncio.sleep(READY_S)
            for number in range(MESSAGES):
                writer.stdin.write(b"state %d\n" % number)
                await writer.stdin.drain()
                await asyncio.sleep(EVERY_S)
            writer.stdin.close()
            await asyncio.gather(writer.wait(), *(reader.wait() for reader in readers))
            await asyncio.sleep(SETTLED_S)
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Record a known delay.")
    parser.add_argument("--out", type=Path, default=Path("examples/delay"))
    out = parser.parse_args().out
    version = subprocess.run([MOSQUITTO, "-h"], capture_output=True, text=True, check=False).stdout
    print(version.splitlines()[0])
    for name, delay_ms in (("without", 0), ("with", DELAY_MS)):
        path = out / f"{name}.pcap"
        with tempfile.TemporaryDirectory() as work:
            asyncio.run(record(delay_ms, path, Path(work)))
        path.chmod(0o644)  # dumpcap makes it readable for its user only
        print(f"{path.stat().st_size:9,} bytes  {path.name}")


if __name__ == "__main__":
    main()
