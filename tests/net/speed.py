"""How many messages a second go through one process and back over corosync, which has to run.

`python -m tests.net.speed` prints packed and unpacked figures of one run, and their ratio. Wall
time has the machine's other work in it; the processor time of this process has not.
"""

from __future__ import annotations

import asyncio
import time

from wireyard.layers.rmp import Limits
from wireyard.net import Corosync, Ring, run

SIZES = ((16, 600_000), (100, 300_000), (8_000, 20_000), (900_000, 300))
UNPACKED = 40_000


async def through(size: int, count: int, limits: Limits) -> tuple[float, float]:
    """Return wall and processor seconds a message, sent and received in this process."""
    messages = [bytes(size)] * min(count, 1 + (8 << 20) // size)
    async with Ring(Corosync("speed"), limits=limits) as ring:
        client = ring.client(1)
        wall, used = time.perf_counter(), time.process_time()

        async def send() -> None:
            left = count
            while left:
                await ring.send_all(messages[:left])
                left -= min(left, len(messages))
            ring.flush()

        sending = asyncio.create_task(send())
        left = count
        while left:
            left -= len(await client.batch())
        await sending
        return (time.perf_counter() - wall) / count, (time.process_time() - used) / count


async def main() -> None:
    unpacked = await through(16, UNPACKED, Limits(max_delay_s=0))
    print(f"    16 bytes, unpacked: {1 / unpacked[0]:10,.0f} messages/s")
    for size, count in SIZES:
        wall, used = await through(size, count, Limits())
        print(
            f"{size:6} bytes, packed:   {1 / wall:10,.0f} messages/s,"
            f" {size / wall / 1e6:6.1f} MB/s, {used * 1e6:8.2f} us of processor time a message"
        )
        if size == 16:
            print(f"    packed is {unpacked[0] / wall:.1f} times unpacked")


if __name__ == "__main__":
    run(main())
