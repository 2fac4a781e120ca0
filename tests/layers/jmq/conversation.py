"""Random conversations: connections that do what clients and brokers do, and what they do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.layers.jmq.make import MS, OK, Talk, block, message_id
from tests.layers.jmq.test_joins import relayed, returned
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import FLAGS
from wireyard.layers.jmq.rules import DEAD_REASON
from wireyard.layers.jmq.tracking import Ends

TEMPORARY = "temporary_destination://queue/10.0.0.9/50000/1"
DESTINATIONS = "orders", "prices", "back", TEMPORARY, None
CLIENT_ONLY = "TEXT_MESSAGE", "PING", "RESUME_FLOW", "BROWSE", "ADD_PRODUCER", "STOP", "GOODBYE"
SERVER_ONLY = "PING", "RESUME_FLOW", "STOP_REPLY", "HELLO_REPLY", "DEBUG", "GOODBYE", "INFO"


class Speaker:
    """A connection and what its client may refer to."""

    def __init__(self, dice: random.Random, talk: Talk, messages: list[Row]) -> None:
        self.dice = dice
        self.talk = talk
        self.messages = messages
        """Of all connections: a broker delivers what others sent."""
        self.delivered: list[Row] = []
        self.consumers: list[int] = []
        self.transactions: list[int] = []
        self.open_ids: list[tuple[int, str]] = []
        self.acts: tuple[tuple[Callable[[], object], int], ...] = (
            (self.send, 10), (self.deliver, 10), (self.acknowledge, 8), (self.answer_late, 6),
            (self.add, 3), (self.delete, 1), (self.destroy, 1), (self.redeliver, 1),
            (self.start, 2), (self.end_transaction, 3), (self.set_client_id, 1),
            (self.resume, 2), (self.odd, 2), (self.producer, 1), (self.lose, 1),
            (self.send_again, 2),
        )  # fmt: skip

    # --- what both sides say ------------------------------------------------------------------

    def ask(self, name: str, reply: str = "", late: bool = True, **values: Any) -> None:
        """Ask, and have it answered now, later, or never; or want no answer."""
        dice, talk = self.dice, self.talk
        theirs = {key[3:]: values.pop(key) for key in list(values) if key.startswith("re_")}
        reply = reply or f"{name}_REPLY"
        if dice.random() < 0.15:
            talk.tell(name, **values)
        elif dice.random() < 0.2 and late:
            talk.ask(name, **values)
            self.open_ids.append((talk.ack_id, reply))
            if dice.random() < 0.2:
                talk.ack_id -= 1  # The next request has the same id.
        else:
            talk.ask(name, **values)
            talk.reply(reply, self.status(), **theirs)

    def status(self) -> int:
        return self.dice.choice((OK, OK, OK, OK, 500, 404))

    def flags(self, *letters: str) -> str:
        return "".join(letter for letter in letters if self.dice.random() < 0.08)

    def answer_late(self) -> None:
        if self.open_ids:
            ack_id, reply = self.open_ids.pop(self.dice.randrange(len(self.open_ids)))
            extra = {"JMQTransactionID": self.some(self.transactions, 5)}
            self.talk.reply(reply, self.status(), ack_id, **extra)

    def some(self, known: list[int], other: int) -> int:
        return self.dice.choice(known) if known and self.dice.random() < 0.9 else other

    # --- messages -----------------------------------------------------------------------------

    def send(self) -> None:
        dice = self.dice
        values: dict[str, Any] = {"destination": dice.choice(DESTINATIONS)}
        if dice.random() < 0.02:
            values["destination"] = "long" * 300
        if dice.random() < 0.05:
            values["version"] = 103
        if dice.random() < 0.3:
            values["reply_to"] = dice.choice(DESTINATIONS)
        if dice.random() < 0.3:
            values["correlation_id"] = dice.choice(["c-1", "c-2", self.some_id()])
        if dice.random() < 0.1:
            values["message_id"] = dice.choice(["mine", "c-1"])
        if dice.random() < 0.3:
            values["transaction_id"] = self.some(self.transactions, dice.randrange(4))
        if dice.random() < 0.5:
            values["producer_id"] = dice.randrange(3)
        values["flags"] = self.flags("F", "C", "T", "R", "I")
        if dice.random() < 0.5:
            self.messages.append(self.talk.send(**values))
            if values["destination"] == "long" * 300:
                self.messages[-1]["property_offset"] = 1300
        else:
            self.ask("TEXT_MESSAGE", "SEND_REPLY", **values)
            sent = [r for r in self.talk.rows[-2:] if r["packet_type_name"] == "TEXT_MESSAGE"]
            self.messages += sent

    def some_id(self) -> str:
        return f"ID:{self.dice.choice(self.messages)['sys_message_id']}" if self.messages else "c"

    def deliver(self) -> None:
        dice = self.dice
        if not self.messages:
            return
        message = dice.choice(self.messages[-12:])
        consumer = self.some(self.consumers, dice.randrange(9))
        count = dice.choice((1, 1, 1, 2, 3))
        flags = self.flags("R", "F", "C")
        row = self.talk.deliver(message, consumer, flags, count)
        if dice.random() < 0.2:
            row["delivery_count"] = None
        if dice.random() < 0.05:
            row["version"] = 103
        if dice.random() < 0.3:
            row["properties"] = {DEAD_REASON: ("string", "EXPIRED")}
        self.delivered.append(row)

    def acknowledge(self) -> None:
        dice = self.dice
        rows = [dice.choice(self.delivered[-8:]) for _ in range(dice.choice((0, 1, 1, 1, 2, 4)))
                if self.delivered]  # fmt: skip
        body = b"".join(map(block, rows)) + (b"x" if dice.random() < 0.03 else b"")
        values: dict[str, Any] = {"body": body}
        if dice.random() < 0.3:
            values["transaction_id"] = self.some(self.transactions, dice.randrange(4))
        if dice.random() < 0.15:
            values["JMQAckType"] = dice.randrange(4)
            values["JMQDeadReason"] = dice.randrange(3)
        if dice.random() < 0.05:
            values["JMSXDeliveryCountUpdateOnly"] = dice.random() < 0.5
        self.ask("ACKNOWLEDGE", **values)

    def redeliver(self) -> None:
        rows = self.delivered[-self.dice.randrange(1, 5) :]
        values = {"JMQSetRedelivered": True} if self.dice.random() < 0.5 else {}
        self.talk.tell("REDELIVER", body=b"".join(map(block, rows)), **values)

    # --- consumers and producers --------------------------------------------------------------

    def add(self) -> None:
        dice = self.dice
        consumer = dice.randrange(9)
        values: dict[str, Any] = {"JMQSessionID": dice.randrange(3)}
        if dice.random() < 0.8:
            values["JMQAckMode"] = dice.choice((1, 1, 1, 32768))
        if dice.random() < 0.3:
            values["JMQDurableName"] = dice.choice(("", "durable"))
        if dice.random() < 0.3:
            values["JMQSharedSubscriptionName"] = dice.choice(("", "shared"))
        if dice.random() < 0.3:
            values["JMQDestination"] = "mq.sys.dmq"
        if dice.random() < 0.1:
            del values["JMQSessionID"]
        name = "BROWSE" if dice.random() < 0.1 else "ADD_CONSUMER"
        reply = f"{name}_REPLY" if dice.random() < 0.9 else "SEND_REPLY"
        self.ask(name, reply, re_JMQConsumerID=consumer, **values)
        self.consumers.append(consumer)

    def delete(self) -> None:
        values: dict[str, Any] = {"JMQConsumerID": self.some(self.consumers, 4)}
        if self.delivered and self.dice.random() < 0.7:
            values["body"] = message_id(self.dice.choice(self.delivered[-8:]))
        if self.dice.random() < 0.1:
            values = {"JMQDurableName": "durable"}
        self.ask("DELETE_CONSUMER", **values)

    def destroy(self) -> None:
        self.ask("DESTROY_SESSION", JMQSessionID=self.dice.randrange(3))

    def producer(self) -> None:
        self.ask("DELETE_PRODUCER", JMQProducerID=self.dice.randrange(3))

    def resume(self) -> None:
        dice = self.dice
        if dice.random() < 0.5:
            values = {"JMQConsumerID": self.some(self.consumers, 3)}
            self.talk.tell("RESUME_FLOW", **(values if dice.random() < 0.6 else {}))
            return
        values = {"JMQSize": dice.choice((0, 10))} if dice.random() < 0.8 else {}
        if dice.random() < 0.6:
            values["JMQProducerID"] = dice.randrange(3)
        self.talk.packet("RESUME_FLOW", False, **values)

    # --- the rest -----------------------------------------------------------------------------

    def send_again(self) -> None:
        """Send a packet of this or of another connection again, with the same id or another."""
        own = [row for row in self.talk.rows if row["stream"] == self.talk.stream(True)]
        known = own[-9:] if self.dice.random() < 0.7 else self.messages
        if not known:
            return
        row = self.dice.choice(known)
        here = self.talk.packet("PING", True)
        self.talk.sequence[True] -= 1
        same = ("source", "stream", "offset", "captured_ns", "frame", "src_addr", "src_port",
                "dst_addr", "dst_port")  # fmt: skip
        here |= row | {name: here[name] for name in same}
        here["bit_flags"] |= FLAGS["I"]
        if self.dice.random() < 0.2:
            here["consumer_id"] += 1
        if here["bit_flags"] & FLAGS["A"] and self.dice.random() < 0.5:
            reply = self.dice.choice(("SEND_REPLY", "ACKNOWLEDGE_REPLY", "of no name"))
            self.talk.reply(reply, self.status(), here["consumer_id"])

    def set_client_id(self) -> None:
        values: dict[str, Any] = {}
        if self.dice.random() < 0.8:
            values["JMQClientID"] = self.dice.choice("ab")
        self.ask("SET_CLIENTID", **values)

    def start(self) -> None:
        number = self.dice.randrange(1, 6)
        self.ask("START_TRANSACTION", re_JMQTransactionID=number)
        self.transactions.append(number)

    def end_transaction(self) -> None:
        dice = self.dice
        name = dice.choice(("COMMIT", "COMMIT", "ROLLBACK", "PREPARE", "END")) + "_TRANSACTION"
        reply = "ROLLBACK_REPLY" if name == "ROLLBACK_TRANSACTION" else ""
        values: dict[str, Any] = {}
        if dice.random() < 0.9:
            values["JMQTransactionID"] = self.some(self.transactions, 3)
        if dice.random() < 0.3:
            values["re_JMQTransactionID"] = self.some(self.transactions, 3)
        if dice.random() < 0.3:
            values["re_JMQNextTransactionID"] = dice.randrange(1, 8)
        self.ask(name, reply, **values)

    def odd(self) -> None:
        """Add a packet that does not belong where it is."""
        dice, talk = self.dice, self.talk
        from_client = dice.random() < 0.5
        name = dice.choice(CLIENT_ONLY if from_client else SERVER_ONLY)
        row = talk.packet(
            name, from_client, flags=self.flags("A", "T"), consumer_id=dice.randrange(5)
        )
        if dice.random() < 0.2:
            row["packet_type"], row["packet_type_name"] = dice.choice((-7, 99, 4000)), None

    def lose(self) -> None:
        row = self.talk.packet("PING", self.dice.random() < 0.5)
        row["status"] = self.dice.choice(("malformed", "gap", "garbage"))

    def run(self, acts: int) -> None:
        choices, weights = zip(*self.acts, strict=True)
        for act in self.dice.choices(choices, weights, k=acts):
            act()


def conversation(seed: int, number: int, acts: int = 40) -> tuple[list[Row], Ends]:
    """Return the rows of a conversation over some connections, and which streams ended.

    Parameters
    ----------
    number
        Of the conversation: its hosts are its own.
    """
    dice = random.Random(seed)
    host = f"10.{number >> 8 & 255}.{number & 255}"
    messages: list[Row] = []
    speakers = []
    sequence = {True: 0, False: 0}
    for place in range(dice.choice((1, 1, 2, 3))):
        talk = Talk(
            client=(f"{host}.9", 50000 + place),
            broker=(f"{host}.1", 7676),
            source="made.pcap",
            sequence=sequence if dice.random() < 0.7 else {True: place, False: place},
        )
        if dice.random() < 0.8:
            talk.login()
        speakers.append(Speaker(dice, talk, messages))
    for _ in range(dice.randrange(1, 4)):
        for speaker in speakers:
            talk = speaker.talk
            talk.now_ms = max(one.talk.now_ms for one in speakers)
            speaker.run(dice.randrange(acts) // len(speakers) + 1)
    rows = []
    for speaker in speakers:
        if dice.random() < 0.4:
            speaker.talk.goodbye()
        rows += _mutated(dice, speaker.talk.rows) if dice.random() < 0.5 else speaker.talk.rows
    if messages and dice.random() < 0.4:
        rows += _between_brokers(dice, host, messages)
    if rows and dice.random() < 0.1:
        lost = dice.choice(rows)["stream"]
        rows = [row for row in rows if row["stream"] != lost]
    ended = {
        (row["source"], row["stream"]): _some_end(dice, row) for row in rows if dice.random() < 0.02
    }
    if dice.random() < 0.15:
        rows += _seen_elsewhere(dice, rows)
    if dice.random() < 0.1:
        rows = [row | {"captured_ns": None, "frame": None} for row in rows]
    if dice.random() < 0.1:
        rows = [_in_file(row) for row in rows]
    return rows, ended


def conversations(seed: int, count: int) -> tuple[list[Row], Ends]:
    """Return the rows of some conversations, and which streams ended."""
    rows: list[Row] = []
    ended: dict[tuple[str, str], tuple[int | None, int | None]] = {}
    for number in range(count):
        some, these = conversation(seed * 100_000 + number, number)
        rows += some
        ended |= these
    return rows, ended


def _some_end(dice: random.Random, row: Row) -> tuple[int | None, int | None]:
    """Return when a stream ends: at a packet or later, or at an unknown time."""
    if dice.random() < 0.2:
        return None, None
    return row["captured_ns"] + dice.randrange(3) * MS * 1000, row["frame"]


def _in_file(row: Row) -> Row:
    """Return a packet as a raw stream has it, with neither times nor endpoints."""
    nowhere = dict.fromkeys(
        ("src_addr", "src_port", "dst_addr", "dst_port", "captured_ns", "frame")
    )
    return row | nowhere


def _between_brokers(dice: random.Random, host: str, messages: list[Row]) -> list[Row]:
    """Return GPackets that bring messages to another broker, and acknowledgements back."""
    found = []
    ends = {"src_addr": f"{host}.1", "src_port": 9, "dst_addr": f"{host}.2", "dst_port": 9}
    back = {"src_addr": f"{host}.2", "src_port": 9, "dst_addr": f"{host}.1", "dst_port": 9}
    for place in range(dice.randrange(1, 9)):
        message = dice.choice(messages)
        at_ns = message["captured_ns"] + dice.randrange(-2, 9) * MS
        consumers = [dice.randrange(9) for _ in range(dice.randrange(3))]
        row = relayed(message, consumers, at_ns, broken=dice.choice((0, 0, 0, 1)))
        row |= {"stream": f"{host}.1:9>{host}.2:9"} | ends
        if dice.random() < 0.4:
            row = returned(message, dice.randrange(9), dice.choice((3, 9, 1)), at_ns)
            row |= {"stream": f"{host}.2:9>{host}.1:9"} | back
        row |= {"offset": 1000 * place, "frame": place, "sequence": place, "timestamp": place}
        if dice.random() < 0.2:
            row |= {"sequence": dice.randrange(6), "timestamp": dice.randrange(9)}
        if dice.random() < 0.05:
            row["status"] = "malformed"
        found.append(row)
    return found


def _mutated(dice: random.Random, rows: list[Row]) -> list[Row]:
    """Return packets with some dropped, twice there, moved, or changed."""
    found = []
    for row in rows:
        chance = dice.random()
        if chance < 0.03:
            continue
        found.append(dict(row))
        if chance < 0.06:
            found.append(dict(row))
        elif chance < 0.09:
            found.insert(dice.randrange(len(found)), found.pop())
        elif chance < 0.13:
            _change(dice, found[-1])
    offsets: dict[str, int] = {}
    for row in found:
        row["offset"] = offsets.get(row["stream"], 0)
        offsets[row["stream"]] = row["offset"] + row["size"]
    return found


def _change(dice: random.Random, row: Row) -> None:
    match dice.randrange(7):
        case 0:
            row["sequence"] = dice.randrange(-(1 << 31), 1 << 31)
        case 1:
            row["consumer_id"] = dice.randrange(9)
        case 2:
            row["bit_flags"] ^= dice.choice(list(FLAGS.values()))
        case 3:
            row["captured_ns"] += dice.randrange(-50, 50) * MS
        case 4:
            row["timestamp"] += dice.randrange(-9, 9)
        case 5:
            row["sequence"] = max(row["sequence"] - dice.randrange(4), 0)
        case _:
            row["status"] = "malformed"


def _seen_elsewhere(dice: random.Random, rows: list[Row]) -> list[Row]:
    """Return the packets that another capture point saw."""
    return [
        row | {"source": "other.pcap", "captured_ns": row["captured_ns"] + dice.randrange(1 << 20)}
        for row in rows
        if dice.random() < 0.9
    ]
