"""The rules of JMS facts, numbered: the sentences that state tables, violations and documents cite.

The model (``tests/reference/jmq.py``) has each sentence again, with code that means it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Rule(NamedTuple):
    """A rule of facts: what it says, and the section of a specification, or the erratum."""

    sentence: str
    section: str = ""


_TEXT: Final = """
J-1 A connection is the two streams between two endpoints. When the same ones connect again, the
ordinal in the names of the streams distinguishes the connections. A bare stream has no endpoints:
it is a connection of its own, sent by its name.
J-2 A receiver reads a stream in order. So a packet arrives when it and all before it in its stream
have been captured. The packets of a connection are in that order.
J-3 (errata 20, 22) A message is identified by its SysMessageID. Its producer is the address and
port in it; stock clients put a MAC address in parentheses behind the address.
J-4 A connection goes from HELLO to GOODBYE by this table. A dash is an event that changes nothing
and breaks the rule of its state. PING is no event. An error reply answers a request that the client
should not have sent; both sides may send GOODBYE when a login is refused; messages and replies may
be in transit when a client sends GOODBYE; a client may be writing while the broker sends GOODBYE.
J-5 A message that is held is settled by the reply to its ACKNOWLEDGE: in the state on the left
until then, and in the one on the right from then on.
J-6 The packets in a gap were sent between those around it in their stream. So from a gap until the
next packet of its side, each packet of the other side may have come after some of them. A gap with
a time is over at that time.
J-7 (3.0.1c, bit flags, T; errata 49) A packet with flag T has a transaction id. Version 103 has no
flag T.
J-8 Where packets are damaged or missing, nothing unknown is a violation any more, a login that was
going on may be over, and pauses are unknown.
J-9 A gap may have had any packets. So a message that was held is undecided, one that was
acknowledged may have got its reply, and a transaction may be over.
J-10 A violation is of the sender of the packet. Where packets may be missing, those rules are not
applied that missing packets may explain.
J-11 A connection is known from its first packet on if that is the HELLO.
J-12 A connection was ended by the side that sent GOODBYE first. Without GOODBYE it was dropped if
the capture shows its end, and else it is open as far as that shows. If packets behind the last one
of a side are missing, it may have sent GOODBYE before the other; so may a side of which nothing was
captured. Where nothing shows a login, it may have been refused.
J-13 What is held when the connection ends is left, unconfirmed or undecided.
J-14 With the connection the transactions end that it began, unless a gap may have ended them.
J-15 (3.0.1c, bit flags, A) A packet with flag A expects a reply. Its id is in the field of the
consumer id, chosen by the requester; each side has its own ids. A request without flag A takes
effect at once. No id is used again while a request waits with it.
J-16 (3.0.1c, consumer id; errata 29, 30) A reply has the id of its request, whatever their types: a
broker does not read the type of a packet that is too large, and there may be types that have no
name here. A packet without a name, with such an id and without flag A is a reply; one whose type is
that of a reply breaks a rule if no request has the id. A request is accepted if the status of the
reply is 200, or 304: it was done before.
J-17 A message that a client sends is accepted by SEND_REPLY. If it is refused, it is not in its
transaction.
J-18 A client begins a transaction with START_TRANSACTION, or with a COMMIT whose reply names the
next one. An XA request may have its transaction id in the reply. COMMIT is asked first, then
accepted or denied; of other requests only those that are accepted count.
J-19 The reply to ADD_CONSUMER or BROWSE has the id of the consumer. A browser gets copies, and a
consumer with ack mode 32768 never acknowledges. One with the same id takes its place.
J-20 DELETE_CONSUMER has the id of the last message that the application saw. The messages after it
are returned unseen; those up to it stay with the session, and can be acknowledged. If the last one
is no longer held, all that are held came after it.
J-21 A message that a broker delivers is held by its consumer. One for a consumer whose ADD_CONSUMER
was not captured is undecided: it may be a browser. A message that is delivered again is no longer
held from before.
J-22 (3.0.1c, consumer id) ACKNOWLEDGE and REDELIVER have a list of consumer ids and SysMessageIDs.
A consumer id has 32 bits in version 103, else 64.
J-23 An ACKNOWLEDGE with JMSXDeliveryCountUpdateOnly acknowledges nothing. Any other is of a type:
undeliverable (1), dead (2, expired or not), or neither, with a transaction id or without. It
acknowledges messages that are held; the reply confirms or denies it.
J-24 REDELIVER returns messages that are held, seen by the application or not. It says nothing of an
undecided one: it may be about a transaction that was rolled back.
J-25 (3.0.1c, bit flags, F and C) Flag F is on the last message that a connection has room for, flag
C on the last one of a consumer or producer. No message follows before RESUME_FLOW. A broker stops a
producer with size 0; then messages may still be in flight. Flow True is from the producers, flow
False to the consumers.
J-26 (errata 35; openmq protocol) Some packet types are sent by clients only, such as HELLO and all
requests with a reply but PING; others by brokers only, such as all replies but PING_REPLY. Both
send messages: those with a delivery count or flag B are of a broker. Those without are of the
client if no packet of the connection shows which side that is.
J-27 (3.0.1c, sequence number; errata 48) A sender numbers every packet it writes with a higher
number, in 32 bits. Of the packets of a broker, those messages are its own that have the address of
its other packets. A packet that is sent again has its old number and timestamp, so a packet with a
number up to the highest one is new only if its timestamp is later; one with the very highest, if
its timestamp or its type is another one. No number is missing: a program numbers all its
connections with one counter, a broker the packets of services that are not captured too.
J-28 A message that was given back in packets of the client that are missing may have been delivered
again in packets of the broker that are missing. So where both sides lack packets since a delivery,
a later acknowledgement may be that of a later one.
J-29 A broker numbers the GPackets of all its links with one counter of 64 bits: a number that is
missing on one link is on another. Lower numbers, and the same one, are as in J-27.
J-30 (GPacket 3.5) G_MESSAGE_DATA brings a message to consumers of another broker; G_MESSAGE_ACK
brings back that it was consumed (T is 3), or is to be consumed with a transaction (9). A packet
about several consumers counts for each.
J-31 A transaction goes by this table, across all connections that take part in it. A dash is an
event that breaks the rule `transaction_over`. A prepared transaction outlives its connection.
Replies to earlier packets may come between COMMIT and its reply, and after a ROLLBACK that wants
none.
J-32 The sender of a delivery is the first sending of its message in the same capture. It came over
the cluster if a GPacket relayed it for its consumer.
J-33 (JMS, JMSReplyTo and JMSCorrelationID) A message with a JMSReplyTo is a request. A reply is
sent there, and its JMSCorrelationID is the JMSMessageID or the JMSCorrelationID of the request: of
the latest one with this id. A message to a temporary destination without a JMSCorrelationID answers
the oldest request there that has no reply yet, if all packets were captured of the connections that
show these requests: else it may answer another one. A message counts once in a capture, when it was
sent, or else delivered first; one that was refused or rolled back does not count.
J-34 (erratum 37) A hop follows from the latest earlier hop of one of these kinds and the same
consumer; `sent` and `accepted` are of no consumer.
J-35 (errata 22) A message has one row for all captures, of one packet: a sending before a delivery,
and that before one between brokers; one without flag I or R before one with it; then the first.
J-36 A side of which nothing was captured is missing from the first packet to the last. Then only
rules about one stream are applied.
J-37 (3.0.1c, bit flags, I) A packet that is sent again has flag I, and its type and its
SysMessageID as before. It is the same request: its only effect is that the request waits with its
id too, and that one more reply may come. It breaks no rule, and no event of a connection is one
twice. On another connection it breaks no rule about requests either.
J-38 A connection ends with its last FIN or reset, or else with its last packet. Of a connection
with a missing side, the time is unknown.
J-39 (3.0.1c, bit flags, I) A request that a client sends again on another connection is the one
that no reply came to: one conversation, from the first packet to the reply of the last.
J-40 A slice of a capture may lack the packets behind the last one of a stream, unless it has the
end of the stream. It lacks other connections of a client.
"""
"""Number, section in parentheses, and sentence."""
FACT_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        number: Rule(" ".join(sentence.split()), " ".join((section or "").split()))
        for number, section, sentence in re.findall(
            r"^(J-\d+) (?:\(([^)]*)\) )?(.*?)(?=\nJ-\d+ |\Z)", _TEXT, re.MULTILINE | re.DOTALL
        )
    }
)
"""By number."""
