"""Whole messages to whom they are for: destination layers, clients, requests that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from wireyard.layers.rmp.counters import Drop, Drops
from wireyard.layers.rmp.events import Delivered, Event, Foreign, MessageId, UnknownLayer
from wireyard.layers.rmp.parsing import Fields
from wireyard.layers.rmp.qos import QoS
from wireyard.layers.rmp.requests import Requests
from wireyard.layers.rmp.ring import Ring

__all__ = ["MESSAGING", "Delivery"]

MESSAGING = 0
"""The layer of messages that are for no other; registered unless it is taken out."""
_delivered = partial(tuple.__new__, Delivered)
"""`Delivered` of its values, in a third less time."""


class Delivery:
    """Delivering in one process, each message at its place: what is registered then counts.

    Parameters
    ----------
    process_id
        This process.
    report_every_s
        Shortest time between two reports of the same layer that is not there.
    events
        Where to tell.
    requests
        What waits for replies.
    consume_replies
        Whether a reply that a request waits for is told as such only.
    """

    def __init__(
        self,
        process_id: str,
        report_every_s: float,
        drops: Drops,
        events: deque[Event],
        requests: Requests,
        consume_replies: bool,
    ) -> None:
        self.layers = {MESSAGING}
        """The destination layers that are registered."""
        self._process_id = process_id
        self._report_every_s = report_every_s
        self._drops = drops
        self._events = events
        self._requests = requests
        self._consume_replies = consume_replies
        self._unknown: dict[tuple[str, int], tuple[float, int]] = {}

    def deliver(
        self, at: Ring, source: str, qos: QoS, fields: Fields, run: Sequence[bytes], now: float
    ) -> None:
        """Tell whole messages that say the same, if somebody here is there for them."""
        layer, number, _, _, domain, client, reply_number, reply_source, requested = fields
        if layer is None:
            self._events += (Foreign(at.name, source, data) for data in run)
            return
        if layer not in self.layers:
            self._count_unknown(at.name, source, layer, len(run), now)
            return
        sender = client if source == self._process_id else None
        destinations = at.clients.destinations(domain, sender)
        reply_to = None
        if reply_number is not None and reply_source is not None:
            reply_to = MessageId(reply_source, reply_number)
        said = at.name, source, qos, layer, client, domain, number, reply_to, requested
        found = [_delivered((*said, data, destinations or ())) for data in run]
        if reply_to is not None and reply_to.source == self._process_id:
            (reply,) = found
            waited_for = self._requests.reply(reply_to.number, reply, now)
            if waited_for and self._consume_replies:
                return
        if destinations == ():
            self._drops.counts[Drop.NO_DESTINATION] += len(run)
            return
        self._events += found

    def _count_unknown(self, ring: str, source: str, layer: int, more: int, now: float) -> None:
        self._drops.counts[Drop.UNKNOWN_LAYER] += more
        reported_at, count = self._unknown.get((ring, layer), (None, 0))
        count += more
        if reported_at is not None and now < reported_at + self._report_every_s:
            self._unknown[ring, layer] = reported_at, count
            return
        self._unknown[ring, layer] = now, 0
        self._events.append(UnknownLayer(ring, source, layer, count))
