"""The columns and the state of JMQ connections as records of arrays.

A row is the index of a packet in the columns; -1 is none. A code is the index of a text. A slot is
the number of a key that packets name, such as a consumer, a request id or a held message.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

import numpy as np

from wireyard.arrays import Int8s, Int32s, Ints


class Packets(NamedTuple):
    """Columns of the packets, and the results of tracking for each; axis: row."""

    kind: Int8s
    handler: Int8s
    stream: Int32s
    packet_type: Int32s
    flags: Int32s
    version: Int32s
    size: Ints
    sequence: Ints
    timestamp: Ints
    ip_high: Ints
    ip_low: Ints
    port: Int32s
    ns: Ints
    timed: Int8s
    transaction: Ints
    properties: Int32s
    """Index into `Properties`."""
    request: Int32s
    """Slot of `Waiting`."""
    consumer: Int32s
    """Slot of `Consumers` that a message is for."""
    message: Int32s
    """Slot of `Held`: the message and its consumer; of a DELETE_CONSUMER the last message seen."""
    pause: Int32s
    """Slot of `Pauses` of the consumer or producer."""
    blocks: Ints
    """The first block of each row, then the end of the last."""
    malformed: Int8s
    state: Int8s
    """State of a delivery."""
    acknowledged: Int32s
    """Row of the ACKNOWLEDGE of a delivery."""
    joined: Ints
    """Transaction of the acknowledgement, 0 if none."""
    client_id: Int32s
    """Code of the client id at the time when a message was sent or delivered."""
    subscription: Int32s
    from_dead_queue: Int8s
    reply: Int32s
    """Row of the reply to a request."""
    again: Int32s
    """Of a packet that the client sends again on the connection, the row that it repeats."""
    is_request: Int8s
    """Whether a row is a request that wants a reply."""


class Properties(NamedTuple):
    """Properties of control packets; axis: index of `Packets.properties`."""

    present: Int32s
    status: Ints
    transaction: Ints
    transaction_slot: Int32s
    next_transaction: Ints
    next_slot: Int32s
    consumer_slot: Int32s
    session_slot: Int32s
    ack_mode: Ints
    ack_type: Ints
    dead_reason: Ints
    count_only: Ints
    set_redelivered: Ints
    size: Ints
    client_id: Int32s
    subscription: Int32s
    from_dead_queue: Int8s


class Streams(NamedTuple):
    """Directed streams, and the latest run of their sequence numbers; axis: stream."""

    connection: Int32s
    from_client: Int8s
    start: Ints
    stop: Ints
    highest: Int32s
    address: Int32s
    """Row with the broker's own address."""


class Connections(NamedTuple):
    """The state of connections; axis: connection."""

    active: Int8s
    known: Int8s
    """Whether all packets from the first on were captured."""
    one_sided: Int8s
    """Whether a side is missing from the first packet to the last."""
    login_known: Int8s
    state: Int8s
    ended_by: Int8s
    """Which side sent the first GOODBYE: 0 none, 1 the client, 2 the broker."""
    may_be_refused: Int8s
    """Whether nothing showed the login before that GOODBYE."""
    opened: Int32s
    last: Int32s
    hello: Int32s
    user: Int32s
    status: Int32s
    """Rows of the HELLO, the AUTHENTICATE, and its reply (`hello`, `user`, `status`)."""
    client_id: Int32s
    packets: Ints
    size: Ints
    pauses: Ints
    paused_ns: Ints
    open: Ints
    """``[connection * caps + cap]``: the number of open items of each cap."""
    first_consumer: Int32s
    last_consumer: Int32s
    first_waiting: Int32s
    last_waiting: Int32s
    """``[2 * connection + side]``, side 1 for requests of the broker."""
    pause: Int32s
    """``[2 * connection + flow]``: slot of the connection itself, -1 where nothing is ever paused;
    flow 0 is to the consumers, flow 1 from the producers."""
    first_paused: Int32s
    last_paused: Int32s
    in_gap: Int8s
    """``[2 * connection + from_client]``: whether bytes before the next packet of this side are
    missing."""
    missed: Int32s
    """``[2 * connection + from_client]``: the last row at which packets of this side may be
    missing."""


class Waiting(NamedTuple):
    """Requests that wait for a reply; axis: side of a connection and request id."""

    row: Int32s
    more: Ints
    """The replies that may come after the next one, to packets that were sent again."""
    before: Int32s
    after: Int32s


class Consumers(NamedTuple):
    """The consumers of connections; axis: connection and consumer id."""

    exists: Int8s
    initial_state: Int8s
    from_dead_queue: Int8s
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
    """The last two have the slot of a session as their axis."""


class Held(NamedTuple):
    """Messages that consumers hold; axis: consumer and SysMessageID."""

    row: Int32s
    consumer: Int32s
    before: Int32s
    after: Int32s
    block_message: Int32s
    """The slot of each block of an ACKNOWLEDGE or REDELIVER; axis: block."""
    pending: Int8s
    """Whether the reply settles the delivery of a block; axis: block."""
    begun: Int8s
    """Whether the connection began a transaction and it is open; axis: slot of a transaction."""
    begun_at: Int32s
    """The row at which it began; same axis."""


class Pauses(NamedTuple):
    """The pauses of consumers, producers and connections; axis: slot of one of these."""

    state: Int8s
    since: Int32s
    before: Int32s
    after: Int32s


class Buffers(NamedTuple):
    """The output buffers of the kernel: violations and transaction events."""

    counts: Ints
    """The number of entries of both."""
    dropped: Ints
    rule: Int32s
    rule_row: Int32s
    rule_block: Int32s
    """Block with the id of the message, -1 for the packet itself, -2 for none."""
    rule_times: Ints
    rule_client_id: Int32s
    use_row: Int32s
    use_event: Int32s
    use_transaction: Ints
    use_messages: Ints
    use_client_id: Int32s
    use_sure: Int8s
    """Whether no missing packets may explain the event, and its packet was not sent again."""


T = TypeVar("T")


def blank(kind: type[T], rows: int, /, **columns: Any) -> T:
    """Return a record with the arrays in `columns`, all others blank and `rows` long.

    A blank array of type `Int32s` has rows, slots or codes and is filled with -1, others with 0.
    """
    for name, hint in get_type_hints(kind).items():
        if name not in columns:
            (dtype,) = get_args(get_args(hint)[1])
            columns[name] = np.full(rows, -1 if dtype is np.int32 else 0, dtype)
    return kind(**columns)
