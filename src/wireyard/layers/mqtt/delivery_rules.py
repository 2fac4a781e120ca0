"""Rules that a delivery breaks, given the message and the subscriptions that it belongs to.

Rules of this file: a delivery is judged only if its message is the only one with its topic and
payload, and if all subscriptions to the topic were captured; else it may be of another message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from wireyard.arrays import Bools, Grid, Ints
from wireyard.layers.mqtt.delivery_kernels import Delivered, DeliveryRow
from wireyard.layers.mqtt.expected_kernels import NONE, Expected, Message, Subscription
from wireyard.layers.mqtt.packets import NO_TIME

__all__ = ["Times", "broken_rules"]

_NS_PER_S: Final = 1_000_000_000
_SLACK_NS: Final = _NS_PER_S
"""Expiry intervals are whole seconds, and all copies of a message are sent within one."""


class Times(NamedTuple):
    """Times of messages (m) and attempts (d), in ns; `NO_TIME` where there is none."""

    started_ns: Ints
    expires_s: Ints
    """The Message Expiry Interval of each message; -1 without one."""
    at_ns: Ints
    left_s: Ints
    """The Message Expiry Interval that each attempt has; -1 without one."""
    is_again: Bools
    """Whether the attempt, or a copy of it, is a redelivery."""
    ends_ns: Ints
    """When the capture of each attempt ends."""


def broken_rules(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, delivered: Grid,
    assigned: Ints, rows: Grid, times: Times, matching: Callable[[int], Ints],
) -> Iterator[tuple[str, int, int, int]]:  # fmt: skip
    """Yield each broken rule with its subscription, delivery attempt and message.

    Parameters
    ----------
    rows
        Columns of `DeliveryRow`.
    matching
        Returns the subscriptions that match a topic.
    """
    sizes = np.bincount(messages[:, Message.GROUP]) if len(messages) else np.zeros(0, np.int64)
    is_sure = (sizes[messages[:, Message.GROUP]] == 1) & (messages[:, Message.HAS_OLDER] == 0)
    yield from _of_expected(
        messages, expected, expected_subs, subs, delivered, assigned, is_sure, times
    )
    found = rows[
        (rows[:, DeliveryRow.EXPECTED] == NONE)
        & (rows[:, DeliveryRow.DELIVERED] != NONE)
        & (rows[:, DeliveryRow.MESSAGE] != NONE)
    ]
    for message, attempt in found[:, [DeliveryRow.MESSAGE, DeliveryRow.DELIVERED]].tolist():
        name = messages[message, Message.NAME]
        is_live = delivered[attempt, Delivered.IS_LIVE] and is_sure[message]
        if not is_live or delivered[attempt, Delivered.NAME] != name:
            continue
        own = matching(int(messages[message, Message.TOPIC]))
        own = own[subs[own, Subscription.NAME] == name]
        is_excluded = subs[own, Subscription.NO_LOCAL] != 0
        is_excluded &= subs[own, Subscription.GRANTED] < messages[message, Message.START]
        if len(own) and is_excluded.all():
            yield "own_message", int(own[0]), attempt, message


def _of_expected(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, delivered: Grid,
    assigned: Ints, is_sure: Bools, times: Times,
) -> Iterator[tuple[str, int, int, int]]:  # fmt: skip
    """Yield the rules that are broken by attempts that are assigned to expected deliveries."""
    if not len(expected):
        return
    message = expected[:, Expected.MESSAGE]
    is_own = subs[expected_subs[expected[:, Expected.FIRST]], Subscription.IS_SHARED] == 0
    several = expected[:, Expected.SUBSCRIPTIONS] > 1
    is_flagged = expected[:, Expected.RETAIN] == 1
    wanted = several | is_flagged | (times.expires_s[message] != NONE)
    wanted &= is_own & is_sure[message]
    attempts: defaultdict[int, list[int]] = defaultdict(list)
    for attempt in np.flatnonzero((assigned != NONE) & wanted[np.maximum(assigned, 0)]).tolist():
        attempts[int(assigned[attempt])].append(attempt)
    for entry, own in attempts.items():
        own.sort(key=lambda attempt: int(delivered[attempt, Delivered.AT]))
        first, count = expected[entry, [Expected.FIRST, Expected.SUBSCRIPTIONS]].tolist()
        of_entry, number = expected_subs[first : first + count], int(message[entry])
        sub = int(of_entry[0])
        highest = np.minimum(subs[of_entry, Subscription.QOS], messages[number, Message.QOS]).max()
        is_certain = (subs[of_entry, Subscription.GRANTED] < messages[number, Message.START]).all()
        is_certain &= (subs[of_entry, Subscription.LEAVING] == NONE).all()
        # A copy at the highest QoS may follow until all have come, or the capture went on.
        is_certain &= len(own) >= expected[entry, Expected.CAPACITY] or _is_left(times, own[-1])
        if count > 1 and is_certain and delivered[own, Delivered.QOS].max() < highest:
            yield "overlapping_qos", sub, own[0], number
        is_kept = (subs[of_entry, Subscription.RETAIN_AS_PUBLISHED] != 0).all() and is_flagged[
            entry
        ]
        for attempt in own:
            if is_kept and not delivered[attempt, Delivered.RETAIN]:
                yield "retained_unpublished", sub, attempt, number
            if rule := _expiry_rule(times, number, attempt):
                yield rule, sub, attempt, number


def _is_left(times: Times, attempt: int) -> bool:
    """Return whether the capture goes on for a while after an attempt."""
    at_ns, ends_ns = int(times.at_ns[attempt]), int(times.ends_ns[attempt])
    return NO_TIME not in (at_ns, ends_ns) and ends_ns - at_ns > _SLACK_NS


def _expiry_rule(times: Times, message: int, attempt: int) -> str | None:
    """Return the rule on message expiry that an attempt breaks."""
    expires_s, started_ns = int(times.expires_s[message]), int(times.started_ns[message])
    at_ns, left_s = int(times.at_ns[attempt]), int(times.left_s[attempt])
    if expires_s == NONE or NO_TIME in (started_ns, at_ns) or times.is_again[attempt]:
        return None
    waited_ns = at_ns - started_ns - _SLACK_NS
    if waited_ns > expires_s * _NS_PER_S:
        return "delivered_expired"
    if left_s != NONE and waited_ns > (expires_s - left_s) * _NS_PER_S:
        return "expiry_kept"
    return None
