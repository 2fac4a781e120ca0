"""Record one broker's traffic at both ends of a link of known delay, for the table `hops`.

usage: python -m examples.recording.record_points --mq-home DIR [--out examples/points]
           [--seconds 8] [--to-broker-ms 20] [--to-client-ms 20]

As root, on Linux. The broker and its clients have a network namespace each, with a TUN device. This
program reads the packets of each device and writes them to the other one after the delay, so no
kernel module for delays (netem) is needed. dumpcap runs in both namespaces. The scenario and the
requirements are those of `record`.

Written are client.pcap and broker.pcap, and the log of the clients, clients.jsonl. Both captures
have the clock of one machine, so their timestamps show the exact time of each packet on the link.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import select
import struct
import subprocess
import tempfile
import threading
import time
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from examples.recording import record
from examples.recording.tap import running

CLIENT, BROKER = "wireyard-client", "wireyard-broker"
ADDRESSES = {CLIENT: "10.77.1.1", BROKER: "10.77.1.2"}
JMS_PORT, MAPPER_PORT = 7677, 7676
MTU_BYTES = 1500
QUIET_S = 2
"""Pause after which the last captured packets are in the files."""
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_DEVICE = "wire0"


@contextlib.contextmanager
def namespace(name: str) -> Iterator[int]:
    """Create a network namespace with a TUN device; yield the file descriptor of the device."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    ip("netns", "add", name)
    try:
        ip("link", "set", _DEVICE, "netns", name)
        ip("-n", name, "address", "add", f"{ADDRESSES[name]}/24", "dev", _DEVICE)
        ip("-n", name, "link", "set", _DEVICE, "up", "mtu", str(MTU_BYTES))
        yield device
    finally:
        ip("netns", "delete", name)
        os.close(device)


def ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True)


def forward(delays_s: dict[int, float], others: dict[int, int], over: threading.Event) -> None:
    """Write each packet of a device to the other one after its delay, until `over` is set."""
    waiting: dict[int, deque[tuple[float, bytes]]] = {device: deque() for device in delays_s}
    while not over.is_set():
        now = time.monotonic()
        for device, packets in waiting.items():
            while packets and packets[0][0] <= now:
                os.write(others[device], packets.popleft()[1])
        due = min((packets[0][0] for packets in waiting.values() if packets), default=now + 0.1)
        ready, _, _ = select.select(list(delays_s), [], [], max(due - time.monotonic(), 0))
        for device in ready:
            packet = os.read(device, MTU_BYTES)
            waiting[device].append((time.monotonic() + delays_s[device], packet))


@contextlib.contextmanager
def link(to_broker_ms: float, to_client_ms: float) -> Iterator[None]:
    """Create the two namespaces and join them, in a context."""
    with namespace(CLIENT) as client, namespace(BROKER) as broker:
        over = threading.Event()
        delays_s = {client: to_broker_ms / 1000, broker: to_client_ms / 1000}
        forwarding = threading.Thread(
            target=forward, args=(delays_s, {client: broker, broker: client}, over)
        )
        forwarding.start()
        try:
            yield
        finally:
            over.set()
            forwarding.join()


async def capture(mq_home: Path, java_home: Path, work: Path, out: Path, seconds: int) -> None:
    """Play the scenario once, with a capture at each end of the link."""
    host = ADDRESSES[BROKER]
    settings = {
        "portmapper.hostname": host,
        "hostname": host,
        "jms.tcp.port": JMS_PORT,
    }
    broker = running(
        *inside(BROKER),
        mq_home / "bin" / "imqbrokerd",
        *("-javahome", java_home, "-varhome", work / "var", "-name", "example", "-tty"),
        *("-port", str(MAPPER_PORT)),
        *(f"-Dimq.{name}={value}" for name, value in settings.items()),
        ready=b"B1039",  # "broker ready"
    )
    addresses = {name: f"mqtcp://{host}:{JMS_PORT}/jms" for name in record.ACTORS}
    async with (
        broker,
        dumpcap(CLIENT, out / "client.pcap"),
        dumpcap(BROKER, out / "broker.pcap"),
    ):
        with (out / "clients.jsonl").open("wb") as log:
            await record.play(mq_home, java_home, seconds, addresses, log, within=inside(CLIENT))
        await asyncio.sleep(QUIET_S)
    for path in out.glob("*.pcap"):
        path.chmod(0o644)  # dumpcap makes it readable for its user only


def inside(name: str) -> tuple[str, ...]:
    """Return the prefix of a command that runs it in a namespace."""
    return "ip", "netns", "exec", name


def dumpcap(name: str, path: Path) -> contextlib.AbstractAsyncContextManager[Process]:
    # -P: the classic format, which does not describe the machine.
    only = f"tcp port {JMS_PORT}"
    return running(
        *inside(name), "dumpcap", "-P", "-i", _DEVICE, "-f", only, "-w", path, ready=b"File: "
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mq-home", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=record.HERE.parent / "points")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--to-broker-ms", type=float, default=20)
    parser.add_argument("--to-client-ms", type=float, default=20)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as work,
        link(arguments.to_broker_ms, arguments.to_client_ms),
    ):
        asyncio.run(
            capture(
                arguments.mq_home.resolve(),
                record.installed_java(),
                Path(work),
                out,
                arguments.seconds,
            )
        )
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:9,} bytes  {path.name}")


if __name__ == "__main__":
    main()
