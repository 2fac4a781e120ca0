"""Record a ring: three members on UDP multicast over loopback, captured by dumpcap.

usage: python -m examples.recording.record_ring [--out examples]

It needs only wireyard and dumpcap, with the right to capture. The members run concurrently in one
program, but each sends from its own socket, so the ring treats them as processes. Written are the
capture, ring.pcap, and ring_members.jsonl: a line for every message that a member sent or received,
for every reply that it got, and for the end of every request.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
from pathlib import Path
from typing import Any, TextIO

from examples.recording.tap import running
from wireyard.layers.rmp import Delivered, MessageId
from wireyard_ring import Ring, UdpMulticast

GROUP, PORT = "239.255.77.78", 7078
RPC = 2
"""The layer of requests and replies."""
TILLS, SHELVES = 1, 2
"""Domains."""
QUIET_S = 0.3
"""Pause after a step, so that its effects end before the next and the order is always the same."""
PATIENCE_S = 0.5
"""The timeout of a request."""
SEED = 1995


class Member:
    """A process on the ring that logs the messages it sends and receives."""

    def __init__(self, name: str, log: TextIO, client: int, domain: int) -> None:
        self.name = name
        self.client = client
        self._log_file = log
        self._domain = domain
        self.ring = Ring(UdpMulticast(GROUP, PORT))

    async def __aenter__(self) -> Member:
        await self.ring.__aenter__()
        self.ring.register_layer(RPC)
        self._inbox = self.ring.client(self.client, {self._domain}, own=False)
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._inbox.close()
        await self._listening
        await self.ring.__aexit__(None, None, None)

    async def send(self, data: bytes, **named: Any) -> None:
        """Send a message as this member's client."""
        await self.ring.send(data, client=self.client, **named)
        self._log("sent", data, **named)

    async def ask(self, data: bytes, want: int, domain: int) -> None:
        """Send a request, and read `want` replies, or as many as come before the timeout."""
        named: dict[str, Any] = {"layer": RPC, "domain": domain}
        replies = self.ring.request(
            data, want=want, timeout_s=PATIENCE_S, client=self.client, **named
        )
        self._log("asked", data, **named)
        async for reply in replies:
            self._log("got reply", reply.data, sender=reply.source)
        self._log("request over", data, reason=replies.reason)

    async def answer(self, request: Delivered) -> None:
        """Reply to a request, unless it is about the weather."""
        assert request.message_id is not None
        if b"weather" in request.data:
            return
        subject = request.data[:40]
        length = 4000 if b"everything" in request.data else 20
        await self._reply(b"%s about %s" % (self.name.encode(), subject.ljust(length)), request)

    async def _reply(self, data: bytes, request: Delivered) -> None:
        named: dict[str, Any] = {"layer": RPC, "reply_to": request.message_id}
        await self.ring.send(data, client=self.client, **named)
        self._log("sent", data, **named)

    async def _listen(self) -> None:
        async for message in self._inbox:
            self._log("received", message.data, sender=message.source, layer=message.layer)
            if message.reply_requested:
                await self.answer(message)

    def _log(self, event: str, data: bytes, **named: Any) -> None:
        to = named.pop("reply_to", None)
        if isinstance(to, MessageId):
            named["reply_to"] = f"{to.source}/{to.number}"
        entry = {
            "member": self.name,
            "process": self.ring.process_id,
            "event": event,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "client": self.client,
            **named,
        }
        self._log_file.write(json.dumps(entry) + "\n")


async def play(log: TextIO) -> None:
    """Play the scenario once."""
    noise = random.Random(SEED)
    async with (
        Member("till", log, 11, TILLS) as till,
        Member("shelf", log, 21, SHELVES) as shelf,
        Member("office", log, 31, TILLS) as office,
    ):
        for number in range(100):  # small ones, which share packets
            await till.send(b"sold %d" % (number % 7), domain=SHELVES)
        till.ring.flush()
        await asyncio.sleep(QUIET_S)
        for _ in range(20):  # the same bytes repeatedly, each message in a packet of its own
            await shelf.send(b"still here", urgent=True)
            await asyncio.sleep(0.02)
        for size in (1500, 20_000, 60_000):  # in parts
            await office.send(noise.randbytes(size), domain=TILLS)
        await asyncio.gather(  # in parts at the same time
            *(one.send(noise.randbytes(8000)) for one in (till, shelf, office))
        )
        await asyncio.sleep(QUIET_S)
        await till.ask(b"how many are left", 1, SHELVES)
        await shelf.ask(b"who sells the most", 2, TILLS)
        await office.ask(b"tell me everything " + noise.randbytes(3000), 1, SHELVES)
        await till.ask(b"the weather", 1, SHELVES)
        await asyncio.gather(*(till.ask(b"price %d" % n, 1, SHELVES) for n in range(5)))
        await shelf.send(b"", urgent=True)
        await asyncio.sleep(QUIET_S)


async def record(out: Path) -> None:
    """Play the scenario while dumpcap captures."""
    pcap = out / "ring.pcap"
    members = out / "ring_members.jsonl"
    # -P: the classic format, which does not describe the machine.
    command = ("dumpcap", "-P", "-i", "lo", "-f", f"udp port {PORT}", "-w", pcap)
    async with running(*command, ready=b"File: "):
        with members.open("w", encoding="utf-8") as log:
            await play(log)
        await asyncio.sleep(2)  # after this the last captured packets are in the file
    pcap.chmod(0o644)  # dumpcap makes it readable for its user only
    for path in (pcap, members):
        print(f"{path.stat().st_size:9,} bytes  {path.name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1])
    asyncio.run(record(parser.parse_args().out))


if __name__ == "__main__":
    main()
