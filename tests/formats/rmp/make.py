"""RMP packets put together and taken apart from the specification, without a line of ours."""

from __future__ import annotations

import itertools
import struct
from random import Random
from typing import Any

SEGMENT, DOMAIN, CLIENT, REPLY_TO, MORE, REQUESTED = (0x0800 >> flag for flag in range(6))
FLAGS = (SEGMENT, DOMAIN, CLIENT, REPLY_TO, MORE, REQUESTED)
ALL_FLAGS = [sum(flags) for n in range(7) for flags in itertools.combinations(FLAGS, n)]
"""All 64 combinations."""


def message(
    word: int = 0,
    data: bytes = b"",
    *,
    segment: tuple[int, int, int] = (7, 1, 3),
    domain: int = 5,
    client: int = 9,
    reply: tuple[int, bytes] = (258, b"\x0a\0\0\x07\x1b\x59"),
    length: int | None = None,
    list_order: bool = False,
) -> bytes:
    """Lay out one message with the fields its typing word announces; `length` may lie."""
    size = struct.pack(">H", len(data) if length is None else length)
    head = struct.pack(">H", word)
    head += struct.pack(">3H", *segment) if word & SEGMENT else b""
    head += struct.pack(">H", domain) if word & DOMAIN else b""
    head += struct.pack(">H", client) if word & CLIENT else b""
    if word & MORE and list_order:
        head += size
    head += struct.pack(">H", reply[0]) + reply[1] if word & REPLY_TO else b""
    if word & MORE and not list_order:
        head += size
    return head + data


def framed(*packets: bytes) -> bytes:
    """Lay out packets as a dump has them: each after its length."""
    return b"".join(struct.pack(">H", len(packet)) + packet for packet in packets)


def random_packet(rng: Random, *, list_order: bool = False) -> bytes:
    """Return a well-formed packet of one to six messages."""
    parts = []
    last = rng.choice((0, 0, 0, 1, 2, 5))
    for place in range(last + 1):
        if place == last and rng.random() < 0.1:
            parts.append(struct.pack(">H", rng.randrange(4096, 65536)) + rng.randbytes(3))
            break
        word = rng.choice(ALL_FLAGS) & ~MORE | rng.choice((0, 1, 2, 3, 4, 63))
        count = rng.choice((1, 1, 2, 65535))
        parts.append(
            message(
                word | MORE * (place < last),
                rng.randbytes(rng.choice((0, 1, 2, 10, 300))),
                segment=(rng.randrange(65536), rng.randint(1, count), count),
                domain=rng.randrange(65536),
                client=rng.randrange(65536),
                reply=(rng.randrange(65536), rng.randbytes(6)),
                list_order=list_order,
            )
        )
    return b"".join(parts)


def take_apart(packet: bytes, *, list_order: bool = False) -> list[dict[str, Any]] | None:
    """Return what each message of a packet says, None if the packet breaks a rule."""
    found = []
    at, more = 0, True
    while more:
        start = at

        def take(count: int) -> int:
            nonlocal at
            at += count
            if at > len(packet):
                raise IndexError
            return int.from_bytes(packet[at - count : at], "big")

        try:
            word = take(2)
            if word >= 4096:
                found.append({"typing": word, "start": start, "stop": len(packet), "foreign": True,
                              "data": packet[start:]})  # fmt: skip
                return found
            said: dict[str, Any] = {"typing": word, "start": start, "foreign": False}
            said["layer"] = word % 64
            if word & SEGMENT:
                said["message_number"], x, n = take(2), take(2), take(2)
                said.update(packet_number=x, packet_count=n)
                if x == 0 or n == 0 or x > n:
                    return None
            if word & DOMAIN:
                said["domain"] = take(2)
            if word & CLIENT:
                said["client"] = take(2)
            more = word & MORE != 0
            size = take(2) if more and list_order else None
            if word & REPLY_TO:
                said["reply_message_number"] = take(2)
                a, b, c, d = take(1), take(1), take(1), take(1)
                said["reply_source"] = f"{a}.{b}.{c}.{d}:{take(2)}"
            if more and not list_order:
                size = take(2)
            said["more_follows"] = more
            said["reply_requested"] = word & REQUESTED != 0
            begin = at
            take(len(packet) - at if size is None else size)
            said.update(data=packet[begin:at], stop=at)
            found.append(said)
        except IndexError:
            return None
    return found
