"""Record the example traffic: a real broker, JMS clients, and a tap on loopback between them.

usage: python -m examples.recording.record --mq-home DIR [--out examples/traffic] [--seconds 150]

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
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from examples.recording.tap import LOOPBACK, free_ports, running, tap

ACTORS = ("shop", "billing", "warehouse", "alerts", "audit", "stranger")
HERE = Path(__file__).resolve().parent


@contextlib.asynccontextmanager
async def running_broker(
    mq_home: Path, java_home: Path, work: Path, mapper_port: int
) -> AsyncIterator[int]:
    """Run a broker on loopback only; yield the port of its jms service."""
    jms_port, admin_port = free_ports(2)
    settings = {
        "portmapper.hostname": LOOPBACK,
        "hostname": LOOPBACK,
        "jms.tcp.port": jms_port,
        "admin.tcp.port": admin_port,
    }
    async with running(
        mq_home / "bin" / "imqbrokerd",
        *("-javahome", java_home, "-varhome", work / "var", "-name", "example", "-tty"),
        *("-port", str(mapper_port)),
        *(f"-Dimq.{name}={value}" for name, value in settings.items()),
        ready=b"B1039",  # "broker ready"
    ):
        yield jms_port


async def run(*command: str, stdout: IO[bytes] | None = None) -> None:
    """Run a command to its end; exit if it fails."""
    if await (await asyncio.create_subprocess_exec(*command, stdout=stdout)).wait():
        sys.exit(f"{command[0]} failed")


async def play(
    mq_home: Path,
    java_home: Path,
    seconds: int,
    addresses: Mapping[str, str],
    log: IO[bytes] | None = None,
    within: Sequence[str] = (),
) -> None:
    """Play the scenario once; each actor connects to its address and logs its messages to `log`.

    `within` is a prefix of the command that runs the actors.
    """
    jars, binaries = f"{mq_home}/lib/*", java_home / "bin"
    with tempfile.TemporaryDirectory() as classes:
        await run(f"{binaries}/javac", "-cp", jars, "-d", classes, f"{HERE}/OrderTraffic.java")
        await run(
            *within,
            f"{binaries}/java",
            # The client sends the release of its kernel to the broker; this replaces it.
            "-Dos.version=6.1",
            *("-cp", f"{jars}:{classes}"),
            *("OrderTraffic", str(seconds)),
            *(f"{name}={address}" for name, address in addresses.items()),
            stdout=log,
        )


async def tapped(jms_port: int, out: Path) -> dict[str, str]:
    """Open a tap for each actor; return their addresses."""
    return {
        name: f"mqtcp://{LOOPBACK}:{await tap(name, 'jmq', jms_port, out)}/jms" for name in ACTORS
    }


async def record(mq_home: Path, java_home: Path, out: Path, seconds: int) -> None:
    """Play the scenario once with each actor through its own tap."""
    [mapper_port] = free_ports(1)
    with tempfile.TemporaryDirectory() as work:
        async with running_broker(mq_home, java_home, Path(work), mapper_port) as jms_port:
            await play(mq_home, java_home, seconds, await tapped(jms_port, out))
            await asyncio.sleep(1)  # the last bytes


def installed_java() -> Path:
    """Return the home folder of the JDK."""
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
