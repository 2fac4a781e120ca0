"""A message as the packets it takes: all of them, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wireyard.formats.rmp.layout import SEGMENT, TYPING
from wireyard.formats.rmp.packet import Message, encode
from wireyard.layers.rmp.errors import MessageTooBig
from wireyard.layers.rmp.events import MessageId
from wireyard.layers.rmp.limits import MAX_PACKETS

__all__ = ["Draft"]

_LATER_HEAD_BYTES = TYPING.size + SEGMENT.size


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to send, all but its number."""

    data: bytes
    layer: int = 0
    domain: int | None = None
    client: int | None = None
    reply_to: MessageId | None = None
    reply_requested: bool = False

    def head(self, number: int | None = None, count: int = 1) -> bytes:
        """Return what stands in front of the data of its first packet.

        Raises
        ------
        EncodeError
            A value that has no form on the wire.
        """
        segment: dict[str, Any] = {}
        if number is not None:
            segment = {"message_number": number, "packet_number": 1, "packet_count": count}
        reply: dict[str, Any] = {}
        if self.reply_to is not None:
            reply = {
                "reply_message_number": self.reply_to.number,
                "reply_source": self.reply_to.source,
            }
        return encode(
            Message(
                layer=self.layer,
                domain=self.domain,
                client=self.client,
                reply_requested=self.reply_requested,
                **segment,
                **reply,
            )
        )

    def packet_count(self, max_packet_bytes: int, max_message_bytes: int) -> int:
        """Return how many packets it takes with a number.

        Raises
        ------
        MessageTooBig
            More than can be counted, or than receivers take: they judge by the count.
        """
        later = len(self.data) - (max_packet_bytes - len(self.head(0)))
        room = max_packet_bytes - _LATER_HEAD_BYTES
        count = 1 + max(0, -(-later // room))
        most = min(MAX_PACKETS, max_message_bytes // max_packet_bytes)
        if count > most:
            raise MessageTooBig(
                f"a message of {len(self.data)} bytes takes {count} packets of"
                f" {max_packet_bytes} bytes, {most} are the most"
            )
        return count

    def packets(self, number: int, count: int, max_packet_bytes: int) -> list[bytes]:
        """Return its packets. What only the first one has to say is in no other (errata R9)."""
        head = self.head(number, count)
        at = max_packet_bytes - len(head)
        found = [head + self.data[:at]]
        # The typing word of a later packet: its layer, and the flag of segments.
        later = Message(layer=self.layer, message_number=0, packet_number=1, packet_count=1)
        typing = encode(later)[: TYPING.size]
        room = max_packet_bytes - _LATER_HEAD_BYTES
        for packet_number in range(2, count + 1):
            place = SEGMENT.struct.pack(number, packet_number, count)
            found.append(typing + place + self.data[at : at + room])
            at += room
        return found
