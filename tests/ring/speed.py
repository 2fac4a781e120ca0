"""How many messages a second go through one process and back, over each kind of ring in one run.

`python -m tests.ring.speed` prints packed and unpacked figures of one run, and their ratio, for
rings of one member and, where there are views, of two processes. Corosync has to run for its own.
Wall time has the machine's other work in it; the processor time of this process has not. Multicast
loses what comes too fast: its figure counts what arrived.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

from tests.ring.chaos import free_ports
from wireyard.layers.rmp import Limits
from wireyard_ring import (
    Corosync,
    MemoryHub,
    Ring,
    RingFailed,
    Tcp,
    Transport,
    UdpMulticast,
    run,
)

SIZES = ((16, 600_000), (100, 300_000), (8_000, 20_000), (900_000, 300))
UNPACKED = 40_000
SILENCE_S = 0.5
"""After so much of it what is missing is lost."""

ADDRESSES = free_ports(4, Random())
KINDS: dict[str, Callable[[], Transport]] = {
    "memory": lambda: MemoryHub().transport(),
    "tcp": lambda: Tcp(ADDRESSES),
    "corosync": lambda: Corosync("speed"),
    "udp": lambda: UdpMulticast("239.255.77.80", 7080),
}


async def through(kind: str, size: int, count: int, limits: Limits, members: int) -> None:
    """Print wall and processor time a message, sent and received in this process."""
    messages = [bytes(size)] * min(count, 1 + (8 << 20) // size)
    async with Ring(KINDS[kind](), limits=limits) as ring:
        while members > 1 and len(ring.members or ()) < members:
            await asyncio.sleep(0.01)
        client = ring.client(1)
        wall, used = time.perf_counter(), time.process_time()

        async def send() -> None:
            left = count
            while left:
                await ring.send_all(messages[:left])
                left -= min(left, len(messages))
            ring.flush()

        sending = asyncio.create_task(send())
        found, last = 0, wall
        with suppress(TimeoutError):
            while found < count:
                async with asyncio.timeout(SILENCE_S if kind == "udp" else None):
                    found += len(await client.batch())
                last = time.perf_counter()
        await sending
        used = time.process_time() - used
    rate = found / (last - wall)
    lost = f", {1 - found / count:.0%} lost" if found < count else ""
    packed = "packed" if limits.max_delay_s else "unpacked"
    print(
        f"{kind:8} {members} {size:6} bytes, {packed:8}: {rate:10,.0f} messages/s,"
        f" {rate * size / 1e6:6.1f} MB/s, {used / count * 1e6:8.2f} us of processor time{lost}",
        flush=True,
    )


async def listen(kind: str) -> None:
    """Take part in a ring until killed."""
    async with Ring(KINDS[kind]()) as ring:
        client = ring.client(1)
        while await client.batch():
            pass


async def main() -> None:
    for kind in KINDS:
        try:
            await through(kind, 16, UNPACKED, Limits(max_delay_s=0), 1)
            for size, count in SIZES[: 2 if kind == "udp" else None]:
                await through(kind, size, count, Limits(), 1)
        except RingFailed as error:
            print(f"{kind}: {error}")
            continue
        if kind in ("tcp", "corosync"):
            words = [sys.executable, "-m", "tests.ring.speed", kind, ADDRESSES]
            other = subprocess.Popen(words)
            try:
                for size, count in SIZES:
                    await through(kind, size, count, Limits(), 2)
            finally:
                other.kill()
                other.wait()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        ADDRESSES = sys.argv[2]
        run(listen(sys.argv[1]))
    else:
        run(main())
