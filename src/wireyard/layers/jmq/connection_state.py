"""The columns and the state of JMQ connections as records of arrays, for ``connection_kernels.py``.

A row is the index of a packet in the columns; -1 is none. A code is the index of a text. A slot is
the number of a key that packets name: a consumer, a request id, a held message.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np

from wireyard.layers.grouping import Int8s, Int32s, Int64s

__all__ = [
    "Connections",
    "Consumers",
    "Found",
    "Held",
    "Packets",
    "Pauses",
    "Properties",
    "Streams",
    "Waiting",
    "blank",
]


class Packets(NamedTuple):
    """Columns of the packets, and what becomes of each; axis: row."""

    kind: Int8s
    handler: Int8s
    stream: Int32s
    packet_type: Int32s
    flags: Int32s
    version: Int32s
    size: Int64s
    sequence: Int64s
    timestamp: Int64s
    ip_high: Int64s
    ip_low: Int64s
    port: Int32s
    ns: Int64s
    timed: Int8s
    transaction: Int64s
    properties: Int32s
    """Index into `Properties`."""
    request: Int32s
    """Slot of `Waiting`."""
    consumer: Int32s
    """Slot of `Consumers` that a message is for."""
    message: Int32s
    """Slot of `Held`: the message and its consumer; of a DELETE_CONSUMER the last one seen."""
    pause: Int32s
    """Slot of `Pauses` of the consumer or producer."""
    blocks: Int64s
    """Where the blocks of a row begin; one entry more."""
    malformed: Int8s
    state: Int8s
    """State of a delivery."""
    acknowledged: Int32s
    """Row of its ACKNOWLEDGE."""
    joined: Int64s
    """Transaction of that, 0 if none."""
    client_id: Int32s
    """Code of the client id when a message was sent or delivered."""
    subscription: Int32s
    of_dead: Int8s
    answer: Int32s
    """Row of the reply to a request."""
    asked: Int8s
    """Whether a row is a request that wants a reply."""


class Properties(NamedTuple):
    """Properties of control packets; axis: index of `Packets.properties`."""

    present: Int32s
    status: Int64s
    transaction: Int64s
    transaction_slot: Int32s
    next_transaction: Int64s
    next_slot: Int32s
    consumer_slot: Int32s
    session_slot: Int32s
    ack_mode: Int64s
    ack_type: Int64s
    dead_reason: Int64s
    count_only: Int64s
    set_redelivered: Int64s
    size: Int64s
    client_id: Int32s
    subscription: Int32s
    of_dead: Int8s


class Streams(NamedTuple):
    """Directed streams, and their numbers; axis: stream."""

    connection: Int32s
    from_client: Int8s
    seen: Int8s
    first: Int64s
    start: Int64s
    stop: Int64s
    place: Int32s
    highest: Int32s
    address: Int32s
    """Row that has the address of a broker itself."""


class Connections(NamedTuple):
    """Axis: connection."""

    active: Int8s
    known: Int8s
    login_known: Int8s
    state: Int8s
    ended_by: Int8s
    """0 nobody, 1 the client, 2 the broker."""
    opened: Int32s
    last: Int32s
    hello: Int32s
    user: Int32s
    status: Int32s
    """Rows of the HELLO, the AUTHENTICATE, and the answer."""
    client_id: Int32s
    packets: Int64s
    size: Int64s
    pauses: Int64s
    paused_ns: Int64s
    open: Int64s
    """``[connection * caps + cap]``: how many things of each cap are open."""
    first_consumer: Int32s
    last_consumer: Int32s
    first_waiting: Int32s
    last_waiting: Int32s
    """``[2 * connection + side]``, side 1 for requests of the broker."""
    pause: Int32s
    """``[2 * connection + flow]``: slot of the whole flow, -1 where nothing is ever paused; flow 0
    is that of the consumers, 1 that of the producers."""
    first_paused: Int32s
    last_paused: Int32s


class Waiting(NamedTuple):
    """Requests that wait; axis: side of a connection and request id."""

    row: Int32s
    before: Int32s
    after: Int32s


class Consumers(NamedTuple):
    """Axis: connection and consumer id."""

    there: Int8s
    begins: Int8s
    of_dead: Int8s
    deleted: Int8s
    subscription: Int32s
    session: Int32s
    first_held: Int32s
    last_held: Int32s
    before: Int32s
    after: Int32s
    before_of_session: Int32s
    after_of_session: Int32s
    first_of_session: Int32s
    last_of_session: Int32s
    """The last two by slot of a session."""


class Held(NamedTuple):
    """Messages that consumers hold; axis: consumer and SysMessageID."""

    row: Int32s
    consumer: Int32s
    before: Int32s
    after: Int32s
    block_message: Int32s
    """Slot by block of an ACKNOWLEDGE or REDELIVER."""
    pending: Int8s
    """By block: whether the reply decides about it."""
    begun: Int8s
    """By slot of a transaction: whether the connection began it and it is open."""


class Pauses(NamedTuple):
    """Consumers, producers and connections that are paused; axis: who."""

    state: Int8s
    since: Int32s
    before: Int32s
    after: Int32s


class Found(NamedTuple):
    """Buffers of what was found, as much of it as `counts` says."""

    counts: Int64s
    """Violations, uses, runs."""
    dropped: Int64s
    rule: Int32s
    rule_row: Int32s
    rule_block: Int32s
    """Block that has the message, -1 for the packet itself, -2 for none."""
    rule_times: Int64s
    rule_client_id: Int32s
    use_row: Int32s
    use_event: Int32s
    use_transaction: Int64s
    use_messages: Int64s
    use_client_id: Int32s
    run_stream: Int32s
    run_start: Int64s
    run_stop: Int64s
    run_place: Int32s


T = TypeVar("T")


def blank(kind: type[T], rows: int, /, **columns: Any) -> T:
    """Return a record of arrays with so many rows, but for those that are given.

    What is an `Int32s`, a row, slot or code, is -1 everywhere; all else is 0.
    """
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name not in columns:
            dtype = hint.__metadata__[0]
            columns[name] = np.full(rows, -1 if dtype == "int32" else 0, dtype)
    return kind(**columns)
