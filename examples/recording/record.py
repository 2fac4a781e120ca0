"""Record the example traffic: a real broker, JMS clients, and a tap on loopback between them.

usage: record.py --mq-home DIR [--out examples/traffic] [--seconds 150]

DIR is the `mq` folder of the unpacked Maven artifact org.glassfish.mq:mq-distribution:6.5.0:zip, as
`python -m peers.openmq` fetches and prints it; a JDK 17 or newer is needed. Each connection becomes
two files of raw bytes, exactly as they went over the wire: NAME-c2b.jmq from the client to the
broker, NAME-b2c.jmq back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

ACTORS = ("shop", "billing", "warehouse", "alerts", "audit", "stranger")
LOOPBACK = "127.0.0.1"
HERE = Path(__file__).resolve().parent


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: BinaryIO
) -> None:
    """Pass one direction on, writing it down first."""
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(65536):
            record.write(chunk)
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


async def tap(name: str, broker_port: int, out: Path) -> asyncio.Server:
    """Listen for one actor on a port of its own."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Mode x: a second connection of the same name would spoil the first one's stream.
        with (
            (out / f"{name}-c2b.jmq").open("xb") as sent,
            (out / f"{name}-b2c.jmq").open("xb") as got,
        ):
            broker_reader, broker_writer = await asyncio.open_connection(LOOPBACK, broker_port)
            await asyncio.gather(
                pump(reader, broker_writer, sent), pump(broker_reader, writer, got)
            )
            for end in (writer, broker_writer):
                end.close()

    return await asyncio.start_server(connected, LOOPBACK, 0)


@contextlib.asynccontextmanager
async def running_broker(mq_home: Path, java_home: Path, work: Path) -> AsyncIterator[int]:
    """Run a broker on loopback only; give the port of its jms service."""
    mapper_port, jms_port, admin_port = free_ports(3)
    settings = {
        "portmapper.hostname": LOOPBACK,
        "hostname": LOOPBACK,
        "jms.tcp.port": jms_port,
        "admin.tcp.port": admin_port,
    }
    broker = await asyncio.create_subprocess_exec(
        mq_home / "bin" / "imqbrokerd",
        *("-javahome", java_home, "-varhome", work / "var", "-name", "example", "-tty"),
        *("-port", str(mapper_port)),
        *(f"-Dimq.{name}={value}" for name, value in settings.items()),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # the command is a script; its Java must stop with it
    )
    assert broker.stdout is not None
    try:
        async with asyncio.timeout(60):
            while b"B1039" not in (line := await broker.stdout.readline()):  # "broker ready"
                if not line:
                    sys.exit("the broker did not start")
        # Read on, or the broker would stop at a full pipe.
        reading = asyncio.create_task(broker.stdout.read())
        yield jms_port
    finally:
        os.killpg(broker.pid, signal.SIGTERM)
        await broker.wait()
    await reading


async def run(*command: str) -> None:
    """Run one command to its end; stop here when it fails."""
    if await (await asyncio.create_subprocess_exec(*command)).wait():
        sys.exit(f"{command[0]} failed")


async def record(mq_home: Path, java_home: Path, out: Path, seconds: int) -> None:
    """Play the scenario once, each actor through a tap of its own."""
    jars, binaries = f"{mq_home}/lib/*", java_home / "bin"
    with tempfile.TemporaryDirectory() as work:
        await run(f"{binaries}/javac", "-cp", jars, "-d", work, f"{HERE}/OrderTraffic.java")
        async with running_broker(mq_home, java_home, Path(work)) as jms_port:
            taps = [await tap(name, jms_port, out) for name in ACTORS]
            ports = [
                f"{name}={server.sockets[0].getsockname()[1]}"
                for name, server in zip(ACTORS, taps, strict=True)
            ]
            # The client tells the broker its kernel's release; ours is nobody's business.
            await run(
                f"{binaries}/java",
                "-Dos.version=6.1",
                "-cp",
                f"{jars}:{work}",
                "OrderTraffic",
                str(seconds),
                *ports,
            )
            await asyncio.sleep(1)  # the last bytes


def installed_java() -> Path:
    """Return the home of the JDK to use."""
    if home := os.environ.get("JAVA_HOME"):
        return Path(home)
    compiler = shutil.which("javac") or sys.exit("no JDK: set JAVA_HOME or install one")
    return Path(compiler).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mq-home", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=HERE.parent / "traffic")
    parser.add_argument("--seconds", type=int, default=150)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for old in arguments.out.glob("*.jmq"):
        old.unlink()
    asyncio.run(
        record(arguments.mq_home.resolve(), installed_java(), arguments.out, arguments.seconds)
    )
    for stream in sorted(arguments.out.glob("*.jmq")):
        print(f"{stream.stat().st_size:9,} bytes  {stream.name}")


if __name__ == "__main__":
    main()
