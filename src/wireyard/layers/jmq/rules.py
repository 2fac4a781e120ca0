"""What JMQ packets do and who sends them, the rules that they can break, and limits.

All of it is data. The kernels get it as numbers (``kernels.codes``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wireyard.formats.jmq.layout import BROKER_TYPES, CLIENT_TYPES, MESSAGE_TYPES, PACKET_TYPES

# --- what packets do ------------------------------------------------------------------------

HANDLERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "send": "a message of the client",
        "deliver": "a message for a consumer",
        "reply": "the reply to a request of the client",
        "request": "any other packet of the client",
        "add": "ADD_CONSUMER",
        "delete": "DELETE_CONSUMER",
        "acknowledge": "ACKNOWLEDGE",
        "browse": "BROWSE: its reply names a consumer that gets copies",
        "redeliver": "REDELIVER",
        "start": "START_TRANSACTION",
        "commit": "COMMIT_TRANSACTION",
        "roll_back": "ROLLBACK_TRANSACTION",
        "set_client_id": "SET_CLIENTID",
        "resume": "RESUME_FLOW of the client, for a consumer or the connection",
        "be_resumed": "RESUME_FLOW of the broker, for a producer or the connection",
        "prepare": "PREPARE_TRANSACTION",
        "end": "END_TRANSACTION",
        "delete_producer": "DELETE_PRODUCER",
        "destroy_session": "DESTROY_SESSION",
        "broker_request": "any other packet of the broker",
        "client_reply": "the reply to a request of the broker",
    }
)
"""What packets do, and which do it. Any packet but messages for consumers, replies and RESUME_FLOW
may be a request: it is one with flag A."""

REPLIES: Final = frozenset(code for code, name in PACKET_TYPES.items() if name.endswith("_REPLY"))
"""Types of replies. A reply has the id of its request, whatever their types: a broker does not read
the type of a packet that is too large. So a packet without flag A of a type that is not known may
be a reply too."""
CLIENT_HANDLERS: Final[Mapping[int, str]] = MappingProxyType(
    {
        **dict.fromkeys(MESSAGE_TYPES, "send"),
        **dict.fromkeys(REPLIES, "client_reply"),
        14: "add",
        16: "delete",
        24: "acknowledge",
        26: "browse",
        32: "redeliver",
        44: "start",
        46: "commit",
        48: "roll_back",
        50: "set_client_id",
        52: "resume",
        56: "prepare",
        58: "end",
        66: "delete_producer",
        70: "destroy_session",
    }
)
"""The handlers of packets of the client by type; of all other types it is ``request``."""
BROKER_HANDLERS: Final[Mapping[int, str]] = MappingProxyType(
    {
        **dict.fromkeys(MESSAGE_TYPES, "deliver"),
        **dict.fromkeys(REPLIES, "reply"),
        52: "be_resumed",
    }
)
"""The handlers of packets of the broker by type; of all other types it is ``broker_request``."""

OK, DONE_BEFORE = 200, 304
"""The statuses of replies that accept their requests."""

_PING_REPLY: Final = 55
PINGS: Final = frozenset({54, _PING_REPLY})
BY_CLIENT: Final = frozenset(CLIENT_TYPES) | {code - 1 for code in REPLIES - {_PING_REPLY}}
BY_BROKER: Final = frozenset(BROKER_TYPES)
"""Types of packets that only clients send, and only brokers."""

ALWAYS: Final = {10: "hello", 12: "login", 29: "goodbye_reply", 38: "challenge"}
BY_STATUS: Final = {
    11: ("hello_accepted", "hello_refused"),
    13: ("login_accepted", "login_refused"),
}
BY_SIDE: Final = {28: ("client_goodbye", "server_goodbye")}
"""The events of a connection by packet type: always the same one; one if the status is `OK` and
another if not; one for the client and another for the broker. `PINGS` are no events, and all other
types are ``client_packet`` or ``server_packet``."""

WITHOUT_T: Final = 103
"""The version that does not have flag T (erratum 49)."""
QUEUE, TOPIC = 1, 2
"""Bits of JMQDestType."""
DESTINATION_CLASSES: Final = ("com.sun.messaging.BasicTopic", "com.sun.messaging.BasicQueue")
"""The classes of a topic and of a queue, which packets name."""
NO_ACKNOWLEDGE: Final = 32768
"""The ack mode without acknowledgements."""
UNDELIVERABLE, DEAD = 1, 2
"""Values of JMQAckType."""
EXPIRED: Final = 1
"""The value of JMQDeadReason for a message that has expired."""
DEAD_MESSAGE_QUEUE: Final = "mq.sys.dmq"
DEAD_REASON: Final = "JMS_SUN_DMQ_UNDELIVERED_REASON"
"""The only property of messages that is read: why a message is dead."""
TEMPORARY: Final = "temporary_destination://"
"""The beginning of the names of temporary destinations."""

# --- rules ----------------------------------------------------------------------------------

ONE, BOTH, ALL = range(3)
"""Packets that may explain a violation if they are missing: none but those of its stream, those of
the other side, or any."""
_NEEDED: Final = {"one": ONE, "both": BOTH, "all": ALL}
_RULES: Final = """
before_login J-4 both a client sent a request before the broker had accepted its login
second_login J-4 both a login, or an answer to one, on a connection that was logged in
after_goodbye J-4 both a packet from a client after its GOODBYE
reply_without_request J-16 all a reply with an id that no request waited with
request_id_reused J-15 all a request with an id that another one still waited with
unknown_consumer J-21 all a message for a consumer that the connection never had, or no longer
handed_over_twice J-21 all a message for a consumer that still held it
acknowledged_nothing J-23 all an acknowledgement of a message that the consumer did not hold
malformed_records J-22 one a body that is no list of message ids, in a packet that needs one
sent_while_paused J-25 both a message after flag F or C, before the flow was resumed
transaction_over J-31 all a transaction was used or ended after its end
sequence_back J-27 one a new packet has a lower number than its sender had used
sequence_reused J-27 one a new packet has a number that another one of its sender has
transaction_id_missing J-7 one flag T, and no transaction id
"""
"""Name, rule of facts, packets that may explain a violation if they are missing, and its text."""
_BROKEN: Final = [line.split(maxsplit=3) for line in _RULES.strip().splitlines()]
RULES: Final[Mapping[str, str]] = MappingProxyType({name: text for name, _, _, text in _BROKEN})
"""The rules that a row of `violations` may have, and the text of a violation of each."""
BROKEN: Final[Mapping[str, str]] = MappingProxyType({name: number for name, number, *_ in _BROKEN})
"""The number of the rule of facts that each violation breaks."""
NEEDS: Final[Mapping[str, int]] = MappingProxyType(
    {name: _NEEDED[needs] for name, _, needs, _ in _BROKEN}
)
"""The packets that may explain a violation if they are missing."""

# --- limits ---------------------------------------------------------------------------------

MAX_WAITING: Final = 1 << 16
"""The most requests of a connection that wait at once; the shipped client has one for each session,
and some more where it sends asynchronously."""
MAX_HELD: Final = 1 << 18
"""The most messages that the consumers of a connection hold at once: over two hundred times the
thousand that a broker delivers before it waits for a consumer."""
MAX_CONSUMERS: Final = 1 << 16
"""The most consumers of a connection, with browsers and with deleted consumers that still hold
messages."""
MAX_PAUSED: Final = 1 << 16
"""The most consumers and producers of a connection paused at once; applications have tens."""
MAX_TRANSACTIONS: Final = 1 << 16
"""The most transactions of a connection that are open at once; the shipped client has one for each
session."""
MAX_REMEMBERED: Final = 1 << 17
"""The most messages of one reply destination that are held, requests and their replies: some 100
MB, and many times the number of requests that applications have open."""
