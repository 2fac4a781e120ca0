"""A process on a ring over corosync, for tests: `python -m tests.ring.member ROLE GROUP MEMBERS`.

A ``survivor`` waits for so many members, sends small and large messages, and prints as JSON Lines
what it got in which order, until every survivor has said that it is done. A ``victim`` kills
itself in the middle of a large message.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from wireyard.layers.rmp import Delivered, QoS
from wireyard.layers.rmp.events import Aborted, ViewChanged
from wireyard_ring import Corosync, Ring, run
from wireyard_ring.cpg import Member

PACKET_BYTES = 200
MESSAGES = 60


class Killed(Corosync):
    """A transport that takes a hundred packets, and ends its process when half of them are back."""

    packets_left = 100
    packets_back = 0

    def send(self, qos: QoS, packet: bytes) -> bool:
        if not self.packets_left:
            return False
        self.packets_left -= 1
        return super().send(qos, packet)

    def _deliver(self, sender: Member, message: bytes) -> None:
        if sender.pid == os.getpid():
            self.packets_back += 1
            if self.packets_back == 50:
                os.kill(os.getpid(), signal.SIGKILL)
        super()._deliver(sender, message)


async def survive(group: str, members: int) -> list[list[object]]:
    """Return what was seen from when all were there."""
    lines: list[list[object]] = []
    ring = Ring(Corosync(group, max_packet_bytes=PACKET_BYTES))
    events = ring.events()  # or what comes while this process joins would be lost
    async with ring:
        sending = asyncio.create_task(send(ring, members))
        done = 0
        while done < members - 1:
            event = await anext(events)
            if isinstance(event, ViewChanged):
                lines.append(["view", *event.members])
            elif isinstance(event, Aborted):
                lines.append(["aborted", event.source, event.reason])
            elif isinstance(event, Delivered):
                lines.append([event.source, event.data[:20].decode(), len(event.data)])
                done += event.data == b"done"
        await sending
    return lines


async def send(ring: Ring, members: int) -> None:
    while len(ring.members or ()) < members:
        await asyncio.sleep(0.001)
    for n in range(MESSAGES):
        await ring.send(b"%d " % n + b"x" * (n % 3 * 1000))
        await asyncio.sleep(0.001)
    while len(ring.members or ()) == members:
        await asyncio.sleep(0.001)  # the victim is still there
    await ring.send(b"done")


async def die(group: str, members: int) -> None:
    async with Ring(Killed(group, max_packet_bytes=PACKET_BYTES)) as ring:
        while len(ring.members or ()) < members:
            await asyncio.sleep(0.001)
        await ring.send(b"never whole " + bytes(PACKET_BYTES * 200))
        await asyncio.sleep(60)


def main(role: str, group: str, members: str) -> None:
    if role == "victim":
        run(die(group, int(members)))
    else:
        print(*map(json.dumps, run(survive(group, int(members)))), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
