"""The rules of MQTT facts: what follows from packets, and what a capture can show of it.

Rules of this file:

1. Every rule has a number that never changes, its sections and its sentence; they stand here and
   nowhere else. Code, tests and docs/layers/mqtt.md cite the number.
2. Sections are those of 5.0, which has nearly all of 3.1.1's, with the same numbers from 4.1 on.
   "E" is an erratum of docs/errata.md. Rules C are on captures, of which the standards say nothing.
3. A rule that packets can break has its requirement in `violations`, and here what that leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from wireyard.layers.mqtt.violations import RULES


class FactRule(NamedTuple):
    """A rule on what follows from packets."""

    number: str
    sections: str
    breaks: str
    """Names of the violations that packets against it are."""
    sentence: str

    @property
    def text(self) -> str:
        """The rule in words, those of its violations included."""
        required = (RULES[name].text for name in self.breaks.split())
        sentences = [f"{text[0].upper()}{text[1:]}." for text in required]
        return " ".join([*sentences, self.sentence]).strip()


_TABLE: Final = (
    # Number, sections, violations, sentence.
    ("M-1", "4.3.3", "",
     "The receiver takes a message at QoS 2 over with PUBREL at the latest, all others with the"
     " PUBLISH. One that it refused, or that breaks the format, it does not take over."),
    ("M-2", "4.1, 4.4", "",
     "On a new connection a session that is resumed keeps its flows: what was not acknowledged"
     " has to be sent again. An acknowledgement that was on the wire may not have been read, so"
     " its flow is free only after one more connection. A new session keeps none."),
    ("M-3", "4.9", "",
     "The quota of messages in flight begins anew with every connection."),
    ("M-4", "4.3.2, 4.3.3", "",
     "A receiver knows a second copy at QoS 2 by its identifier until PUBREL; at QoS 1 DUP"
     " shows only that this may be one."),
    ("M-5", "3.3.1.1", "dup_first", ""),
    ("M-6", "3.1.2.4, MQTT-3.2.2-5", "session_over", ""),
    ("M-7", "2.2.1", "id_in_use id_in_use_broker", ""),
    ("M-8", "4.4", "resend_unasked",
     "That is so until PUBREC was read."),
    ("M-9", "3.3.1.1", "dup_missing", ""),
    ("M-10", "4.4", "",
     "A PUBACK that was on the wire when the connection ended may not have been read."),
    ("M-11", "4.3.3, E M30", "pubrel_unasked",
     "One may also answer a PUBREC with an error, or without a PUBLISH."),
    ("M-12", "4.4", "",
     "PUBREL is sent again on a new connection only, until PUBCOMP was read."),
    ("M-13", "2.2.1", "puback_unasked pubrec_unasked pubcomp_unasked", ""),
    ("M-14", "3.14.4", "after_disconnect", ""),
    ("M-15", "3.1", "connect_twice", ""),
    ("M-16", "3.1", "connect_first", ""),
    ("M-17", "3.2", "after_refusal", ""),
    ("M-18", "3.2", "connack_first", ""),
    ("M-19", "3.2", "connack_twice", ""),
    ("M-20", "E M17", "",
     "A connection breaks the rules of its version; of an unknown one those of 3.1.1."),
    ("M-21", "3.1.2.11.4, 3.2.2.3.6", "packet_size_client packet_size_broker", ""),
    ("M-22", "2.1.2", "wrong_side",
     "A server may send DISCONNECT from 5.0 on."),
    ("M-23", "3.1.4", "",
     "What a client sends before CONNACK counts if that accepts the connection."),
    ("M-24", "3.2, 3.14", "",
     "After a refusal or a DISCONNECT nothing of the side that is over counts."),
    ("M-25", "3.13", "pingresp_unasked", ""),
    ("M-26", "1.5.5", "",
     "Remaining Length has four bytes at most."),
    ("M-27", "3.1.2.11.5, 3.2.2.3.8", "alias_maximum_client alias_maximum_broker",
     "Topic Alias Maximum is 0 where it is absent."),
    ("M-28", "3.1.2.11.2; 3.1.1, 3.1.2.4", "",
     "A session outlives its connection for the Session Expiry Interval; before 5.0 for ever,"
     " unless it began clean."),
    ("M-29", "3.2.2.1.1", "session_present_clean", ""),
    ("M-30", "3.1.2.4, 3.2.2.1.1", "",
     "A session is resumed if the server says so; before 3.1.1 if the start is not clean."
     " Without the CONNECT it may be any older one."),
    ("M-31", "3.1.4", "",
     "A new connection of a client id ends the one before. A clean start ends its session too."),
    ("M-32", "3.1.3.2.2", "",
     "A will waits for its delay, or until its session ends. A client that is back in the"
     " session before has no will published."),
    ("M-33", "3.1.2.5, 3.14.4", "",
     "A DISCONNECT of the client deletes the will, unless its reason code is 4."),
    ("M-34", "3.3.4, 4.9", "receive_maximum_client receive_maximum_broker", ""),
    ("M-35", "4.4, 4.3.2, 4.3.3", "",
     "A copy is of the message before it. At QoS 1 the receiver may take each copy for a"
     " message of its own, at QoS 2 those that PUBREL separates."),
    ("M-36", "3.3.2.3.4", "alias_unknown",
     "A topic alias stands for the topic that it was sent with before on the same connection,"
     " in the same direction."),
    ("M-37", "3.3.4", "subscription_identifier", ""),
    ("M-38", "4.6, 4.2", "",
     "A broker reads a connection in order, so an answer to a request shows that it has read,"
     " and accepted, all before the request. The client's DISCONNECT shows it of its messages at"
     " QoS 0."),
    ("M-39", "E M29", "",
     "The broker has sent the retained values of a subscription by its answer to a later"
     " request, unless the window may have been full since that."),
    ("M-40", "3.9.3", "suback_unasked", ""),
    ("M-41", "4.8.2", "",
     "A filter $share/GROUP/FILTER is that of a group. Brokers share so before 5.0 too, and"
     " some have $queue/FILTER and $exclusive/FILTER. As these match nothing in other brokers, a"
     " message that no member got is undecided. So is one on $delayed/SECONDS/TOPIC, which some"
     " publish later on TOPIC."),
    ("M-42", "3.8.4, 3.8.3.1", "",
     "Retained values are sent for a new subscription, for a renewed one if Retain Handling is"
     " 0, for a shared one never."),
    ("M-43", "3.8.4", "",
     "A subscription replaces one of its session with the same filter."),
    ("M-44", "3.11", "unsuback_unasked", ""),
    ("M-45", "3.10.4", "",
     "An UNSUBSCRIBE ends the subscription with the same filter."),
    ("M-46", "4.7.1", "",
     "+ matches one level, # the level above it and all below."),
    ("M-47", "4.7.2", "",
     "A filter that begins with a wildcard matches no topic that begins with $."),
    ("M-48", "3.3.1.3, 3.3.2.3.3", "",
     "A message with RETAIN is the value of its topic from when the broker takes it over until"
     " the next one, or until it expires."),
    ("M-49", "3.3.1.3, E M29", "retained_missing",
     "A broker may discard one that was published at QoS 0. One that came without RETAIN is not"
     " missing, nor is one instead of which an older one came."),
    ("M-50", "3.8.4, E M28", "retained_qos",
     "By the page of 1999 it is sent at the QoS it was published with."),
    ("M-51", "3.3.1.3", "",
     "With Retain As Published a message is forwarded with its RETAIN flag, once for each such"
     " subscription. All others that come with RETAIN are for a new subscription."),
    ("M-52", "3.3.4, 4.8.2", "",
     "A client gets a message once for each subscription that matches, or once for all; a group"
     " once. More come if the publisher sent it again."),
    ("M-53", "3.8.4", "",
     "A message comes at the lower of the QoS it was published with and that granted."),
    ("M-54", "3.3.4, 4.7, 4.8, 3.8.3.1", "",
     "A message is for every client, and every group, with a subscription that matches its"
     " topic when the broker takes the message: between its PUBLISH and the answer. No Local"
     " excludes the client that sent it."),
    ("M-55", "4.8.2", "",
     "What no subscription of a member accounts for may be for its group."),
    ("M-56", "4.3, E M31", "",
     "A broker has accepted a message if it answered for it, or delivered it to anybody. Of"
     " several with one payload, the delivery may be of the first."),
    ("M-57", "4.3.2, 4.3.3", "",
     "A delivery is complete with PUBACK or PUBCOMP."),
    ("M-58", "3.1.3.2.2", "",
     "A will whose delay ends within the capture is published then."),
    ("M-59", "4.8.2", "",
     "A broker may choose any member of a group."),
    ("M-60", "3.1.2.4, 4.1", "",
     "At QoS 0 a broker need not keep a message for a client that is away; above it keeps it in"
     " the session."),
    ("M-61", "3.3.2.3.3, 3.1.2.11.2", "",
     "A message that waits expires after its Message Expiry Interval, or ends with the session:"
     " whichever is first, also if no packet is sent then."),
    ("M-62", "4.9, E M32, 4.6", "",
     "A message waits while the window is full. It is overtaken by one of its topic only, which"
     " was sent after it was accepted, at the same QoS or a higher one."),
    ("M-63", "4.3, E M31", "",
     "A message was not forwarded if the broker was past it: by a later message, or by an"
     " answer to a request after it was accepted."),
    ("M-64", "4.10", "",
     "A message with a Response Topic is a request. A message on that topic with the same"
     " Correlation Data is a reply to the request that has waited longest; if none waits, to"
     " the one that was answered last. No message is a reply to itself."),
    ("M-65", "3.1.2.4, 3.1.2.11.2", "",
     "A session ends with its connection, or when its Session Expiry Interval has passed,"
     " unless a connection resumes it. No packet shows that."),
    ("M-66", "3.2.2.3.14", "",
     "A Server Keep Alive replaces the client's; without the CONNACK of 5.0 it is unknown."),
    ("M-67", "3.1.2.4", "",
     "What was delivered and not acknowledged ends with the session. What comes later with its"
     " identifier is not of it."),
    ("M-68", "4.3.3", "",
     "With PUBREC the broker has accepted a message; with PUBREL it delivers it."),
    ("M-69", "E M18", "",
     "A bridge has 128 added to its level. Brokers do not send it its own messages, and keep"
     " their RETAIN, as with No Local and Retain As Published."),
    ("M-70", "MQTT-3.3.1-9, MQTT-3.3.1-12", "retained_live",
     "One that came with it all the same, where nothing else was delivered, and no newer"
     " subscription may be why, is the delivery. Where an older message may have set the value,"
     " both are undecided."),
    ("M-71", "4.3", "",
     "Where a message, or its PUBREL, is sent again before it was acknowledged, each copy may be"
     " acknowledged."),
    ("M-72", "4.3.3", "resend_released", ""),
    ("M-73", "3.3.4, MQTT-3.3.5-1", "overlapping_qos",
     "Of several copies one does. It may come last, and behind the end of the capture, but all"
     " come within a second."),
    ("M-74", "3.3.2.3.3", "delivered_expired expiry_kept",
     "A second of each is not certain, nor is the age of a message that was sent again. A message"
     " waits from when the broker takes it over, a will from when it is published. A group"
     " is judged if a member got the message once, and all packets to members were captured."),
    ("M-75", "MQTT-3.8.3-3", "own_message", ""),
    ("M-76", "3.3.1.3", "",
     "A message with RETAIN and no payload deletes the value. Not in 1999."),
    ("M-77", "MQTT-3.8.4-3", "",
     "A value is sent once for each new subscription."),
    ("M-78", "MQTT-3.3.1-10, MQTT-3.3.1-11", "retained_existing retained_unwanted",
     "With Retain As Published, one whose PUBLISH was not captured may be forwarded instead."),
    ("M-79", "", "retained_early", ""),
    ("M-80", "MQTT-3.3.1-9", "retained_stale",
     "One that the broker had accepted before the SUBSCRIBE is later."),
    ("M-81", "4.3", "",
     "Of deliveries that are too many, the last ones are."),
    ("M-82", "3.8", "unsubscribed",
     "A client may have a SUBSCRIBE that is not answered yet, until a later request is. After an"
     " UNSUBACK only a message is against this that has no RETAIN and was, as all equal ones,"
     " published more than five milliseconds later: the others may have been on their way. A"
     " client with a filter that begins with $, but for groups and $SYS, is not judged: brokers"
     " may define what it matches."),
    ("M-83", "MQTT-3.3.1-8", "retained_unmarked", ""),
    ("M-84", "4.9, 4.6", "",
     "Brokers hand on in order. So if a message of any topic that was sent after another one"
     " was accepted was delivered, that one does not wait, unless the window was full when it"
     " was accepted: then topics may have queues of their own. A window is not full if more"
     " were in flight later."),
    ("M-85", "4.9, E M29", "",
     "A broker may wait for acknowledgements with as many messages in flight as the client's"
     " Receive Maximum, or with ten, which is the smallest window of those in use. That it does is"
     " not certain where more were in flight before."),
    ("M-86", "4.9", "",
     "While its window was full, the broker need not have sent what it had accepted."),
    ("M-87", "4.3.3", "",
     "At QoS 2 a broker may take a message over with PUBLISH or with PUBREL: one that is not"
     " released may change the value. Where the order of two changes depends on that, either"
     " may be the value."),
    ("M-88", "MQTT-3.3.1-13", "retained_unpublished",
     "One that came with the other flag is a delivery too; where only some subscriptions have"
     " it, either may come."),
    ("M-89", "3.3.4, 4.8.2", "",
     "A client with a shared and another matching subscription, or with several shared ones,"
     " may get one copy for all: then the group was served."),
    ("M-90", "3.3.4", "",
     "A delivery is of the subscription whose identifier it has, else of one that grants its"
     " QoS."),
    ("M-91", "3.1.2.4", "",
     "A session that ended with its connection is not resumed, unless a connection of an"
     " unknown client may have begun another one."),
    ("M-92", "3.10.4", "",
     "What a broker has not begun to send when the subscription ends need not be sent."),
    # --- captures
    ("C-1", "", "",
     "A receiver reads a stream in order, so a packet has arrived when it and all before it in"
     " its stream have, and the end of a stream when all its packets have. Raw streams have no"
     " times."),
    ("C-2", "", "",
     "Rules on several packets are judged only if all packets of the session before were"
     " captured: one that is missing may be the request, the first copy or the acknowledgement."),
    ("C-3", "", "",
     "A resend is judged only if all earlier connections of the client were captured: it may"
     " belong to a session that ended before."),
    ("C-4", "3.2.2.3.7", "",
     "A client id is that of CONNECT, unless CONNACK assigns one."),
    ("C-5", "", "",
     "A connection without a CONNECT in which bytes are missing, or of which neither beginning"
     " was captured, is older than the capture: its client may have subscribed and published"
     " before."),
    ("C-6", "3.1.4", "",
     "A client id has one connection at a time. So a connection of an unknown client may be of"
     " any client that had none then: the next after one that ended before it began, or whose"
     " last packet was before it. What was not acknowledged may be sent again there, and flows may"
     " go on."),
    ("C-7", "3.1, 4.2", "",
     "The first evidence decides which side is the client: who sent CONNECT or opened the"
     " connection; an endpoint that others show as a server; packets that one side alone sends;"
     " an endpoint, or a port, that those show as a server's; more peers; the ports of MQTT; a"
     " high port."),
    ("C-8", "", "",
     "In a session older than the capture DUP marks a message whose first copy may have been"
     " before it."),
    ("C-9", "", "",
     "A connection begins with CONNECT, unless its beginning was not captured. What is missing at"
     " the beginning of the broker's stream was sent behind it."),
    ("C-10", "", "",
     "Bytes that were not captured, with those beside them that are no packet, may have been any"
     " packets. Nothing is concluded from what they may have held: a CONNACK, subscriptions and"
     " messages (of 5 bytes at least), or changes of retained values (of 4 bytes at least,"
     " PUBREL) until the next packet of the client."),
    ("C-11", "", "",
     "A connection whose CONNACK was not captured counts as accepted."),
    ("C-12", "", "",
     "An acknowledgement may have been where the capture does not show it. If bytes of both sides"
     " were not captured since a message, a packet with its identifier may be of another one; then"
     " nothing shows what became of the first."),
    ("C-13", "", "",
     "If the last bytes of a side were lost, or nothing of the client was captured, there may"
     " have been a DISCONNECT."),
    ("C-14", "", "",
     "A session that no connection can resume, as its client id is unknown, lasts as long as"
     " its connection is captured."),
    ("C-15", "", "",
     "While a message that changes the value is sent and not confirmed, either value may be"
     " sent to a new subscription."),
    ("C-16", "", "",
     "A message that was not captured may have ended the value."),
    ("C-17", "", "",
     "No packet identifies the message that is delivered: topic and payload do, in order. A"
     " client's deliveries belong to the latest messages that they can belong to."),
    ("C-18", "", "",
     "A copy that was not captured may have come before those that were."),
    ("C-19", "", "",
     "A group may have members that were not captured."),
    ("C-20", "", "",
     "With subscriptions from before the capture a client gets a message as often as it was"
     " sent; a delivery that is left over is of a message from before the capture."),
    ("C-21", "", "",
     "A subscription counts from its SUBSCRIBE on, until the answer that ends it: between a"
     " packet and its answer it may be either way."),
    ("C-22", "", "",
     "Of a client without its CONNECT neither the window nor the Maximum Packet Size is known."),
    ("C-23", "", "",
     "Nothing is concluded of a client that came or left between a message and its acceptance."),
    ("C-24", "", "",
     "A capture ends with its last frame, whatever that brings; with its last packet where"
     " connections were captured again, for the last frame may be by another clock."),
    ("C-25", "", "",
     "A direction that was not captured is a gap from its beginning to its end."),
    ("C-26", "", "",
     "Nothing shows that a message was not accepted where the answer may have been lost, on any"
     " connection of the session."),
    ("C-27", "", "",
     "Another endpoint may be another listener of the same broker, with further members of a"
     " group, and with the next connection of a client."),
    ("C-28", "", "",
     "Where packets may be missing, equal messages have several pairings with their deliveries."
     " A delivery is of a message if it is so in every pairing in order that leaves as few of"
     " both as possible without a partner. Behind the first bytes of publishers that were not"
     " captured it may be of any message before it, or of none. So may one to a client of whose"
     " subscriptions some may be missing, behind the first message that none of the others"
     " accounts for. A payload that was sent once and delivered once is taken for one that is not"
     " sent again, unless there are two spans without all bytes: one of publishers, from 10 ms"
     " before the message to the delivery, in which another one was sent, and one of the"
     " delivery's stream, from the message to 10 ms behind the delivery, in which its own"
     " delivery was; before the first packet of the stream is such a span. To a client without a"
     " subscription that matches there need not be a delivery: then the first span is enough, if"
     " the one that was captured came 10 ms later or more."),
    ("C-29", "", "",
     "A delivery is behind its message. Where one has no message, and an equal one follows a"
     " moment later, packets were captured out of order. Times are those of the order of the"
     " protocol. One up to two seconds before a message may be of it, by another clock, if both"
     " are the only ones of their payload."),
    ("C-30", "", "",
     "A second CONNECT is one also where the answer to the first was not captured."),
    ("C-31", "", "",
     "Where no captured subscription grants the QoS of a delivery, it may be of one that was"
     " not captured."),
    ("C-32", "", "",
     "The first copy of a message that is first seen with DUP may have been on an earlier"
     " connection of the session, and may never have left its sender."),
)  # fmt: skip
FACT_RULES: Final = MappingProxyType({row[0]: FactRule(*row) for row in _TABLE})
"""Every rule by its number."""
NUMBERS: Final = MappingProxyType(
    {name: rule.number for rule in FACT_RULES.values() for name in rule.breaks.split()}
)
"""The rule that each violation is against."""
VERDICT_RULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "not_forwarded": "M-63, M-59, M-89, M-92",
        "not_kept": "M-60, M-63, M-92",
        "unaccepted": "M-56, C-26",
        "unreleased": "M-68, C-26",
        "refused": "M-1",
        "refused_by_client": "M-57",
        "too_large": "M-21",
        "discarded": "M-61, M-65",
        "expired": "M-61",
        "abandoned": "M-67",
        "offline": "M-60",
        "no_subscriber": "M-54, C-27",
        "duplicate": "M-52, M-77, M-81",
        "lost_ack": "M-10",
        "queued": "M-62, M-84, M-85",
        "in_flight": "M-57",
        "undecided": "C-10, C-23, C-28",
        "delivered": "M-57",
    }
)
"""The rules that decide on each verdict."""
