"""Retained values that new subscriptions should get, and the QoS that they should have.

Rules of this file (errata M28 and M29):

1. Nothing is held against a broker while a value may be another one: from when a message that sets
   the value is sent until the broker has shown that it took it.
2. A value is missing where the subscription's `confirmed` shows that the broker was done with it,
   and the value never came. One that was published at QoS 0 may be discarded at any time.
3. A subscription whose session is older than the capture is judged by nothing: another one that
   nobody saw may be what a value was sent for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from wireyard.layers.mqtt.records import (
    Attempt,
    Subscribed,
    ValueChange,
    content_of,
    may_exceed,
    violation_of,
)
from wireyard.layers.mqtt.retained import Value
from wireyard.layers.mqtt.rows import PROTOCOL
from wireyard.layers.mqtt.rules import broken
from wireyard.layers.records import Position, violation_row
from wireyard.layers.steps import Fact, fact_of

__all__ = ["InitialValues"]

_AS_PUBLISHED: Final = 2
"""The version of 1999: a value is sent with the QoS that it was published with."""


class _Due(NamedTuple):
    """A value that a subscription should get."""

    subscribed: Subscribed
    confirmed: Position
    change: ValueChange
    content: bytes


class InitialValues:
    """What new subscriptions to one topic should get; records come in the order of time.

    Limits
    ------
    What is held is the subscriptions that match the topic, which are `MAX_SUBSCRIPTIONS` at most.
    """

    def __init__(self) -> None:
        self._settled: Position | None = None
        """From when on the value is what was set last."""
        self._is_unsettled = False
        """Whether a broker may take a message still that sets the value."""
        self._by_client: dict[str, list[Subscribed]] = {}
        self._due: dict[str, list[_Due]] = {}
        self._live: dict[str, tuple[Position, int]] = {}
        """The message that set the value which a client had last, and how often it had it."""
        self._unconfirmed: list[_Due] = []
        """Those of `_due` that a change of the value still concerns."""

    def change(self, sent: Position, accepted: Position | None) -> None:
        """Take that the value changes, at some time between two packets."""
        concerned = [one for one in self._unconfirmed if sent < one.confirmed]
        self._unconfirmed.clear()
        for one in concerned:
            if one in (due := self._due[one.subscribed.client.name]):
                due.remove(one)
        if accepted is None:
            self._is_unsettled = True
        else:
            self._settled = max(self._settled or accepted, accepted)

    def subscribe(
        self, subscribed: Subscribed, value: Value | None, change: ValueChange | None
    ) -> None:
        """Take a new subscription, and the value that the topic has as far as anybody saw."""
        name = subscribed.client.name
        self._by_client.setdefault(name, []).append(subscribed)
        confirmed = subscribed.confirmed
        if confirmed is None or value is None or change is None:
            return
        if self._is_due(subscribed, value, change, confirmed):
            due = _Due(subscribed, confirmed, change, content_of(value.payload))
            self._due.setdefault(name, []).append(due)
            self._unconfirmed.append(due)

    def _is_due(
        self, subscribed: Subscribed, value: Value, change: ValueChange, confirmed: Position
    ) -> bool:
        if self._is_unsettled or self._settled is None or subscribed.asked < self._settled:
            return False
        own = subscribed.no_local and change.client.name == subscribed.client.name
        too_large = may_exceed(subscribed.maximum_packet_size, value.topic, change.length)
        lasts = value.until is None or confirmed.time < value.until
        can_be_compared = confirmed.ns is not None and subscribed.known
        sent = value.qos > 0 and subscribed.gets_values and not (own or too_large)
        return can_be_compared and sent and lasts

    def deliver(self, each: Attempt, changes: Sequence[ValueChange]) -> Iterator[Fact]:
        """Take what was delivered with RETAIN; `changes` may have set its value."""
        name = each.client.name
        due = self._due.get(name, [])
        # What nobody was seen to set has taken the place of the value.
        due[:] = [one for one in due if changes and one.content != each.content]
        matching = self._by_client.get(name, [])
        if not matching or each.at.ns is None or not all(one.known for one in matching):
            return
        allowed = {
            change.qos if one.version == _AS_PUBLISHED else min(change.qos, one.qos)
            for change in changes
            for one in matching
        }
        if allowed and each.qos not in allowed:
            yield from _violations("retained_qos", matching[-1], each.at, changes[0])

    def is_live(self, each: Attempt, change: ValueChange) -> bool:
        """Return whether what was delivered with RETAIN was so because it was sent.

        The broker sent as many copies of it as there were subscriptions with Retain As Published.
        """
        until = change.accepted or each.at
        copies = sum(
            one.retain_as_published
            and one.asked < until
            and (one.gone is None or change.sent < one.gone)
            for one in self._by_client.get(each.client.name, ())
        )
        if not copies:
            return False
        sent, count = self._live.get(each.client.name, (None, 0))
        count = count + 1 if sent == change.sent else 1
        self._live[each.client.name] = change.sent, count
        return count <= copies

    def missing(self) -> Iterator[Fact]:
        """Yield what never came."""
        for due in self._due.values():
            for one in due:
                yield from _violations(
                    "retained_missing", one.subscribed, one.confirmed, one.change
                )


def _violations(
    rule: str, subscribed: Subscribed, at: Position, change: ValueChange
) -> Iterator[Fact]:
    """Yield that the broker broke a rule, if the version of its client has it."""
    if (found := broken(rule, subscribed.version)) is not None:
        violation = violation_of(*found, subscribed.client, False, at, change.sent.key)
        yield fact_of(("violations", violation_row(PROTOCOL, violation)))
